"""Tests of how predictions are written: columns of TSV files and JSON objects."""

import json

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.inference.prediction_files import (
    cell_names,
    cells,
    text_names,
    tsv_line,
)
from roformer_tf.labelled.cells import read_labels
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.table import TASKS
from tests.support.task_files import load_task

MANY_LABELS = tuple(f"类{number}" for number in range(21))
LOC = ("B-LOC", "I-LOC", "O")
TEXT = Example(("今天很好",), None, "x:1")
TAGGED = Example(("北京 你好",), None, "x:1", ("北京", "你", "好"))


def written(name, label, scores, example=TEXT, **settings):
    """Return the columns, and one prediction as a line of TSV and as JSON."""
    task = TASKS[name](**settings)
    actual = cells(example, Prediction(label, np.float32(scores)), task)
    assert list(actual) == cell_names(task)
    line = tsv_line(actual.values(), task.decoding.joined_by or task.label_separator).removesuffix(
        "\n"
    )
    assert len(line.split("\t")) == len(cell_names(task))
    return cell_names(task), line, json.loads(json.dumps(actual))


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_a_label_and_its_probabilities(name):
    names, line, actual = written(name, "好", [0.1, 0.9], labels=("坏", "好"))
    assert names == ["label", "p(坏)", "p(好)", "error"]
    assert line == "好\t0.1\t0.9\t"
    assert actual == {"label": "好", "p(坏)": 0.1, "p(好)": 0.9, "error": None}


def pairs(numbers):
    return [name for n in numbers for name in (f"label_{n}", f"score_{n}")]


FEW_DIGITS = np.arange(21) / 25  # 0 to 0.8


def test_of_many_labels_the_five_most_likely_are_written():
    names, line, actual = written("classification", "类20", FEW_DIGITS, labels=MANY_LABELS)
    assert names == ["label", "score", *pairs((2, 3, 4, 5)), "error"]
    assert line == "类20\t0.8\t类19\t0.76\t类18\t0.72\t类17\t0.68\t类16\t0.64\t"
    assert (actual["label"], actual["label_5"], actual["score_5"]) == ("类20", "类16", 0.64)
    scores = FEW_DIGITS.copy()
    scores[1] = 0.7
    names, line, actual = written("multilabel", ("类1", "类20"), scores, labels=MANY_LABELS)
    assert names == ["labels", "scores", *pairs(range(1, 6)), "error"]
    best = "类20\t0.8\t类19\t0.76\t类18\t0.72\t类1\t0.7\t类17\t0.68"
    assert line == f"类1,类20\t0.7,0.8\t{best}\t"
    assert actual["scores"] == [0.7, 0.8]
    assert len(written("classification", "类19", FEW_DIGITS[:20], labels=MANY_LABELS[:20])[0]) == 22


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_top_k_labels_are_written(name):
    few = {"labels": ("坏", "中", "好")}
    scores = [0.25, 0.125, 0.625]
    names, line, _ = written(name, "好", scores, **few, top_k=2)
    assert (names, line) == (
        ["label", "score", *pairs([2]), "error"],
        "好\t0.625\t坏\t0.25\t",
    )
    assert written(name, "好", scores, **few, top_k=1)[1] == "好\t0.625\t"
    assert written(name, "好", scores, **few, top_k=9)[1] == "好\t0.625\t坏\t0.25\t中\t0.125\t"
    names, _, _ = written("classification", "类20", FEW_DIGITS, labels=MANY_LABELS, top_k=21)
    assert names == ["label", "score", *pairs(range(2, 22)), "error"]
    task = TASKS[name](**few, top_k=2)
    actual = task.decoding.as_json(TEXT, Prediction("好", np.float32(scores)))
    assert actual == {"label": "好", "scores": {"好": 0.625, "坏": 0.25}}
    assert [*actual["scores"]] == ["好", "坏"]  # the most likely first


def test_a_service_returns_the_most_likely_and_all_predicted_labels():
    scores = np.float32(FEW_DIGITS)
    actual = TASKS["classification"](labels=MANY_LABELS).decoding.as_json(
        TEXT, Prediction("类20", scores)
    )
    assert actual["scores"] == {f"类{i}": i / 25 for i in (20, 19, 18, 17, 16)}
    predicted = tuple(f"类{i}" for i in range(13, 21))
    task = TASKS["multilabel"](labels=MANY_LABELS, top_k=2)
    actual = task.decoding.as_json(TEXT, Prediction(predicted, scores))
    assert [*actual["scores"]] == [*reversed(predicted)]
    actual = task.decoding.as_json(TEXT, Prediction((), scores))
    assert actual == {"labels": [], "scores": {"类20": 0.8, "类19": 0.76}}
    actual = TASKS["classification"](labels=MANY_LABELS[:20]).decoding.as_json(
        TEXT, Prediction("类0", scores[:20])
    )
    assert [*actual["scores"]] == [*MANY_LABELS[:20]]


