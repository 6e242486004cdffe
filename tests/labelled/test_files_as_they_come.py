"""Real-world files: each one works and its report names the columns, or a message says what to do.

Files are read as by `finetune`, and as by `predict` with a model trained on other columns.
"""

import csv
import gzip
import io
import json
import re

import openpyxl
import pytest

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, open_texts_to_predict, read_examples
from roformer_tf.readers.tables import Top, open_table
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.table import TASKS

GOOD = ["房间很干净，下次还来", "早餐丰富", "前台热情，位置也好", "性价比很高", "床很舒服"]
BAD = ["隔音太差，一夜没睡", "早餐冷了", "等了很久才入住", "设施陈旧", "不会再来了"]
ROWS = [row for pair in zip(GOOD, BAD, strict=True) for row in zip(pair, "10", strict=True)]
LONG = "这家酒店" * 5000  # 20,000 characters


def as_csv(*rows, delimiter=",", end="\r\n"):
    target = io.StringIO()
    csv.writer(target, delimiter=delimiter).writerows(rows)
    return target.getvalue().replace("\r\n", end)


def as_lines(*rows, delimiter="\t"):
    return "".join(delimiter.join(row) + "\n" for row in rows)


def with_ids(rows):
    return [(text, str(number), label) for number, (text, label) in enumerate(rows)]


