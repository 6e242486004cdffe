"""`roformer_tf.finetune` gives the results of the command, from data and settings in Python."""

import json
import shutil

import keras
import numpy as np
import pytest
import yaml

import roformer_tf
from roformer_tf import adaptation
from roformer_tf.checkpoints.registry import MINI
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.finetuning.report import pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.flags import from_keywords
from tests.support.random_model import LETTERS

SETTINGS = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "precision": "float32", "seed": 3}


@pytest.fixture(scope="module", autouse=True)
def quick(eagerly):
    """Run steps without tracing, and write reports without the embedded font."""
    with eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "cut_font", lambda characters: b"font")
        yield


def rows(count, seed):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list(LETTERS), 8)) for _ in range(count)]
    return [(text, "好坏"[number % 2]) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def runs(shallow, tmp_path_factory):
    """Run the command on files, and the function on tuples and dictionaries of the same rows."""
    folder = tmp_path_factory.mktemp("runs")
    train, test = rows(24, 0), rows(12, 1)
    for name, examples in (("train", train), ("test", test)):
        lines = ["text\tlabel", *map("\t".join, examples)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    words += [f"--{name}={folder / name}.tsv" for name in ("train", "test")]
    command = ["finetune", f"--checkpoint={shallow}", f"--output={folder / 'command'}"]
    assert main([*command, *words, "--no-baseline"]) == 0
    as_dicts = [dict(zip(("text", "label"), row, strict=True)) for row in test]
    result = roformer_tf.finetune(
        shallow, train, folder / "python", test=as_dicts, baseline=False, **SETTINGS
    )
    return folder, result


def test_python_and_the_command_use_the_same_settings(runs):
    folder, _ = runs
    python_settings, command_settings = (
        yaml.safe_load((folder / name / "settings.yaml").read_text("utf-8"))
        for name in ("python", "command")
    )
    files = {"train", "test", "output"}
    assert {k: v for k, v in python_settings.items() if k not in files} == {
        k: v for k, v in command_settings.items() if k not in files
    }


def comparable(report):
    """A report without file names and times."""
    rest = {name: value for name, value in report.items() if name not in ("seconds", "settings")}
    return rest | {"mistakes": [{**mistake, "place": ""} for mistake in report["mistakes"]]}


def test_report_and_weights_equal_those_of_the_command(runs):
    folder, result = runs
    report = json.loads((folder / "command" / "report.json").read_text("utf-8"))
    assert comparable(result.report) == comparable(report)
    weights = [folder / name / "model" / "model.safetensors" for name in ("command", "python")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_result_predicts_as_load_does_and_has_the_model(runs):
    folder, result = runs
    texts = [text for text, _ in rows(12, 1)]
    predictions = result.predict(texts)
    assert predictions == roformer_tf.load(folder / "command" / "model")(texts)
    correct = [x["label"] == label for x, (_, label) in zip(predictions, rows(12, 1), strict=True)]
    assert np.mean(correct) == result.report["test"]["accuracy"]
    logits = result.model(result.model.tokenizer(texts))
    scores = np.asarray(keras.ops.softmax(logits))
    names = ["坏", "好"]  # sorted
    for row, prediction in zip(scores, predictions, strict=True):
        expected = [prediction["scores"][name] for name in names]
        np.testing.assert_allclose(row, expected, atol=1e-2)  # `predict` may use bfloat16


def test_a_finished_run_is_used_again_and_other_rows_are_refused(runs, shallow):
    folder, result = runs
    settings = {**SETTINGS, "test": rows(12, 1), "baseline": False}
    weights = (folder / "python" / "model" / "model.safetensors").read_bytes()
    train = rows(24, 0)
    with pytest.raises(InputError, match=r"python holds other examples .*: train differs\."):
        roformer_tf.finetune(shallow, train[1:], folder / "python", **settings)
    again = roformer_tf.finetune(shallow, train, folder / "python", **settings)
    assert again.report["test"] == result.report["test"]
    assert (folder / "python" / "model" / "model.safetensors").read_bytes() == weights


def test_a_run_on_data_in_memory_may_be_moved(runs, shallow, tmp_path):
    """Also, the same folder may be given by its absolute path: settings.yaml has train.jsonl's."""
    folder, result = runs
    moved = shutil.copytree(folder / "python", tmp_path / "moved")
    settings = {**SETTINGS, "test": rows(12, 1), "baseline": False}
    again = roformer_tf.finetune(shallow, rows(24, 0), moved, **settings)
    assert again.report["test"] == result.report["test"]


@pytest.mark.parametrize(
    ("train", "settings", "message"),
    [
        (
            rows(8, 0),
            {"lerning_rate": 1},
            r"no setting 'lerning_rate'\. Did you mean learning_rate",
        ),
        (rows(8, 0), {"lr": 1}, r"no setting 'lr'\. Did you mean learning_rate\?"),
        (rows(8, 0), {"epochs": "many"}, r"^epochs is many, but must be a whole number or auto\."),
        (rows(8, 0), {"folds": 1}, r"^folds is 1, but must be at least 2"),
        # Not the names "a" and "A", in this order.
        (rows(8, 0), {"label_names": {"a": "A"}}, r"^label_names has 1 different names"),
        (rows(8, 0), {"batch_size": {"a": 8}}, r"^batch_size is a=8, but must be a whole number"),
        ([("字", None)] * 3, {}, r"train:1-3 has no label"),
        ([("字", "a"), ("字", "b")], {"task": "tagging"}, r"^train: tagging needs a label"),
        (5, {}, r"^train is 5\. Give the path of a file"),
        ("nowhere.tsv", {}, r"there is no file nowhere\.tsv"),
        (rows(8, 0), {"valid": [5]}, r"^row 1 of valid is 5"),
        (
            [{"x": "字天", "y": "d", "z": "e"}] * 4,
            {},
            r"Give label_column x, label_column y or label_column z",
        ),
    ],
)
def test_bad_input_is_reported_with_python_names_and_leaves_no_files(
    train, settings, message, shallow, tmp_path
):
    with pytest.raises(InputError, match=message):
        roformer_tf.finetune(shallow, train, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argument", "written", "used"),
    [(None, None, MINI), (None, "base.zip", "base.zip"), ("own.zip", "base.zip", "own.zip")],
)
def test_without_a_checkpoint_it_is_that_of_the_config(
    argument, written, used, tmp_path, monkeypatch
):
    configs = []
    monkeypatch.setattr(adaptation, "finetune", lambda config, files: configs.append(config))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"checkpoint": written} if written else {}))
    roformer_tf.finetune(argument, "x.tsv", tmp_path / "run", config=tmp_path / "run.yaml")
    assert [config.checkpoint for config in configs] == [used]


