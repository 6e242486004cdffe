"""Rows in memory are converted to the JSON Lines that a file would contain."""

import datetime
import json
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.readers.memory import json_lines


class Frame:
    """The part of a pandas data frame that is used."""

    def __init__(self, rows):
        self.columns = list(rows[0])
        self._rows = rows

    def to_dict(self, orient):
        assert orient == "records"
        return self._rows


class PolarsFrame(Frame):
    def to_dicts(self):
        return self._rows


def classes(*names):
    return {"names": names, "_type": "ClassLabel"}


def schema(**features):
    """Return the part of `datasets.Features` that is used."""
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return SimpleNamespace(arrow_schema=SimpleNamespace(metadata=metadata))


class Dataset(list):
    """The part of a `datasets.Dataset` that is used: rows and class names."""

    features = schema(text={"dtype": "string", "_type": "Value"}, label=classes("bad", "good"))


ROWS = [{"text": "很好", "label": "good"}, {"text": "太吵", "label": "bad"}]
LINES = '{"text": "很好", "label": "good"}\n{"text": "太吵", "label": "bad"}\n'


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        iter(ROWS),
        [tuple(row.values()) for row in ROWS],
        [list(row.values()) for row in ROWS],
        np.array([list(row.values()) for row in ROWS], dtype=object),
        Frame(ROWS),
        PolarsFrame(ROWS),
        Dataset([{"text": "很好", "label": 1}, {"text": "太吵", "label": np.int64(0)}]),
    ],
    ids=["dicts", "generator", "tuples", "lists", "array", "pandas", "polars", "datasets"],
)
def test_all_row_formats_give_the_same_lines(data):
    assert json_lines(data, "train") == LINES


@pytest.mark.parametrize(
    ("cells", "columns"),
    [
        ("a", ["text"]),
        (("a", "x"), ["text", "label"]),
        (("a", "b", 1), ["text_a", "text_b", "label"]),
        (("a", "b", "c", "B"), ["text_a", "text_b", "text_c", "label"]),
    ],
)
def test_the_last_cell_of_a_tuple_is_the_label(cells, columns):
    assert list(json.loads(json_lines([cells], "train"))) == columns
    numbers = [str(n) for n in range(1, len(columns) + 1)]
    count = len(columns)
    assert list(json.loads(json_lines([cells], "train", unlabelled=count))) == numbers
    assert list(json.loads(json_lines([cells], "train", unlabelled=count - 1))) == columns


def test_a_tuple_of_another_length_has_other_columns():
    lines = json_lines([("a", "x"), ("b",)], "train")
    assert list(map(json.loads, lines.splitlines())) == [{"text": "a", "label": "x"}, {"text": "b"}]


class Tensor:
    """The part of TensorFlow's tensor that is used; it has no `tolist`."""

    def __init__(self, value):
        self._value = value

    def numpy(self):
        return self._value


def test_rows_of_tf_data_are_its_texts_and_numbers():
    texts = np.array(["很好".encode(), "太吵".encode()], dtype=object)
    assert json_lines([(Tensor("很好".encode()), Tensor(np.int32(1)))], "train") == (
        '{"text": "很好", "label": 1}\n'
    )
    assert json_lines([{"tokens": Tensor(texts)}], "train") == '{"tokens": ["很好", "太吵"]}\n'


def test_named_tuples_have_the_columns_that_they_name():
    # As of `DataFrame.itertuples`, whose first cell is the index.
    row = namedtuple("Pandas", "Index label text")(0, "good", "很好")
    assert json_lines([row], "train") == '{"Index": 0, "label": "good", "text": "很好"}\n'


def test_values_are_converted_to_json():
    missing = type("NAType", (), {})()
    row = {
        "int": np.int32(3),
        "float": np.float32(0.5),
        "bool": np.bool_(True),
        "text": np.str_("字"),
        "array": np.array([[1, 2], [3, 4]]),
        "nan": np.float64("nan"),
        "na": missing,
        "none": None,
        "set": {"乙", "甲"},
        "nested": {"start": np.int64(1), "of": (1.5, float("nan"))},
        "date": datetime.date(2020, 1, 2),
        7: "number",
    }
    assert json.loads(json_lines([row], "train")) == {
        "int": 3,
        "float": 0.5,
        "bool": True,
        "text": "字",
        "array": [[1, 2], [3, 4]],
        "nan": None,
        "na": None,
        "none": None,
        "set": ["乙", "甲"],
        "nested": {"start": 1, "of": [1.5, None]},
        "date": "2020-01-02",
        "7": "number",
    }


def test_class_indices_are_replaced_by_names():
    tags = {"feature": classes("O", "B-LOC", "I-LOC"), "_type": "List"}
    data = Dataset([{"tokens": ["北", "京"], "ner_tags": np.array([1, 2]), "label": -1}])
    data.features = schema(label=classes("bad", "good"), ner_tags=tags)
    row = json.loads(json_lines(data, "train"))
    assert row == {"tokens": ["北", "京"], "ner_tags": ["B-LOC", "I-LOC"], "label": None}


def test_a_lone_surrogate_is_kept():
    (line,) = json_lines([("\ud83d", "x")], "train").splitlines()
    assert json.loads(line.encode())["text"] == "\ud83d"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text": ["a"]}, r"^valid is \{'text': \['a'\]\}\. Give the path of a file, or a list of"),
        (5, r"^valid is 5\. Give"),
        ([], r"^valid has no rows\. Give a list of tuples \(text, label\)"),
        ([("a", "x"), 5], r"^row 2 of valid is 5\. Give"),
        ([tuple("abcde")], r"^row 1 of valid has 5 cells, .* Give dictionaries"),
    ],
)
def test_other_data_are_rejected(data, message):
    with pytest.raises(InputError, match=message):
        json_lines(data, "valid")


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "dictionary of lists"])
def test_class_indices_within_dictionaries_are_replaced_by_names(is_list):
    """Entities: a list of dictionaries, which `datasets` also stores as a dictionary of lists."""
    keys = {"start": {"dtype": "int32", "_type": "Value"}, "label": classes("LOC", "PER")}
    entities = [{"start": 0, "label": 1}, {"start": 2, "label": 0}]
    named = [{"start": 0, "label": "PER"}, {"start": 2, "label": "LOC"}]
    features = [[keys], {"feature": keys, "_type": "List"}]
    if not is_list:
        entities, named = ({key: [x[key] for x in y] for key in keys} for y in (entities, named))
        features = [{"feature": keys, "_type": "Sequence"}]
    for feature in features:
        data = Dataset([{"text": "张三在", "entities": entities}])
        data.features = schema(text={"_type": "Value"}, entities=feature)
        assert json.loads(json_lines(data, "train"))["entities"] == named


def test_columns_with_the_same_name_are_refused():
    """Of such columns, the rows of a data frame have only the last."""
    frame = Frame([{"text": "很好", "label": 1}])
    frame.columns = ["text", "text", "label"]
    with pytest.raises(InputError, match=r"train has two columns named 'text'\. Give each a name"):
        json_lines(frame, "train")


def test_bytes_are_texts_in_utf_8():
    assert json_lines([("很好".encode(), b"good"), ("太吵".encode(), b"bad")], "train") == LINES
    assert json_lines([(b"\xff", 1)], "train") == '{"text": "\\udcff", "label": 1}\n'
