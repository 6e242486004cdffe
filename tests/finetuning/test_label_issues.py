"""The file of suspected label errors."""

import numpy as np
import openpyxl
import pytest

from roformer_tf.finetuning.label_issues import NO_BASELINE, NOT_BETTER, CheckedSet, find_issues
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.table import TASKS

SECOND = np.array([0.1, 0.2, 0.9, 0.7, 0.9, 0.35])
LABELS = [0, 0, 0, 1, 1, 1]  # the third and the last contradict SECOND


def checked_labels(
    train="",
    texts=("文本",),
    name="classification",
    labels=LABELS,
    baseline=SECOND,
    is_better=True,
    values=(),
):
    columns = ("label", "b")[: len(texts)]
    task = TASKS[name](labels=("坏", "好"), text_columns=columns, label_values=values)
    examples = [
        Example(tuple(f"{x}{i}" for x in texts), task.labels[n], f"data.tsv:{i + 2}")
        for i, n in enumerate(labels)
    ]

    def predictions(second):
        return [
            Prediction(task.labels[int(x > 0.5)], np.array([1 - x, x], np.float32)) for x in second
        ]

    checked = CheckedSet(examples, predictions(SECOND), predictions(baseline))
    return find_issues(task, [checked], 20, train, is_better)


def test_issues_are_written_most_doubtful_first(tmp_path):
    issues = checked_labels("data.csv")
    issues.write(tmp_path)
    head, *lines = (tmp_path / "label_issues.tsv").read_text(encoding="utf-8").splitlines()
    assert head == "place\ttext:label\tlabel\tsuggested_label\tprobability\tlabel_probability"
    rows = [line.split("\t") for line in lines]
    assert [row[:4] for row in rows] == [
        ["data.tsv:4", "文本2", "坏", "好"],
        ["data.tsv:7", "文本5", "好", "坏"],
    ]
    summary = issues.as_json()
    assert (summary["checked"], summary["all"], summary["found"]) == (6, 20, 2)
    assert (summary["file"], summary["reason"]) == ("label_issues.tsv", "")
    first = summary["shown"][0]
    assert (first["place"], first["texts"]) == ("data.tsv:4", ["文本2"])
    assert (first["gold"], first["suggested"]) == ("坏", "好")
    assert [*map(float, rows[0][4:])] == pytest.approx(
        [first["probability"], first["gold_probability"]]
    )


def test_the_file_has_the_labels_of_the_data_and_the_report_their_names(tmp_path):
    """With --label-names 坏 好 the labels of the data are 0 and 1: these are to be corrected."""
    issues = checked_labels("data.csv", values=("0", "1"))
    issues.write(tmp_path)
    rows = (tmp_path / "label_issues.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert [row.split("\t")[2:4] for row in rows] == [["0", "1"], ["1", "0"]]
    first = issues.as_json()["shown"][0]
    assert (first["gold"], first["suggested"]) == ("坏", "好")


def test_reported_probabilities_are_calibrated():
    """Two of six labels contradict the model, one with probability 0.9: it is overconfident."""
    first = checked_labels().as_json()["shown"][0]
    assert 0.5 < first["probability"] < 0.8
    assert first["probability"] + first["gold_probability"] == pytest.approx(1)


def test_an_issue_needs_agreement_of_the_baseline():
    agrees_once = SECOND.copy()
    agrees_once[2] = 0.3  # the baseline predicts the label of the data
    assert [item["place"] for item in checked_labels(baseline=agrees_once).as_json()["shown"]] == [
        "data.tsv:7"
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"is_better": False}, NOT_BETTER), ({"baseline": SECOND[:0]}, NO_BASELINE)],
)
def test_no_issues_without_a_better_model_than_the_baseline(arguments, reason, tmp_path):
    checked_labels().write(tmp_path)
    issues = checked_labels(**arguments)
    issues.write(tmp_path)
    assert not list(tmp_path.iterdir())
    summary = issues.as_json()
    assert (summary["found"], summary["shown"], summary["file"]) == (0, [], None)
    assert (summary["checked"], summary["reason"]) == (0, reason)


def test_a_spreadsheet_as_input_gives_a_spreadsheet_as_output(tmp_path):
    checked_labels("数据.XLSX", texts=("=甲", "乙"), name="pair").write(tmp_path)
    sheet = openpyxl.load_workbook(tmp_path / "label_issues.xlsx").active
    rows = [[cell.value for cell in row] for row in sheet]
    assert rows[0][:4] == ["place", "text:label", "b", "label"]
    assert rows[1][:5] == ["data.tsv:4", "=甲2", "乙2", "坏", "好"]


def test_no_issues_remove_the_old_file(tmp_path):
    checked_labels("a.xlsx").write(tmp_path)
    checked_labels("a.tsv").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["label_issues.tsv"]
    clean = checked_labels(labels=(SECOND > 0.5).astype(int).tolist())
    clean.write(tmp_path)
    assert not list(tmp_path.iterdir())
    assert (clean.as_json()["found"], clean.as_json()["file"]) == (0, None)


def test_other_tasks_have_no_label_issues():
    assert find_issues(TASKS["regression"](), [], 0, "", True) is None
