"""File layouts with a label for every character or word."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roformer_tf.errors import InputError
from roformer_tf.inference.prediction_files import cell_names, cells, prediction_file
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, open_texts_to_predict, read_examples
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tagging import Tagging

NAMES = ["O", "B-LOC", "I-LOC"]
SENTENCES = [("北京人", [1, 2, 0]), ("你好", [0, 0]), ("去上海", [0, 1, 2])]
WANT = [(tuple(text), tuple(NAMES[i] for i in tags)) for text, tags in SENTENCES]


def feature(kind, names=NAMES):
    """Return the schema metadata of different versions of the library `datasets`."""
    label = {"names": names, "_type": "ClassLabel"}
    features = {
        "Sequence": {"feature": label, "_type": "Sequence"},
        "List": {"feature": label, "_type": "List"},
        "list": [label],
        "alone": label,
    }[kind]
    return {"huggingface": json.dumps({"info": {"features": {"ner_tags": features}}})}


def table(kind="Sequence", integers=True):
    tags = [tags if integers else [NAMES[i] for i in tags] for _, tags in SENTENCES]
    columns = {"id": ["0", "1", "2"], "tokens": [list(text) for text, _ in SENTENCES]}
    return pa.table(columns | {"ner_tags": tags}).replace_schema_metadata(
        feature(kind) if integers else {}
    )


def parquet(path, content):
    pq.write_table(content, path)


def arrow(path, content):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content)


def rows_of(columns="tokens", tags="ner_tags"):
    return [{columns: list(text), tags: [NAMES[i] for i in numbers]} for text, numbers in SENTENCES]


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


CLUENER = [
    {"text": "北京人", "label": {"LOC": {"北京": [[0, 1]]}}},
    {"text": "你好", "label": {}},
    {"text": "去上海", "label": {"LOC": {"上海": [[1, 2]]}}},
]
FILES = {
    "a.jsonl": lambda path: path.write_text(json_lines(rows_of()), "utf-8"),
    "a.json": lambda path: path.write_text(json.dumps(rows_of()), "utf-8"),
    "words.jsonl": lambda path: path.write_text(json_lines(rows_of("words", "labels")), "utf-8"),
    "text.jsonl": lambda path: path.write_text(
        json_lines({"text": text, "labels": [NAMES[i] for i in tags]} for text, tags in SENTENCES),
        "utf-8",
    ),
    "cluener.json": lambda path: path.write_text(json_lines(CLUENER), "utf-8"),
    "cluener.parquet": lambda path: parquet(path, pa.Table.from_pylist(CLUENER)),
    "names.parquet": lambda path: parquet(path, table(integers=False)),
    **{
        f"{kind}.parquet": lambda path, kind=kind: parquet(path, table(kind))
        for kind in ("Sequence", "List", "list")
    },
    "a.arrow": lambda path: arrow(path, table()),
    "a.conll": lambda path: path.write_text(
        "\n\n".join("\n".join(map(" ".join, zip(*x, strict=True))) for x in WANT),
        "utf-8",
    ),
}


def read(path, task=None, **columns):
    config = ColumnsConfig(**columns)
    layout = find_layout(path, config, task, TASKS)
    return layout, read_examples(path, layout, config)


@pytest.mark.parametrize("name", FILES)
def test_every_layout_gives_the_same_examples(tmp_path, name):
    FILES[name](tmp_path / name)
    layout, examples = read(tmp_path / name)
    assert layout.task is Tagging
    assert "task tagging" in layout.report
    assert [(item.units, item.label) for item in examples] == WANT
    assert [item.texts for item in examples] == [("".join(units),) for units, _ in WANT]


WORDS = (("我", "在", "北京", "工作"), ("O", "O", "B-LOC", "O"))
NOUNS = (("我", "在", "北京", "工作"), ("r", "p", "ns", "v"))
SPACED = (("在", "New York", "工作"), ("O", "B-LOC", "O"))
SEGMENTED = (("我", "在", "北", "京"), ("S", "S", "B", "E"))


@pytest.mark.parametrize("kind", ["tsv", "csv"])
@pytest.mark.parametrize("sentence", [WORDS, NOUNS, SPACED, SEGMENTED, *WANT])
def test_tags_of_a_table_of_predictions_are_read(tmp_path, sentence, kind):
    units, tags = sentence
    task = Tagging(labels=tuple(sorted({*tags})), spaced_units=sentence in (WORDS, NOUNS, SPACED))
    example = Example(("".join(units),), tags, "a:1", units)
    names = ["text", "gold", *cell_names(task)]
    with prediction_file(str(tmp_path / f"predictions.{kind}"), names, task) as out:
        for _ in range(3):
            (text,), own = task.labelling.as_cells(example), Prediction(tags, np.zeros(1))
            out.write(
                {"text": text, "gold": task.decoding.gold_cell(example)}
                | cells(task.labelling.for_prediction(example), own, task)
            )
    path = tmp_path / f"predictions.{kind}"
    for label in (None, "ner_tags"):  # of a training on CoNLL, and on lists
        layout = find_layout(path, ColumnsConfig(), "tagging", TASKS, ("text",), label)
        examples = read_examples(path, layout, ColumnsConfig())
        assert [(x.units, x.label) for x in examples] == [sentence] * 3


def test_tags_of_a_table_may_be_those_of_many_single_characters(tmp_path):
    path = tmp_path / "predictions.tsv"
    rows = ["北京好\tB-LOC I-LOC O\tO O O\t", "好\tO\tO\t"] * 4
    path.write_text("\n".join(["text\tgold\ttags\terror", *rows, rows[0]]) + "\n", "utf-8")
    layout = find_layout(path, ColumnsConfig(), "tagging", TASKS, ("text",))
    examples = read_examples(path, layout, ColumnsConfig())
    assert [len(item.units) for item in examples] == [3, 1] * 4 + [3]


def test_labels_of_whole_texts_are_no_tags(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\n好\tB\n我 在 北京\tA\n你好\tB-1\n", "utf-8")
    assert read(path, label_column="label")[0].task is not Tagging


@pytest.mark.parametrize("other", FILES)
@pytest.mark.parametrize("name", ["a.jsonl", "cluener.json", "a.conll"])
def test_other_files_may_have_a_different_layout_from_training(tmp_path, name, other):
    FILES[name](tmp_path / name)
    layout, _ = read(tmp_path / name)
    FILES[other](path := tmp_path / f"test_{other}")
    own = find_layout(path, ColumnsConfig(), "tagging", TASKS, *layout[1:3])
    examples = read_examples(path, own, ColumnsConfig())
    assert [(item.units, item.label) for item in examples] == WANT
    task = Tagging(labels=tuple(NAMES), text_columns=layout.text_columns)
    actual = open_texts_to_predict(tmp_path / f"test_{other}", task, ColumnsConfig()).examples
    assert [item.units for item in actual] == [units for units, _ in WANT]


def test_a_folder_saved_by_datasets_is_read(tmp_path):
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    arrow(folder / "data-00000-of-00002.arrow", table().slice(0, 2))
    arrow(folder / "data-00001-of-00002.arrow", table().slice(2))
    arrow(folder / "cache-1234.arrow", table())
    assert [(item.units, item.label) for item in read(folder)[1]] == WANT
    with pytest.raises(InputError, match=r"saved holds several data sets\. Give one: .*/train\."):
        read(tmp_path / "saved")
    with pytest.raises(InputError, match=r"is a folder\. Give a file in it\."):
        read(tmp_path)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_class_names_are_read_from_the_schema(tmp_path, suffix):
    actual = pa.table({"text": ["很好", "不好", "还行"] * 4, "ner_tags": [1, 0, -1] * 4})
    actual = actual.replace_schema_metadata(feature("alone", ["坏", "好"]))
    {"parquet": parquet, "arrow": arrow}[suffix](tmp_path / f"a.{suffix}", actual)
    layout, examples = read(tmp_path / f"a.{suffix}", label_column="ner_tags")
    assert layout.task.name == "classification"
    assert [item.label for item in examples] == ["好", "坏"] * 4  # -1 is no label


def test_ner_tags_are_preferred_among_several_tag_columns(tmp_path):
    rows = [row | {"pos_tags": ["X"] * len(row["tokens"])} for row in rows_of()]
    path = tmp_path / "a.jsonl"
    path.write_text(json_lines(rows), "utf-8")
    assert read(path)[0].label_column == "ner_tags"
    assert {tag for item in read(path, label_column="pos_tags")[1] for tag in item.label} == {"X"}
    path.write_text(json_lines(rows).replace("ner_tags", "chunk_tags"), "utf-8")
    with pytest.raises(InputError, match="which column holds the labels: chunk_tags or"):
        read(path)


def test_integer_labels_without_names_are_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json_lines({"tokens": list(x), "ner_tags": y} for x, y in SENTENCES), "utf-8")
    layout, examples = read(path)
    assert [item.label for item in examples] == [("1", "2", "0"), ("0", "0"), ("0", "1", "2")]
    assert "Its tags mark no entities" in layout.report


@pytest.mark.parametrize(
    ("tags", "is_noted"),
    [
        ("b-loc i-loc o", True),
        ("B_LOC I_LOC O", False),
        ("LOC-B LOC-I O", True),
        ("n n v", True),
        ("1 2 0", True),
        ("B-LOC I-LOC O", False),
        ("B I O", False),
        ("B E S", False),
    ],
)
def test_tags_that_mark_no_entities_are_reported(tmp_path, tags, is_noted):
    path = conll(tmp_path / "a.conll", [[*zip("北京人", tags.split(), strict=True)]] * 3)
    assert ("Its tags mark no entities" in read(path)[0].report) == is_noted


WORD = "{}\t{}\t{}\tPROPN\tNR\t_\t2\tobj\t_\t_\n"  # a line of CoNLL-U


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("".join(WORD.format(i, x, x) for i, x in enumerate(["张三", "在", "北京"], 1)), "numbers"),
        ("1-2\t张三在\tO\n1\t张三\tB-PER\n2\t在\tO\n", "numbers"),
        ("科0\tO\n技1\tO\n9\tO\n", "numbers"),
        ("B-LOC\t北\nI-LOC\t京\nO\t人\n", "tags"),
        ("B 北\nI 京\nO 人\n", "tags"),
    ],
)
def test_other_first_columns_than_units_are_refused(tmp_path, lines, what):
    path = tmp_path / "a.conll"
    path.write_text(f"{lines}\n" * 3, "utf-8")
    with pytest.raises(InputError, match=rf"has {what} in its first column, not characters"):
        read(path)


BAD = {
    "three.jsonl": (
        {"tokens": ["北", "京"], "ner_tags": ["O"]},
        "has 1 instead of 2 labels in 'ner_tags'",
    ),
    "tag.jsonl": ({"tokens": ["北"], "ner_tags": ["LOC"]}, "has the tag 'LOC'"),
    "none.jsonl": ({"tokens": ["北"], "ner_tags": [None]}, "has the tag ''"),
    "unit.jsonl": ({"tokens": [["北"]], "ner_tags": ["O"]}, "has a list in 'tokens'"),
    "void.jsonl": ({"tokens": [], "ner_tags": []}, "has an empty text in 'tokens'"),
    "place.json": ({"text": "北京", "label": {"LOC": {"京": [[0, 0]]}}}, "'京', which is not at 0"),
    "twice.json": (
        {"text": "北京", "label": {"LOC": {"北京": [[0, 1]]}, "PER": {"京": [[1, 1]]}}},
        "'京' inside of another one",
    ),
    "odd.json": ({"text": "北京", "label": {"LOC": {"京": [1]}}}, "without its first and last"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_rows_are_skipped_and_reported(tmp_path, name, capsys):
    row, message = BAD[name]
    rows = (CLUENER if name.endswith(".json") else rows_of()) * 5
    (tmp_path / name).write_text(json_lines([*rows, row]), "utf-8")
    assert len(read(tmp_path / name)[1]) == 15
    err = capsys.readouterr().err
    assert f"{name}:16 " in err
    assert message in err


def test_white_space_may_be_a_unit_but_not_a_text(tmp_path, capsys):
    """Lists of characters have the spaces of names such as Big Ben; CLUENER's texts, too."""
    rows = [{"tokens": list("Big\u3000Ben 好"), "ner_tags": ["B-LOC", *["I-LOC"] * 6, "O", "O"]}]
    blank = {"tokens": [" ", "\n"], "ner_tags": ["O", "O"]}
    (tmp_path / "a.jsonl").write_text(json_lines([*rows, blank]), "utf-8")
    (example,) = read(tmp_path / "a.jsonl")[1]
    assert (example.texts, example.units) == (("Big\u3000Ben 好",), tuple(rows[0]["tokens"]))
    assert "a.jsonl:2 has an empty text in 'tokens'" in capsys.readouterr().err


