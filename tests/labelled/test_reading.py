import csv
import gzip
import io
import json
import lzma
import math
import re
import sys
import tracemalloc
from importlib.util import find_spec

import fsspec
import openpyxl
import pytest
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import Layout, find_layout, open_texts_to_predict, read_examples
from roformer_tf.readers.records import Row
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS

ROWS = [("房间很干净", "好"), ("早餐冷了，服务差", "坏"), ("下次还来", "好")]
CONLL = "北 B-LOC\n京 I-LOC\n人 O\n\n-DOCSTART- -X- O\n\n她 O\n"


@pytest.fixture
def write(tmp_path):
    """write("a.tsv", text or bytes) → the path of the file, compressed according to its suffix."""

    def write(name, content):
        path = tmp_path / name
        content = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(COMPRESSED.get(path.suffix, bytes)(content))
        return path

    return write


def lines(*rows, delimiter="\t"):
    return "".join(delimiter.join(row) + "\n" for row in rows)


def read(path, task=None, **columns):
    """Return the layout and the texts and labels of a file, as a command reads them."""
    config = ColumnsConfig(**columns)
    layout = find_layout(path, config, task, TASKS)
    return layout, [(e.texts, e.label) for e in read_examples(path, layout, config)]


def stream_examples(path, task, **columns):
    return open_texts_to_predict(path, task, ColumnsConfig(**columns)).examples


def stream(path, name="classification", **settings):
    return list(stream_examples(path, TASKS[name](**settings)))