@pytest.mark.slow
def test_matching_texts_need_no_label(shallow, tmp_path):
    """A tuple of two texts is a pair for an embedding model, not a text with its label."""
    pairs = [(first[0], second[0]) for first, second in zip(rows(24, 2), rows(24, 3), strict=True)]
    result = roformer_tf.finetune(
        shallow, pairs, tmp_path / "run", task="embedding", baseline=False, **SETTINGS
    )
    first, second = (x["vector"] for x in result.predict(list(pairs[0])))
    assert np.linalg.norm(first) == pytest.approx(1)
    assert first.shape == second.shape
    assert (tmp_path / "run" / "train.jsonl").read_text("utf-8").startswith('{"1": ')
    assert result.model(result.model.tokenizer([pairs[0][0]])).shape == (1, len(first))


@pytest.mark.parametrize(
    ("keywords", "field", "value"),
    [
        ({"batch_size": np.int64(4)}, "batch_size", 4),
        ({"crf": True}, "crf", True),
        ({"baseline": False}, "baseline", False),
        ({"export": "onnx", "lexical_features": "no"}, "export", ("onnx",)),
        ({"export": ["onnx", "int8"], "lexical_features": "no"}, "export", ("onnx", "int8")),
        ({"export": ()}, "export", ()),
        ({"label_names": np.array(["坏", "好"])}, "label_names", ("坏", "好")),
        ({"epochs": None}, "epochs", "auto"),
        ({"config": "few_examples"}, "seeds", 5),
        ({"config": "few_examples", "seeds": 2}, "seeds", 2),
    ],
)
def test_values_have_the_types_of_the_flags(keywords, field, value):
    config = from_keywords(FinetuneConfig, {"train": "x", "output": "y", **keywords})
    assert getattr(config, field) == value
    assert from_keywords(FinetuneConfig, {"train": "x", "output": "y"}).checkpoint


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow keeps gradients")
def test_a_training_leaves_no_gradients_in_tensorflow(shallow, tmp_path):
    """A gradient keeps the graph of its training step, and so all weights and moments."""
    from tensorflow.python.framework.ops import gradient_registry

    def gradients():
        return {name for name in gradient_registry.list() if name.startswith("CustomGradient-")}

    before = gradients()
    roformer_tf.finetune(shallow, rows(24, 0), tmp_path, baseline=False, **SETTINGS)
    assert gradients() == before