def test_a_jsonl_file_may_contain_an_array(tmp_path):
    rows = [{"text": f"第{i}条", "data": [0], "label": "01"[i % 2]} for i in range(4)]
    path = tmp_path / "a.jsonl"
    path.write_text("\ufeff\n" + json.dumps(rows, indent=1), "utf-8")
    assert [item.label for item in read(path)[1]] == ["0", "1", "0", "1"]
    path.write_text('{"data": [0], "text": "一", "label": 1}\n', "utf-8")  # JSON Lines, one line
    assert read(path, "classification")[1][0].texts == ("一",)


def test_an_array_may_be_one_long_line(tmp_path):
    rows = [{"text": f"第{i}条" + '很好[{,"' * 4000, "label": "01"[i % 2]} for i in range(300)]
    path = tmp_path / "a.json"
    for encoding in ("utf-8", "gb18030", "utf-16"):
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding)
        examples = read(path)[1]
        assert [(*item.texts, item.label) for item in examples] == [
            tuple(row.values()) for row in rows
        ]
    assert examples[-1].source_line == f"{path}:300"
    path.write_text(json.dumps(rows, indent=1), "utf-8")
    assert len(read(path)[1]) == 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "x", "label": 0}, {"text": "y" "label": 1}]', "is broken JSON"),
        ('[{"text": "x", "label": 0}, {"text": "y', "is broken JSON"),
        ('[{"text": "x", "label": 0},' + "[" * 100_000, "is broken JSON"),
        ("[]", "is empty"),
        ('{"rows":\n[{"text": "x"}]}', "neither a JSON object in each line nor one array"),
    ],
)
def test_invalid_json_is_rejected(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(path)


@pytest.mark.parametrize("task", [None, "tagging"])
def test_units_and_tags_in_a_table_are_rejected(tmp_path, task):
    path = conll(tmp_path / "a.tsv", [zip("北京人", ["B-LOC", "I-LOC", "O"], strict=True)] * 9)
    with pytest.raises(InputError, match=r"Give a \.conll file"):
        find_layout(path, ColumnsConfig(), task, TASKS)
    path.write_text("text\ttags\n" + "北 京 人\tB-LOC I-LOC O\n" * 9)
    with pytest.raises(InputError, match=r"Give a \.conll file"):
        find_layout(path, ColumnsConfig(), task, TASKS)


def conll(path, sentences):
    lines = ("".join(f"{unit}\t{tag}\n" for unit, tag in item) for item in sentences)
    path.write_text("\n".join(lines), "utf-8")
    return path


SCHEMES = {  # sentences with untyped tags, and the expected scheme
    "bare": ([zip("北京人", "BIO", strict=True), zip("你好", "OO", strict=True)], "IOB2"),
    "words": ([zip("我去公园学习班", "SSBEBME", strict=True)], "BIOES"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_tags_without_a_type_mark_entities(tmp_path, name):
    sentences, scheme = SCHEMES[name]
    path = conll(tmp_path / "a.conll", [*map(list, sentences)])
    examples = read(path)[1]
    task = Tagging.from_examples(examples)
    assert task.scheme == scheme
    assert {metric.name for metric in task.metrics.usable()} >= {"f1", "precision", "recall"}
    bio = {"O": "O", "B": "B-span", "S": "B-span", **dict.fromkeys("IME", "I-span")}
    assert task.decoding.outside_labels() == tuple(map(bio.get, task.labels))
    gold = [item.label for item in examples]
    answers = [Prediction(label, np.eye(len(label), len(task.labels))) for label in gold]
    assert task.metrics.compute(gold, answers)["f1"] == 1
    shown = task.decoding.as_json(examples[0], answers[0])["entities"]
    want = {"bare": ["北京"], "words": ["我", "去", "公园", "学习班"]}[name]
    assert [(item["text"], item["label"]) for item in shown] == [(text, "span") for text in want]


def test_spaces_at_the_end_of_lines_are_no_part_of_tags(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("北\tB-LOC \n京\tI-LOC  \n \tO\n人\tO \n\n" * 2, "utf-8")
    labels = ("B-LOC", "I-LOC", "O", "O")
    assert [(x.units, x.label) for x in read(path)[1]] == [(tuple("北京 人"), labels)] * 2


def test_part_of_speech_tags_are_evaluated_by_unit(tmp_path):
    sentences = [[("我", "PN"), ("去", "VV"), ("一", "M")], [("好", "O"), ("书", "NN")]]
    examples = read(conll(tmp_path / "a.conll", sentences))[1]
    task = Tagging.from_examples(examples)
    assert [metric.name for metric in task.metrics.usable()] == ["accuracy", "macro_f1"]
    gold = [item.label for item in examples]
    answers = [Prediction(("PN", "VV", "VV"), None), Prediction(("O", "NN"), None)]
    figures = task.metrics.compute(gold, answers)
    assert figures == {"accuracy": pytest.approx(4 / 5), "macro_f1": pytest.approx(11 / 15)}
    assert task.metrics.count_kinds(gold) == dict.fromkeys(("M", "NN", "O", "PN", "VV"), 1)


@pytest.mark.parametrize(
    ("tags", "odd"), [("BIO" * 9, "NOUN"), (["B-LOC", "I-LOC"] * 9, "LOC"), (["X", "Y"] * 9, "")]
)
def test_a_tag_outside_the_scheme_is_an_error(tmp_path, tags, odd, capsys):
    sentences = [[("好", tag)] for tag in tags]
    path = conll(tmp_path / "a.conll", [*sentences, [("坏", odd)]])
    assert len(read(path)[1]) == len(sentences)
    assert f"has the tag {odd!r}" in capsys.readouterr().err


def test_raw_text_is_split_into_units(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json_lines([{"text": "北京"}]), "utf-8")
    actual = list(
        open_texts_to_predict(path, Tagging(text_columns=("tokens",)), ColumnsConfig()).examples
    )
    assert actual == [Example(("北京",), None, f"{path}:1", ("北", "京"))]


@pytest.mark.parametrize("separator", [" ", ",", "|", "\x02", "', '"])
def test_tags_of_a_text_in_one_cell_are_no_labels(tmp_path, separator):
    rows = [(text, separator.join(NAMES[i] for i in tags)) for text, tags in SENTENCES * 3]
    rows = [(text, f"['{tags}']" if separator == "', '" else tags) for text, tags in rows]
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabels\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    with pytest.raises(InputError, match=r"Give a \.conll file"):
        read(path)


@pytest.mark.parametrize("tasks", [TASKS, {"pair": TASKS["pair"]}])  # of finetune, of a model
def test_files_of_tags_are_refused_for_other_tasks(tmp_path, tasks):
    path = conll(tmp_path / "a.conll", [zip("北京人", ["B-LOC", "I-LOC", "O"], strict=True)])
    with pytest.raises(InputError, match="character or word, but the task is pair"):
        find_layout(path, ColumnsConfig(), "pair", tasks)