def as_xlsx(*rows, merge=(), before=()):
    """Return a workbook: `rows` in its last sheet, `merge`d ranges, other sheets `before` it."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rest in [*before, ("数据", rows)]:
        sheet = book.create_sheet(name)
        for row in rest:
            sheet.append(row)
    for cells in merge:
        sheet.merge_cells(cells)
    target = io.BytesIO()
    book.save(target)
    return target.getvalue()


def unicode_text(*rows):
    """Return the content that Excel saves as "Unicode text"."""
    return as_csv(*rows, delimiter="\t").encode("utf-16")


HEAD = ("评论内容", "情感")
HARD = [("第一行\n第二行", "1"), ("有\t制表符", "0"), ('他说"很好"', "1"), *ROWS]
EXPORT = [
    ("序号", "昵称", "评论内容", "评论时间", "点赞数", "情感倾向(0负1正)"),
    *(
        (i, f"用户{i}", a, f"2024-05-{i:02} 08:00", i * 7 % 5, b)
        for i, (a, b) in enumerate(ROWS, 1)
    ),
]
UNKNOWN = [
    ("单号", "买家的话", "好坏"),
    *((f"SO{i:05}", text, label) for i, (text, label) in enumerate(ROWS)),
]
HOLES = [HEAD, ROWS[0], ("", "1"), ROWS[1], ("没有标签", ""), ("也没有", " "), ("", ""), *ROWS[2:]]
PAIRED = [(a, b, str(i % 2)) for i, (a, b) in enumerate(zip(GOOD, BAD, strict=True))]

WORKS = {  # name: content, column of texts, column of labels, report, examples
    "exported.csv": (as_csv(("导出时间", "2024"), (), HEAD, *ROWS), *HEAD, ""),
    "gb18030.csv": (as_csv(HEAD, *ROWS).encode("gb18030"), *HEAD, "read as GB18030"),
    "bom.csv": (as_csv(HEAD, *ROWS).encode("utf-8-sig"), *HEAD, ""),
    "unicode.txt": (unicode_text(HEAD, *HARD), *HEAD, "read as UTF-16", HARD),
    "unicode.csv": (unicode_text(HEAD, *HARD), *HEAD, "separated by tabs", HARD),
    "sheet.xlsx": (as_xlsx(("内容", "标签"), *ROWS), "内容", "标签", ""),
    "macros.xlsm": (as_xlsx(HEAD, *ROWS), *HEAD, ""),
    "title.xlsx": (
        as_xlsx(
            ("五月评论汇总", None), ("导出时间：2024-06-01",), (), HEAD, *ROWS, merge=["A1:B1"]
        ),
        *HEAD,
        "",
    ),
    "two_headers.xlsx": (
        as_xlsx(
            ("客户", None, "标注"),
            ("姓名", "评论", "类别"),
            *(("王", a, b) for a, b in ROWS),
            merge=["A1:B1"],
        ),
        "评论",
        "类别",
        "",
    ),
    "high_header.xlsx": (
        as_xlsx(
            ("评论", "标注", None),
            (None, "类别", "备注"),
            *((a, b, "") for a, b in ROWS),
            merge=["A1:A2", "B1:C1"],
        ),
        "评论",
        "类别",
        "",
    ),
    "merged_header.xlsx": (
        as_xlsx(("文本", None, "分类"), *((a, None, b) for a, b in ROWS), merge=["A1:B1"]),
        "文本",
        "分类",
        "",
    ),
    "empty_first.xlsx": (
        as_xlsx(("正文", "得分"), *ROWS, before=[("Sheet1", [])]),
        "正文",
        "得分",
        "of the sheet 数据",
    ),
    "numbers_as_text.xlsx": (
        as_xlsx(
            ("标题", "得分"), *((a, b if i % 2 else float(b)) for i, (a, b) in enumerate(ROWS))
        ),
        "标题",
        "得分",
        "",
    ),
    "long.xlsx": (as_xlsx(HEAD, (LONG, "1"), *ROWS), *HEAD, "", [(LONG, "1"), *ROWS]),
    "long.csv": (as_csv(HEAD, (LONG, "1"), *ROWS), *HEAD, "", [(LONG, "1"), *ROWS]),
    "quoted.tsv": (as_csv(HEAD, *HARD, delimiter="\t"), *HEAD, "", HARD),
    "semicolons.csv": (as_csv(HEAD, *ROWS, delimiter=";"), *HEAD, "separated by semicolons"),
    "commas.tsv": (as_csv(HEAD, *ROWS), *HEAD, "separated by commas"),
    "wide_commas.csv": (
        as_lines(HEAD, *((a.replace("，", "、"), b) for a, b in ROWS), delimiter="，"),
        *HEAD,
        "separated by full-width commas",
        [(a.replace("，", "、"), b) for a, b in ROWS],
    ),
    "holes.csv": (as_csv(*HOLES), *HEAD, ""),
    "open_quote.csv": (
        as_csv(HEAD, *ROWS[:4]) + '"没有关上,1\r\n' + as_csv(*ROWS[4:]),
        *HEAD,
        "",
    ),
    "two_encodings.csv": (
        as_csv(HEAD, *ROWS).encode() + "另一种编码,1\r\n".encode("gb18030"),
        *HEAD,
        "",
    ),
    "joined.csv": (as_csv(HEAD, *ROWS, HEAD, *ROWS), *HEAD, "", [*ROWS, *ROWS]),
    "two_headers.csv": (
        as_csv(("text", "id", "label"), ("评论内容", "编号", "标签"), *with_ids(ROWS)),
        "text",
        "label",
        "",
    ),
    "remarks.xlsx": (
        as_xlsx(HEAD, *ROWS[:3], (*ROWS[3], "", "标注员：再看看"), *ROWS[4:]),
        *HEAD,
        "",
    ),
    "export.xlsx": (as_xlsx(*EXPORT), EXPORT[0][2], EXPORT[0][5], ""),
    "no_header.csv": (
        as_csv(*ROWS),
        "1",
        "2",
        "the first line is an example, not a header",
    ),
    "guarded.csv": (
        as_csv(("微博内容", "标签")) + "".join(f'{a},="{b}"\r\n' for a, b in ROWS),
        "微博内容",
        "标签",
        "",
    ),
    "padded.csv": (
        as_csv((*HEAD, "", ""), *((*row, "", "") for row in ROWS)),
        *HEAD,
        "",
    ),
    "half_padded.csv": (as_csv(HEAD, *((*row, "") for row in ROWS)), *HEAD, ""),
    "title.csv": (
        as_csv(("2024年评论导出", "", ""), ("id", *HEAD), *(("7", *row) for row in ROWS)),
        *HEAD,
        "",
    ),
    "called.xls": (as_xlsx(HEAD, *ROWS), *HEAD, "read as .xlsx, whatever its name"),
    "text.xls": (as_lines(HEAD, *ROWS).encode("gbk"), *HEAD, "read as .tsv, whatever its name"),
    "called.csv": (as_xlsx(HEAD, *ROWS), *HEAD, "read as .xlsx, whatever its name"),
    "packed.csv.gz": (gzip.compress(as_csv(HEAD, *ROWS).encode("gbk")), *HEAD, "GB18030"),
    "lines.jsonl": (
        "".join(json.dumps({"内容": a, "类别": b}, ensure_ascii=False) + "\n" for a, b in ROWS),
        "内容",
        "类别",
        "",
    ),
    "navicat.json": (
        json.dumps({"RECORDS": [{"内容": a, "类别": b} for a, b in ROWS]}, indent=1),
        "内容",
        "类别",
        "",
    ),
    "two_lines.xlsx": (as_xlsx(("评论\n内容", "标 \n签"), *ROWS), "评论 内容", "标 签", ""),
    "spaced_names.csv": (as_csv((" Ｔｅｘｔ ", " 标签 "), *ROWS), "Ｔｅｘｔ", "标签", ""),
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read(path, task=None, **columns):
    config = ColumnsConfig(**columns)
    layout = find_layout(path, config, task, TASKS)
    return layout, [(e.texts, e.label) for e in read_examples(path, layout, config)]


@pytest.mark.parametrize("name", WORKS)
def test_the_report_names_the_detected_columns(write, name, capsys):
    content, text, label, report, *rows = WORKS[name]
    path = write(name, content)
    layout, examples = read(path)
    assert layout.task.name == "classification"
    assert (layout.text_columns, layout.label_column) == ((text,), label)
    assert f"text in column {text}" in layout.report
    assert f"label in column {label}" in layout.report
    assert report in layout.report
    assert examples == [((a,), b) for a, b in (rows[0] if rows else ROWS)]
    assert bool(capsys.readouterr().err) == (name in SKIPPED)


def test_merged_label_cells_apply_to_each_row(write):
    rows = [
        ("评论", "评价"),
        *((f"第{i}条评论", "好坏"[i // 3 % 2] * (i % 3 == 0)) for i in range(12)),
    ]
    merged = [f"B{i}:B{i + 2}" for i in range(2, 14, 3)]
    layout, examples = read(write("merged.xlsx", as_xlsx(*rows, merge=merged)))
    assert examples == [((f"第{i}条评论",), "好坏"[i // 3 % 2]) for i in range(12)]
    assert "Merged ranges filled with their value: 4." in layout.report


def test_formulas_without_a_stored_value_are_rejected_as_labels(write):
    label = "标签"
    rows = [(f"第{i}条评论", f'=IF(A{i + 2}="x","好","坏")') for i in range(9)]
    path = write("formulas.xlsx", as_xlsx(("评论", label), *rows))
    message = "a formula without a stored value: correct it, or open the file in Excel or WPS"
    with pytest.raises(InputError, match=message):
        read(path)
    path = write("several.xlsx", as_xlsx(("评论", label), *rows, ("很好", "好")))
    with pytest.raises(InputError, match=rf"(?s)several\.xlsx.*{message}"):
        read(path)
    with pytest.raises(InputError, match=message):
        read(path, label_column=label)


@pytest.mark.parametrize("last", [("=A2", "=B2"), ("#N/A", "#N/A")])
def test_rows_without_any_value_but_formulas_or_errors_are_no_blank_rows(write, capsys, last):
    path = write("a.xlsx", as_xlsx(HEAD, *ROWS, *[last] * 3))
    assert len(read(path)[1]) == len(ROWS)
    assert "a.xlsx:12-14 has an error such as #N/A" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"a\.xlsx:12-14 has an error such as #N/A"):
        read(path, strict=True)


def test_a_code_of_hundreds_of_digits_is_no_number(write):
    """Python's float has no room for it."""
    rows = [{"text": text, "code": int("9" * 400), "label": label} for text, label in ROWS]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    layout, _ = read(write("a.jsonl", content))
    assert (layout.text_columns, layout.label_column) == (("text",), "label")


