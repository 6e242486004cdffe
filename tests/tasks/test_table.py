"""A task needs only its four parts and a table entry: other modules do not name tasks."""

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.predict_file import PredictConfig, predict_file
from roformer_tf.labelled.cells import BadCellError, read_label
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.serving.serve_predictions import as_example
from roformer_tf.tasks.base import Prediction, Task, part
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.metrics import Function, Metric, mean
from roformer_tf.tasks.objective import SigmoidObjective
from roformer_tf.tasks.probabilities import shortest, sigmoid
from roformer_tf.tasks.scoring import Metrics
from roformer_tf.tasks.table import TASKS, TaskName, task_of_problem
from roformer_tf.training.settings import FinetuneOptimizerConfig
from roformer_tf.translation import Message
from tests.support.service_app import served_task
from tests.support.task_files import load_task

PACKAGE = Path(roformer_tf.__file__).parent
OFF = Metric("stars_off", Message("stars off"), "distance", falls=True)


class StarsLabelling(Labelling):
    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        stars = read_label(value)
        if stars not in ("★", "★★", "★★★"):
            raise BadCellError(f"has {stars!r}, which are no stars")
        return len(stars)

    @classmethod
    def learned(cls, training: Sequence[Example]) -> dict[str, Any]:
        return {}

    def target(self, example: Example) -> np.ndarray:
        return np.array([example.label > 1, example.label > 2], np.float32)


class StarsObjective(SigmoidObjective):
    refused_settings: ClassVar[Mapping[str, str]] = {"class_weights": "knows no stars."}


class StarsDecoding(Decoding):
    def predict(self, logits: np.ndarray) -> Prediction:
        scores = sigmoid(logits)
        return Prediction(1 + int((scores > 0.5).sum()), scores)

    def cell_names(self) -> list[str]:
        return ["stars", "more than one"]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        return ["★" * prediction.label, shortest(prediction.scores[0])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"stars": prediction.label}


class StarsMetrics(Metrics):
    all: ClassVar[tuple[Metric, ...]] = (OFF,)
    sureness_kind: ClassVar[Any] = "distance"

    def functions(
        self, gold: Sequence[Label], predictions: Sequence[Prediction]
    ) -> dict[Metric, Function]:
        off = np.abs(np.array([p.label - g for p, g in zip(predictions, gold, strict=True)]))
        return {OFF: lambda weights: mean(off, weights)}

    def describe_labels(self, gold: Sequence[Label]) -> dict[str, Any]:
        return {"labels": {"★" * n: [*gold].count(n) for n in (1, 2, 3)}, "numbers": {}}

    def details(self, examples, predictions):
        return super().details(examples, predictions) | {"brightest": "★★★"}

    def sureness(self, label: Label, prediction: Prediction) -> float:
        return abs(label - prediction.label)

    def describe(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        shown = super().describe(example, prediction)
        return shown | {name: "★" * shown[name] for name in ("gold", "predicted")}


class Stars(Task):
    """An ordinal task: 1 to 3 stars, from the probabilities of at least 2 and at least 3."""

    name: ClassVar[str] = "stars"
    title: ClassVar[str] = "星级 · Stars"
    labelling = part(StarsLabelling)
    objective = part(StarsObjective)
    decoding = part(StarsDecoding)
    metrics = part(StarsMetrics)

    @property
    def outputs(self) -> int:
        return 2


WORDS = {1: "差", 2: "天", 3: "好"}


def write_reviews(path, count, seed):
    """Write reviews whose stars are determined by a repeated character."""
    rng = np.random.default_rng(seed)
    stars = rng.integers(1, 4, count).tolist()
    filler = ["".join(rng.choice(list("我们去公园学习中国"), 3)) for _ in stars]
    rows = [f"{WORDS[n] * 5}{more}\t{'★' * n}\n" for n, more in zip(stars, filler, strict=True)]
    path.write_text("review\tstars\n" + "".join(rows), encoding="utf-8")
    return path, stars


def test_a_custom_task_is_trained_reported_predicted_and_served(
    shallow, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(TASKS, Stars.name, Stars)
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
    train, _ = write_reviews(tmp_path / "train.tsv", 120, 0)
    test, stars = write_reviews(tmp_path / "test.tsv", 40, 1)
    finetune(
        FinetuneConfig(
            checkpoint=str(shallow),
            train=str(train),
            test=str(test),
            output=str(tmp_path / "run"),
            task="stars",
            columns=ColumnsConfig(text_columns=("review",), label_column="stars"),
            optimizer=FinetuneOptimizerConfig(learning_rate=4e-3, layer_decay=1.0),
            epochs=6,
            batch_size=8,
            precision="float32",
            language="en",
        )
    )
    assert "task stars" in capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert (report["task"], report["metric"]) == ("stars", "stars_off")
    assert "baseline" not in report
    assert report["test"]["stars_off"] < 0.3  # always predicting two stars gives 0.7
    page = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert report["brightest"] == "★★★"
    assert f"| test set | 40 | {report['test']['stars_off']:.4g} " in page
    evaluations = (tmp_path / "run" / "evaluations.jsonl").read_text(encoding="utf-8")
    figures = [json.loads(line)["stars_off"] for line in evaluations.splitlines()]
    assert report["valid"]["stars_off"] == min(figures) < max(figures)  # lower is better

    folder, answers = tmp_path / "run" / "model", tmp_path / "answers.tsv"
    assert isinstance(load_task(folder), Stars)
    predict_file(PredictConfig(model=str(folder), input=str(test), output=str(answers)))
    header, *lines = answers.read_text(encoding="utf-8").splitlines()
    assert header == "stars\tmore than one\terror"
    stars_predicted = [len(line.split("\t")[0]) for line in lines]
    off = np.mean(np.abs(np.array(stars_predicted) - stars))
    assert report["test"]["stars_off"] == pytest.approx(off)

    served = served_task(folder)
    examples = [as_example(["好好好好好我们去"], served.task)]
    (prediction,) = served.predict(examples)
    assert served.task.decoding.as_json(examples[0], prediction) == {"stars": 3}


def test_no_other_module_names_a_task():
    actual = []
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "tasks" in path.parents:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        actual += [(path.name, value) for value in constants if value in TASKS]
    assert set(actual) == {
        ("heads.py", "embedding"),  # an output name of SimBERT-style models
        ("tokenizer_json.py", "pair"),  # the template's key in tokenizer.json
        ("serve_vectors.py", "embedding"),  # the task name in the service's responses
        ("vector_files.py", "embedding"),  # the column of vectors
        ("annotations.py", "spans"),  # a common name of an entity column
        ("reading.py", "spans"),  # a column that `predict` writes
    }


def test_task_names_are_the_keys_of_the_table():
    assert get_args(TaskName) == tuple(TASKS)
    assert all(name == task.name for name, task in TASKS.items())


def test_a_regression_of_several_numbers_is_rejected():
    with pytest.raises(InputError, match="m predicts 2 numbers; only models of one number"):
        task_of_problem("regression", ("x", "y"), 128, ("text",), "m")


def test_an_unknown_task_name_in_a_folder_is_rejected(tmp_path):
    (tmp_path / "task.json").write_text('{"name": "poems"}', encoding="utf-8")
    with pytest.raises(InputError, match="no task 'poems'"):
        load_task(tmp_path)
