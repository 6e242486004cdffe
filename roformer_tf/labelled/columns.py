"""Which rows and columns of a table hold the header, the texts and the labels.

The user's flags decide first, then well-known column names, then the content of the columns. Where
several columns remain possible, an InputError shows the first lines and the flags to add.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import UNCOMPUTED, is_missing, to_number
from roformer_tf.labelled.column_names import (
    KNOWN,
    LABELS,
    PAIRS,
    POSITIVES,
    SEVERAL,
    TEXTS,
    TRIPLES,
    folded,
)
from roformer_tf.readers.spreadsheets import UncomputedFormula
from roformer_tf.readers.tables import Table, Top, open_table

SAMPLE = 10_000
"""Rows that are read to choose columns and task."""

FEW_LABELS = 50
"""Up to this number of distinct values, the values are labels even where none repeats."""

FirstLine: TypeAlias = Literal["auto", "header", "example"]
"""What the first line of a tsv, csv or xlsx is."""

_MAX_TITLES = 5  # rows above a header
_CELL, _CELLS = 20, 12  # characters of a cell, and cells of a line, that a message shows
_CODE = re.compile(r"(?=.*\d)[\w.@:/?=&+-]+( [\d:]+)?", re.ASCII)  # an id, a phone, a URL, a time
_BY_CONTENT = "by its content"


# The header


def open_named(
    path: str | Path,
    encoding: str,
    names: Iterable[str | None],
    first_line: FirstLine = "auto",
    sheet: str | None = None,
) -> Table:
    """Open a table whose header is found by column names: those in `names` and well-known ones.

    Rows above the header are skipped if they have fewer cells. Without any known name the first
    row is an example. `first_line` overrides this, and `check_header` and
    `check_no_header` ask the user where it is unsure.
    """
    wanted = {folded(name) for name in names if name and not name.isdecimal()}

    def find_top(rows: list[list[str]]) -> Top:
        titles, has_header = _find_header(rows, wanted)
        if first_line == "auto":
            return Top(titles, has_header)
        return Top(titles if first_line == "header" else 0, first_line == "header")

    return open_table(path, find_top, encoding, sheet)


def _find_header(rows: list[list[str]], wanted: Collection[str]) -> tuple[int, bool]:
    """Index of the row with the most column names, and whether it has any.

    A row below the first is the header only if it has two names, or all that the user gave, and
    more cells than the titles above it.
    """
    counts = [_count_names(rows, i, wanted) for i in range(min(len(rows), 1 + _MAX_TITLES))]
    best = counts.index(max(counts))
    if best:
        has_all = bool(wanted) and set(wanted) <= {folded(cell) for cell in rows[best]}
        widest = max(map(_count_filled, rows[:best]))
        if (counts[best] < 2 and not has_all) or widest >= _count_filled(rows[best]):
            best = 0
    return best, counts[best] > 0


def _count_names(rows: list[list[str]], index: int, wanted: Collection[str]) -> int:
    """Count the cells of a row that name columns, and that no cell below repeats."""
    names = [folded(cell) for cell in rows[index]]
    groups = (group for group in (TRIPLES[0], *POSITIVES) if set(group) <= set(names))
    count = max(map(len, groups), default=0)
    for column, (cell, name) in enumerate(zip(rows[index], names, strict=True)):
        below = (row[column] for row in rows[index + 1 :] if column < len(row))
        count += name in wanted or (name in KNOWN and cell not in below)
    return count


def _count_filled(row: list[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def check_header(path: str | Path, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Raise InputError if a well-known name in the header occurs again in its own column.

    Then it may be a label in an example: a topic may be called 新闻.
    """
    for name in table.columns:
        if folded(name) in KNOWN and any(row.get(name) == name for row in rows):
            doubt = f"{name!r} is a usual name of a column, but occurs in the rows, too"
            raise _unsure_of_header(path, table, rows, doubt)


def check_no_header(
    path: str | Path, table: Table, rows: Sequence[dict[str, Any]], label: str, separator: str
) -> None:
    """Raise InputError if the first label occurs nowhere else, and is no number.

    Then it may be the column's name.
    """
    first, *rest = [
        {part.strip() for part in str(row.get(label, "")).split(separator)} - {""} for row in rows
    ]
    name = str(rows[0].get(label, ""))
    if first and first.isdisjoint(set[str]().union(*rest)) and to_number(name) is None:
        doubt = f"{name!r} occurs nowhere else in the label column"
        raise _unsure_of_header(path, table, rows, doubt)