def parquet(columns):
    import pyarrow
    from pyarrow.parquet import write_table

    target = io.BytesIO()
    write_table(pyarrow.table(columns), target)
    return target.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def xlsx(*rows, **sheets):
    """Return a workbook with these rows in its first sheet and more sheets by name."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, sheet in {"一": rows, **sheets}.items():
        result = book.create_sheet(name)
        for row in sheet:
            result.append(row)
    target = io.BytesIO()
    book.save(target)
    return target.getvalue()


FILES = {
    "a.tsv": lines(("text", "label"), *ROWS),
    "a.csv": lines(("标签", "文本"), *((b, a) for a, b in ROWS), delimiter=","),
    "a.jsonl": as_jsonl(ROWS),
    "a.parquet": parquet({"text": [a for a, _ in ROWS], "label": [b for _, b in ROWS]}),
    "a.xlsx": xlsx(("text", "label"), *ROWS),
}
COMPRESSED = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}


@pytest.mark.parametrize(
    "name",
    [*FILES, *(f"a.{kind}{suffix}" for kind in ("tsv", "csv", "jsonl") for suffix in COMPRESSED)],
)
def test_all_file_formats_give_the_same_examples(write, name):
    layout, examples = read(write(name, FILES[re.sub(r"\.(gz|xz|zst)$", "", name)]))
    assert layout.task.name == "classification"
    assert examples == [((text,), label) for text, label in ROWS]


@pytest.mark.parametrize("name", [*FILES, "a.tsv.zst", "a.conll", "a.txt"])
def test_a_url_is_fetched_once_and_read_like_a_file(write, name, monkeypatch):
    storage = fsspec.filesystem("memory")
    content = {"a.conll": CONLL, "a.txt": "甲\n乙\n"}.get(name) or FILES[name.removesuffix(".zst")]
    path = write(name, content)
    storage.pipe(str(path), path.read_bytes())
    url = f"memory:/{path}"
    downloads = []
    get = type(storage).get_file
    monkeypatch.setattr(
        type(storage), "get_file", lambda *x, **y: [downloads.append(x), get(*x, **y)][-1]
    )
    if name == "a.txt":
        assert [item.source_line for item in stream(url)] == [f"{url}:1", f"{url}:2"]
        return
    layout, examples = read(url)
    assert examples == read(path)[1]
    assert layout.report.startswith(f"{url}: task ")
    assert len(downloads) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://none/a.tsv", r"cannot read memory://none/a\.tsv: there is no such file\. Check"),
        ("memory://none/a.xlsx", r"cannot read memory://none/a\.xlsx: there is no such file"),
        ("memory://none/a.parquet", r"cannot read memory://none/a\.parquet: there is no such file"),
        ("nosuch://x/a.csv.xz", r"cannot read nosuch://x/a\.csv\.xz: .*nosuch"),
        ("s3://bucket/a.tsv", r"cannot open s3://bucket/a\.tsv: .*s3fs"),
        ("memory://none/a.doc", r"memory://none/a\.doc is of no kind"),
    ],
)
def test_an_unreadable_url_gives_the_reason(url, message):
    if url.startswith("s3") and find_spec("s3fs"):
        pytest.skip("s3fs is installed here")
    with pytest.raises(InputError, match=message):
        read(url)


# Spreadsheets


def test_spreadsheet_cells_are_read_as_texts_and_labels(write):
    path = write("a.xlsx", xlsx(("评论", "stars"), ("很好", 1.0), (2024, 0), ("差", 0.0)))
    layout, examples = read(path, text_columns=("评论",))
    assert examples == [(("很好",), "1"), (("2024",), "0"), (("差",), "0")]
    assert layout.task.name == "classification"


def test_the_header_of_a_spreadsheet_is_detected_like_that_of_a_tsv(write):
    layout, examples = read(write("a.xlsx", xlsx(*ROWS)), label_column="2")
    assert len(examples) == 3
    assert "the first line is an example, not a header" in layout.report
    path = write("b.xlsx", xlsx(("甲", "乙"), *ROWS))
    assert len(read(path, text_columns=("1",), label_column="2", first_line="header")[1]) == 3
    assert len(read(path, text_columns=("1",), label_column="2", first_line="example")[1]) == 4


def test_the_first_or_given_sheet_is_read_and_reported(write):
    other = [("text", "label"), ("别的", "1"), ("还有", "0")]
    path = write("a.xlsx", xlsx(("text", "label"), *ROWS, 二=other))
    layout, examples = read(path)
    assert [label for _, label in examples] == ["好", "坏", "好"]
    assert layout.report.startswith(f"{path} of the sheet 一: task classification")
    layout, examples = read(path, sheet="二")
    assert [label for _, label in examples] == ["1", "0"]
    assert "of the sheet 二" in layout.report
    actual = list(stream_examples(path, Classification(), sheet="二"))
    assert [item.texts for item in actual] == [("别的",), ("还有",)]


@pytest.mark.parametrize("name", ["a.tsv", "a.parquet", "a.txt", "a.conll"])
def test_a_sheet_name_is_rejected_for_other_formats(write, name):
    path = write(name, FILES.get(name, "x\n"))
    with pytest.raises(InputError, match=r"has no sheets, as an \.xlsx file has: remove --sheet"):
        list(stream_examples(path, Classification(), sheet="一"))
    with pytest.raises(InputError, match="has no sheets"):
        read(path, sheet="一")


def test_places_are_file_and_line(write):
    path = write("a.csv", 'text,label\n"zwei\nZeilen",x\nc,y\n')
    config = ColumnsConfig()
    actual = read_examples(path, find_layout(path, config, None, TASKS), config)
    assert [example.source_line for example in actual] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
def test_encodings_are_detected_and_unusual_ones_reported(write, encoding):
    path = write("a.tsv", lines(("text", "label"), *ROWS).encode(encoding))
    layout, examples = read(path)
    assert examples == [((text,), label) for text, label in ROWS]
    assert (encoding.upper() in layout.report) == (encoding != "utf-8-sig")


# Columns


@pytest.mark.parametrize(
    ("header", "texts", "label"),
    [
        (("标签", "内容"), ("内容",), "标签"),
        (("id", "Text", "Label"), ("Text",), "Label"),
        (("评价", "label"), ("评价",), "label"),  # the only other column
        (("text_a", "text_b", "score"), ("text_a", "text_b"), "score"),
        (("label", "query", "title"), ("query", "title"), "label"),
        (("A", "B", "C", "label"), ("A", "B", "C"), "label"),
    ],
)
def test_columns_are_detected_by_name(write, header, texts, label):
    rows = [[f"{name}{i}" for name in header] for i in range(3)]
    path = write("a.tsv", lines(header, *rows))
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert (layout.text_columns, layout.label_column) == (texts, label)
    assert all(name in layout.report for name in (*texts, label))


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("given_by", ["names", "numbers"])
def test_columns_given_by_the_user_are_used(write, header, given_by):
    rows = [("7", "好书", "x"), ("8", "坏书", "y"), ("9", "书", "x"), ("10", "旧书", "y")]
    path = write("a.csv", lines(*([("nr", "评价", "情感")] * header), *rows, delimiter=","))
    columns = {"text_columns": ("2",), "label_column": "3"}
    if given_by == "names":
        columns = {"text_columns": ("评价",), "label_column": "情感"}
        if not header:
            with pytest.raises(InputError, match="no column '情感'"):
                read(path, **columns)
            return
    assert read(path, **columns)[1] == [((text,), label) for _, text, label in rows]


WORDS = [(f"文{i}", "好坏"[i % 2]) for i in range(40)]
NUMBERS = [(f"文{i}", f"{i}.5") for i in range(40)]  # all different
SEVERAL = [(f"文{i}", ("甲,乙", "丙", "")[i % 3]) for i in range(40)]
HEADER = ("说法", "好恶")  # unknown column names
FIRST_LINES = [  # the first line, the other lines, and whether the first may be a header
    (HEADER, WORDS, True),
    (HEADER, [*WORDS, ("文", "中")], True),  # a rare label
    (HEADER, [(text, str(i % 3)) for i, (text, _) in enumerate(WORDS)], True),
    (HEADER, NUMBERS, True),
    (HEADER, SEVERAL, True),
    (("文", "坏"), WORDS, False),
    (("文", "坏"), [("文", "好")] * 500 + [("文", "坏")], False),  # the label occurs again late
    (("文", "99"), NUMBERS, False),
    (("文", "乙"), SEVERAL, False),
    (("文", ""), SEVERAL, False),
]


@pytest.mark.parametrize("columns", [{"text_columns": ("1",)}, {"label_column": "2"}])
@pytest.mark.parametrize(("first", "rest", "is_ambiguous"), FIRST_LINES)
def test_a_first_line_with_a_unique_label_requires_first_line(
    write, first, rest, is_ambiguous, columns
):
    path = write("a.tsv", lines(first, *rest))
    if is_ambiguous:
        with pytest.raises(InputError, match=r"a\.tsv: cannot tell.*'好恶'.*Give --first-line"):
            find_layout(path, ColumnsConfig(**columns), None, TASKS)
        for first_line, actual in (("header", HEADER), ("example", ("1", "2"))):
            config = ColumnsConfig(**columns, first_line=first_line)
            layout = find_layout(path, config, "multilabel", TASKS)
            assert (*layout.text_columns, layout.label_column) == actual
    else:
        layout = find_layout(path, ColumnsConfig(**columns), None, TASKS)
        assert (layout.text_columns, layout.label_column) == (("1",), "2")
        assert "the first line is an example" in layout.report


def test_first_line_overrides_what_the_file_suggests(write):
    path = write("a.tsv", lines(("text", "label"), *ROWS))
    assert len(read(path, first_line="header")[1]) == 3
    columns = {"text_columns": ("1",), "label_column": "2"}
    layout, examples = read(path, **columns, first_line="example")
    assert examples[0] == (("text",), "label")
    task = Classification(text_columns=layout.text_columns)
    assert [item.texts for item in stream_examples(path, task, first_line="example")] == [
        texts for texts, _ in examples
    ]


@pytest.mark.parametrize("names", [True, False])
def test_other_files_are_read_with_the_layout_of_training(write, names):
    """A short file is ambiguous, so it is read with the layout of the training file."""
    path = write("train.tsv", lines(*([HEADER] * names), *WORDS))
    short = write("few.tsv", lines(*([HEADER] * names), ("新", "好"), ("旧", "坏")))
    first_line = "header" if names else "auto"
    config = ColumnsConfig(text_columns=("1",), label_column="2", first_line=first_line)
    layout = find_layout(path, config, None, TASKS)
    want = [(("新",), "好"), (("旧",), "坏")]
    assert [(item.texts, item.label) for item in read_examples(short, layout, config)] == want
    task = Classification(text_columns=layout.text_columns)
    assert [item.texts for item in stream_examples(short, task)] == [texts for texts, _ in want]


def test_column_numbers_work_with_a_header(write):
    path = write("a.tsv", lines(("text", "label"), *ROWS))
    layout, examples = read(path, text_columns=("1",), label_column="2")
    assert layout.text_columns == ("text",)
    assert len(examples) == 3


def test_without_a_header_columns_are_guessed_and_reported(write):
    rows = [(label, text) for text, label in ROWS] + [("坏", "太吵")]
    layout, examples = read(write("a.tsv", lines(*rows)))
    assert layout.label_column == "1"
    assert "not a header" in layout.report
    assert examples == [((text,), label) for label, text in rows]


def test_labels_that_are_column_names_do_not_make_a_header(write):
    rows = [("某文", "title"), ("别的", "text"), ("另一篇", "title"), ("最后", "text")]
    assert len(read(write("a.tsv", lines(*rows)))[1]) == 4


@pytest.mark.parametrize(
    ("label", "text"),
    [
        *((x, "第{}篇文章讲的是另外一件事情") for x in ("情感", "类型")),
        ("新闻", "文{}"),
        ("标题", "文{}"),
    ],
)
def test_a_label_that_is_a_column_name_requires_first_line(write, label, text):
    """From the first rows alone, the line looks like a header: 新闻 is a usual column name."""
    texts = [text.format(i) for i in range(302)]
    labels = [label, *["体育", "财经", "科技"] * 100, label]
    path = write("a.tsv", lines(*zip(labels, texts, strict=True)))
    with pytest.raises(InputError, match=f"'{label}' is a usual name.*Give --first-line"):
        read(path)
    layout, examples = read(path, first_line="example")
    assert (layout.label_column, layout.text_columns) == ("1", ("2",))
    assert len(examples) == 302


def test_a_column_name_as_a_later_label_does_not_make_a_header(write):
    labels = ["体育", "财经", "情感", *["体育", "财经"] * 9]
    rows = [(f"文{i}", label) for i, label in enumerate(labels)]
    assert len(read(write("a.tsv", lines(*rows)))[1]) == len(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [("id1", "甲", "x"), ("id2", "甲", "x"), ("id3", "乙", "y"), ("id4", "乙", "y")],
        [("9", "甲", "0"), ("7", "乙", "1"), ("9", "丙", "0")],  # two possible label columns
        [("title", "content", "label"), ("a", "b", "0"), ("c", "d", "1")],
        [("text", "label", "score"), ("a", "0", "0.5"), ("c", "1", "0.7")],
        [("nr", "words", "more", "label"), ("1", "b", "x", "0"), ("2", "d", "y", "1")],
        [
            ("文甲", "文乙", "1"),
            ("文丙", "文丁", "0"),
            ("文戊", "文己", "1"),
            ("文庚", "文辛", "0"),
        ],
        [("说法", "价格"), ("甲", "1.5"), ("乙", "2.5"), ("丙", "9.9"), ("丁", "7.25")],
    ],
)
def test_ambiguous_columns_require_a_flag(write, rows):
    with pytest.raises(InputError, match=r"cannot tell which column.*Give --(text|label)-column"):
        find_layout(write("a.tsv", lines(*rows)), ColumnsConfig(), None, TASKS)


@pytest.mark.parametrize("columns", ["query\tdocument（1）\tdocument（2）", "text\tText\tsimilar"])
def test_two_columns_of_one_name_among_matching_texts_require_a_flag(write, columns):
    path = write("a.tsv", f"{columns}\n甲说\t乙说\t丙\n丁说\t戊说\t己\n")
    with pytest.raises(InputError, match=r"which columns hold the texts: .* or .* Give --text-col"):
        read(path, "embedding")


@pytest.mark.parametrize("odd", ["1", "N/A", ""])
def test_a_few_mistakes_among_scores_do_not_make_them_texts(write, odd):
    rows = [(f"今天{i}", f"明天{i}", str(i % 2)) for i in range(19)]
    path = write("a.csv", lines(("s1", "s2", "x"), *rows, ("甲", "乙", odd), delimiter=","))
    layout, examples = read(path, "embedding", first_line="header")
    assert layout.label_column == "x"
    assert "label in column x (by its content)" in layout.report
    assert len(examples) == 20 - (odd != "1")


def test_row_numbers_with_a_mistake_are_no_scores(write):
    rows = [(str(i), f"今天{i}", f"明天{i}") for i in range(19)]
    path = write("a.csv", lines(("n", "text1", "text2"), *rows, ("x", "甲", "乙"), delimiter=","))
    assert read(path, "embedding")[0].label_column is None


@pytest.mark.parametrize("first", [("甲", "乙", "丙"), ("text_a", "text_b", "得分")])
def test_a_header_of_scores_leaves_no_doubt_unnoticed(write, first):
    rows = [(f"今天{i}", f"明天{i}", str(i % 2)) for i in range(19)]
    doubt = ("text_a", "得分", "1")
    path = write("a.tsv", lines(first, *rows, *([doubt] if first[0] == "text_a" else [])))
    with pytest.raises(InputError, match="whether the first line is a header"):
        read(path, "embedding")


def test_a_column_is_not_both_text_and_score(write):
    path = write("a.tsv", lines(("text_a", "text_b", "label"), ("甲", "1", "2"), ("乙", "2", "3")))
    with pytest.raises(InputError, match="text_b is both a text and the label column"):
        read(path, "embedding", text_columns=("text_a", "text_b"), label_column="text_b")


def test_a_column_of_numbers_is_not_the_text(write):
    path = write("a.tsv", lines(("1", "甲", "x"), ("2", "乙", "y"), ("3", "丙", "x")))
    layout, examples = read(path, label_column="3")
    assert examples[0] == (("甲",), "x")
    assert "text in column 2 (by its content)" in layout.report


@pytest.mark.parametrize(
    "columns",
    [
        {"label_separator": ""},
        {"encoding": "utf-9"},
    ],
)
def test_invalid_column_settings_are_rejected(columns):
    with pytest.raises(InputError):
        ColumnsConfig(**columns)


# The task


@pytest.mark.parametrize(
    ("columns", "labels", "task"),
    [
        ("text", ["0", "1", "0"], "classification"),
        ("text", ["1.0", "2.0", "1.0"], "classification"),
        ("text", ["0.5", "1", "2"], "regression"),
        ("text", ["0.5", "4.5"] * 5 + ["nan"], "regression"),
        ("text", ["0.5", "4.5"] * 5 + ["?"], "regression"),
        ("text", ["1,000.5", "999", "1,200"], "regression"),
        ("text", ["nan", "nü", "nan"], "classification"),
        ("text", ["甲,乙", "乙", "甲", "乙"], "multilabel"),
        ("text", ["食品,饮料", "家电,数码", "家电,数码"], "classification"),
        ("text", [["甲"], []], "multilabel"),
        ("text", ["['甲']", "[]"], "multilabel"),
        ("text", ["85%", "60%", "7％"], "regression"),
        ("text", [f"{i}_{j}" for i in range(8) for j in range(8)] * 2, "classification"),
        ("text_a text_b", [0, 1], "pair"),
        ("text_a text_b", [0.5, 1], "regression"),
        ("A B C", ["B", "C"], "ranking"),
    ],
)
def test_the_task_is_detected_from_columns_and_labels(write, columns, labels, task):
    records = [{name: name for name in columns.split()} | {"label": x} for x in labels]
    path = write("a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert layout.task.name == task
    assert "a guess" in layout.report


def test_column_names_may_be_in_traditional_chinese(write):
    layout, examples = read(write("a.tsv", "內容\t類別\n很好\t好\n很差\t壞\n"))
    assert (layout.text_columns, layout.label_column, len(examples)) == (("內容",), "類別", 2)


def test_a_column_called_labels_is_multilabel(write):
    assert read(write("a.tsv", "text\tlabels\n甲\tx\n乙\t\n"))[0].task.name == "multilabel"


def test_options_of_a_question_are_not_a_ranking(write):
    rows = [("question", *"ABCD", "answer"), *(("问", *"甲乙丙丁", x) for x in "ABCD" * 2)]
    with pytest.raises(InputError, match="cannot tell the task"):
        read(write("a.tsv", lines(*rows)))


def test_triples_with_two_equal_texts_are_skipped(write, capsys):
    rows = [("A", "B", "C", "label"), ("甲", "乙", "丙", "B"), ("甲", "乙", "乙 ", "C")]
    assert len(read(write("a.tsv", lines(*rows)))[1]) == 1
    assert "has the same text in B and C" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [[str(i) for i in range(60)], [f"名{i}" for i in range(60)]])
def test_an_undetected_task_requires_the_flag_task(write, labels):
    path = write("a.tsv", lines(("text", "label"), *(("x", label) for label in labels)))
    with pytest.raises(InputError, match="Give --task"):
        read(path)
    assert read(path, "classification")[1][7] == (("x",), labels[7])


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("a.tsv", "ranking"),
        ("a.tsv", "pair"),
        ("a.tsv", "tagging"),
        ("a.conll", "classification"),
        ("pair.tsv", "classification"),
    ],
)
def test_a_task_that_does_not_fit_is_rejected(write, name, task):
    pair = lines(("text_a", "text_b", "label"), ("x", "y", "0"))
    content = {"a.tsv": FILES["a.tsv"], "a.conll": CONLL, "pair.tsv": pair}[name]
    with pytest.raises(InputError, match=task):
        find_layout(write(name, content), ColumnsConfig(), task, TASKS)


# Labels


def test_nan_among_numbers_is_a_missing_label(write):
    rows = zip("甲乙丙丁", ["0", "nan", "1", "0"], strict=True)
    path = write("a.tsv", lines(("text", "label"), *rows))
    with pytest.raises(InputError, match=r"tsv:3 has the label 'nan', but all others are numbers"):
        read(path)


@pytest.mark.parametrize("name", [*FILES, "a.tsv.gz"])
def test_a_label_may_be_called_nan(write, name):
    """nan is pinyin of 男 and 南; pandas would read it as a missing value."""
    rows = [
        ("他来了", "nan"),
        ("她来了", "nü"),
        ("他走了", "nan"),
        ("没有", "None"),
        ("空", "NULL"),
    ]
    content = {
        "tsv": lines(("text", "label"), *rows),
        "csv": lines(("text", "label"), *rows, delimiter=","),
        "jsonl": as_jsonl(rows),
        "parquet": parquet({"text": [a for a, _ in rows], "label": [b for _, b in rows]}),
        "xlsx": xlsx(("text", "label"), *rows),
    }[name.removesuffix(".gz").partition(".")[2]]
    layout, examples = read(write(name, content))
    assert layout.task.name == "classification"
    assert examples == [((text,), label) for text, label in rows]


@pytest.mark.parametrize(
    ("task", "value", "label"),
    [
        ("classification", " 好 ", "好"),
        ("classification", "\ufeff好\u200b", "好"),
        ("classification", 3, "3"),
        ("classification", 3.0, "3"),
        ("regression", "-1.5e1", -15.0),
        ("regression", "-1,234,567.5", -1234567.5),
        ("regression", "1,250%", 12.5),
        ("regression", " 7 ％", 0.07),
        ("regression", 2, 2.0),
        ("regression", "\u200b3.5", 3.5),
        ("regression", "85%\ufeff", 0.85),
        ("regression", "１２", 12.0),
        ("multilabel", "甲, 乙,,甲", ("乙", "甲")),
        ("multilabel", ["x", 2], ("2", "x")),
        ("multilabel", "甲,\u200b", ("甲",)),
        ("multilabel", "['乙', '甲']", ("乙", "甲")),
        ("multilabel", '["乙"]', ("乙",)),
        ("multilabel", "['乙' '甲']", ("乙", "甲")),
        ("multilabel", "[]", ()),
        ("multilabel", "[乙]", ("[乙]",)),
        ("multilabel", "", ()),
        ("multilabel", None, ()),
    ],
)
def test_labels_are_converted_for_the_task(write, task, value, label):
    path = write("a.jsonl", as_jsonl([("x", value), ("y", "0")]))
    assert read(path, task)[1][0] == (("x",), label)


def test_the_separator_of_labels_can_be_given(write):
    path = write("a.csv", "text,label\nx,甲|乙\ny,甲\n")
    layout, examples = read(path, label_separator="|")
    assert (layout.task.name, examples[0]) == ("multilabel", (("x",), ("乙", "甲")))


@pytest.mark.parametrize("sign", [";", "；", "、", "|", "，"])
def test_another_separator_requires_label_separator(write, sign):
    path = write("a.tsv", f"text\tlabels\nx\t甲{sign}乙\ny\t甲\nz\t乙\n")
    with pytest.raises(InputError, match=f"label-separator .*{re.escape(sign)}"):
        read(path)
    assert read(path, label_separator=sign)[1][0] == (("x",), ("乙", "甲"))
    assert read(path, label_separator="#")[1][0] == (("x",), (f"甲{sign}乙",))


@pytest.mark.parametrize(("sign", "typed"), [(" ", "' '"), ("\n", r"$'\n'")])
def test_white_space_can_separate_labels(write, sign, typed):
    path = write("a.csv", f'text,labels\nx,"甲{sign}乙"\ny,甲\nz,乙\n')
    with pytest.raises(InputError, match=re.escape(f"--label-separator {typed} if it is")):
        read(path)
    assert read(path, label_separator=sign)[1][0] == (("x",), ("乙", "甲"))


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize("labels", [["甲|乙", "甲", "乙"], ["乙", "甲|乙", "甲|乙"]])
def test_another_separator_is_detected_for_any_column_name(write, name, labels):
    path = write("a.tsv", lines(("text", name), *zip("xyz", labels, strict=True)))
    with pytest.raises(InputError, match=r"label-separator '\|'"):
        read(path)
    assert read(path, "classification")[1][1] == (("y",), labels[1])


@pytest.mark.parametrize(
    "labels",
    [
        [[0, 1, 1], [1, 0, 0]],
        ["0,1,1", "1,0,1"],
        ["[0, 0]", "[1]"],
        [[True] * 2] * 2,
        [[0, 1], [1, 0]],
    ],
)
def test_binary_vectors_of_labels_are_rejected(write, labels):
    path = write("a.jsonl", as_jsonl(zip("xy", labels, strict=True)))
    with pytest.raises(InputError, match="Write the names of the labels that are 1"):
        read(path, "multilabel")


@pytest.mark.parametrize("sign", [*"；、|，/# "])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_sign_between_labels_of_other_rows_is_noticed_in_one_row(write, sign, mixed):
    rows = [(f"x{i}", "甲乙丙"[i % 3]) for i in range(30)]
    rows += [("y", f"甲{sign}乙"), *[("z", "甲,丙")] * (10 * mixed)]
    path = write("a.tsv", lines(("text", "labels"), *rows))
    with pytest.raises(InputError, match=f"'{re.escape(sign)}' is between labels"):
        read(path, "multilabel")


@pytest.mark.parametrize("label", ["C/C++", "not sure", "体育/足球"])
def test_single_labels_may_have_a_slash_or_a_space(write, label):
    parts = label.replace("/", " ").split()
    rows = [(f"x{i}", [*parts, label][i % 3]) for i in range(30)]
    layout, examples = read(write("a.tsv", lines(("text", "label"), *rows)))
    assert layout.task.name == "classification"
    assert examples[2][1] == label


def test_a_punctuation_mark_in_a_label_is_not_a_separator(write):
    lists = [["金融、保险"], ["金融"], ["保险"]]
    assert read(write("a.jsonl", as_jsonl([("x", label) for label in lists])))[1][0][1]
    path = write("a.tsv", "text\tlabels\nx\t金融、保险\ny\t体育\n")
    assert read(path)[1][0] == (("x",), ("金融、保险",))


# CoNLL


@pytest.mark.parametrize("spaces", [" ", "\t", "   "])
def test_conll_gives_units_and_tags(write, spaces):
    path = write("a.conll.gz", CONLL.replace(" ", spaces))
    config = ColumnsConfig()
    layout = find_layout(path, config, None, TASKS)
    assert layout.task.name == "tagging"
    assert read_examples(path, layout, config) == [
        Example(("北京人",), ("B-LOC", "I-LOC", "O"), f"{path}:1", ("北", "京", "人")),
        Example(("她",), ("O",), f"{path}:7", ("她",)),
    ]


def test_units_may_be_white_space_and_words(write):
    path = write("a.conll", "New NN B-LOC\nYork NN E-LOC\n\u3000 O\n")
    config = ColumnsConfig()
    (example,) = read_examples(path, find_layout(path, config, None, TASKS), config)
    assert example.units == ("New", "York", "\u3000")
    assert example.texts == ("New York \u3000",)


# Quotes


def test_quotes_in_a_tsv_are_text(write):
    rows = [('"好"和"坏"', "1"), ('"没有关上', "0"), ('他说"好"', "1"), ('开始"', "0")]
    assert read(write("a.tsv", lines(("text", "label"), *rows)))[1] == [
        ((text,), label) for text, label in rows
    ]


def test_quotes_in_different_texts_do_not_join_lines(write):
    rows = [('"甲', "1"), ("乙", "0"), ('丙"', "1")]
    assert len(read(write("a.tsv", lines(("text", "label"), *rows)))[1]) == 3


def test_a_correctly_quoted_tsv_is_unquoted(write):
    rows = [("zwei\nZeilen", "1"), ('er sagte "ja"', "0"), ("ein\tTab", "1")]
    target = io.StringIO()
    csv.writer(target, "excel-tab").writerows([("text", "label"), *rows])
    assert read(write("a.tsv", target.getvalue()))[1] == [((text,), label) for text, label in rows]


def test_a_too_long_row_does_not_disable_quoting(write):
    path = write("a.tsv", 'text\tlabel\n"a\nb"\t1\nc\t0\t0\n"d"\t0\n')
    assert read(path)[1] == [(("a\nb",), "1"), (("d",), "0")]


@pytest.mark.parametrize("odd", ["x\t0\t0\n", "x\n", "x\t0\t0\nx\n"])
@pytest.mark.parametrize("at_end", [True, False])
def test_a_malformed_row_does_not_enable_quoting(write, odd, at_end):
    rows = [('"甲', "1"), ("乙", "0"), ('丙"', "1")]
    texts = lines(*rows)
    path = write("a.tsv", lines(("text", "label")) + (odd + texts if at_end else texts + odd))
    assert read(path)[1] == [((text,), label) for text, label in rows]


def test_quotes_that_would_join_lines_are_text(write):
    rows = [('"甲', "1"), ("乙", "0"), ('丙"', "1")]
    path = write("a.tsv", lines(("text", "label"), *rows) + '"a\nb"\t1\nc\t0\t0\n')
    assert read(path)[1] == [*(((text,), label) for text, label in rows), (('b"',), "1")]


def test_a_single_empty_quoted_cell_is_rejected(write):
    with pytest.raises(InputError, match=r"a\.tsv has one column"):
        read(write("a.tsv", '""\n'))


def test_a_line_break_in_an_unquoted_tsv_gives_a_clear_error(write):
    path = write("a.tsv", 'text\tlabel\n"好"书\t1\n"zwei\nZeilen"\t0\n')
    with pytest.raises(
        InputError, match=r"a\.tsv:3 has 1 instead of 2 columns .is there a line br"
    ):
        read(path, strict=True)


TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).filter(str.strip)
TEXT = TEXT.filter(lambda text: not text.startswith(("'", '="')))  # a guard of Excel is removed
LABEL = TEXT.map(str.strip).filter(lambda label: label.casefold() != "nan")  # among numbers


@given(st.lists(st.tuples(TEXT, LABEL), min_size=1), st.sampled_from(["csv", "jsonl", "parquet"]))
@example([("0", "0" * 10)] * 2 + [("0", "0" * 10 + ";"), (":", "0")], "csv")  # labels like texts
def test_files_of_other_libraries_are_read_back(tmp_path_factory, rows, kind):
    path = tmp_path_factory.mktemp("any") / f"a.{kind}"
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows([("text", "label"), *rows])
    elif kind == "jsonl":
        path.write_text(as_jsonl(rows))
    else:
        path.write_bytes(parquet({"text": [a for a, _ in rows], "label": [b for _, b in rows]}))
    assert read(path, "classification", encoding="utf-8")[1] == [((a,), b) for a, b in rows]


def test_a_text_of_200000_characters_is_read(write):
    long = "很长" * 100_000
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        path = write(name, lines(("text", "label"), (f'"{long}"', "0"), delimiter=delimiter))
        assert read(path)[1] == [((long,), "0")]


# Invalid files


BAD = {  # name: content, task, part of the message
    "other.xml": ("{}", None, "of no kind that can be read"),
    "other.json": (
        "{}",
        None,
        r"other\.json holds neither a JSON object in each line nor",
    ),
    "empty.tsv": ("", None, r"empty\.tsv is empty"),
    "blank.csv": ("\n \n", None, r"blank\.csv is empty"),
    "empty.jsonl": ("\n", None, r"empty\.jsonl is empty"),
    "empty.conll": ("\n\n", None, r"empty\.conll has no example"),
    "empty.parquet": (parquet({"text": [], "label": []}), None, r"empty\.parquet is empty"),
    "header.tsv": ("text\tlabel\n", None, r"header\.tsv has a header, but no example"),
    "twice.tsv": ("text\ttext\tlabel\nx\ty\t0\n", None, "two columns named 'text'"),
    "no.parquet": (b"PAR1 no", None, "no Parquet file"),
    "texts.txt": ("x\n", None, r"a \.txt file holds texts alone"),
    "long.tsv": ("text\tlabel\nx\t0\ny\t1\t2\n", None, r"long\.tsv:3 has 3 instead of 2 columns"),
    "short.csv": ("text,label\nx,0\ny\n", None, r"short\.csv:3 has 1 instead of 2 columns"),
    "none.tsv": ("text\tlabel\n\nx\t0\ny\t\n", None, r"none\.tsv:4 has no label"),
    "mysql.tsv": ("text\tlabel\nx\t0\ny\t\\N\n", None, r"mysql\.tsv:3 has no label"),
    "nan.tsv": ("text\tlabel\nx\t0\ny\tNaN\n", None, r"nan\.tsv:3 has the label 'NaN', .*numbers"),
    "nan.jsonl": ('{"text": "x", "label": NaN}\n', None, r"nan\.jsonl:1 has no label"),
    "nans.jsonl": ('{"text": "x", "labels": ["a", NaN]}', None, r"nans\.jsonl:1 has no label"),
    "nan_labels.jsonl": ('{"text": "x", "labels": NaN}', None, r"labels\.jsonl:1 has no label"),
    "binary.parquet": (
        parquet({"text": ["x", "y"] * 4, "label": [b"0", b"1"] * 4}),
        None,
        r"binary\.parquet:1-8 has binary data in 'label', which is no label: write it as text",
    ),
    "lists.parquet": (
        parquet({"text": ["x", "y"] * 4, "label": [[b"0"], [b"1"]] * 4}),
        "multilabel",
        r"lists\.parquet:1-8 has binary data in 'label'",
    ),
    "bytes.parquet": (
        parquet({"text": [b"x", b"y"] * 4, "label": ["0", "1"] * 4}),
        None,
        r"bytes\.parquet:1-8 has binary data in 'text', which is no text: write it as text",
    ),
    "nan.parquet": (
        parquet({"text": ["x", "y"], "label": [0.0, math.nan]}),
        None,
        r"nan\.parquet:2 has no label",
    ),
    "void.tsv": ("text\tlabel\nx\t0\n \t0\n", None, r"void\.tsv:3 has an empty text in 'text'"),
    "word.tsv": (
        "text\tlabel\nx\t0.5\ny\tbad\n",
        "regression",
        r"word\.tsv:3 has .*'bad'.* no num",
    ),
    "huge.tsv": ("text\tlabel\nx\t0.5\ny\t1e300\n", "regression", r"huge\.tsv:3 has .*'1e300'"),
    "code.tsv": ("text\tlabel\nx\t0.5\ny\t1_2\n", "regression", r"code\.tsv:3 .*'1_2'.* no num"),
    "invisible.tsv": (
        "text\tlabel\nx\t0\n\u200b\t0\n",
        None,
        r"invisible\.tsv:3 has an empty text in 'text'",
    ),
    "inf.tsv": ("text\tlabel\nx\t0.5\ny\tinf\n", "regression", r"inf\.tsv:3 has .*'inf'.* no num"),
    "order.jsonl": (
        '{"A": "x", "B": "y", "C": "z", "label": "C"}\n{"A": "x", "B": "y", "C": "z", "label": 1}',
        None,
        r"order\.jsonl:2 has the label '1', but it is B or C",
    ),
    "many.jsonl": (
        as_jsonl([("x", ["a", "b"])]),
        "classification",
        r"many\.jsonl:1 has the label \['a', 'b'\], but the task takes a single one",
    ),
    "nested.jsonl": (as_jsonl([("x", 1), (["y"], 1)]), None, r"jsonl:2 has a list in 'text'"),
    "lacks.jsonl": (as_jsonl([("x", 1)]) + '{"label": 1}', None, r"lacks\.jsonl:2 has no 'text'"),
    "unlabelled.jsonl": (
        '{"text": "x", "labels": ["a"]}\n{"text": "y"}',
        None,
        r"unlabelled\.jsonl:2 has no label",
    ),
    "broken.jsonl": (as_jsonl([("x", 1)]) + "{", None, r"broken\.jsonl:2 is not JSON"),
    "gzip.csv": (gzip.compress(b"text,label\n"), None, r"gzip\.csv is compressed by gzip"),
    "list.jsonl": ("[1]\n", None, r"list\.jsonl:1 is not a JSON object"),
    "half.jsonl": (
        '{"text": "\\ud83d", "label": 1}',
        None,
        r"half\.jsonl:1 holds half of a character, .*write the whole one",
    ),
    "uie.jsonl": (
        '{"content": "x", "prompt": "y", "result_list": [{"text": "x", "start": 0, "end": 1}]}',
        None,
        r"uie\.jsonl is in UIE's format",
    ),
    "unsure.jsonl": (
        '{"sentence1": "x", "sentence2": "y", "label": "neutral"}\n'
        '{"sentence1": "x", "sentence2": "z", "label": "-"}',
        "pair",
        r'unsure\.jsonl:2 has the label "-": its annotators did not agree',
    ),
    "untagged.conll": ("北 B-LOC\n京\n", None, r"untagged\.conll:2 has no tag next to '京'"),
    "void.conll": ("北\tO\n\tO\n", None, r"void\.conll:2 has no character or word"),
    "odd.conll": ("北 B-LOC\n\n京 LOC\n", None, r"odd\.conll:3 has the tag 'LOC'"),
    "open.csv": ('text,label\nx,0\n"y,1\nz,0\n', None, r"open\.csv:3 breaks the rules of quoting"),
    "inner.csv": ('text,label\n"x"y,0\nz,1\n', None, r"inner\.csv:2 breaks the rules of quoting"),
    "mixed.tsv": (
        "text\tlabel\n很好的书\t0\n再来一本\t1\n".encode() + "不好\t0\n".encode("gb18030"),
        None,
        r"mixed\.tsv:4 is not in the encoding",
    ),
    "nul.tsv": (
        "te\0xt\tlabel\n很好的书\t0\n",
        None,
        r"nul\.tsv:1 holds a NUL character: remove it",
    ),
    "nul.jsonl": (as_jsonl([("x", 1)]) + "\0{}\n", None, r"nul\.jsonl:2 holds a NUL character"),
    "old.xls": (b"\xd0\xcf\x11\xe0", None, r"old\.xls .*Save it as \.xlsx or \.csv"),
    "zipped.xlsx.gz": ("", None, r"of no kind .*all but Parquet, Arrow and xlsx may be compressed"),
    "secret.xlsx": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1..",
        None,
        r"secret\.xlsx .* or has a password",
    ),
    "broken.xlsx": ("text,label", None, r"broken\.xlsx is no \.xlsx file, or damaged"),
    "empty.xlsx": (xlsx(), None, r"empty\.xlsx is empty"),
    "none.xlsx": (xlsx(("text", "label"), ("x", 1), ("y",)), None, r"none\.xlsx:3 has no label"),
    "void.xlsx": (
        xlsx(("text", "label"), ("x", 0), (), ("#N/A", 1)),
        None,
        r"void\.xlsx:4 has an error such as #N/A",
    ),
    "wide.xlsx": (
        xlsx(("text", "label"), ("x", 0, "z"), ("y", 1, "z")),
        None,
        r"wide\.xlsx:2 has 3 instead of 2 columns \(is a name in the header empty\?\)",
    ),
    "cut.tsv.gz": (None, None, r"cut\.tsv\.gz is damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_files_give_a_message_of_one_line(write, name):
    content, task, message = BAD[name]
    if content is None:
        path = write(name, FILES["a.tsv"] * 9)
        path.write_bytes(path.read_bytes()[:-12])
    else:
        path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        read(path, task, strict=True)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_folder_or_missing_file_is_rejected(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        read(tmp_path / "a.tsv")


def test_a_test_file_without_labels_is_rejected(write):
    path = write("b.tsv", "text\tx\n甲\t乙\n丙\t丁\n")
    with pytest.raises(InputError, match=r"b\.tsv: cannot tell which column holds the labels"):
        find_layout(path, ColumnsConfig(), "classification", TASKS, ("text",), "label")


@pytest.mark.parametrize(("name", "kind"), [("tagging", "tsv"), ("classification", "conll")])
def test_a_test_file_of_another_kind_is_rejected(write, name, kind):
    layout = Layout(TASKS[name], ("text",), None, "")
    with pytest.raises(InputError, match=rf"b\.{kind}.*tagging"):
        read_examples(write(f"b.{kind}", "text\ttag\nx\tO\n"), layout, ColumnsConfig())


# Streams


def test_a_stream_keeps_the_order_and_every_row(write):
    path = write("a.tsv", "label\ttext\n0\t甲\n\n1\t \n1\t乙\t丙\n0\t丁\n")
    actual = stream(path)
    assert [item.source_line for item in actual] == [f"{path}:{i}" for i in range(2, 7)]
    assert [type(item) for item in actual] == [Example, Row, Row, Row, Example]
    assert [item.label for item in actual if isinstance(item, Example)] == [None, None]


@pytest.mark.parametrize("name", FILES)
def test_a_stream_needs_no_labels(write, name):
    actual = stream(write(name, FILES[name]), text_columns=("文本" if name == "a.csv" else "text",))
    assert [item.texts[0] for item in actual] == [text for text, _ in ROWS]


def test_every_line_of_a_txt_file_is_a_text(write):
    path = write("a.txt", b"\xef\xbb\xbftext\r\n\n" + '"乙\t丙'.encode() + b"\n\xff\n")
    assert stream(path) == [
        Example(("text",), None, f"{path}:1"),
        Row(f"{path}:2", {}, "is blank"),
        Example(('"乙\t丙',), None, f"{path}:3"),
        Row(f"{path}:4", {}, "is not in the encoding of the rest of the file, or of --encoding"),
    ]


def test_a_txt_with_tabs_is_a_table_if_the_user_names_its_columns(write):
    path = write("a.txt", "1\t甲\n2\t乙\n")
    _, examples = open_texts_to_predict(
        path, TASKS["regression"](), ColumnsConfig(text_columns=("2",))
    )
    assert [example.texts for example in examples] == [("甲",), ("乙",)]


def test_a_tab_separates_two_texts_on_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("甲\t乙\n丙\n".encode())))
    pair, bad = stream("-", "pair", text_columns=("a", "b"))
    assert pair == Example(("甲", "乙"), None, "stdin:1")
    assert bad == Row("stdin:2", {}, "has 1 of 2 texts, separated by tabs")


def test_raw_text_for_tagging_is_split_into_units(write):
    path = write("a.txt", "北京 人\n")
    (by_character,) = stream(path, "tagging")
    (by_word,) = stream(path, "tagging", spaced_units=True)
    assert by_character.units == ("北", "京", " ", "人")
    assert by_word.units == ("北京", "人")
    assert by_word.texts == ("北京 人",)


@pytest.mark.parametrize("content", [CONLL, "北\n京\n人\n\n她\n"])
def test_a_stream_of_conll_needs_no_tags(write, content):
    actual = stream(write("a.conll", content), "tagging", spaced_units=True)
    assert [(item.texts[0], item.label) for item in actual] == [("北 京 人", None), ("她", None)]


def test_a_stream_without_the_training_columns_is_rejected(write):
    with pytest.raises(InputError, match="no column 'text'"):
        stream_examples(write("a.csv", "甲,乙\n丙,丁\n"), Classification())


def test_an_unclosed_quote_in_a_csv_skips_only_its_line(write):
    path = write("a.csv", 'text\n甲\n"乙\n丙\n"丁\n戊"\n')
    first, bad, second, third = stream(path)
    assert [item.texts for item in (first, second, third)] == [("甲",), ("丙",), ("丁\n戊",)]
    assert (bad.source_line, bad.problem[:26]) == (f"{path}:3", "breaks the rules of quotin")
    assert third.source_line == f"{path}:5"


def test_blank_rows_of_a_spreadsheet_are_counted_in_places(write):
    path = write("a.xlsx", xlsx(("text",), ("甲",), (), ("乙",)))
    assert [(type(item), item.source_line) for item in stream(path)] == [
        (Example, f"{path}:2"),
        (Row, f"{path}:3"),
        (Example, f"{path}:4"),
    ]


@pytest.mark.parametrize("kind", ["txt", "tsv", "csv", "jsonl"])
def test_a_large_file_takes_little_memory(write, kind):
    text = "很好" * 500
    line = json.dumps({"text": text}) if kind == "jsonl" else text
    path = write(f"a.{kind}", ("text\n" if kind in ("tsv", "csv") else "") + f"{line}\n" * 3000)
    tracemalloc.start()
    count = sum(isinstance(item, Example) for item in stream_examples(path, Multilabel()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3000
    assert path.stat().st_size > 9e6
    assert peak < 3 << 20


@pytest.mark.parametrize(
    ("task", "content", "label", "want"),
    [
        ("classification", "text\tgold\tlabel\tp(好)\terror\n今天\t差\t好\t0.9\t\n", "label", "差"),
        ("regression", "text\tgold\tscore\terror\n今天\t0.5\t0.75\t\n", "score", 0.5),
        ("multilabel", "text\tgold\tlabels\terror\n今天\t乙,甲\t甲\t\n", "labels", ("乙", "甲")),
    ],
)
def test_the_labels_of_predictions_tsv_are_those_of_the_data(write, task, content, label, want):
    path = write("predictions.tsv", content)

    def label_of(columns, *names):
        layout = find_layout(path, columns, task, TASKS, *names)
        [example] = read_examples(path, layout, columns)
        return example.label

    assert label_of(ColumnsConfig()) == want
    assert label_of(ColumnsConfig(), ("text",), label) == want
    predicted = label_of(ColumnsConfig(label_column=label), ("text",), label)
    assert predicted not in (want, None)


@pytest.mark.parametrize(
    ("task", "content", "texts", "want"),
    [
        (
            "reranking",
            'query\tdocument\tgold\tscore\terror\n甲\t["乙", "丙"]\t[0.0, 1.0]\t[0.9, 0.2]\t\n',
            ("query", "document"),
            (0.0, 1.0),
        ),
        ("embedding", "p\tq\tgold\tcosine\terror\n甲\t乙\tbelongs\t0.9\t\n", ("p", "q"), BELONGS),
    ],
)
def test_predictions_of_a_training_without_labels_are_no_labels(write, task, content, texts, want):
    path, columns = write("predictions.tsv", content), ColumnsConfig()
    [example] = read_examples(path, find_layout(path, columns, task, TASKS, texts), columns)
    assert getattr(example.label, "relevance", example.label) == want


@pytest.mark.parametrize("names", [(), (("A", "B", "C"), "label")])
def test_predictions_of_triples_are_read_again_as_triples(write, names):
    rows = "A\tB\tC\tgold\tcosine\terror\n甲\t乙\t丙\tbelongs\t0.9\t\n"
    path, columns = write("predictions.tsv", rows), ColumnsConfig()
    layout = find_layout(path, columns, "embedding", TASKS, *names)
    [example] = read_examples(path, layout, columns)
    assert (example.texts, example.label) == (("甲", "乙", "丙"), BELONGS)


def test_line_breaks_in_names_are_escaped_in_messages(write):
    rows = [{"评论\n内容": f"文本{i}", "标\n签": "好\n评" if i % 2 else "差"} for i in range(20)]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    columns = ColumnsConfig()
    layout = find_layout(path, columns, "classification", TASKS)
    assert r"text in column 评论\n内容, label in column 标\n签" in layout.report
    task = layout.task_of(list(read_examples(path, layout, columns)), columns, "head")
    with pytest.raises(InputError, match=r"which has 好\\n评, 差\."):
        task.labelling.target(Example(("x",), "中", "b:1"))
    with pytest.raises(InputError, match=r"its columns are 评论\\n内容, 标\\n签\."):
        find_layout(path, ColumnsConfig(label_column="x"), "classification", TASKS)


def test_settings_of_a_program_are_checked():
    assert ColumnsConfig(text_columns="text").text_columns == ("text",)
    with pytest.raises(InputError, match=r"first_line is 'yes', but must be one of auto, header"):
        ColumnsConfig(first_line="yes")
