import json

import numpy as np
import pytest

from roformer_tf.inference.answers import (
    bad_cells,
    cell_names,
    cells,
    json_line,
    one_line,
    text_names,
    tsv_line,
)
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.table import TASKS

MANY = tuple(f"类{number}" for number in range(21))
LOC = ("B-LOC", "I-LOC", "O")
TEXT = Example(("今天很好",), None, "x:1")
TAGGED = Example(("北京 你好",), None, "x:1", ("北京", "你", "好"))


def answer(name, label, scores, example=TEXT, **settings):
    """Columns, and the one line of TSV and of JSON under them."""
    task = TASKS[name](**settings)
    found = cells(example, Prediction(label, np.float32(scores)), task)
    assert list(found) == cell_names(task)
    line = tsv_line(found, task)
    assert len(line.split("\t")) == len(cell_names(task))
    return cell_names(task), line, json.loads(json_line(found, task))


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_a_label_and_its_probabilities(name):
    names, line, found = answer(name, "好", [0.1, 0.9], labels=("坏", "好"))
    assert names == ["label", "p(坏)", "p(好)", "error"]
    assert line == "好\t0.1\t0.9\t"
    assert found == {"label": "好", "p(坏)": 0.1, "p(好)": 0.9, "error": None}


def test_of_many_labels_the_answer_alone_has_a_probability():
    scores = np.linspace(0, 0.9, 21)
    names, line, _ = answer("classification", "类20", scores, labels=MANY)
    assert (names, line) == (["label", "probability", "error"], "类20\t0.9\t")
    scores[1] = 0.75
    names, line, found = answer("multilabel", ("类1", "类20"), scores, labels=MANY)
    assert names == ["labels", "probabilities", "error"]
    assert line == "类1,类20\t0.75,0.9\t"
    assert found["probabilities"] == [0.75, 0.9]


def test_several_labels_are_joined_as_in_training():
    settings = {"labels": ("甲", "乙"), "label_separator": "|"}
    names, line, found = answer("multilabel", ("甲", "乙"), [0.75, 0.5], **settings)
    assert (names, line) == (["labels", "p(甲)", "p(乙)", "error"], "甲|乙\t0.75\t0.5\t")
    assert found["labels"] == ["甲", "乙"]
    assert answer("multilabel", (), [0.25, 0.5], **settings)[1] == "\t0.25\t0.5\t"


@pytest.mark.parametrize(
    ("texts", "ours", "names"),
    [
        (("text", "p"), ("gold", "label", "p(0)", "error"), ("text", "p")),
        (("label",), ("gold", "label", "error"), ("text:label",)),
        (("gold", "value"), ("gold", "value", "error"), ("text:gold", "text:value")),
        (("error", "text:error"), ("gold", "error"), ("text:text:error", "text:error")),
        (("Label",), ("gold", "label"), ("Label",)),
    ],
)
def test_texts_keep_their_names_unless_an_answer_has_them(texts, ours, names):
    assert text_names(texts, ours) == names


def test_a_number_and_a_ranking():
    assert answer("regression", 1.5, [1.5]) == (
        ["value", "error"],
        "1.5\t",
        {"value": 1.5, "error": None},
    )
    names, line, _ = answer("ranking", "C", [0.25, 1e-7])
    assert (names, line) == (["label", "p(B)", "p(C)", "error"], "C\t0.25\t1e-07\t")


def test_tags_and_entities():
    names, line, found = answer("tagging", ("B-LOC", "O", "O"), np.eye(3), TAGGED, labels=LOC)
    assert names == ["tags", "entities", "error"]
    assert line == 'B-LOC O O\t[[0, 2, "LOC", "北京"]]\t'
    assert found["entities"] == [[0, 2, "LOC", "北京"]]
    names, line, _ = answer("tagging", ("n", "r", "a"), np.eye(3), TAGGED, labels=("a", "n", "r"))
    assert (names, line) == (["tags", "error"], "n r a\t")


def test_an_answer_is_one_line_whatever_the_label():
    label = "a\tb\nc\r\\"
    _, line, found = answer("classification", label, [1.0], labels=(label,))
    assert line == "a\\tb\\nc\\r\\\t1.0\t"
    assert found["label"] == label
    assert one_line(f"p({label})") == "p(a\\tb\\nc\\r\\)"


def test_numbers_are_as_short_as_float32_allows():
    rng = np.random.default_rng(0)
    for number in rng.random(100).astype(np.float32):
        _, line, _ = answer("regression", float(number), [number])
        text = line.removesuffix("\t")
        assert np.float32(text) == number
        assert len(text) <= 14


def test_a_bad_line_has_its_reason_alone():
    task = Classification(labels=("坏", "好"))
    assert tsv_line(bad_cells("has no 'text'", task), task) == "\t\t\thas no 'text'"