def _unsure_of_header(
    path: str | Path, table: Table, rows: Sequence[dict[str, Any]], doubt: str
) -> InputError:
    return InputError(
        f"{path}{sheet_of(table)}: cannot tell whether the first line is a header: {doubt}. "
        f"{shown_lines(table, rows)} Give --first-line header, or --first-line example."
    )


# Columns


def find_column(path: str | Path, table: Table, wanted: str) -> str:
    """Find a column by its name, in any case, or its number. Raises InputError without it."""
    if wanted in table.columns:
        return wanted
    for normalize in (str.casefold, folded):
        matches = [name for name in table.columns if normalize(name) == normalize(wanted) != ""]
        if len(matches) == 1:
            return matches[0]
    if wanted.isdecimal() and 1 <= int(wanted) <= len(table.columns):
        return table.columns[int(wanted) - 1]
    present = f"its columns are {', '.join(table.columns)}"
    if not table.has_header:
        present = f"its first line names none of its {len(table.columns)}"
    raise InputError(
        f"{path} has no column {wanted!r}: {present}. Give --text-columns and --label-column by "
        "the names in a header, or by numbers from 1."
    )


class Profile(NamedTuple):
    """What a column holds, missing cells excluded."""

    filled: int
    distinct: int
    numbers: bool
    """All cells are numbers."""
    indices: bool
    """All cells are different whole numbers, such as row numbers."""
    codes: bool
    """Nearly all cells are codes: order numbers, addresses, times, links."""

    @property
    def like_labels(self) -> bool:
        """Few distinct values."""
        return 1 < self.distinct <= min(FEW_LABELS, self.filled / 2)

    @property
    def like_texts(self) -> bool:
        """Most cells differ, and they are neither numbers nor codes."""
        return not (self.numbers or self.codes) and 2 * self.distinct > self.filled > 0


def profile(values: Iterable[Any]) -> Profile:
    """Look at the cells of a column."""
    cells = [value for value in values if not is_missing(value)]
    texts = [str(cell).strip() for cell in cells]
    numbers = [to_number(cell) for cell in cells]
    distinct = len(set(texts))
    all_numbers = bool(cells) and None not in numbers
    whole = sum(number is not None and number.is_integer() for number in numbers)
    codes = sum(_CODE.fullmatch(text) is not None for text in texts)
    return Profile(
        filled=len(cells),
        distinct=distinct,
        numbers=all_numbers,
        indices=all_numbers and whole == len(cells) == distinct > 2,
        codes=bool(cells) and not all_numbers and codes >= 0.9 * len(cells),
    )


def _profiles(rows: Sequence[dict[str, Any]], columns: Iterable[str]) -> dict[str, Profile]:
    return {name: profile(row.get(name) for row in rows) for name in columns}


