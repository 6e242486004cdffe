"""Conditions on metadata, and the documents that they select."""

from contextlib import closing

import pytest

from roformer_tf.errors import InputError
from roformer_tf.search.database import sqlite3
from roformer_tf.search.document_files import Document
from roformer_tf.search.filters import parse_filter

ROWS = [
    {"id": "a", "year": 2019, "lang": "zh", "score": 0.5, "draft": True, "stock": "TRUE"},
    {"id": "b", "year": 2020, "lang": "en", "标 题": "引'号\"", "draft": False, "stock": "False"},
    {"id": "c", "year": 2021, "lang": "zh", "score": -1.5, "a.b": "x%y", "price": "19.90"},
    {"id": "8", "lang": "it's", "stock": True, "price": "007", "flag": 1},
    {"id": None, "year": "unknown", "lang": "ZH-tw", "flag": "0"},
]
CASES = {
    "year >= 2020": "bc",
    "year != 2020": "ac",
    "year == 2020 or year<2020": "ab",
    "year = '2020'": "b",
    "year > 2019 and lang = 'zh'": "c",
    "not year >= 2020": "a8-",
    "not (year >= 2020 or lang = 'zh')": "8-",
    "lang in ('zh', \"en\")": "abc",
    "lang not in ('zh', 'en')": "8-",
    "year in (2019, '2021')": "ac",
    "lang like 'zh%'": "ac-",  # case-insensitive for ASCII letters
    "lang not like 'z_'": "b8-",
    "score is null": "b8-",
    "score is not null": "ac",
    "score < -1": "c",
    "price > 5": "c",  # as CSV has it
    "price = 19.9 and price = '19.90'": "c",
    "draft = true": "a",
    "draft = FALSE": "b",
    "`stock` = true": "a8",  # as text in spreadsheets, and in the CSV of pandas
    "`stock` != true": "b",
    "`stock` in (false)": "b",
    "`stock` = 1 or stock != 1 or draft in (0, 1)": "",  # neither in JSON nor in spreadsheets
    "flag in (true, false)": "",  # no number is true
    "flag != true": "8-",
    "flag = '1' or flag = 0": "8-",
    "draft in ('1', '0') or `stock` = '1'": "",
    "draft != '1' and draft is not null": "ab",
    # Whether the file has them as text or not
    "`stock` = 'TRUE'": "a8",
    "draft in ('true', 'x')": "a",
    "stock like 'False'": "b",
    "`标 题` like '引%'": "b",
    "a.b = 'x%y'": "c",
    'lang = "it\'s"': "8",
    "id = 8 or id = 'c'": "c8",
    "id < 10": "8",
    "id >= 10": "",
    "id < 'b'": "a8",
    "id is null": "-",
    "NOT NOT year = 2019": "a",
    "year = 2019 or year = 2020 and lang = 'zh'": "a",  # `and` has precedence
    'lang = "x\' OR 1 = 1 --"': "",
}


@pytest.fixture(scope="module")
def database():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE documents (id TEXT, metadata TEXT)")
    for row in ROWS:
        metadata = {key: x for key, x in row.items() if key != "id"}
        values = (row["id"], Document("", metadata=metadata).metadata_json)
        connection.execute("INSERT INTO documents VALUES (?, ?)", values)
    yield connection
    connection.close()


@pytest.mark.parametrize(("text", "want"), CASES.items())
def test_a_condition_selects_the_documents_that_satisfy_it(database, text, want):
    sql, parameters = parse_filter(text, {key for row in ROWS for key in row})
    query = f"SELECT ifnull(id, '-') FROM documents WHERE {sql}"
    assert "".join(x for (x,) in database.execute(query, parameters)) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("id = 1234567890123456789", True),
        ("id in (8, 001234567890123456789)", False),
        ("order = 9007199254740993", True),
        ("order = 9007199254740992 or order > 1e300", False),
        ("order < 99999999999999999999", True),
    ],
)
def test_a_long_number_keeps_its_digits(text, want):
    sql, parameters = parse_filter(text)
    values = ["1234567890123456789", '{"order": 9007199254740993}', *parameters]
    with closing(sqlite3.connect(":memory:")) as database:
        documents = "FROM (SELECT ? AS id, ? AS metadata) AS documents"
        (count,) = database.execute(f"SELECT count(*) {documents} WHERE {sql}", values).fetchone()
    assert count == want


@pytest.mark.parametrize("text", CASES)
def test_no_text_of_a_condition_becomes_sql(text):
    sql, _ = parse_filter(text)
    for word in ("2020", "lang", "zh", "标", "it's", "draft", "year"):
        assert word not in sql


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no condition"),
        ("year", "cannot read 'year'. Example"),
        ("year >", "cannot read 'year >'"),
        ("lang = 1 and year > lang", "cannot read 'year > lang'"),
        ("yearin (1)", "cannot read 'yearin (1)'"),
        ("year = 'x", 'cannot read "year = \'x"'),
        ("(year = 1", "no condition"),
        ("year = 1)", 'no condition: near ")"'),
        ("year = 1 lang = 2", "no condition"),
        ("year = 1 and", "no condition"),
        ("year in ()", "cannot read 'year in ()'"),
        ("year like 3", "cannot read 'year like 3'"),
        ("year is 3", "cannot read 'year is 3'"),
        ("1 = 1", "cannot read '1 = 1'"),
        ("year = 1; DROP TABLE documents", "cannot read '; DROP"),
        ("json_extract(metadata, 'x') = 1", 'cannot read "json_extract'),
        ("yaer = 1", "no document has the field 'yaer'. The index has: id, lang, year."),
        ("not " * 10_000 + "year = 1", "no condition"),
        ("(" * 10_000, "no condition"),
        (" or ".join(["year = 1"] * 10_000), "no condition"),
    ],
)
def test_a_wrong_condition_is_explained(text, message):
    with pytest.raises(InputError) as error:
        parse_filter(text, {"year", "lang"})
    assert message in str(error.value)
    assert str(error.value).startswith("where is ")  # in a request, too; a command writes --where
