"""The header of a table: which row holds the names of the columns, if any.

Known names decide: those that the user gives, and well-known ones. Where they leave a doubt, an
InputError shows the first lines and asks for --first-line.
"""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, Literal, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import ellipsized, stripped, to_number
from roformer_tf.labelled.column_names import KNOWN, POSITIVES, TRIPLES, folded
from roformer_tf.readers.tables import FindTop, Table, Top, no_rows
from roformer_tf.translation import Message

# The meaning of the first line of a tsv, csv or xlsx.
FirstLine: TypeAlias = Literal["auto", "header", "example"]

# Rows from which columns and task are inferred.
SAMPLE = 10_000
_MAX_TITLES = 5  # rows above a header
_CELL, _CELLS = 20, 12  # characters of a cell, and cells of a line, in a message


def header_finder(names: Iterable[str | None], first_line: FirstLine) -> FindTop:
    """Detects the header of a table by column names: those in `names` and well-known ones.

    Rows above the header are skipped if they have fewer cells. Without any known name the first
    row is an example. `first_line` overrides this. `check_header` and `check_no_header` ask the
    user in case of doubt.
    """
    # A number selects a column by its position, so it is no name to look for in a header.
    wanted = {folded(name) for name in names if name and not name.isdecimal()}

    def find_top(rows: list[list[str]]) -> Top:
        if first_line == "example":
            return Top()
        titles, has_header = _find_header(rows, wanted)
        has_header = has_header or first_line == "header"
        # As in `_find_header`, two names are no chance.
        below = titles + 1
        again = has_header and below < len(rows) and _count_names(rows, below, ()) > 1
        return Top(titles, has_header, again)

    return find_top


def _find_header(rows: list[list[str]], wanted: Collection[str]) -> tuple[int, bool]:
    """Index of the row with all wanted names, or else the most names, and whether it has any.

    A row below the first is the header only if it has more cells than the titles above it, or as
    many that all are names. It also needs two names, or all that are wanted. Of two equal rows it
    is the one with more cells.
    """
    first = rows[: 1 + _MAX_TITLES]
    has_all = [bool(wanted) and {*wanted} <= {*map(folded, row)} for row in first]
    counts = [_count_names(rows, i, wanted) for i in range(len(first))]
    filled = [sum(bool(cell.strip()) for cell in row) for row in first]
    # Of rows that are equal in all three, `max` returns the first.
    best = max(range(len(first)), key=lambda i: (has_all[i], counts[i], filled[i]))
    # A line of text below a title may contain one known name by chance, but not two. Where all
    # cells are known names, a title such as 日期,2024 may have as many.
    limit = filled[best] + (1 < counts[best] == filled[best])
    if best and ((counts[best] < 2 and not has_all[best]) or max(filled[:best]) >= limit):
        best = 0
    return best, counts[best] > 0


def _count_names(rows: list[list[str]], index: int, wanted: Collection[str]) -> int:
    """Count the cells of a row that name columns and do not occur again below.

    A label that is also a well-known name, such as 新闻, occurs again.
    """
    names = [folded(cell) for cell in rows[index]]
    # A row of several names may be repeated as a whole, where files were joined.
    may_repeat = sum(name in KNOWN for name in names) > 1
    rest = [row for row in rows[index + 1 :] if not may_repeat or row != rows[index]]
    # Groups such as query and document count as a whole: each name alone may be a text.
    groups = (group for group in (TRIPLES[0], *POSITIVES) if set(group) <= set(names))
    count = max(map(len, groups), default=0)
    for column, (cell, name) in enumerate(zip(rows[index], names, strict=True)):
        below = (row[column] for row in rest if column < len(row))
        count += name in wanted or (name in KNOWN and cell not in below)
    return count


class TableSample:
    """A table and the cells of its first rows, from which header, columns and task are inferred.

    Raises InputError if no row can be read.
    """

    def __init__(self, table: Table) -> None:
        rows = list(islice(table.rows, SAMPLE))
        self.table, self.rows = table, [row.cells for row in rows if not row.problem]
        if not self.rows:
            problem = Message("{path} has a header, but no example", path=table.path)
            raise no_rows(table.path, rows, problem)

    def shown(self) -> str:
        """The header and the first example, for a message; without a header, the first line."""
        columns = self.table.columns[:_CELLS]
        more = " | …" if len(self.table.columns) > _CELLS else ""
        example = " | ".join(_shown_cell(self.rows[0].get(name)) for name in columns) + more
        if not self.table.has_header:
            return Message("Its first line, which names no column, is: {row}.", row=example)
        names = " | ".join(map(_shown_cell, columns)) + more
        line = Message("Its first line is: {row}.", row=names)
        return Message("{line} Below it: {row}.", line=line, row=example)


def _shown_cell(value: Any) -> str:
    return "" if value is None else ellipsized(" ".join(str(value).split()), _CELL)


def check_header(sample: TableSample) -> None:
    """Raise InputError if a well-known name in the header occurs again in its own column.

    Then it may be a label in an example, such as the topic 新闻.
    """
    for name in sample.table.columns:
        if folded(name) in KNOWN and any(row.get(name) == name for row in sample.rows):
            doubt = f"{name!r} is a usual name of a column, but occurs in the rows, too"
            raise _unsure_of_header(sample, doubt)


def check_no_header(sample: TableSample, label: str, separator: str) -> None:
    """Raise InputError if the first label occurs nowhere else and is no number.

    Then it may be the name of the column.
    """
    # Cells with several labels are compared label by label.
    first, *rest = [
        {stripped(part) for part in str(row.get(label, "")).split(separator)} - {""}
        for row in sample.rows
    ]
    # Only tables without a header come here, so rows[0] is the first line of the file.
    name = str(sample.rows[0].get(label, ""))
    if first and first.isdisjoint(set[str]().union(*rest)) and to_number(name) is None:
        doubt = Message("{name!r} occurs nowhere else in the label column", name=name)
        raise _unsure_of_header(sample, doubt)


def _unsure_of_header(sample: TableSample, doubt: str) -> InputError:
    return InputError(
        Message(
            "{place}: cannot tell whether the first line is a header: {doubt}. {sample} "
            "Give --first-line header, or --first-line example.",
            place=sample.table.place,
            doubt=doubt,
            sample=sample.shown(),
        )
    )
