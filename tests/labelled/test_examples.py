from roformer_tf.labelled import examples
from roformer_tf.labelled.examples import UNLABELLED, BadLine, SkippedRows
from roformer_tf.readers.records import BLANK


def made(*rows):
    found = SkippedRows("data/a.csv")
    for number, problem in rows:
        found.add(BadLine(f"data/a.csv:{number}", problem))
    return found


def test_rows_are_named_by_what_is_wrong_with_them():
    found = made((2, UNLABELLED), (4, BLANK), (5, "is odd"), (3, UNLABELLED), (9, UNLABELLED))
    assert str(found) == "data/a.csv:2-3,9 has no label\ndata/a.csv:5 is odd"
    assert (found.rows, found.bad, found.blank, found.unreadable) == (5, 4, 1, 1)
    assert found.notice(95).splitlines() == [
        "data/a.csv: 5 of 100 rows are skipped:",
        "  data/a.csv:2-3,9 has no label",
        "  data/a.csv:4 is blank",
        "  data/a.csv:5 is odd",
        "(--strict stops instead.)",
    ]


def test_blank_rows_alone_stop_nothing():
    found = made((7, BLANK))
    assert found.notice(1) == "data/a.csv: 1 of 2 rows is skipped:\n  data/a.csv:7 is blank"
    assert not found.bad


def test_a_million_places_are_counted(monkeypatch):
    monkeypatch.setattr(examples, "RANGES", 3)
    monkeypatch.setattr(examples, "KINDS", 2)
    every_third = [(3 * i, UNLABELLED) for i in range(1, 8)]
    found = made(*every_third, (30, "x"), (31, "y"), (32, "z"))
    assert str(found).splitlines() == [
        "data/a.csv:3,6,9,… (4 more) has no label",
        "data/a.csv:30 x",
        "and 2 rows for other reasons",
    ]
