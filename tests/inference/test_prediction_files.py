"""Tests of the files that predictions are written to: CSV, TSV, JSON lines and spreadsheets."""

import csv
import gc
import json
import sys

import openpyxl
import pytest

from roformer_tf.errors import InputError
from roformer_tf.inference import prediction_files
from roformer_tf.inference.prediction_files import (
    MAX_CELL,
    WRITTEN,
    cell_names,
    check_output,
    prediction_file,
    text_names,
)
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.reading import open_texts_to_predict
from roformer_tf.readers.tables import Top, open_table
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs

TASK = Classification(labels=("0", "1"))
FORMULAS = ["=1+1", "+86 很好", "-差评", "@某人", "＝等于", "\t=1", "=cmd|' /C calc'!A0"]
TEXTS = [
    *FORMULAS,
    "-1.5",
    "+3",
    "第一行\n第二行",
    '他说"好"',
    "a,b\tc",
    "001",
    "#N/A",
    "'=x",
    "😀",
]
ROWS = [
    {"text": text, "p": -0.25, "several": ("a", "b"), "list": [1], "none": None} for text in TEXTS
]


def write(path, rows=ROWS):
    with prediction_file(str(path), list(rows[0]), TASK) as out:
        for row in rows:
            out.write(row)
    return out.notes()


def test_a_csv_opens_in_excel_without_executing_formulas(tmp_path):
    path = tmp_path / "a.csv"
    (note,) = write(path)
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbftext,p,several,list,none\r\n")
    rows = list(csv.reader(content.decode("utf-8-sig").splitlines(keepends=True)))[1:]
    guarded = len(FORMULAS)
    assert [row[0] for row in rows] == [f"'{text}" for text in FORMULAS] + TEXTS[guarded:]
    assert rows[0][1:] == ["-0.25", "a,b", "[1]", ""]
    assert note.startswith(f"cells that look like a formula: {guarded} (an apostrophe")


def test_a_csv_is_read_back_as_the_same_texts(tmp_path):
    write(tmp_path / "a.csv", ROWS[: len(FORMULAS)])
    table = open_table(tmp_path / "a.csv", lambda rows: Top(has_header=True))
    assert [row.cells["text"] for row in table.rows] == FORMULAS


def test_a_spreadsheet_stores_every_text_unchanged_as_text(tmp_path):
    path = tmp_path / "a.xlsx"
    assert write(path) == []
    sheet = openpyxl.load_workbook(path).active
    header, *rows = sheet.iter_rows()
    assert [cell.value for cell in header] == list(ROWS[0])
    assert [row[0].value for row in rows] == TEXTS
    assert {row[0].data_type for row in rows} == {"s"}  # "f" would be a formula
    assert all(row[0].quotePrefix for row in rows[: len(FORMULAS)])
    assert (rows[0][1].value, rows[0][1].data_type) == (-0.25, "n")
    assert [cell.value for cell in rows[0][2:]] == ["a,b", "[1]", None]


def test_text_that_no_spreadsheet_can_store_is_truncated_or_escaped_and_reported(tmp_path):
    path = tmp_path / "a.xlsx"
    long = "😀" * MAX_CELL  # two UTF-16 units each
    (note,) = write(path, [{"text": long}, {"text": "长" * MAX_CELL}, {"text": "a\x08\ud83db"}])
    column = [cell for (cell,) in openpyxl.load_workbook(path).active.iter_rows(values_only=True)]
    assert len(column[1].encode("utf-16-le")) <= 2 * MAX_CELL
    assert column[1] == "😀" * (MAX_CELL // 2) + "…"
    assert column[2:] == ["长" * MAX_CELL, "a\\x08\\ud83db"]
    assert note == "cells cut at the 32,767 characters that Excel holds: 1"
    notes = write(tmp_path / "a.csv", [{"text": long}])
    assert len((tmp_path / "a.csv").read_text(encoding="utf-8")) > MAX_CELL
    assert notes == ["cells with more than the 32,767 characters that Excel reads: 1"]


def test_too_many_predictions_for_a_sheet_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_files, "MAX_ROWS", 3)
    write(tmp_path / "a.xlsx", ROWS[:2])
    with pytest.raises(InputError, match=r"holds 3 rows.* Name a \.csv file"):
        write(tmp_path / "b.xlsx", ROWS[:3])
    assert [path.name for path in tmp_path.iterdir()] == ["a.xlsx"]


def test_an_aborted_sheet_causes_no_errors_at_garbage_collection(tmp_path, monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    with pytest.raises(AttributeError):
        write(tmp_path / "a.xlsx", [{"text": "好"}, None])
    gc.collect()
    assert errors == []


def test_each_prediction_is_one_line(tmp_path):
    for name in ("a.tsv", "a.txt", "a.jsonl"):
        assert write(tmp_path / name) == []
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "a.txt").read_bytes()
    tsv = (tmp_path / "a.tsv").read_text(encoding="utf-8").split("\n")
    assert (len(tsv), tsv[1]) == (len(ROWS) + 2, "=1+1\t-0.25\ta,b\t[1]\t")
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["text"] for line in lines] == TEXTS


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "a.csv.gz", "a.XLS", "a.pdf"])
def test_other_file_formats_are_refused(name):
    with pytest.raises(InputError, match=r"name a \.csv, \.jsonl, \.tsv, \.txt, \.xlsx file"):
        check_output(name, only=WRITTEN)


def test_a_missing_library_is_reported_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"pip install 'roformer-tf\[xlsx\]'.* \.csv file"):
        check_output("a.XLSX", only=WRITTEN)
    check_output("a.csv", only=WRITTEN)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (Classification(labels=("0", "1"), text_columns=("1",)), ("text",)),
        (ScoredPairs(text_columns=("1", "2")), ("text1", "text2")),
        (ScoredPairs(text_columns=("2", "3")), ("text1", "text2")),
    ],
)
def test_the_predictions_of_a_model_trained_without_a_header_have_one(task, names, tmp_path):
    """Training without a header leaves numbers as names, and these would be no header."""
    texts = ("今天", "天气很好")[: len(names)]
    written = text_names(task.text_columns, cell_names(task))
    assert written == names
    row = dict(zip(written, texts, strict=True)) | {"gold": "1"} | dict.fromkeys(cell_names(task))
    write(tmp_path / "predictions.tsv", [row])
    actual = open_texts_to_predict(tmp_path / "predictions.tsv", task, ColumnsConfig()).examples
    assert [example.texts for example in actual] == [texts]
