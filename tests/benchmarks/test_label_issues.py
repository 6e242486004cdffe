"""The benchmark of label issues: planting errors and computing precision."""

import gzip
from collections import Counter

import pytest

from benchmarks.label_issues import (
    SETS,
    LabelIssuesBenchmark,
    plant,
    precision,
    read_line_numbers,
    unseen_examples,
)


def test_planted_errors_are_identified_by_line(tmp_path):
    rows = {name: [(f"{name}{i % 90}", "01"[i % 2]) for i in range(100)] for name in SETS}
    rows["valid"][3] = ("train5", "1")
    for name, lines in rows.items():
        with gzip.open(tmp_path / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in lines))
    output = tmp_path / "planted"
    changed = plant(LabelIssuesBenchmark(tmp_path, "", output))
    for name, lines in rows.items():
        _, *actual = (output / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        different = {i + 2 for i, row in enumerate(lines) if "\t".join(row) != actual[i]}
        assert different == changed[name]
        assert len(different) == 5
        assert Counter(row.split("\t")[0] for row in actual) == Counter(text for text, _ in lines)
    paths = {name: str(output / f"{name}.tsv") for name in SETS}
    assert [item.source_line for item in unseen_examples(paths)] == [
        str(i) for i in range(2, 102) if i != 5
    ]


def test_precision_is_counted_from_the_top(tmp_path):
    path = tmp_path / "label_issues.tsv"
    path.write_text("place\ttext\n" + "".join(f"C:/a:b.tsv:{i}\tx\n" for i in range(2, 32)))
    line_numbers = read_line_numbers(path)
    assert line_numbers == [*range(2, 32)]
    assert precision(line_numbers, {2, 3, 4, 30}) == {
        "listed": 30,
        "precision_at_20": pytest.approx(0.15),
    }
