"""Reports of `finetune` equal the model's predictions in every engine, and interrupted runs resume.

An interrupted run must end with the losses, metrics and weights of an uninterrupted one.
"""

import csv
import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines import choice
from roformer_tf.finetuning import trial
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from tests.support.finetuned import load_finetuned, predict
from tests.support.random_model import LETTERS, TINY, tokenizer_of
from tests.support.wiring import assert_wired

pytestmark = pytest.mark.usefixtures("eager_steps")

ENGINES = {"keras": None, "onnx": "onnxruntime", "openvino": "openvino"}


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # takes long


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """An encoder with random weights and dropout."""
    keras.utils.set_random_seed(3)
    tokenizer = tokenizer_of()
    encoder = RoFormerEncoder(RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size))
    encoder.tokenizer = tokenizer
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    encoder.save_pretrained(folder)
    return folder


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), rng.integers(3, 16))) for _ in range(count)]


def labels(text):
    """Several labels, each for one letter in the text."""
    return tuple(label for label, letter in zip("丙甲乙", "今我学", strict=True) if letter in text)


def tags(text):
    """A word begins at each letter from the first half of the alphabet."""
    first = [letter in LETTERS[: len(LETTERS) // 2] for letter in text]
    started = np.maximum.accumulate(first)
    return tuple("B-词" if b else "I-词" if s else "O" for b, s in zip(first, started, strict=True))


def pairs(count, seed):
    """Pairs of texts, labelled by whether most letters of the second are in the first."""
    text_pairs = zip(texts(count, seed), texts(count, seed + 50), strict=True)
    return [(a, b, "是" if len({*b} - {*a}) < len({*b}) / 2 else "否") for a, b in text_pairs]


def write(path, count, seed):
    """Write labelled texts in the format of the file's suffix."""
    if path.suffix == ".csv":
        lines = [",".join(row) for row in [("a", "b", "label"), *pairs(count, seed)]]
        path.write_text("\n".join(lines), encoding="utf-8")
    elif path.suffix == ".conll":
        units = [zip(text, tags(text), strict=True) for text in texts(count, seed)]
        lines = ["".join(f"{unit}\t{tag}\n" for unit, tag in item) for item in units]
        path.write_text("\n".join(lines), encoding="utf-8")
    else:
        lines = [f"{text}\t{';'.join(labels(text))}\n" for text in texts(count, seed)]
        path.write_text("text\tlabels\n" + "".join(lines), encoding="utf-8")
    return path


TASKS = {  # flags, and the task's fields if the setting were ignored
    "thresholds": (
        ["--task", "multilabel", "--label-separator", ";", "--class-weights", "balanced"],
        {"thresholds": ()},
    ),
    "crf": (["--task", "tagging", "--crf"], {"crf": False}),
}


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory):
    """trained("crf") → the folder and the command.

    Its first call trains, later ones only report.
    """

    @cache
    def make(name):
        folder = tmp_path_factory.mktemp("run")
        suffix = {"crf": ".conll", "segments": ".csv"}.get(name, ".tsv")
        sizes = {"train": 32, "valid": 16, "test": 16}
        files = [
            (f"--{part}", write(folder / f"{part}{suffix}", count, seed))
            for seed, (part, count) in enumerate(sizes.items())
        ]
        flags = [
            *("--checkpoint", checkpoint, "--output", folder / "run", "--epochs", 2),
            *(
                "--batch-size",
                16,
                "--learning-rate",
                0.1,
                "--layer-decay",
                1.0,
                "--precision",
                "float32",
            ),
            *(word for pair in files for word in pair),
        ]
        return folder, ["finetune", *map(str, flags), *TASKS[name][0], "--no-baseline"]

    return make


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", TASKS)
def test_reported_metrics_equal_the_models_in_every_engine(case, engine, trained, monkeypatch):
    if ENGINES[engine] and not find_spec(ENGINES[engine]):
        pytest.skip(f"needs {ENGINES[engine]}")
    monkeypatch.setattr(choice, "installed", lambda name: name == engine)
    folder, command = trained(case)
    assert main(command) == 0
    report = json.loads((folder / "run" / "report.json").read_text("utf-8"))
    assert report["computed_by"] == {"engine": engine, "precision": "float32"}
    model, tokenizer, task = load_finetuned(folder / "run" / "model")
    tokenizer_config = json.loads(
        (folder / "run" / "model" / "tokenizer_config.json").read_text("utf-8")
    )
    assert (
        tokenizer_config["model_max_length"]
        == task.max_length
        < model.config.max_position_embeddings
    )
    assert tokenizer.units == {"crf": "characters"}.get(case)  # for other programs that tokenize
    task = task.decoding.with_arrays(model.named_variables())
    with (folder / "run" / "predictions.tsv").open(encoding="utf-8", newline="") as file:
        rows = [plain(row) for row in csv.DictReader(file, delimiter="\t")]
    want, wrong = (
        figures_and_rows(model, tokenizer, variant, case)
        for variant in (task, replace(task, **TASKS[case][1]))
    )
    figures = {
        part: {name: report[part][name] for name in actual} for part, actual in want[0].items()
    }
    assert_wired([figures, rows], want, {f"{case} lost": wrong}, atol=1e-5)


def figures_and_rows(model, tokenizer, task, case):
    """The metrics of the validation and test set, and the predictions for the test set."""
    figures = {}
    for part, seed in (("valid", 1), ("test", 2)):
        examples, gold = [(x,) for x in texts(16, seed)], [labels(x) for x in texts(16, seed)]
        if case == "crf":
            gold = [tags(x) for x in texts(16, seed)]
        elif case == "segments":
            examples, gold = zip(*((x[:2], x[2]) for x in pairs(16, seed)), strict=True)
        examples = [task.labelling.for_prediction(Example(x, None, "")) for x in examples]
        actual = predict(model, tokenizer, task, examples)
        figures[part] = task.metrics.compute(gold, actual)
    if case == "crf":
        return [figures, [" ".join(item.label) for item in actual]]
    return [figures, [[joined(item.label), *map(float, item.scores)] for item in actual]]


def joined(label):
    """A label, or several labels as in one cell of a table."""
    return label if isinstance(label, str) else ";".join(label)


def plain(row):
    """The tags in a row of predictions.tsv, or its labels and their probabilities."""
    if "tags" in row:
        return row["tags"]
    label = row["labels" if "labels" in row else "label"]
    return [label, *(float(x) for name, x in row.items() if name.startswith("p("))]


@pytest.fixture(scope="module")
def flags(checkpoint, tmp_path_factory):
    """flags(output) → flags of a run of two epochs of four steps, saved every second step."""
    train = write(tmp_path_factory.mktemp("data") / "train.tsv", 32, 0)
    valid = write(train.with_name("valid.tsv"), 16, 1)
    settings = {
        "checkpoint": checkpoint,
        "train": train,
        "valid": valid,
        "label-separator": ";",
        "task": "multilabel",
        "epochs": 2,
        "batch-size": 8,
        "learning-rate": 1e-2,
        "precision": "float32",
        "ema": 0.9,
        "save-every": 2,
        "log-every": 1,
    }
    arguments = [word for key, x in settings.items() for word in (f"--{key}", str(x))]
    return lambda output: ["finetune", *arguments, "--no-baseline", "--output", str(output)]


def result(run, stable_metrics):
    """The outcome of a run: the loss of each step, the metrics of each epoch, and the weights."""
    losses = [line["loss"] for line in stable_metrics(run / "metrics.jsonl")]
    figures = stable_metrics(run / "evaluations.jsonl")
    return losses, figures, (run / "model" / "model.safetensors").read_bytes()


def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    flags, tmp_path, monkeypatch, stable_metrics
):
    uninterrupted, run = (tmp_path / name for name in ("whole", "run"))
    assert main(flags(uninterrupted)) == 0
    save = trial.save_checkpoint

    def interrupted(folder, step, *rest, **settings):
        save(folder, step, *rest, **settings)
        if step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial, "save_checkpoint", interrupted)
        assert main(flags(run)) == 130
    assert not (run / "model").exists()
    assert main(flags(run)) == 0
    assert result(run, stable_metrics) == result(uninterrupted, stable_metrics)
    losses = result(uninterrupted, stable_metrics)[0]
    assert len(set(losses)) == len(losses) == 8  # so that wrong batches are detected