def test_a_number_in_a_column_of_texts_is_a_text(write, capsys):
    numbers = [(666, "1"), (5.0, "0"), (0.1 + 0.2, "1"), (True, "0"), (float("nan"), "1")]
    rows = [{"评论": text, "情感": label} for text, label in (*ROWS, *numbers)]
    _, examples = read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert [text for (text,), _ in examples[len(ROWS) :]] == ["666", "5", "0.3", "TRUE"]
    assert "a.jsonl:15 has an empty text in '评论'" in capsys.readouterr().err


def test_an_error_of_excel_is_not_an_empty_list_of_labels(write, capsys):
    rows = [("评论", "标签"), ("很好", "服务"), ("不好", "#N/A"), ("一般", None), ("还行", "价格")]
    _, examples = read(write("a.xlsx", as_xlsx(*rows)), "multilabel")
    assert [label for _, label in examples] == [("服务",), (), ("价格",)]
    assert "a.xlsx:3 has an error such as #N/A" in capsys.readouterr().err


def test_json_may_have_labels_after_many_rows_without(write):
    rows = [{"text": f"第{i}条"} for i in range(200)]
    rows += [{"text": f"第{i}条好", "label": "好坏"[i % 2]} for i in range(300)]
    for name, content in [
        ("a.jsonl", "\n".join(map(json.dumps, rows))),
        ("a.json", json.dumps(rows)),
    ]:
        layout, examples = read(write(name, content))
        assert (layout.label_column, len(examples)) == ("label", 300)


@pytest.mark.parametrize("name", sorted(WORKS.keys() - {"no_header.csv"}))
def test_a_model_trained_on_other_columns_reads_the_file(write, name):
    content, text, _, _, *rows = WORKS[name]
    path = write(name, content)
    report, actual = open_texts_to_predict(path, Classification(labels=("0", "1")), ColumnsConfig())
    texts = [item.texts[0] for item in actual if isinstance(item, Example)]
    if name == "unicode.txt":  # a .txt file has one text per line, unless it names the column
        task_with_column = Classification(labels=("0", "1"), text_columns=(text,))
        report, actual = open_texts_to_predict(path, task_with_column, ColumnsConfig())
        texts = [item.texts[0] for item in actual if isinstance(item, Example)]
    assert f"text in column {text}" in report
    want = [a for a, _ in (rows[0] if rows else ROWS)]
    if name == "holes.csv":  # rows without a label can be predicted
        want[2:2] = ["没有标签", "也没有"]
    assert texts == want


@pytest.mark.parametrize("flag_columns", [(), ("2",)])
def test_column_numbers_of_training_are_ignored_in_a_file_with_names(write, flag_columns):
    """The model was trained on a file without a header, with its texts in column 2."""
    path = write("named.csv", as_csv(HEAD, *ROWS))
    task = Classification(labels=("0", "1"), text_columns=("2",))
    _, actual = open_texts_to_predict(path, task, ColumnsConfig(text_columns=flag_columns))
    assert [item.texts[0] for item in actual] == [row[bool(flag_columns)] for row in ROWS]


