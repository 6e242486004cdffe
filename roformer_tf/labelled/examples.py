"""Examples, and the bad rows of a labelled file, which are reported together.

reviews.csv: 5 of 2,700 rows skipped:
  reviews.csv:4,9,12-14 has no label
  reviews.csv:20 has an empty text in 'text'
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from roformer_tf.readers.records import BLANK, Row
from roformer_tf.readers.streams import is_stdin
from roformer_tf.translation import Message

LongTexts = Literal["head", "head-tail", "windows"]
# One label, several, one for each unit, or a number, depending on the task.
Label: TypeAlias = Any

# An entity: its label, first character, last character + 1.
Span: TypeAlias = tuple[str, int, int]


class Example(NamedTuple):
    """One labelled example of the data."""

    texts: tuple[str, ...]
    """One text, a pair, or A, B and C; several of equal meaning; for tagging the joined units."""
    label: Label
    """None if the data has no label."""
    source_line: str
    """File and line, such as "train.tsv:12"."""
    units: tuple[str, ...] = ()
    """For tagging: the characters or words that have a label each."""


def labels_of(examples: Iterable[Example]) -> list[Label]:
    """The labels in the data."""
    return [example.label for example in examples if example.label is not None]  # all have one


def ordered(spans: Iterable[Span]) -> list[Span]:
    """Spans by their first character, the longest first."""
    return sorted(spans, key=lambda span: (span[1], -span[2], span[0]))


# Ranges of lines that are listed for each problem, and problems; the rest is counted.
RANGES, KINDS = 100, 50
# The problem of a row without a label, which is usual in partly labelled files.
UNLABELLED = "has no label"


class SkippedRows:
    """The bad rows of a file so far."""

    def __init__(self, path: str | Path) -> None:
        self.path = "stdin" if is_stdin(path) else path
        # By file and problem: a folder of brat has many files.
        self._numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def good(self, rows: Iterable[Any]) -> list[Any]:
        """The good rows of a file, in memory; those with a problem are stored here."""
        good = []
        for row in rows:
            if isinstance(row, Row):
                self.add(row)
            else:
                good.append(row)
        return good

    def add(self, row: Row) -> None:
        """Store the line of a row."""
        file, _, number = row.source_line.rpartition(":")
        self._numbers[file, row.problem].append(int(number))

    def count(self, *harmless: str) -> int:
        """The number of rows, except those with these problems."""
        kinds = self._numbers.items()
        return sum(len(numbers) for (_, problem), numbers in kinds if problem not in harmless)

    def lines(self, with_blank: bool) -> list[str]:
        """One line for each problem: line numbers and reason."""
        # A dictionary keeps its order, so problems are listed by their first row.
        kinds = [item for item in self._numbers.items() if with_blank or item[0][1] != BLANK]
        shown = [f"{file}:{_line_numbers(x)} {problem}" for (file, problem), x in kinds[:KINDS]]
        rest = sum(len(numbers) for _, numbers in kinds[KINDS:])
        if rest:
            shown.append(f"and more rows for other reasons: {rest:,}")
        return shown

    def notice(self, good: int) -> str:
        """The report of skipped rows; `good`: how many were read."""
        first = Message(
            "{path}: {number:,} of {of:,} rows skipped:",
            path=self.path,
            number=self.count(),
            of=good + self.count(),
        )
        lines = [first, *(f"  {line}" for line in self.lines(with_blank=True))]
        if self.count(BLANK):
            lines.append("(--strict stops instead.)")
        return "\n".join(lines)

    def __str__(self) -> str:
        """The bad rows: one line for each problem."""
        return "\n".join(self.lines(with_blank=False))


def _line_numbers(numbers: list[int]) -> str:
    """Rising numbers of lines: "4,9,12-14"."""
    # In a range of consecutive lines, the difference of number and index is the same.
    grouped = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in pairs] for _, pairs in grouped]
    shown = ",".join(str(x[0]) if len(x) == 1 else f"{x[0]}-{x[-1]}" for x in ranges[:RANGES])
    more = sum(map(len, ranges[RANGES:]))
    return f"{shown},… ({more:,} more)" if more else shown
