import io

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from roformer_tf.readers.arrow_tables import arrow_records, parquet_records
from roformer_tf.readers.lines import NOT_ENCODED, TextLines
from roformer_tf.readers.records import (
    ANY,
    BLANK,
    TYPED,
    json_records,
    quoted_records,
    sentences,
    tabbed_records,
)
from roformer_tf.readers.streams import LONGEST, UnreadableError


def test_json_lines_are_objects_or_have_a_problem():
    content = b'{"a": 1}\n\n{\n[1]\n{"a": "\xff"}\n\0{}\n{}\r\n' + b"[" * 100_000
    actual = list(json_records(TextLines(io.BytesIO(content))))
    assert [number for number, *_ in actual] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [cells for _, cells, _ in actual] == [{"a": 1}, *[{}] * 7]
    assert [problem for *_, problem in actual] == [
        *("", BLANK, "is not JSON", "is not a JSON object", NOT_ENCODED),
        "holds a NUL character: remove it, or name the --encoding of a UTF-16 file",
        *("", "is not JSON"),
    ]


def test_a_quoted_record_has_the_number_of_its_first_line():
    lines = ["a,b\r\n", '"x\n', 'y","z ""q"""\n', '"a"b,c\n', "d,e"]
    *good, (number, cells, problem), last = quoted_records(lines)
    assert good == [(1, ["a", "b"], ""), (2, ["x\ny", 'z "q"'], "")]
    assert (number, cells) == (4, [])
    assert problem.startswith("breaks the rules of quoting")
    assert last == (5, ["d", "e"], "")


def test_an_unclosed_quote_ends_after_the_longest_cell():
    lines = ["x" * (1 << 20) + "\n"] * 40
    first, *_ = quoted_records(['"', *lines])
    assert "field larger than" in first.problem
    assert LONGEST < 40 << 20


def test_an_unclosed_quote_affects_only_its_own_line():
    lines = ["a,b\n", '"x,1\n', "c,d\n", '"y\n', 'z",2\n', '"p"q,\n', "e,f\n"]
    actual = list(quoted_records(lines))
    assert [(number, cells) for number, cells, _ in actual] == [
        *((1, ["a", "b"]), (2, []), (3, ["c", "d"]), (4, ["y\nz", "2"]), (6, []), (7, ["e", "f"]))
    ]


def test_byte_order_marks_of_joined_json_files_are_skipped():
    lines = ['{"a": 1}\n', '\ufeff{"a": 2}\n', "\ufeff\n"]
    assert list(json_records(lines)) == [(1, {"a": 1}, ""), (2, {"a": 2}, ""), (3, {}, BLANK)]


def test_another_delimiter_can_be_given():
    assert [r.cells for r in quoted_records(['"a;b";c\n'], ";")] == [["a;b", "c"]]
    assert [r.cells for r in tabbed_records(["a;b\tc\n"], ";")] == [["a", "b\tc"]]


cell = st.text(st.characters(exclude_characters="\t\n\r", codec="utf-8"))


@given(st.lists(st.lists(cell, min_size=1)), st.sampled_from(["\n", "\r\n"]))
def test_only_tabs_separate_cells(rows, end):
    actual = tabbed_records("\t".join(row) + end for row in rows)
    assert [(number, cells) for number, cells, _ in actual] == list(enumerate(rows, start=1))


def test_blank_lines_separate_sentences_with_or_without_tags():
    lines = ["北\tB-LOC\n", "京\tI-LOC\n", "\n", " \n", "-DOCSTART- O\n", "\n", "人 O"]
    assert [(number, cells) for number, cells, _ in sentences(lines, TYPED)] == [
        (1, {"units": ("北", "京"), "tags": ("B-LOC", "I-LOC")}),
        (7, {"units": ("人",), "tags": ("O",)}),
    ]
    untagged = list(sentences(["北\n", "京\n"], None))
    assert untagged == [(1, {"units": ("北", "京")}, "")]
    assert next(iter(sentences(["北\n"], ANY))).problem == "has no tag next to '北'"


@pytest.mark.parametrize("tags", [TYPED, None])
def test_comments_before_a_sentence_are_skipped(tags):
    lines = ["# id 7\tdomain=zh\n", "# text = 北京\n", "北 _ B-LOC\n", "# _ O\n", "\n"]
    lines += ["# _ O\n", "京 _ O\n"]
    units = [record.cells["units"] for record in sentences(lines, tags)]
    assert units == [("北", "#"), ("#", "京")]


@pytest.mark.parametrize("columns", [None, ["b"]])
def test_parquet_rows_are_numbered_over_batches(columns):
    source = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": range(600), "b": [str(x) for x in range(600)]}), source)
    names, rows = parquet_records(source, columns)
    assert names == ("a", "b")
    for row, (number, cells, problem) in enumerate(rows):
        want = {"a": row, "b": str(row)}
        assert (number, problem) == (row + 1, "")
        assert cells == {name: want[name] for name in columns or want}


def test_a_damaged_parquet_file_is_rejected():
    source = io.BytesIO()
    text = [f"{x:0100}" for x in range(4000)]
    parquet.write_table(
        pyarrow.table({"a": text}), source, row_group_size=1000, use_dictionary=False
    )
    content = bytearray(source.getvalue())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)
    seen = []
    with pytest.raises(UnreadableError, match="is no Parquet file, or damaged"):
        seen.extend(record for record in parquet_records(io.BytesIO(content))[1])
    with pytest.raises(UnreadableError):
        parquet_records(io.BytesIO(b"PAR1"))


VIEWS = pyarrow.array(["很好" * 9, None, "x"] * 200, pyarrow.string_view())
COLUMNS = {  # column types that other programs write
    "views": VIEWS,
    "a dictionary of views": pyarrow.DictionaryArray.from_arrays([0, 1, 2] * 200, VIEWS[:3]),
    "large": pyarrow.array(["很好", None, "x"] * 200, pyarrow.large_string()),
    "numbers": pyarrow.array([1, None, 3] * 200).dictionary_encode(),
    "times": pyarrow.array([1, None, 3] * 200, pyarrow.timestamp("us")),
    "nulls": pyarrow.nulls(600),
    "lists": pyarrow.array([["a", "b"], None, []] * 200),
    "maps": pyarrow.array([[("a", 1)], None, []] * 200, pyarrow.map_(pyarrow.string(), "int64")),
    "structs": pyarrow.array([{"a": "b", "c": [1]}, None, {"a": None}] * 200),
    "matrices": pyarrow.FixedShapeTensorArray.from_numpy_ndarray(np.ones((600, 2, 2))),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("file_format", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_arrow_columns_of_any_type_are_read(name, file_format):
    table = pyarrow.table({"text": [str(x) for x in range(600)], "other": COLUMNS[name]})
    sink = io.BytesIO()
    with file_format(sink, table.schema) as writer:
        writer.write_table(table, 500)
    actual = [record.cells for record in arrow_records([sink])[1]]
    assert actual == table.to_pylist()


def test_damaged_or_unsupported_arrow_data_is_rejected():
    array = pyarrow.RunEndEncodedArray.from_arrays([600], ["x"])
    table = pyarrow.table({"other": array})
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UnreadableError, match="Remove it"):
        list(arrow_records([sink])[1])
    with pytest.raises(UnreadableError, match="is no Arrow file, or damaged"):
        list(arrow_records([io.BytesIO(sink.getvalue()[:-40])])[1])
    with pytest.raises(UnreadableError):
        arrow_records([io.BytesIO(b"ARROW1")])
