"""Files of documents: columns of texts, ids and metadata, and refusals."""

import json
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roformer_tf.errors import InputError
from roformer_tf.inference.text_files import TextFileConfig
from roformer_tf.search.document_files import Document, checked_documents

ROWS = [
    {
        "id": 7,
        "title": "打印",
        "text": "选择文件菜单。",
        "year": 2020,
        "tags": ["a", "b"],
        "x": None,
    },
    {
        "id": "007",
        "title": "天气",
        "text": "很好。",
        "year": "2021",
        "x": None,
        "ok": True,
        "price": 1.50,
    },
]


def read(path, columns=(), id_column=None):
    return checked_documents(str(path), TextFileConfig(text_columns=columns), id_column)


def test_other_columns_are_metadata_and_keep_numbers(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    assert read(path) == [
        Document("选择文件菜单。", "7", {"title": "打印", "year": 2020, "tags": '["a", "b"]'}),
        Document("很好。", "007", {"title": "天气", "year": 2021, "ok": True, "price": 1.5}),
    ]
    joined = read(path, ("title", "text"))
    assert [(item.text, "title" in item.metadata) for item in joined] == [
        ("打印 选择文件菜单。", False),
        ("天气 很好。", False),
    ]


def test_dates_of_parquet_are_written_as_in_spreadsheets(tmp_path):
    times = [datetime(2024, 1, 2), datetime(2024, 1, 2, 8, 30)]
    table = pa.table({"text": ["甲", "乙"], "day": [time.date() for time in times], "time": times})
    pq.write_table(table, tmp_path / "documents.parquet")
    assert [item.metadata for item in read(tmp_path / "documents.parquet")] == [
        {"day": "2024-01-02", "time": "2024-01-02"},
        {"day": "2024-01-02", "time": "2024-01-02 08:30:00"},
    ]


def test_a_text_that_ends_like_midnight_is_kept(tmp_path):
    (tmp_path / "documents.csv").write_text("text,start\n甲,at 00:00:00\n", "utf-8")
    (document,) = read(tmp_path / "documents.csv")
    assert document.metadata == {"start": "at 00:00:00"}


def test_csv_cells_are_numbers_only_in_canonical_form(tmp_path):
    path = tmp_path / "documents.csv"
    row = "x,甲,2020,007,,12345678901234567890,1234567890123456789"
    path.write_text(f"编号,text,年,号码,empty,big,long\n{row}\n", "utf-8")
    metadata = {"年": 2020, "号码": "007", "big": "12345678901234567890"}
    metadata["long"] = 1234567890123456789
    assert read(path, ("text",), "编号") == [Document("甲", "x", metadata)]
    assert read(path, ("text",)) == [Document("甲", None, {"编号": "x", **metadata})]


def test_a_number_too_large_for_sqlite_is_a_text(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "甲", "big": 12345678901234567890}\n', "utf-8")
    assert read(path) == [Document("甲", None, {"big": "12345678901234567890"})]


def test_lines_of_text_have_neither_ids_nor_metadata(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("甲\n乙\n", "utf-8")
    assert read(path) == [Document("甲"), Document("乙")]
    with pytest.raises(InputError, match="is a text file without columns"):
        read(path, id_column="id")


def test_all_rows_without_text_or_id_are_named(tmp_path):
    path = tmp_path / "documents.jsonl"
    rows = [{"id": "1", "text": "甲"}, {"id": "", "text": "乙"}, {"id": "3", "text": " "}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(InputError) as error:
        read(path)
    assert "rows without text: 2" in str(error.value)
    assert "documents.jsonl:2 has an empty text in 'id'" in str(error.value)
    assert "documents.jsonl:3 has an empty text in 'text'" in str(error.value)
    with pytest.raises(InputError, match="no column"):
        read(path, id_column="nowhere")