@pytest.mark.parametrize("name", ["regression", "ranking", "tagging"])
def test_top_k_is_refused_for_tasks_without_a_choice_of_labels(name):
    assert TASKS[name]().decoding.with_top_k(None) == TASKS[name]()
    with pytest.raises(InputError, match="Remove --top-k"):
        TASKS[name]().decoding.with_top_k(3)
    with pytest.raises(InputError, match="top_k is 0"):
        TASKS["pair"](labels=("0", "1")).decoding.with_top_k(0)


def test_top_k_is_not_saved(tmp_path):
    task = TASKS["classification"](labels=MANY_LABELS).decoding.with_top_k(3)
    task.save(tmp_path)
    assert "top_k" not in (tmp_path / "task.json").read_text(encoding="utf-8")
    assert load_task(tmp_path).decoding.listed == 5


def test_several_labels_are_joined_by_the_separator_of_training():
    settings = {"labels": ("甲", "乙"), "label_separator": "|"}
    names, line, actual = written("multilabel", ("甲", "乙"), [0.75, 0.5], **settings)
    assert (names, line) == (["labels", "p(甲)", "p(乙)", "error"], "甲|乙\t0.75\t0.5\t")
    assert actual["labels"] == ["甲", "乙"]
    assert written("multilabel", (), [0.25, 0.5], **settings)[1] == "\t0.25\t0.5\t"


@pytest.mark.parametrize(
    ("texts", "ours", "names"),
    [
        (("text", "p"), ("gold", "label", "p(0)", "error"), ("text", "p")),
        (("label",), ("gold", "label", "error"), ("text:label",)),
        (("gold", "score"), ("gold", "score", "error"), ("text:gold", "text:score")),
        (("Label",), ("gold", "label"), ("Label",)),
    ],
)
def test_text_columns_are_renamed_if_a_prediction_column_has_the_name(texts, ours, names):
    assert text_names(texts, ours) == names


def test_a_number_and_a_ranking():
    assert written("regression", 1.5, [1.5]) == (
        ["score", "error"],
        "1.5\t",
        {"score": 1.5, "error": None},
    )
    names, line, _ = written("ranking", "C", [0.25, 1e-7])
    assert (names, line) == (["label", "p(B)", "p(C)", "error"], "C\t0.25\t1e-07\t")


def test_tags_and_entities():
    names, line, actual = written("tagging", ("B-LOC", "O", "O"), np.eye(3), TAGGED, labels=LOC)
    assert names == ["tags", "entities", "error"]
    assert line == 'B-LOC O O\t[[0, 2, "LOC", "北京"]]\t'
    assert actual["entities"] == [[0, 2, "LOC", "北京"]]
    names, line, _ = written("tagging", ("n", "r", "a"), np.eye(3), TAGGED, labels=("a", "n", "r"))
    assert (names, line) == (["tags", "error"], "n r a\t")


def test_a_prediction_is_one_line_for_any_label():
    label = "a\tb\nc\r\\"
    _, line, actual = written("classification", label, [1.0], labels=(label,))
    assert line == "a\\tb\\nc\\r\\\t1.0\t"
    assert actual["label"] == label
    assert tsv_line([f"p({label})"]) == "p(a\\tb\\nc\\r\\)\n"


def test_labels_with_the_separator_are_written_as_a_list():
    """Joined by it they would be read again as other labels."""
    labels = ("价格,贵", "服务")
    cells = {labels: '["价格,贵", "服务"]', labels[:1]: '["价格,贵"]', ("a", "b"): "a,b"}
    for written, cell in cells.items():
        assert tsv_line([written]) == f"{cell}\n"
        assert read_labels(cell, ",") == tuple(sorted(written))


def test_numbers_are_as_short_as_float32_allows():
    rng = np.random.default_rng(0)
    for number in rng.random(100).astype(np.float32):
        _, line, _ = written("regression", float(number), [number])
        text = line.removesuffix("\t")
        assert np.float32(text) == number
        assert len(text) <= 14
