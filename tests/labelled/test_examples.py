from roformer_tf.labelled import examples
from roformer_tf.labelled.examples import UNLABELLED, SkippedRows
from roformer_tf.readers.records import BLANK, Row


def skipped(*rows):
    actual = SkippedRows("data/a.csv")
    for number, problem in rows:
        actual.add(Row(f"data/a.csv:{number}", {}, problem))
    return actual


def test_rows_are_grouped_by_problem():
    actual = skipped((2, UNLABELLED), (4, BLANK), (5, "is odd"), (3, UNLABELLED), (9, UNLABELLED))
    assert str(actual) == "data/a.csv:2-3,9 has no label\ndata/a.csv:5 is odd"
    assert (actual.count(), actual.count(BLANK), actual.count(BLANK, UNLABELLED)) == (5, 4, 1)
    assert actual.notice(95).splitlines() == [
        "data/a.csv: 5 of 100 rows skipped:",
        "  data/a.csv:2-3,9 has no label",
        "  data/a.csv:4 is blank",
        "  data/a.csv:5 is odd",
        "(--strict stops instead.)",
    ]


def test_blank_rows_are_not_counted_as_bad():
    actual = skipped((7, BLANK))
    assert actual.notice(1) == "data/a.csv: 1 of 2 rows skipped:\n  data/a.csv:7 is blank"
    assert not actual.count(BLANK)


def test_long_lists_of_rows_are_abbreviated(monkeypatch):
    monkeypatch.setattr(examples, "RANGES", 3)
    monkeypatch.setattr(examples, "KINDS", 2)
    every_third = [(3 * i, UNLABELLED) for i in range(1, 8)]
    actual = skipped(*every_third, (30, "x"), (31, "y"), (32, "z"))
    assert str(actual).splitlines() == [
        "data/a.csv:3,6,9,… (4 more) has no label",
        "data/a.csv:30 x",
        "and more rows for other reasons: 2",
    ]
