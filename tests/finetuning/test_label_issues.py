"""The file of rows to correct."""

import numpy as np
import openpyxl
import pytest

from roformer_tf.finetuning.label_issues import find_issues
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.table import TASKS

SECOND = np.array([0.1, 0.2, 0.9, 0.7, 0.9, 0.35])
GIVEN = [0, 0, 0, 1, 1, 1]  # the third and the last are doubtful


def found(settings, texts=("文本",), name="classification", given=GIVEN):
    task = TASKS[name](labels=("坏", "好"), text_columns=("label", "b")[: len(texts)])
    examples = [
        Example(tuple(f"{x}{i}" for x in texts), task.labels[n], f"data.tsv:{i + 2}")
        for i, n in enumerate(given)
    ]
    answers = [
        Prediction(task.labels[int(x > 0.5)], np.array([1 - x, x], np.float32)) for x in SECOND
    ]
    halves = [(examples[:3], answers[:3]), (examples[3:], answers[3:])]  # as of two folds
    return find_issues(task, halves, 20, settings)


def test_rows_are_written_with_their_places_the_most_doubtful_first(tmp_path):
    issues = found({"train": "data.csv"})
    issues.write(tmp_path)
    lines = (tmp_path / "label_issues.tsv").read_text(encoding="utf-8").splitlines()
    head = "place\ttext:label\tlabel\tsuggested_label\tprobability\tlabel_probability"
    assert lines == [
        head,
        "data.tsv:4\t文本2\t坏\t好\t0.9\t0.1",
        "data.tsv:7\t文本5\t好\t坏\t0.65\t0.35",
    ]
    told = issues.as_json()
    assert (told["checked"], told["all"], told["found"]) == (6, 20, 2)
    assert told["file"] == "label_issues.tsv"
    assert told["shown"][0] == {
        "place": "data.tsv:4",
        "texts": ["文本2"],
        "gold": "坏",
        "suggested": "好",
        "probability": pytest.approx(0.9),
        "gold_probability": pytest.approx(0.1),
    }


def test_who_came_with_a_sheet_gets_a_sheet(tmp_path):
    found({"train": "数据.XLSX"}, texts=("=甲", "乙"), name="pair").write(tmp_path)
    sheet = openpyxl.load_workbook(tmp_path / "label_issues.xlsx").active
    rows = [[cell.value for cell in row] for row in sheet]
    assert rows[0][:4] == ["place", "text:label", "b", "label"]
    assert rows[1] == ["data.tsv:4", "=甲2", "乙2", "坏", "好", 0.9, 0.1]


def test_where_nothing_is_doubtful_no_file_is_left(tmp_path):
    found({"train": "a.xlsx"}).write(tmp_path)
    found({"train": "a.tsv"}).write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["label_issues.tsv"]
    clean = found({}, given=(SECOND > 0.5).astype(int).tolist())
    clean.write(tmp_path)
    assert not list(tmp_path.iterdir())
    assert (clean.as_json()["found"], clean.as_json()["file"]) == (0, None)


def test_a_task_without_such_labels_has_none():
    assert find_issues(TASKS["regression"](), [], 0, {}) is None