LABELLED = [(str(n), *row) for n, row in enumerate(ROWS)]
NAMED = ("序号", "内容", "类别")
IN_OTHER_FILES = {  # columns of training, header of another file, flags → columns of that file
    "other names": (("评论", "标签"), NAMED, {}, ("内容", "类别")),
    "one name is the same": (("内容", "标签"), NAMED, {}, ("内容", "类别")),
    "numbers of training": (("1", "2"), NAMED, {}, ("内容", "类别")),
    "no header": (("评论", "标签"), None, {}, ("2", "3")),
    "no headers": (("2", "3"), None, {}, ("2", "3")),
    "the user's numbers": (
        ("评论", "标签"),
        ("a", "b", "类别"),
        {"text_columns": ("2",), "label_column": "3"},
        ("b", "类别"),
    ),
    "the user's text": (("评论", "标签"), NAMED, {"text_columns": ("内容",)}, ("内容", "类别")),
}


@pytest.mark.parametrize("name", IN_OTHER_FILES)
def test_another_file_than_that_of_training_may_have_other_columns(write, name):
    """The user's columns come first, then those of training, then what is detected."""
    (text, label), header, flags, want = IN_OTHER_FILES[name]
    path = write("test.csv", as_csv(*([header] if header else []), *LABELLED))
    columns = ColumnsConfig(**flags)
    layout = find_layout(path, columns, "classification", TASKS, (text,), label)
    assert (layout.text_columns, layout.label_column) == ((want[0],), want[1])
    examples = read_examples(path, layout, columns)
    assert [(item.texts[0], item.label) for item in examples] == ROWS


def test_the_columns_of_training_come_before_other_well_known_names(write):
    rows = [("无", text, label, "0") for text, label in ROWS]
    path = write("test.csv", as_csv(("内容", "正文", "评分", "标签"), *rows))
    layout = find_layout(path, ColumnsConfig(), "classification", TASKS, ("正文",), "评分")
    assert (layout.text_columns, layout.label_column) == (("正文",), "评分")


def test_a_short_file_without_header_is_read_as_that_of_training(write):
    """Its first label occurs once, as the name of a column does."""
    path = write("test.csv", as_csv(("很好", "好"), ("很差", "坏")))
    layout = find_layout(path, ColumnsConfig(), "classification", TASKS, ("1",), "2")
    examples = read_examples(path, layout, ColumnsConfig())
    assert [(item.texts[0], item.label) for item in examples] == [("很好", "好"), ("很差", "坏")]


def test_missing_columns_that_the_user_names_are_an_error_in_prediction(write):
    path = write("named.csv", as_csv(HEAD, *ROWS))
    with pytest.raises(InputError, match="no column '正文'"):
        open_texts_to_predict(path, Classification(), ColumnsConfig(text_columns=("正文",)))


WRITTEN_BY_PREDICT = {
    "labels": ("classification", "text,label,p(0),p(1),error", "好,1,0.1,0.9,", "差,0,0.9,0.1,"),
    "numbers": ("regression", "text,score,error", "好,0.3,", "差,0.1,"),
    "answers": ("question-answering", "question,context,answer,start,error", "谁,他,他,0,"),
    "relevance": ("reranking", "query,document,score,error", "好,很好,0.7,", "好,差,0.1,"),
    "spans": ("spans", "text,spans,error", '好,"[{""start"":0,""end"":1,""label"":""甲""}]",'),
}


@pytest.mark.parametrize(("task", "lines"), [(x, y) for x, *y in WRITTEN_BY_PREDICT.values()])
def test_predictions_as_labels_are_reported(task, lines, write):
    text = "\n".join(lines)
    layout = find_layout(write("a.csv", text), ColumnsConfig(), task, TASKS)
    assert f"If {layout.label_column} is a prediction, too, give the column of" in layout.report
    own = text.replace("error", "remark").replace("p(", "x(")
    layout = find_layout(write("b.csv", own), ColumnsConfig(), task, TASKS)
    assert "is a prediction" not in layout.report


SKIPPED = {  # parts of the report of skipped rows
    "holes.csv": [
        "holes.csv: 4 of 14 rows skipped:",
        "holes.csv:3 has an empty text in '评论内容'",
        "holes.csv:5-6 has no label",
        "holes.csv:7 is blank",
        "--strict",
    ],
    "open_quote.csv": ["1 of 11 rows skipped", "open_quote.csv:6 breaks the rules of quoting"],
    "two_encodings.csv": ["two_encodings.csv:12 is not in the encoding"],
    "joined.csv": ["joined.csv:12 repeats the header"],
    "two_headers.csv": ["two_headers.csv:2 repeats the header"],
}


@pytest.mark.parametrize("name", SKIPPED)
def test_skipped_rows_are_reported_together_and_strict_stops(write, name, capsys):
    path = write(name, WORKS[name][0])
    read(path)
    stderr = capsys.readouterr().err
    for part in SKIPPED[name]:
        assert part in stderr
    with pytest.raises(InputError) as error:
        read(path, strict=True)
    for part in SKIPPED[name]:
        assert (part in str(error.value)) == (
            f"{name}:" in part and "rows" not in part and "blank" not in part
        )


