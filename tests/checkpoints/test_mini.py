"""The checkpoint in the package is found by name and loaded in float32 without a network."""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import roformer_tf
from roformer_tf.checkpoints.registry import MINI, locate, own
from roformer_tf.cli import main
from roformer_tf.conversion.downloads import table
from roformer_tf.engines.choice import installed
from roformer_tf.finetuning.command import read_initial_state
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.fill_mask import MaskedModel, candidates
from roformer_tf.inference.opening import open_model
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

ROOT = Path(__file__).parents[2]
TEXTS = ["今天[MASK]气很好", "这家酒店的[MASK]很[MASK]，下次还会来。"]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Run in an empty folder, and check that the cache stays empty."""
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "cache").exists()


@pytest.fixture(scope="module")
def model():
    return RoFormerForMaskedLM.from_pretrained(MINI)


def test_the_package_includes_its_files_in_at_most_16_mb():
    names = {file.name for file in own().iterdir()}
    needed = {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "README.md"}
    assert names >= needed
    assert (own() / "model.safetensors").stat().st_size <= 16 << 20
    matrices = [array for array in load_file(own() / "model.safetensors").values() if array.ndim]
    float16_size = sum(array.size for array in matrices if array.dtype == np.float16)
    assert float16_size > 0.9 * sum(array.size for array in matrices)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^roformer_tf = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    patterns = re.findall(r'"([^"]+)"', listed[1])
    for file in own().iterdir():
        path = file.relative_to(Path(roformer_tf.__file__).parent).as_posix()
        assert any(fnmatch(path, pattern) for pattern in patterns), path
    ignored = subprocess.run(
        ["git", "check-ignore", *map(str, own().iterdir())],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not ignored.stdout


def test_its_name_is_a_source_unless_a_folder_has_it(tmp_path):
    assert locate(MINI) == own()
    assert read_vocabulary(MINI) == RoFormerTokenizer.from_pretrained(MINI).vocabulary
    (tmp_path / MINI).mkdir()
    assert locate(MINI) == Path(MINI)


def test_the_mini_model_is_listed_and_needs_no_download(capsys):
    row = next(line for line in table().splitlines() if MINI in line)
    assert re.search(r"\d × \d+  in this package, 1?\d MB$", row)
    assert "Apache-2.0" in table()
    assert main(["checkpoints", "download", MINI]) == 0
    assert capsys.readouterr().out == f"{own()}\n"
    with pytest.raises(roformer_tf.InputError, match=f"Did you mean {MINI}"):
        locate("chinese_roformer-tf-min")


def test_weights_are_loaded_in_float32(model):
    stored = load_file(own() / "model.safetensors")
    assert {variable.dtype for variable in model.weights} == {"float32"}
    words = model.encoder.embeddings.word.embeddings
    expected = stored["roformer.embeddings.word_embeddings.weight"].astype("float32")
    np.testing.assert_array_equal(words, expected)
    assert json.loads((own() / "config.json").read_text("utf-8"))["dtype"] == "float32"


def test_one_text_and_several_are_filled():
    fill = roformer_tf.load(MINI)
    filled = fill(TEXTS[0])
    assert re.fullmatch(r"今天[^\[]+气很好", filled["filled"])
    assert fill(TEXTS)[0]["filled"] == filled["filled"]


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_the_engines_give_the_probabilities_of_keras(engine, model):
    if not installed(engine):
        pytest.skip(f"{engine} is not installed")
    with open_model(MINI, engine, "float32") as opened:
        graph_model = MaskedModel.of(opened)
    slow = MaskedModel(model, model.tokenizer)
    for keras_masks, theirs in zip(
        candidates(slow, TEXTS), candidates(graph_model, TEXTS), strict=True
    ):
        for mask, other in zip(keras_masks, theirs, strict=True):
            assert [x.token for x in mask] == [x.token for x in other]
            np.testing.assert_allclose(
                [x.probability for x in mask], [x.probability for x in other], atol=1e-4
            )


def test_finetune_starts_from_the_mini_model():
    config = FinetuneConfig(train="x.tsv", output="run", precision="float32")
    initial = read_initial_state(config, TASKS["classification"])
    first = load_file(own() / "model.safetensors")["roformer.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(initial.weights["encoder/embeddings/word/embeddings"], first)


@pytest.mark.slow
def test_the_quick_start_runs_as_typed(tmp_path):
    """The quick start's commands run, each in a new process."""
    rows = [f"很{'好' if n % 2 else '差'}{n}\t{n % 2}\n" for n in range(60)]
    (tmp_path / "file.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    code = f"import roformer_tf; print(roformer_tf.load({MINI!r})({TEXTS[0]!r}))"
    for command in (
        ["-c", code],
        ["-m", "roformer_tf", "finetune", "--train", "file.tsv", "--output", "run"],
        [
            "-m",
            "roformer_tf",
            "predict",
            "run/model",
            "--input",
            "file.tsv",
            "--output",
            "a.tsv",
        ],
    ):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *command], check=True, env=environment)
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "a.tsv").read_text(encoding="utf-8").count("\n") >= 60


@pytest.mark.hf
def test_transformers_gives_our_logits_without_arguments(model):
    import torch
    import transformers

    theirs = transformers.AutoModelForMaskedLM.from_pretrained(own()).eval()
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.float32}
    ids, segments = RoFormerTokenizer.from_pretrained(MINI)(["今天天气很好，可以去公园。"]).values()
    our_logits = np.asarray(model({"token_ids": ids, "segment_ids": segments}))
    with torch.no_grad():
        logits = theirs(
            input_ids=torch.tensor(ids).long(), token_type_ids=torch.tensor(segments).long()
        ).logits
    np.testing.assert_allclose(logits.numpy(), our_logits, atol=1e-4)
