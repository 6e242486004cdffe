"""File layouts of texts with entities."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.reading import find_layout, open_texts_to_predict, read_examples
from roformer_tf.tasks.extraction.prompted_spans import Extraction
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.table import TASKS

TEXTS = ["北京市委在开会", "你好", "去 上海"]
WANT = [[("ORG", 0, 4), ("LOC", 0, 2)], [], [("LOC", 2, 4)]]


def dicts(spans, **names):
    keys = [names.get(key, key) for key in ("label", "start", "end")]
    return [dict(zip(keys, span, strict=True)) for span in spans]


def cluener(text, spans):
    return {
        label: {text[a:b]: [[a, b - 1]] for other, a, b in spans if other == label}
        for label in {span[0] for span in spans}
    }


LAYOUTS = {  # name of the column: function that returns its cell
    "entities": lambda text, spans: dicts(spans),
    "spans": lambda text, spans: [x | {"text": text[x["start"] : x["end"]]} for x in dicts(spans)],
    "annotations": lambda text, spans: dicts(spans, start="start_offset", end="end_offset"),
    "ccks": lambda text, spans: [
        {"label_type": label, "start_pos": a, "end_pos": b, "overlap": 0} for label, a, b in spans
    ],
    "lists": lambda text, spans: {key: [x[key] for x in dicts(spans)] for key in dicts(WANT[0])[0]},
    "label": lambda text, spans: [[a, b, label] for label, a, b in spans],
}


def json_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def read(path, task=None, **columns):
    config = ColumnsConfig(**columns)
    layout = find_layout(path, config, task, TASKS)
    return layout, read_examples(path, layout, config)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", LAYOUTS)
def test_every_layout_is_detected_and_gives_the_same_spans(column, suffix, tmp_path):
    cells = [LAYOUTS[column](*pair) for pair in zip(TEXTS, WANT, strict=True)]
    rows = [{"text": text, column: cell} for text, cell in zip(TEXTS, cells, strict=True)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        json_lines(path, rows)
    elif column == "label":
        pytest.skip("Parquet has no lists of numbers and texts")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    layout, examples = read(path)
    assert layout.task is Extraction
    assert (layout.text_columns, layout.label_column) == (("text",), column)
    assert f"task spans, text in column text, label in column {column}." in layout.report
    assert [example.label for example in examples] == WANT
    assert [example.texts for example in examples] == [(text,) for text in TEXTS]


def test_cluener_files_may_have_nested_entities_with_task_spans(tmp_path):
    rows = [{"text": t, "label": cluener(t, spans)} for t, spans in zip(TEXTS, WANT, strict=True)]
    path = json_lines(tmp_path / "a.json", rows)
    layout, examples = read(path, "spans")
    assert layout.task is Extraction
    assert [example.label for example in examples] == WANT
    assert find_layout(path, ColumnsConfig(), None, TASKS).task is TASKS["tagging"]


@pytest.mark.parametrize("sep", ["", " "])
def test_tags_of_units_are_converted_to_character_spans(sep, tmp_path):
    units = [("北京", "天气"), ("I", "am", "in", "New", "York")] if sep else [tuple("去上海")]
    tags = [("B-LOC", "O"), ("O", "O", "O", "B-LOC", "I-LOC")] if sep else ["O B-LOC I-LOC"]
    tags = [x.split() if isinstance(x, str) else x for x in tags]
    blocks = ["\n".join(map(" ".join, zip(*x, strict=True))) for x in zip(units, tags, strict=True)]
    (tmp_path / "a.conll").write_text("\n\n".join(blocks), "utf-8")
    json_lines(
        tmp_path / "a.jsonl",
        [{"tokens": list(u), "ner_tags": list(t)} for u, t in zip(units, tags, strict=True)],
    )
    for name in ("a.conll", "a.jsonl"):
        layout, examples = read(tmp_path / name, "spans")
        assert layout.task is Extraction
        got = [(x.texts[0], [x.texts[0][a:b] for _, a, b in x.label]) for x in examples]
        names = [["北京"], ["New York"]] if sep else [["上海"]]
        texts = [sep.join(x) for x in units]
        assert got == list(zip(texts, names, strict=True))
        assert find_layout(tmp_path / name, ColumnsConfig(), None, TASKS).task.name == "tagging"
        task = Spans(labels=("LOC",), spaced_units=bool(sep), text_columns=layout.text_columns)
        rows = list(open_texts_to_predict(tmp_path / name, task, ColumnsConfig()).examples)
        assert [x.texts[0] for x in rows] == texts


@pytest.mark.parametrize(("spaced", "text"), [(False, "2024年7月"), (True, "2024 年 7 月")])
def test_units_are_joined_as_those_of_training(spaced, text, tmp_path):
    """A file of numbers alone does not show whether its units are words."""
    (tmp_path / "a.conll").write_text("2024 B-T\n年 I-T\n7 I-T\n月 I-T\n", "utf-8")
    task = Spans(labels=("T",), spaced_units=spaced)
    layout = find_layout(tmp_path / "a.conll", ColumnsConfig(), "spans", {"spans": task})
    (example,) = read_examples(tmp_path / "a.conll", layout, ColumnsConfig())
    assert (example.texts, example.label) == ((text,), [("T", 0, len(text))])


GOOD = {"text": "北京人", "entities": [{"start": 0, "end": 2, "label": "LOC"}]}
BAD = {
    "has an entity from 1 to 4, but a text of length 3": [{"start": 1, "end": 4, "label": "LOC"}],
    "has an entity from -1 to 2, but a text of length 3": [{"start": -1, "end": 2, "label": "LOC"}],
    "from 2 to 2, but a text of length 3: the end": [{"start": 2, "end": 2, "label": "LOC"}],
    "has 'LOC' instead of a list of entities": "LOC",
    "has 'LOC' as an entity": ["LOC"],
    "has the entity '北京', but '北' from 0": [
        {"start": 0, "end": 1, "label": "L", "text": "北京"}
    ],
    "without whole numbers start and end": [{"start": 0.5, "end": 2, "label": "LOC"}],
    "has no label": [{"start": 0, "end": 2, "label": None}],
    "lists of different lengths": {"start": [0], "end": [], "label": ["LOC"]},
}


@pytest.mark.parametrize("problem", BAD)
def test_invalid_entities_are_skipped_and_reported(problem, tmp_path, capsys):
    path = json_lines(
        tmp_path / "a.jsonl", [GOOD, GOOD, {"text": "北京人", "entities": BAD[problem]}]
    )
    assert len(read(path, "spans")[1]) == 2
    assert f"{path}:3 " in (stderr := capsys.readouterr().err)
    assert problem in stderr
    with pytest.raises(InputError, match="Correct or remove these rows"):
        read(path, "spans", strict=True)
    json_lines(path, [{"text": "北京人", "entities": BAD[problem]}])
    with pytest.raises(InputError, match=f"{path}:1 "):
        read(path, "spans")


def test_a_file_without_entities_is_rejected(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [{"text": "北京人", "label": "好"}] * 3)
    with pytest.raises(InputError, match="spans needs a column of entities"):
        read(path, "spans")
    two_columns = json_lines(tmp_path / "b.jsonl", [GOOD | {"spans": GOOD["entities"]}])
    with pytest.raises(InputError, match=r"labels: entities or spans.* --label-column entities"):
        read(two_columns)
    assert read(two_columns, label_column="spans")[0].label_column == "spans"


BRAT = "T1\tORG 0 4\t北京市委\nT2\tLOC 0 2\t北京\nR1\tIn Arg1:T1 Arg2:T2\nT3\tLOC {} {}\t上海\n"


def test_line_ends_that_were_changed_after_the_annotation_are_the_reason(tmp_path):
    (tmp_path / "a.txt").write_bytes("好\r\n是\r\n你好去上海。\r\n".encode())
    (tmp_path / "a.ann").write_text("T1\tLOC 7 9\t上海\n", "utf-8")  # 9 in this file
    with pytest.raises(InputError, match="does not have '上海' at 7: change its CRLF to LF"):
        read(tmp_path / "a.ann", strict=True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_brat_files_give_an_example_for_each_line(end, tmp_path):
    text = f"北京市委在开会{end}{end}你好去上海。{end}"
    start = text.index("上海")
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.ann").write_text(BRAT.format(start, start + 2), "utf-8")
    for path in (tmp_path / "a.ann", tmp_path):
        layout, examples = read(path)
        assert layout.task is Extraction
        got = [[(label, x.texts[0][a:b]) for label, a, b in x.label] for x in examples]
        assert got == [[("ORG", "北京市委"), ("LOC", "北京")], [("LOC", "上海")]]
        assert [x.source_line for x in examples] == [f"{tmp_path}/a.txt:1", f"{tmp_path}/a.txt:3"]


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ("T1 LOC 0 2 北京\n", "a.ann:1 is no entity of brat"),
        ("T1\tLOC 90 92\t北京\n", "a.ann:1 is past the end of"),
        ("T1\tLOC 0 1;2 3\t北市\n", "has the entity T1 in several fragments"),
        ("T1\tLOC 0 12\t北京\n", "has an entity from 0 to 12"),
        ("T1\tLOC 0 3\t北京\n", "has the entity '北京', but '北京市' from 0 to 3"),
    ],
)
def test_invalid_brat_annotations_are_rejected(annotations, problem, tmp_path):
    (tmp_path / "a.txt").write_text("北京市委在开会\n你好\n", "utf-8")
    (tmp_path / "a.ann").write_text(annotations, "utf-8")
    with pytest.raises(InputError, match=problem):
        read(tmp_path / "a.ann", strict=True)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match=r"has no a\.txt next to it"):
        read(tmp_path / "a.ann")


def test_files_of_doccano_and_label_studio_are_read(tmp_path):
    text, spans = TEXTS[0], WANT[0]
    offsets = dicts(spans, start="start_offset", end="end_offset")
    regions = [{"start": a, "end": b, "text": text[a:b], "labels": [x]} for x, a, b in spans]
    result = [{"value": each, "type": "labels", "from_name": "label"} for each in regions]
    for row in (
        {"id": 1, "text": text, "label": [[a, b, x] for x, a, b in spans], "Comments": []},
        {"id": 1, "text": text, "entities": offsets, "relations": [], "Comments": []},
        {"id": 1, "text": text, "label": regions, "annotator": 1, "lead_time": 3.5},
        {"id": 1, "data": {"text": text}, "annotations": [{"id": 2, "result": result}]},
    ):
        layout, examples = read(json_lines(tmp_path / "a.jsonl", [row] * 3))
        assert layout.task is Extraction
        assert layout.text_columns == ("text",)
        assert examples[0].label == spans


@pytest.mark.parametrize("serialize", [str, json.dumps])
def test_entities_in_a_csv_written_by_pandas_or_json_are_read(serialize, tmp_path):
    with (path := tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as file:
        rows = zip(TEXTS, map(dicts, WANT), strict=True)
        csv.writer(file).writerows([("text", "entities"), *((x, serialize(y)) for x, y in rows)])
    layout, examples = read(path)
    assert layout.task is Extraction
    assert [example.label for example in examples] == WANT


def test_lists_of_three_candidates_are_not_entities(tmp_path):
    row = {"content": "a#idiom#", "candidates": [["一", "二", "三"], ["一", "二", "三"]]}
    with pytest.raises(InputError, match="cannot tell which column holds the labels"):
        read(json_lines(tmp_path / "a.jsonl", [row] * 3))


def test_problems_in_a_brat_folder_name_the_file(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("北京人\n上海人\n", "utf-8")
        (tmp_path / f"{name}.ann").write_text("T1\tLOC 0 2\t南京\nT2\tLOC 4 6\t上海\n", "utf-8")
    assert len(read(tmp_path)[1]) == 2
    shown = capsys.readouterr().err
    assert f"{tmp_path}/a.txt:1 has the entity" in shown
    assert f"{tmp_path}/b.txt:1 has the entity" in shown


def test_a_text_column_called_entities_is_ignored(tmp_path):
    rows = [{"text": f"北京人{i}", "entities": "北京", "label": "好坏"[i % 2]} for i in range(4)]
    path = json_lines(tmp_path / "a.jsonl", rows)
    assert read(path)[0].task.name == "classification"
    assert read(path, label_column="label")[0].task.name == "classification"