@pytest.mark.parametrize("several", [False, True])
def test_choices_of_label_studio_are_labels(write, several):
    names = [["好", "快"], ["好"]] if several else [["好"], ["坏"]]
    tasks = [
        {
            "id": number,
            "annotations": [{"result": [{"value": {"choices": name}, "type": "choices"}]}],
            "data": {"text": text},
        }
        for number, (text, name) in enumerate(zip(GOOD, names * 3, strict=False))
    ]
    layout, examples = read(write("a.json", json.dumps([*tasks, tasks[0] | {"annotations": []}])))
    assert layout.task.name == ("multilabel" if several else "classification")
    assert [texts for texts, _ in examples] == [(text,) for text in GOOD]
    wanted = names if several else [name for (name,) in names]
    assert [label for _, label in examples[:2]] == [tuple(x) if several else x for x in wanted]


def test_skipped_annotations_of_label_studio_are_no_labels(write):
    skipped = {"was_cancelled": True, "result": []}
    real = {"result": [{"value": {"choices": ["好"]}, "type": "choices"}]}
    other = {"result": [{"value": {"choices": ["坏"]}, "type": "choices"}]}
    tasks = [
        {"annotations": annotations, "data": {"text": text}}
        for annotations, text in zip(
            [[skipped, real], [other], [skipped], [real], [other]], GOOD, strict=True
        )
    ]
    layout, examples = read(write("a.json", json.dumps(tasks)))
    assert layout.task.name == "classification"
    assert [label for _, label in examples] == ["好", "坏", "好", "坏"]


def test_columns_that_are_not_read_are_named(write):
    rows = [{"text": a, "label": b, "keyword": ["房"], "id": i} for i, (a, b) in enumerate(ROWS)]
    layout, _ = read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert layout.report.endswith("Columns that are not read: keyword, id.")
    assert "not read" not in read(write("b.csv", as_csv(HEAD, *ROWS)))[0].report


def test_ratings_of_label_studio_are_labels(write):
    results = [[{"value": {"rating": x}, "type": "rating"}] for x in (5, 1, 5, 1, 5)]
    tasks = [
        {"annotations": [{"result": result}], "data": {"text": text}}
        for result, text in zip(results, GOOD, strict=True)
    ]
    assert [label for _, label in read(write("a.json", json.dumps(tasks)))[1]] == [*"51515"]


def test_rejected_examples_of_prodigy_are_skipped(write, capsys):
    rows = [
        {"text": text, "label": label, "_task_hash": number, "answer": answer}
        for number, (text, label, answer) in enumerate(
            zip(
                [*GOOD, *BAD],
                ["好", "坏"] * 5,
                ["accept", "accept", "reject", "accept", "ignore", *["accept"] * 5],
                strict=True,
            )
        )
    ]
    _, examples = read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert len(examples) == 8
    err = capsys.readouterr().err
    assert "a.jsonl:3 has the answer 'reject' of Prodigy, not accept" in err
    assert "a.jsonl:5 has the answer 'ignore' of Prodigy, not accept" in err
    own = write("b.json", json.dumps([{"text": "好", "answer": "reject"}]))  # not Prodigy's
    assert next(open_table(own, lambda _: Top()).rows).problem == ""


def test_lists_of_one_label_of_doccano_are_labels(write):
    labels = [["好"], ["坏"], [], ["好"], ["坏"]]
    rows = [{"text": x, "label": y} for x, y in zip(GOOD, labels, strict=True)]
    lines = "\n".join(map(json.dumps, rows))
    _, examples = read(write("a.jsonl", lines), "classification")
    assert [label for _, label in examples] == ["好", "坏", "好", "坏"]


@pytest.mark.parametrize(
    ("task", "columns", "scores"),
    [
        ("reranking", "query document relevance", "1 0 1 0 0"),
        ("embedding", "sentence1 sentence2 sim", "85% 10% N/A 0 50%"),
    ],
)
def test_scores_of_pairs_are_read(task, columns, scores, write):
    rows = [columns.split(), *zip(["天气"] * 5, GOOD, scores.split(), strict=True)]
    layout, examples = read(write("a.tsv", as_lines(*rows)), task)
    assert layout.label_column == columns.split()[2]
    labels = [label for _, label in examples]
    wanted = [0.85, 0.1, 0, 0.5] if task == "embedding" else [(1, 0, 1, 0, 0)]
    assert [getattr(label, "relevance", label) for label in labels] == wanted


def test_rows_of_json_without_the_key_of_the_label_are_unlabelled(write):
    rows = [{"text": x, "label": y} for x, y in zip(GOOD[:2], "好坏", strict=True)]
    rows += [{"text": x} for x in BAD]
    _, examples = read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert [label for _, label in examples] == ["好", "坏"]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("好", "好"),
        (["好"], "好"),
        ({"choices": "好"}, "好"),
        ({"choices": None, "start": 0}, [{"choices": None, "start": 0}]),
    ],
)
def test_other_values_of_label_studio_are_read(write, value, label):
    task = {"data": {"text": "很好"}, "annotations": [{"result": [{"value": value}]}]}
    (row,) = open_table(write("a.json", json.dumps([task])), lambda _: Top()).rows
    assert row.cells == {"text": "很好", "label": label}


