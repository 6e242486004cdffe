"""The examples run unchanged and give the promised results."""

import re
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from roformer_tf import RoFormerForSentenceSimilarity

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """run("file.py", *arguments) → the output of an example that runs in an empty folder."""

    def start(name, *arguments):
        monkeypatch.chdir(tmp_path)
        keras.utils.set_random_seed(0)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return start


@pytest.mark.slow
def test_finetune_with_keras(run, tmp_path):
    reviews = tmp_path / "reviews.tsv"
    rows = [f"第{number}条评论很{'好差'[number % 2]}\t{number % 2}" for number in range(480)]
    reviews.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    printed = run("finetune_with_keras.py", "chinese_roformer-tf-mini", reviews)
    correct, total = map(int, re.search(r"(\d+) of (\d+) held-out texts right", printed).groups())
    assert total == 96
    assert correct > 90  # one character determines the label
    assert {path.name for path in (tmp_path / "finetuned").iterdir()} >= {"task.json", "vocab.txt"}


def test_sentence_vectors(run, released):
    """The printed cosines equal those of separately encoded sentences, computed in NumPy."""
    first = "今天天气很好，适合出门。"
    rest = ["天气不错，可以去公园走走。", "这家公司发布了新的手机。"]
    model = RoFormerForSentenceSimilarity.from_pretrained(released("sim_char"))
    ids = [model.tokenizer.encode(sentence)[0] for sentence in [first, *rest]]
    vectors = [np.asarray(model({"token_ids": np.array([row])})["embedding"])[0] for row in ids]
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = [vectors[0] @ vectors[n] / (lengths[0] * lengths[n]) for n in (1, 2)]
    lines = run("sentence_vectors.py", released("sim_char")).splitlines()
    assert [line.split("  ")[1] for line in lines] == rest
    assert [float(line.split()[0]) for line in lines] == pytest.approx(cosines, abs=0.00051)
    assert cosines[0] != pytest.approx(cosines[1], abs=0.01)


@pytest.mark.slow
def test_rotary_attention_in_your_model(run):
    last = run("rotary_attention_in_your_model.py").splitlines()[-1]
    assert float(last.split("val_accuracy: ")[1].split()[0]) > 0.8  # a guess gives 0.55


@pytest.mark.slow
def test_rotary_attention_in_your_model_runs(run, monkeypatch):
    """Run on a few rows, which are too few to learn from."""
    fit = keras.Model.fit
    fit_settings = {"epochs": 1, "verbose": 2, "validation_split": 0.1}
    monkeypatch.setattr(
        keras.Model, "fit", lambda model, x, y, **_: fit(model, x[:256], y[:256], **fit_settings)
    )
    last = run("rotary_attention_in_your_model.py").splitlines()[-1]
    assert 0 <= float(last.split("val_accuracy: ")[1].split()[0]) <= 1


def test_every_example_is_tested():
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in tested


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda x: x.name)
def test_an_example_uses_only_public_names(path):
    modules = re.findall(r"^(?:from|import) (roformer_tf[\w.]*)", path.read_text(), re.MULTILINE)
    assert set(modules) == {"roformer_tf"}


@pytest.mark.slow
def test_images_with_two_axes():
    """Each kind of model uses the positions that its name promises.

    Training itself takes minutes.
    """
    example = runpy.run_path(str(ROOT / "examples" / "images_with_two_axes.py"))
    shapes = {(4, 6): 0, (6, 4): 0}
    patches, places = example["framed"](list(shapes), 0)
    assert (patches.shape, places.shape) == ((1797, 24, 4), (1797, 24, 2))
    for pixels, grid, digit in zip(patches, places, example["digits"].images, strict=True):
        rows, columns = grid.max(axis=0) + 1
        shapes[rows, columns] += 1
        assert (grid == np.stack(np.divmod(np.arange(24), columns), axis=1)).all()
        frame = np.zeros((rows, 2, columns, 2))
        frame[grid[:, 0], :, grid[:, 1]] = pixels.reshape(24, 2, 2)
        middle = np.s_[rows - 4 : rows + 4, columns - 4 : columns + 4]
        assert (frame.reshape(2 * rows, 2 * columns)[middle] * 16 == digit).all()
        assert frame.sum() * 16 == digit.sum()
    assert min(shapes.values()) > 850
    patches, places = patches[:8], places[:8]
    order = np.random.default_rng(0).permutation(24)
    changed = {
        "patches": (patches[:, order], places),
        "places": (patches, places[..., ::-1]),
        "both": (patches[:, order], places[:, order]),
    }
    effects = {kind: {"patches", "both"} for kind in example["KINDS"]}
    effects |= {"no positions": set(), "rotary, two axes": {"patches", "places"}}
    for kind, output in effects.items():
        keras.utils.set_random_seed(0)
        model = example["classifier"](kind, 24)
        logits = np.asarray(model([patches, places]))
        assert logits.shape == (8, 10)
        for name, inputs in changed.items():
            gap = np.abs(np.asarray(model(list(inputs))) - logits).max()
            assert gap > 1e-3 if name in output else gap < 1e-4, (kind, name)
