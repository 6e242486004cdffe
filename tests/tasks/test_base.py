"""Label order, saved fields and the reported mistakes of a task."""

import json

import numpy as np
import pytest

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import RANKED
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.scoring import CHARACTERS, MISTAKES
from roformer_tf.tasks.table import TASKS
from tests.support.task_files import load_task

NUMBERS = tuple(map(str, range(-5, 40)))


def test_labels_are_sorted_numbers_by_value_then_words():
    """A resumed run collects the labels again: another order would permute the model's outputs."""
    for words in (("a", "b"), ("nan", "nü"), ("NaN", "nan", "南")):
        examples = [Example((label,), label, "") for label in (*words[::-1], *NUMBERS[::-1])]
        assert TASKS["classification"].from_examples(examples).labels == (*NUMBERS, *words)


@pytest.mark.parametrize("name", ["classification", "pair", "multilabel", "tagging", "ranking"])
def test_target_and_prediction_use_the_same_label_index(name):
    """A label has the same index in targets, probabilities and predictions."""
    labels = RANKED if name == "ranking" else ("2", "10", "好", "差")
    task = TASKS[name](labels=() if name == "ranking" else labels)
    for index, label in enumerate(labels):
        is_sequence = name in ("multilabel", "tagging")
        target = task.labelling.target(Example(("x",), (label,) if is_sequence else label, ""))
        one_hot = target if name in ("multilabel", "ranking") else np.eye(4)[target]
        assert np.ravel(one_hot).tolist() == [float(i == index) for i in range(len(labels))]
        prediction = task.decoding.predict(9 * (2 * one_hot - 1))
        assert prediction.label == ((label,) if is_sequence else label)
        assert int(np.argmax(prediction.scores)) == index


class ComparedText(str):
    """A string that counts comparisons."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        ComparedText.comparisons += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("name", ["classification", "multilabel", "tagging"])
def test_targets_of_many_labels_need_no_linear_search(name):
    """A linear search for each target took minutes with 30,000 labels and 60,000 rows."""
    labels = tuple(ComparedText(f"label {number}") for number in range(2000))
    task, is_sequence = TASKS[name](labels=labels), name != "classification"
    ComparedText.comparisons = 0
    for number in range(0, 2000, 10):
        label = ComparedText(f"label {number}")
        task.labelling.target(Example(("x",), (label,) if is_sequence else label, ""))
    assert ComparedText.comparisons <= 2 * 2000


def test_thresholds_and_details_of_many_labels_need_no_linear_search():
    """Looking up every label in every example was quadratic."""
    labels = tuple(ComparedText(f"label {number}") for number in range(2000))
    task = Multilabel(labels=labels)
    examples = [Example(("x",), (ComparedText("label 7"), ComparedText("label 9")), "")] * 50
    scores = np.full(2000, 0.1, np.float32)
    scores[[7, 9]] = 0.9
    predictions = [Prediction(examples[0].label, scores)] * 50
    ComparedText.comparisons = 0
    chosen = task.decoding.with_choices([item.label for item in examples], predictions)
    details = task.metrics.details(examples, predictions)
    assert ComparedText.comparisons <= 4 * 2000
    assert chosen.decoding.reread(predictions[0]).label == ("label 7", "label 9")
    assert details["calibration"]["bins"][-1]["right"] == 1


def test_saving_keeps_the_order_of_labels(tmp_path):
    task = Classification(labels=("好", "坏", "10", "2"), text_columns=("a",))
    task.save(tmp_path)
    assert load_task(tmp_path) == task


TASK_FIELDS = {
    "question-answering": {
        "max_answer_length": None,
        "unanswerable": False,
        "no_answer_threshold": None,
    },
    "embedding": {
        "data": "pairs",
        "levels": [],
        "loss": "softmax",
        "dimensions": [],
        "threshold": 0.5,
    },
    "multiple-choice": {"gaps": False},
    "reranking": {"weight": 1.0},
}
TASK_FIELDS["paraphrase"] = TASK_FIELDS["embedding"] | {"teacher": False}


@pytest.mark.parametrize("name", TASKS)
def test_task_json_keeps_its_fields(name, tmp_path):
    TASKS[name]().save(tmp_path)
    assert json.loads((tmp_path / "task.json").read_text(encoding="utf-8")) == {
        "name": name,
        "labels": [],
        "text_columns": ["text"],
        "label_column": None,
        "label_separator": ",",
        "spaced_units": False,
        "max_length": 512,
        "long_texts": "head",
        "thresholds": [],
        "mean": 0.0,
        "deviation": 1.0,
        "label_values": [],
        "scheme": "",
        "crf": False,
        "transitions": [],
        **TASK_FIELDS.get(name, {}),
    }


def test_mistakes_are_the_most_confident_errors_truncated():
    task = Classification(labels=("0", "1"))
    examples = [Example(("长" * number,), "0", f"f:{number}") for number in range(1, 400)]
    predictions = [
        task.decoding.predict(np.array([0, (-1) ** number * number / 30]))
        for number in range(1, 400)
    ]
    actual = task.metrics.mistakes(examples, predictions)
    assert [item["place"] for item in actual] == [f"f:{398 - 2 * i}" for i in range(MISTAKES)]
    assert actual[0]["sureness"] == pytest.approx(1, abs=1e-5)
    assert actual[0]["texts"] == ["长" * CHARACTERS + "…"]
    assert (actual[0]["gold"], actual[0]["predicted"]) == ("0", "1")


def test_mistakes_are_sorted_by_the_size_of_the_error():
    multilabel = Multilabel(labels=("a", "b"))
    logits = [(3.0, -1.0), (9.0, -9.0), (-5.0, 5.0)]  # label ("a",): right, right, both wrong
    examples = [Example(("x",), ("a",), str(i)) for i in range(3)]
    actual = multilabel.metrics.mistakes(
        examples, [multilabel.decoding.predict(np.array(x)) for x in logits]
    )
    assert [(item["place"], item["predicted"]) for item in actual] == [("2", ("b",))]
    assert actual[0]["sureness"] == pytest.approx(1 / (1 + np.exp(-5)))
    regression = Regression()
    examples = [Example(("x",), 1.0, str(i)) for i in range(3)]
    actual = regression.metrics.mistakes(
        examples, [regression.decoding.predict(np.array([x])) for x in (2.0, 1.0, -3.0)]
    )
    assert [(item["place"], item["sureness"]) for item in actual] == [("2", 4), ("0", 1)]