@pytest.mark.parametrize("annotations", [[None], [{}], [{"result": None}], "x"])
def test_other_objects_with_data_and_annotations_are_unchanged(write, annotations):
    task = {"data": {"text": "很好"}, "annotations": annotations}
    (row,) = open_table(write("a.json", json.dumps([task])), lambda _: Top()).rows
    assert row.cells == task


@pytest.mark.parametrize("question", [3, {"question": "谁？"}])
def test_a_broken_question_of_c3_is_reported(write, question):
    good = {"question": "谁？", "choice": ["甲", "乙"], "answer": "甲"}
    path = write("a.json", json.dumps([[["文"], [good], "1"], [["文"], [good, question], "2"]]))
    rows = list(open_table(path, lambda _: Top()).rows)
    assert [row.problem for row in rows] == ["", "is not a JSON object"]


def test_big5_is_detected_in_a_json_array(write):
    records = [{"text": f"這個東西很好，我們喜歡{i}", "label": "好壞"[i % 2]} for i in range(9)]
    path = write("a.json", json.dumps(records, ensure_ascii=False).encode("big5"))
    layout, examples = read(path)
    assert examples[1] == (("這個東西很好，我們喜歡1",), "壞")
    assert "It is read as CP950." in layout.report


def test_a_pair_is_detected_from_its_columns(write):
    path = write("pairs.xlsx", as_xlsx(("句子1", "句子2", "是否相似"), *PAIRED))
    layout, examples = read(path)
    assert (layout.task.name, layout.text_columns) == ("pair", ("句子1", "句子2"))
    assert examples == [((a, b), label) for a, b, label in PAIRED]
    report, actual = open_texts_to_predict(path, Pair(text_columns=("a", "b")), ColumnsConfig())
    assert "text in columns 句子1, 句子2 (by its name)" in report
    assert [item.texts for item in actual] == [(a, b) for a, b, _ in PAIRED]


@pytest.mark.parametrize(
    "header", ["question answer label", "query doc relevance", "问题 回答 标签", "查询 标题 标签"]
)
def test_matching_texts_with_a_label_are_a_pair(write, header):
    layout, examples = read(write("a.tsv", as_lines(header.split(), *PAIRED)))
    assert (layout.task.name, " ".join(layout.text_columns)) == ("pair", header.rpartition(" ")[0])
    assert examples == [((a, b), label) for a, b, label in PAIRED]


@pytest.mark.parametrize("header", ["query candidate score", "text text2 label", "评论 回复 标签"])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_second_text_of_unknown_name_is_not_dropped(write, header, repeated):
    rows = [("多少钱一晚" if repeated else a, b, label) for a, b, label in PAIRED]
    path, names = write("a.tsv", as_lines(header.split(), *rows)), header.split()[:2]
    with pytest.raises(InputError, match=f"--text-columns {' '.join(names)}, by name"):
        read(path)
    assert read(path, text_columns=names)[0].task.name == "pair"
    assert len(read(path, text_columns=names[:1])[1]) == len(PAIRED)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("买家", "王明 李小红 张三 赵四 钱多多"),
        ("日期", "2024年5月1日 2024年5月2日 2024年5月3日 2024年5月4日 2024年5月5日"),
        ("图片", "https://x.cn/a https://x.cn/b https://x.cn/c https://x.cn/d https://x.cn/e"),
        ("关键词", "酒店,很干净,下次还来 早餐,丰富,好吃 前台,热情 性价比,高 床,舒服"),
        ("商家答复", "谢谢您的好评欢迎下次再来 - - - 谢谢您的好评"),
        ("种", "连锁经济型酒店 连锁经济型酒店 独立经营的民宿 独立经营的民宿 连锁经济型酒店"),
    ],
)
def test_other_columns_are_no_second_text(write, name, cells):
    cells = ["" if cell == "-" else cell for cell in cells.split()]
    rows = [(a, cell, y) for (a, _, y), cell in zip(PAIRED, cells, strict=True)]
    layout, _ = read(write("a.tsv", as_lines(("评论", name, "标签"), *rows)))
    assert layout.text_columns == ("评论",)


@pytest.mark.parametrize("columns", ["query document", "query pos neg", "text similar"])
@pytest.mark.parametrize("task", [None, "pair"])
def test_matching_texts_without_a_label_need_a_task(write, columns, task):
    first, *rest = columns.split()
    rows = [{first: a} | {name: [f"{a}{name}"] for name in rest} for a in GOOD]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="has no column of labels") as error:
        read(path, task)
    advice = re.findall(r"--task (\w+)", str(error.value))
    assert advice == (["embedding"] if len(rest) > 1 else ["reranking", "embedding", "paraphrase"])
    assert read(path, "embedding")[0].text_columns == (first, *rest)


