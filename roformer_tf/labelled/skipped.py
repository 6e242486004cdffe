"""Rows of a file that give no example: counted, and named all at once.

reviews.csv: 5 of 2,700 rows are skipped:
  reviews.csv:4,9,12-14 has no label
  reviews.csv:20 has an empty text in 'text'
"""

from pathlib import Path
from typing import NamedTuple

from roformer_tf.readers.records import BLANK

RANGES = 100
"""Places of one problem that are named; of more, how many they are."""
KINDS = 50
"""Problems that are named; what is wrong else is counted."""
UNLABELLED = "has no label"
"""The problem of a row whose label alone is missing, as where a part of a file is labelled yet."""


class BadLine(NamedTuple):
    """What of a file gives no example."""

    place: str
    """Where it begins: "train.tsv:12"."""
    problem: str
    """Why, as "has no label"."""


class SkippedRows:
    """The bad rows of a file so far, in bounded memory."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.rows = 0
        """All of them."""
        self.blank = 0
        """Those with nothing in them, which no one minds in training."""
        self.unreadable = 0
        """Those in which more is missing than a label."""
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        self._counts: dict[str, int] = {}
        self._others = 0  # with other problems than the first `KINDS`

    @property
    def bad(self) -> int:
        """Those that are not blank."""
        return self.rows - self.blank

    @property
    def them(self) -> str:
        """A word for the bad ones."""
        return "it" if self.bad == 1 else "them"

    def add(self, line: BadLine) -> None:
        """Count a row, and keep its place."""
        self.rows += 1
        self.blank += line.problem == BLANK
        self.unreadable += line.problem not in (BLANK, UNLABELLED)
        if line.problem not in self._counts and len(self._counts) == KINDS:
            self._others += 1
            return
        number = int(line.place.rpartition(":")[2])
        self._counts[line.problem] = 1 + self._counts.get(line.problem, 0)
        ranges = self._ranges.setdefault(line.problem, [])
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        elif len(ranges) <= RANGES:  # the last of them is not shown
            ranges.append((number, number))

    def lines(self, with_blank: bool) -> list[str]:
        """A line for each problem: the places, and what is wrong there."""
        shown = [
            f"{self.path}:{self._places(problem)} {problem}"
            for problem in self._counts
            if with_blank or problem != BLANK
        ]
        return shown + [f"and {self._others:,} rows for other reasons"] * bool(self._others)

    def notice(self, good: int) -> str:
        """What is skipped beside so many good rows."""
        verb = "is" if self.rows == 1 else "are"
        first = f"{self.path}: {self.rows:,} of {good + self.rows:,} rows {verb} skipped:"
        stops = ["(--strict stops instead.)"] * bool(self.bad)
        return "\n".join([first, *(f"  {line}" for line in self.lines(True)), *stops])

    def __str__(self) -> str:
        """The bad rows: one line for each problem."""
        return "\n".join(self.lines(with_blank=False))

    def _places(self, problem: str) -> str:
        ranges = self._ranges[problem][:RANGES]
        places = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
        more = self._counts[problem] - sum(b - a + 1 for a, b in ranges)
        return places + f",… ({more:,} more)" * bool(more)
