"""Tests of predictions by fine-tuned models, and of invalid model folders."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.tagging import Tagging
from tests.support.finetuned import load_finetuned, predict
from tests.support.random_model import LETTERS, random_model, tokenizer_of
from tests.support.service_app import served_task

TOKENIZER = tokenizer_of()
SIZES = {  # two layers, with weights large enough to affect the result
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
LENGTHS = [1, 300, 7, 7, 64, 31, 2, 129, 250, 16, 14, 15, 90]
TASKS = {
    "classification": Classification(labels=("好", "坏", "一般"), max_length=512),
    "tagging": Tagging(labels=("B-LOC", "I-LOC", "O"), max_length=512),
}


def texts_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), length)) for length in lengths]


def examples_of(*texts):
    return [Example((text,), None, f"x:{i}", tuple(text)) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def models():
    return {name: random_model(task, TOKENIZER, **SIZES) for name, task in TASKS.items()}


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    """A folder with a random model, as `finetune` writes it."""
    path = tmp_path_factory.mktemp("finetuned") / "model"
    models["classification"].save_pretrained(path)
    TASKS["classification"].save(path)
    return path


@pytest.mark.quick_cases("classification-1", "tagging-32")
@pytest.mark.parametrize("batch_size", [1, 4, 32])
@pytest.mark.parametrize("name", TASKS)
def test_texts_of_mixed_lengths_are_predicted_as_each_alone(models, name, batch_size):
    model, task = models[name], TASKS[name]
    examples = examples_of(*texts_of(LENGTHS))
    got = task.decoding.run(model, task.labelling.encode(examples, TOKENIZER), batch_size)
    for example, logits in zip(examples, got, strict=True):
        ids, segments = np.int32(TOKENIZER.encode(example.texts[0]))
        (want,) = np.asarray(model({"token_ids": ids[None], "segment_ids": segments[None]}))
        assert logits.shape == want.shape
        assert np.abs(logits - want).max() <= 1e-5
    predictions = predict(model, TOKENIZER, task, examples, batch_size)
    for prediction, logits in zip(predictions, got, strict=True):
        unit_logits = (
            logits if name == "classification" else logits[1:-1]
        )  # without [CLS] and [SEP]
        best = np.argmax(unit_logits, axis=-1)
        if name == "classification":
            assert prediction.label == task.labels[best]
        else:
            assert prediction.label == tuple(task.labels[i] for i in best)


@pytest.mark.usefixtures("eager_steps")
def test_a_prediction_of_windows_uses_their_mean_logits(models):
    task = dataclasses.replace(TASKS["classification"], max_length=50, long_texts="windows")
    (text,) = texts_of([90])
    ids = TOKENIZER.encode(text)[0][1:-1]
    logits = [
        np.asarray(models["classification"]({"token_ids": np.int32([[2, *part, 3]])}))[0]
        for part in (ids[:48], ids[36:84], ids[42:])
    ]
    (prediction,) = predict(models["classification"], TOKENIZER, task, examples_of(text))
    want = np.exp(np.mean(logits, axis=0))
    np.testing.assert_allclose(prediction.scores, want / want.sum(), atol=1e-5)


def test_no_examples_give_no_predictions():
    assert predict(None, TOKENIZER, TASKS["classification"], []) == []


@pytest.mark.usefixtures("eager_steps")
def test_a_saved_model_predicts_the_same(models, folder):
    model, tokenizer, task = load_finetuned(folder)
    assert task == TASKS["classification"]
    assert tokenizer.vocabulary == TOKENIZER.vocabulary
    examples = examples_of(*texts_of(LENGTHS[:4]))
    before, after = (
        predict(item, TOKENIZER, task, examples) for item in (models["classification"], model)
    )
    for item, other in zip(before, after, strict=True):
        np.testing.assert_allclose(item.scores, other.scores, atol=1e-6)


@pytest.mark.usefixtures("eager_steps")
def test_bfloat16_predictions_are_close(folder):
    examples = examples_of(*texts_of(LENGTHS))
    exact, rounded = (
        predict(*load_finetuned(folder, precision), examples)
        for precision in ("float32", "bfloat16")
    )
    differences = [np.abs(x.scores - y.scores).max() for x, y in zip(exact, rounded, strict=True)]
    assert 1e-5 < max(differences) < 0.05
    assert all(item.scores.dtype == np.float32 for item in rounded)


def changed(folder, tmp_path, change):
    copy = shutil.copytree(folder, tmp_path / "model")
    change(copy)
    return copy


def without(name):
    return lambda folder: (folder / name).unlink()


def without_a_vocabulary(folder):
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").unlink(missing_ok=True)  # it has a vocabulary as well


def with_another_label(folder):
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    (folder / "task.json").write_text(json.dumps(task | {"labels": ["好", "坏"]}))


def with_another_vocabulary(folder):
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("甲\n乙\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_vocabulary, r"no vocab\.txt"),
        (with_another_label, "do not belong together: its task has 2 labels"),
        (with_another_vocabulary, "ids, but its weights have"),
    ],
)
def test_incomplete_and_inconsistent_folders_are_refused(folder, tmp_path, change, message):
    copy = changed(folder, tmp_path, change)
    with pytest.raises(InputError, match=message) as error:
        load_finetuned(copy)
    assert str(copy) in str(error.value)


@pytest.mark.usefixtures("eager_steps")
def test_labels_are_predicted_by_the_saved_thresholds(finetuned, tmp_path):
    """Folders of earlier versions have no thresholds; 0.5 is used."""
    folder = shutil.copytree(finetuned("multilabel"), tmp_path / "model")
    values = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    texts, names = texts_of([9] * 40), np.array(values["labels"])
    source, target = tmp_path / "texts.txt", tmp_path / "answers.tsv"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")

    def predicted_labels(thresholds):
        (folder / "task.json").write_text(json.dumps(values | thresholds), encoding="utf-8")
        actual = predict(*load_finetuned(folder), examples_of(*texts))
        labels = [item.label for item in actual]
        served = served_task(folder).predict(examples_of(*texts))
        assert [item.label for item in served] == labels
        flags = {"--model": folder, "--input": source, "--output": target}
        assert main(["predict", *(str(word) for pair in flags.items() for word in pair)]) == 0
        lines = target.read_text(encoding="utf-8").splitlines()[1:]
        assert [line.split("\t")[0] for line in lines] == [",".join(item) for item in labels]
        return np.array([item.scores for item in actual]), labels

    assert values.pop("thresholds") == []
    scores, default_labels = predicted_labels({})
    assert default_labels == [tuple(names[row > 0.5]) for row in scores]
    thresholds = np.quantile(scores, [0.2, 0.5, 0.9], axis=0).diagonal()
    again, threshold_labels = predicted_labels({"thresholds": thresholds.tolist()})
    np.testing.assert_allclose(again, scores, atol=1e-6)
    assert threshold_labels == [tuple(names[row > thresholds]) for row in again]
    assert threshold_labels != default_labels
    (folder / "task.json").write_text(json.dumps(values | {"thresholds": [0.3]}))
    with pytest.raises(InputError, match="1 thresholds for 3 labels"):
        load_finetuned(folder)


@pytest.mark.usefixtures("eager_steps")
def test_a_classifier_of_transformers_gives_the_same_everywhere(released, tmp_path):
    folder, texts = str(released("hf_word_seqcls")), ["今天天气很好", "北京", "我们去公园学习"]
    load = roformer_tf.load(folder, engine="keras")
    want = [x["label"] for x in load(texts)]
    served = served_task(folder, engine="keras").predict(examples_of(*texts))
    assert [x.label for x in served] == want
    pairs = list(zip(texts, texts[::-1], strict=True))
    data, scores, output = (tmp_path / name for name in ("data.tsv", "x.json", "x.jsonl"))
    rows = [(*pair, x["label"]) for pair, x in zip(pairs, load(pairs), strict=True)]
    lines = ["\t".join(row) + "\n" for row in [("a", "b", "label"), *rows]]
    data.write_text("".join(lines), "utf-8")
    flags = ["--text-columns", "a", "b", "--engine", "keras"]
    assert main(["evaluate", folder, "--data", str(data), *flags, "--output", str(scores)]) == 0
    assert json.loads(scores.read_text("utf-8"))["test"]["accuracy"] == 1.0
    assert main(["predict", folder, "--input", str(data), *flags, "--output", str(output)]) == 0
    lines = output.read_text("utf-8").splitlines()
    assert [json.loads(line)["label"] for line in lines] == [label for *_, label in rows]


@pytest.mark.slow
def test_a_classifier_of_transformers_is_exported_as_one(released, tmp_path):
    folder, texts = released("hf_word_seqcls"), ["今天天气很好", "北京", "我们去公园学习"]
    export(folder, tmp_path / "export", "savedmodel")
    want = roformer_tf.load(folder, engine="keras")(texts)
    for actual, wanted in zip(roformer_tf.load(tmp_path / "export")(texts), want, strict=True):
        assert actual["label"] == wanted["label"]
        assert actual["scores"] == pytest.approx(wanted["scores"], abs=1e-5)