@pytest.mark.parametrize("columns", ["question context answer", "问题 上下文 答案"])
def test_a_question_may_have_a_single_answer(write, columns):
    rows = [(f"第{i}条说什么？", a, a[:2]) for i, a in enumerate(GOOD)]
    layout, examples = read(write("a.tsv", as_lines(columns.split(), *rows, *rows)))
    assert layout.task.name == "question-answering"
    assert examples[0] == (rows[0][:2], ((rows[0][2], 0),))


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_premise_of_several_hypotheses_is_not_dropped(write, repeat):
    # The layout of SNLI and MNLI: three lines in a row have the same premise.
    premises = [f"第{number // repeat}个孩子在草地上玩耍" for number in range(600)]
    rows = [(premise, f"有{i}个孩子在外面", f"{i % 3}类") for i, premise in enumerate(premises)]
    with pytest.raises(InputError, match="--text-columns 1 2, by name or by number"):
        read(write("a.tsv", as_lines(*rows)))


@pytest.mark.parametrize("last", ["y", "1.5"])
def test_unknown_names_are_asked_about_first(write, last):
    path = write("a.tsv", as_lines(("s1", "s2", last), *PAIRED))
    with pytest.raises(InputError, match="--first-line header"):
        read(path)
    config = {"text_columns": ("1", "2"), "first_line": "header"}
    assert len(read(path, **config)[1]) == len(PAIRED)


def test_labels_that_predict_wrote_are_reported(write):
    head = ("text", "label", "p(0)", "p(1)")
    path = write("a.tsv", as_lines(head, *((a, b, "0.4", "0.6") for a, b in ROWS)))
    assert "If label is a prediction, too, give the column" in read(path)[0].report
    gold = [(*head, "gold"), *((a, b, "0.4", "0.6", b) for a, b in ROWS)]
    layout, _ = read(write("b.tsv", as_lines(*gold)), label_column="gold")
    assert "predictions" not in layout.report


OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
COLUMNS = {  # name: content, parts of the message, flags that solve the problem
    "two_labels.csv": (
        as_csv(
            ("分类", "情感", "评论"),
            *(("酒店书"[:2] if i % 3 else "图书", b, a) for i, (a, b) in enumerate(ROWS)),
        ),
        ["分类 or 情感", "分类 | 情感 | 评论", "Give --label-column 分类 or --label-column 情感"],
        {"label_column": "情感"},
    ),
    "two_texts.csv": (
        as_csv(("标题", "内容", "标签"), *((f"第{i}条", a, b) for i, (a, b) in enumerate(ROWS))),
        ["标题, 内容 or 标题 内容", "标题 | 内容 | 标签", "or --text-columns 标题 内容"],
        {"text_columns": ("内容",)},
    ),
    "same_name.csv": (
        as_csv(
            ("内容（原文）", "内容（译文）", "标签"),
            *((f"{i} {a}", a, b) for i, (a, b) in enumerate(ROWS)),
        ),
        ["which columns hold the texts: 内容（原文）, 内容（译文） or 内容（原文） 内容（译文）"],
        {"text_columns": ("内容（译文）",)},
    ),
    "two_cases.csv": (
        as_csv(("text", "Text", "label"), *((a, f"{i} {a}", b) for i, (a, b) in enumerate(ROWS))),
        ["which columns hold the texts: text, Text or text Text"],
        {"text_columns": ("text",)},
    ),
    "numbered.csv": (
        as_csv(("问题", "说明", "标签"), *((i, a, b) for i, (a, b) in enumerate(ROWS))),
        ["which columns hold the texts: 问题 or 说明", "--text-columns 说明"],
        {"text_columns": ("说明",)},
    ),
    "a_column_each.csv": (
        as_csv(("评论", "服务", "价格"), *((a, i % 2, b) for i, (a, b) in enumerate(ROWS))),
        ["--label-column 服务 or --label-column 价格", "write all labels of a text in one column"],
        {"label_column": "价格"},
    ),
    "no_label.xlsx": (
        as_xlsx(("用户", "评论"), *((f"用户{i}", a) for i, (a, _) in enumerate(ROWS))),
        ["cannot tell which column holds the labels", "用户 | 评论", "--label-column"],
        {},
    ),
    "swapped.csv": (
        as_csv(("标签", "内容"), *((f"{i}{a}", b) for i in range(9) for a, b in ROWS)),
        ["the label column 标签 has 90 different values", "--text-columns and --label-column"],
        {"text_columns": ("标签",), "label_column": "内容"},
    ),
    "unknown_names.csv": (
        as_csv(*UNKNOWN),
        ["'好坏' occurs nowhere else", "买家的话", "--first-line header, or --first-line example"],
        {"first_line": "header"},
    ),
    "no_names.csv": (
        as_csv(*((str(i % 3), a, b) for i, (a, b) in enumerate(ROWS))),
        [
            "Its first line, which names no column, is: 0 | 房间很干净，下次还来 | 1",
            "--label-column 1",
        ],
        {"label_column": "3"},
    ),
}
REJECTED = {
    "no_mark.csv": (
        as_csv(HEAD, *ROWS).encode("utf-16-le"),
        ["no_mark.csv is no text", "--encoding, as utf-16-le"],
    ),
    "pandas.json": (
        json.dumps({"评论": dict(enumerate(GOOD)), "情感": dict(enumerate(BAD))}),
        ["is one object", "orient='records'"],
    ),
    "part_of_pandas.json": (  # the index begins with another number in a part of a frame
        json.dumps({"评论": dict(enumerate(GOOD, 90)), "情感": dict(enumerate(BAD, 90))}),
        ["is one object", "orient='records'"],
    ),
    "index_of_pandas.json": (
        json.dumps({n: dict(zip(HEAD, row, strict=True)) for n, row in enumerate(ROWS)}),
        ["is one object", "orient='records'"],
    ),
    "split_of_pandas.json": (
        json.dumps({"columns": HEAD, "index": [*range(len(ROWS))], "data": ROWS}),
        ["is one object", "orient='records'"],
    ),
    "one_column.csv": (as_csv(HEAD, *ROWS, delimiter="|"), ["has one column", "评论内容|情感"]),
    "old.xls": (OLD + bytes(600), ["Save it as .xlsx or .csv"]),
    "old.csv": (OLD + bytes(600), ["of a kind that cannot be read", "Save it as"]),
    "page.xls": (
        "<html><table><tr><td>评论</td></tr></table>",
        ["of a kind that cannot be read", "Save it as"],
    ),
    "secret.xlsx": (OLD + bytes(600), ["has a password"]),
    "wps.et": ("", ["Save it as .xlsx or .csv"]),
    "texts.txt": ("很好\n不好\n", ["a .txt file holds texts alone", ".tsv or .csv"]),
    "unlabelled.csv": (as_csv(HEAD, *((a, "") for a, _ in ROWS)), ["has no label"]),
    "twice.csv": (
        as_csv(("内容", "标签", "标签"), *((a, b, b) for a, b in ROWS)),
        ["two columns named '标签'"],
    ),
    "torn.csv": (
        as_lines(
            HEAD,
            *((a.replace("，", ","), b) for a, b in ROWS * 2),
            *[("好,很好,太好", "1")] * 30,
            delimiter=",",
        ),
        ["most rows cannot be read", "is there a delimiter in a text?", "Fix the file"],
    ),
    "header.xlsx": (as_xlsx(HEAD), ["has a header, but no example"]),
    "utf16_cut.csv": ("评论,标签\n".encode("utf-32"), ["--encoding"]),
}