def find_label(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[str, str]:
    """The label column, and a note on how it was chosen if by content.

    It is the user's; the only one left next to the user's texts; the one with a well-known name;
    or the only one with few distinct values. Raises InputError if several or none fit.
    """
    if label is not None:
        return find_column(path, table, label), ""
    chosen = {find_column(path, table, name) for name in texts}
    free = [name for name in table.columns if name not in chosen]
    if chosen and len(free) == 1:
        return free[0], ""
    note = ""
    candidates = [name for name in free if folded(name) in LABELS] if table.has_header else []
    if not candidates:
        note = _BY_CONTENT
        profiles = _profiles(rows, free)
        candidates = [x for x in free if profiles[x].like_labels and folded(x) not in TEXTS]
    if len(candidates) == 1:
        return candidates[0], note
    names = [(name,) for name in candidates or free]
    raise _unclear(path, table, rows, "column holds the labels", names, "--label-column")


def find_optional_label(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> str | None:
    """The label column of a file that may have none: the user's, or one with a well-known name.

    Without either it is the only column of numbers that are no row numbers, as scores of pairs are.
    Raises InputError if several fit.
    """
    if label is not None:
        return find_column(path, table, label)
    chosen = {find_column(path, table, name) for name in texts}
    free = [name for name in table.columns if name not in chosen]
    candidates = [x for x in free if folded(x) in LABELS and folded(x) not in TEXTS]
    if not candidates and not _positives(table):
        profiles = _profiles(rows, free)
        candidates = [x for x in free if profiles[x].numbers and not profiles[x].indices]
    if len(candidates) > 1:
        names = [(name,) for name in candidates]
        raise _unclear(path, table, rows, "column holds the labels", names, "--label-column")
    return candidates[0] if candidates else None


def find_texts(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[tuple[str, ...], str]:
    """The text columns, and a note on how they were chosen if by content.

    They are the user's; those with well-known names; the only one left next to the label; or the
    only one whose cells look like texts. Raises InputError if several or none fit.
    """
    if given := tuple(find_column(path, table, name) for name in texts):
        return given, ""
    free = tuple(name for name in table.columns if name != label)
    profiles = _profiles(rows, free)
    like_texts: list[tuple[str, ...]] = [(x,) for x in free if profiles[x].like_texts]
    candidates, note = _named_texts(free) if table.has_header else [], ""
    if len(candidates) == 1 and profiles[candidates[0][0]].numbers:
        candidates += like_texts  # a column called 问题 with numbers of questions
    elif not candidates and len(free) == 1:
        candidates = [free]
    elif not candidates:
        candidates, note = like_texts, _BY_CONTENT
    if len(candidates) == 1:
        return candidates[0], note
    names = candidates or [(name,) for name in free]
    raise _unclear(path, table, rows, "columns hold the texts", names, "--text-columns")


def find_several_texts(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[tuple[str, ...], str]:
    """The text columns, as `find_texts`, of a file whose rows may hold matching texts.

    Two or three columns of texts are all taken, whatever their names.
    """
    texts = tuple(texts)
    if not texts and (names := _positives(table)):
        return names, ""
    free = tuple(name for name in table.columns if name != label)
    if not texts and not any(len(names) > 1 for names in _named_texts(free)):
        profiles = _profiles(rows, free)
        names = tuple(
            name
            for name, one in profiles.items()
            if one.filled and not one.numbers and not one.codes
        )
        if len(names) in (2, 3):
            return names, "" if len(names) == len(free) else _BY_CONTENT
    return find_texts(path, table, rows, texts, label)


def _positives(table: Table) -> tuple[str, ...]:
    """Columns with well-known names of matching texts, such as query and document."""
    by_name = {folded(name): name for name in reversed(table.columns)} if table.has_header else {}
    group = next((names for names in POSITIVES if by_name.keys() >= set(names)), ())
    return tuple(by_name[name] for name in group)


def _named_texts(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns with well-known names: a triple, else pairs, else every single text."""
    by_name = {folded(column): column for column in columns}
    for groups in (TRIPLES, PAIRS, tuple((name,) for name in by_name if name in TEXTS)):
        matches = [names for names in groups if by_name.keys() >= set(names)]
        if matches:
            return [tuple(by_name[name] for name in names) for names in matches]
    return []


def find_texts_to_predict(
    path: str | Path,
    table: Table,
    wanted: Sequence[str],
    first_line: FirstLine,
) -> tuple[tuple[str, ...], str]:
    """The text columns of a file to predict, and how they were chosen; `wanted`: of training.

    In a file with other names they are found as in training, if their number is the same. Without
    a header the user has to say so. Raises InputError where they are not certain.
    """
    try:
        return tuple(find_column(path, table, name) for name in wanted), ""
    except InputError as error:
        missing = error
    rows = [row.cells for row in islice(table.rows, SAMPLE) if not row.problem]
    if table.has_header or first_line != "auto":
        labels = [n for n in table.columns if folded(n) in LABELS and folded(n) not in TEXTS]
        label = labels[0] if len(labels) == 1 else None
        try:
            names, note = find_texts(path, table, rows, (), label)
        except InputError:
            names = ()
        if len(names) == len(wanted):
            return names, note or ("by its name" if table.has_header else "")
    if first_line == "example" and len(table.columns) == len(wanted):
        return tuple(table.columns), ""  # without a header, and no column too many
    several = len(wanted) > 1
    candidates = [table.columns[: len(wanted)]] if several else [(n,) for n in table.columns[:4]]
    flags = " or ".join(f"--text-columns {_typed(names)}" for names in candidates)
    asked = "" if table.has_header else ", and --first-line header or --first-line example"
    reason = str(missing).split(". Give --text")[0]
    raise InputError(
        f"{reason}. {shown_lines(table, rows)} Give {flags}{asked}.{sheet_hint(table)}"
    )


# Messages


def _unclear(
    path: str | Path,
    table: Table,
    rows: Sequence[dict[str, Any]],
    what: str,
    candidates: Sequence[tuple[str, ...]],
    flag: str,
) -> InputError:
    """An error that shows the first lines and the flags to add."""
    shown = " or ".join(" ".join(names) for names in candidates) or "none is left"
    flags = " or ".join(f"{flag} {_typed(names)}" for names in candidates[:4]) or flag
    return InputError(
        f"{path}{sheet_of(table)}: cannot tell which {what}: {shown}. {shown_lines(table, rows)} "
        f"Give {flags}, by name or by number from 1.{sheet_hint(table)}{_uncomputed(table, rows)}"
    )


def _uncomputed(table: Table, rows: Sequence[dict[str, Any]]) -> str:
    """A hint if a column has formulas without values."""
    for name in table.columns:
        if any(isinstance(row.get(name), UncomputedFormula) for row in rows):
            return f" The column {name} has {UNCOMPUTED}."
    return ""


def _typed(names: Iterable[str]) -> str:
    """Names as they are typed in a shell."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else shlex.quote(name) for name in names)


def sheet_of(table: Table) -> str:
    """The name of the sheet, if the file has several."""
    return f" of the sheet {table.sheet}" if table.sheet else ""


def sheet_hint(table: Table) -> str:
    """A hint that --sheet selects another sheet, if the file has several."""
    return " Or name another sheet with --sheet." if table.sheet else ""


def shown_lines(table: Table, rows: Sequence[dict[str, Any]]) -> str:
    """The header and the first example; without a header, the first line."""
    first = [_shown_cell(rows[0].get(name)) for name in table.columns[:_CELLS]] if rows else []
    more = " | …" * (len(table.columns) > _CELLS)
    example = " | ".join(first) + more
    if not table.has_header:
        return f"Its first line, which names no column, is: {example}."
    names = " | ".join(_shown_cell(name) for name in table.columns[:_CELLS]) + more
    return f"Its first line is: {names}." + f" Below it: {example}." * bool(rows)


def _shown_cell(value: Any) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


@dataclass(frozen=True)
class LabelSample:
    """The columns of a file, from which the task is inferred."""

    texts: Sequence[str]
    """Names of the text columns."""
    label: str
    """Name of the label column."""
    labels: Sequence[Any]
    """Its cells, without the missing ones."""
    separator: str
    """Between the labels of an example that has several."""

    @cached_property
    def distinct(self) -> int:
        """How many different labels there are."""
        return len({str(value) for value in self.labels})

    @cached_property
    def numbers(self) -> list[float | None]:
        """The labels as numbers; None for any other label."""
        return [to_number(value) for value in self.labels]

    @property
    def has_decimals(self) -> bool:
        """Whether all labels are numbers, and not all of them whole."""
        return None not in self.numbers and any(x % 1 for x in self.numbers if x is not None)

    @property
    def has_few(self) -> bool:
        """Whether the labels are so few, or repeat so often, that each is a class."""
        several_times = 2 * self.distinct <= len(self.labels)
        return self.distinct <= FEW_LABELS or (several_times and None in self.numbers)

    @cached_property
    def why_several(self) -> str:
        """Why examples of a single text have several labels each; "" if they do not."""
        if len(self.texts) != 1:
            return ""
        if any(isinstance(value, list | tuple) for value in self.labels):
            return "the labels are lists"
        if folded(self.label) in SEVERAL:
            return f"the column is called {self.label}"
        texts = [str(value) for value in self.labels]
        if not texts:
            return ""
        # Commas also occur in names of classes; lists of labels repeat their parts.
        separated = sum(self.separator in text for text in texts)
        parts = {part.strip() for text in texts for part in text.split(self.separator)}
        if 10 * separated >= len(texts) and len(parts) <= len(set(texts)):
            return (
                f"{self.separator!r} separates several in {separated:,} of {len(texts):,} examples"
            )
        return ""