@pytest.mark.parametrize("name", [*COLUMNS, *REJECTED])
def test_an_ambiguous_file_gives_a_message_with_a_solution(write, name):
    content, parts, *_ = (COLUMNS | REJECTED)[name]
    path = write(name, content)
    with pytest.raises(InputError) as error:
        read(path)
    for part in [str(path), *parts]:
        assert part in str(error.value)


@pytest.mark.parametrize("name", [name for name, (*_, flags) in COLUMNS.items() if flags])
def test_the_flags_in_the_message_solve_the_problem(write, name):
    content, _, flags = COLUMNS[name]
    assert len(read(write(name, content), **flags)[1]) >= len(ROWS)


def test_an_ambiguous_text_column_for_prediction_requires_a_flag(write):
    task = Classification(labels=("0", "1"))
    path = write("one.csv", as_csv(*((a,) for a in GOOD)))
    with pytest.raises(
        InputError, match=r"no column 'text'.*Its first line.*房间很干净.*--text-col"
    ):
        open_texts_to_predict(path, task, ColumnsConfig())
    columns = ColumnsConfig(first_line="example")
    assert [item.texts[0] for item in open_texts_to_predict(path, task, columns).examples] == GOOD
    path = write("two.csv", as_csv(("标题", "内容"), *zip(GOOD, BAD, strict=True)))
    with pytest.raises(InputError, match="--text-columns 标题 or --text-columns 内容"):
        open_texts_to_predict(path, task, ColumnsConfig())
    columns = ColumnsConfig(text_columns=("标题",))
    assert [item.texts[0] for item in open_texts_to_predict(path, task, columns).examples] == GOOD


def test_labels_that_differ_only_in_spelling_are_reported(write):
    rows = [(a, {"1": "正面", "0": "负面 "}[b]) for a, b in ROWS] + [
        ("好", "1.0"),
        ("坏", "１"),
        ("差", "1"),
    ]
    layout, _ = read(write("a.csv", as_csv(HEAD, *rows)))
    assert (
        "differ in spelling alone are different labels here: '1' and '1.0' and '１'"
        in layout.report
    )


def test_long_codes_as_labels_do_not_differ_in_spelling_alone(write):
    codes = {"1": "50008090", "0": "50008091"}
    layout, _ = read(write("a.csv", as_csv(HEAD, *((a, codes[b]) for a, b in ROWS))))
    assert "spelling" not in layout.report


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_choices_in_short_exports_of_label_studio_are_labels(write, name):
    rows = [(text, ["好", {"choices": ["好", "快"]}][n % 2]) for n, (text, _) in enumerate(ROWS)]
    if name == "a.json":
        content = json.dumps([{"text": a, "topics": b} for a, b in rows])
    else:
        cells = [(a, b if isinstance(b, str) else json.dumps(b)) for a, b in rows]
        content = as_csv(("text", "topics"), *cells)
    layout, examples = read(write(name, content))
    assert layout.task.name == "multilabel"
    assert [label for _, label in examples] == [("好",), ("好", "快")] * 5
