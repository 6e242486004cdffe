"""Which columns of a table hold texts and labels, and what speaks in them for a task.

What the user names is taken; what is left is found by the columns' names, or by what stands in
them, and refused where there is more than one possibility.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import to_number
from roformer_tf.readers.tables import Table, open_table

TEXTS = (
    *("text", "sentence", "content", "review", "comment", "document", "body", "title"),
    *("query", "question", "文本", "内容", "句子", "评论", "正文", "标题"),
)
"""Names of a column that holds a single text; upper and lower case are alike."""
PAIRS = (
    *(("text_a", "text_b"), ("text1", "text2"), ("sentence1", "sentence2")),
    *(("sentence_a", "sentence_b"), ("question1", "question2"), ("query", "title")),
    *(("premise", "hypothesis"), ("文本1", "文本2"), ("句子1", "句子2")),
)
TRIPLES = (("a", "b", "c"), ("text_a", "text_b", "text_c"))
LABELS = (
    *("label", "labels", "tag", "tags", "class", "category", "target"),
    *("score", "rating", "标签", "类别", "分类", "分数", "评分", "得分"),
)
SEVERAL = ("labels", "tags")
"""Of these, the names that say that an example may have several."""

FEW_LABELS = 50
"""Distinct values that are labels even where none repeats."""

SELDOM = 1 / 20
"""Share of examples with a label of their own up to which the first is hardly one of them."""

FirstLine: TypeAlias = Literal["auto", "header", "example"]
"""What the first line of a tsv, csv or xlsx is; "auto" finds out."""


def open_named(
    path: str | Path,
    encoding: str,
    named: Iterable[str | None],
    first_line: FirstLine = "auto",
    sheet: str | None = None,
) -> Table:
    """Open a table whose header has a known name, or one of those named, unless told what is."""
    names = {name.casefold() for name in named if name and not name.isdecimal()}

    def is_header(rows: list[list[str]]) -> bool:
        return _is_header(rows, names) if first_line == "auto" else first_line == "header"

    return open_table(path, is_header, encoding, sheet)


def _is_header(rows: list[list[str]], named: Collection[str]) -> bool:
    """Tell whether the first row names columns.

    It does if a cell is a name that the user gave, or a known one that no row under it repeats:
    then it is a label that happens to be called so.
    """
    names = [cell.strip().casefold() for cell in rows[0]]
    if set(named) & set(names) or set(TRIPLES[0]) <= set(names):
        return True
    known = {*TEXTS, *LABELS, *(name for group in (*PAIRS, TRIPLES[1]) for name in group)}
    return any(
        name in known and not any(row[i : i + 1] == rows[0][i : i + 1] for row in rows[1:])
        for i, name in enumerate(names)
    )


def names_labels(labels: Sequence[str], separator: str) -> bool | None:
    """Tell whether the first cell of a column of labels is the column's name, and not a label.

    A label comes again, or is a number among numbers. None where it may be either: what stands
    nowhere else, in a column of which much stands nowhere else.

    情绪 好 坏 好 坏 → True; 好 坏 好 坏 → False; 好 坏 → None
    """
    first, *others = [
        {one for part in label.split(separator) if (one := part.strip())} for label in labels
    ]
    found = Counter(one for parts in others for one in parts)
    if not (first and found) or first & found.keys() or any(map(_is_numeral, first)):
        return False
    alone = sum(any(found[one] == 1 for one in parts) for parts in others)
    return True if all(map(_is_numeral, found)) or alone <= SELDOM * len(others) else None


def _is_numeral(text: str) -> bool:
    """Whether a text spells a number, if only a missing one: nan."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_column(path: str | Path, table: Table, wanted: str) -> str:
    """Find a column by its name, in any case, or its number. Raises InputError without it."""
    if wanted in table.columns:
        return wanted
    alike = [name for name in table.columns if name.casefold() == wanted.casefold()]
    if len(alike) == 1:
        return alike[0]
    if wanted.isdecimal() and 1 <= int(wanted) <= len(table.columns):
        return table.columns[int(wanted) - 1]
    there = f"its columns are {', '.join(table.columns)}"
    if not table.has_header:
        there = f"its first line names none of its {len(table.columns)}"
    raise InputError(
        f"{path} has no column {wanted!r}: {there}. Give --text-columns and --label-column by the "
        "names in a header, or by numbers from 1."
    )


def find_label(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> str:
    """The label's column: the one given, by its name, or what is left beside the texts given.

    Without a header, by what stands in it.
    """
    if label is not None:
        return find_column(path, table, label)
    given = {find_column(path, table, name) for name in texts}
    free = [name for name in table.columns if name not in given]
    if given and len(free) == 1:
        found = free
    elif table.has_header:
        found = [name for name in free if name.casefold() in LABELS]
    else:
        found = [name for name in free if _look_like_labels([row.get(name) for row in rows])]
    if len(found) == 1:
        return found[0]
    raise InputError(
        f"{path}: cannot tell which column holds the labels: {_candidates(found or free, table)}. "
        "Give --label-column, by name or by number from 1."
    )


def _look_like_labels(values: list[Any]) -> bool:
    """Tell labels from texts: numbers, or few values, of which the first one comes again.

    One that does not is more likely a header of an unknown name.
    """
    numbers = all(to_number(value) is not None for value in values)
    few = len(set(values)) <= min(FEW_LABELS, len(values) / 2)
    return numbers or (few and values[0] in values[1:])


def find_texts(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str,
) -> tuple[str, ...]:
    """The texts' columns: those given, by their names, or what is left beside the label."""
    given = tuple(find_column(path, table, name) for name in texts)
    if given:
        return given
    free = tuple(name for name in table.columns if name != label)
    if table.has_header:
        found = _named_texts(free) or [free] * (len(free) == 1)
    else:  # a column of numbers is no text
        found = [free] * (1 <= len(free) <= 3 and not any(_all_numbers(n, rows) for n in free))
    if len(found) == 1:
        return found[0]
    shown = [" ".join(names) for names in found] or free
    raise InputError(
        f"{path}: cannot tell which columns hold the texts: {_candidates(shown, table)}. "
        "Give --text-columns, by names or by numbers from 1."
    )


def _candidates(columns: Sequence[str], table: Table) -> str:
    shown = " or ".join(columns) or "none is left"
    return shown if table.has_header else f"{shown}; the first line names no columns"


def _all_numbers(column: str, rows: list[dict[str, Any]]) -> bool:
    return all(to_number(row.get(column)) is not None for row in rows)


def _named_texts(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns with known names: three if there are, else two, else each that may be the one."""
    by_name = {column.casefold(): column for column in columns}
    for groups in (TRIPLES, PAIRS, tuple((name,) for name in TEXTS)):
        found = [names for names in groups if by_name.keys() >= set(names)]
        if found:
            return [tuple(by_name[name] for name in names) for names in found]
    return []


@dataclass(frozen=True)
class LabelSample:
    """What stands in the columns of a file, by which a task tells whether it is meant."""

    texts: Sequence[str]
    """Names of the texts' columns."""
    label: str
    """Name of the labels' column."""
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
        """The labels as numbers, None for what is none."""
        return [to_number(value) for value in self.labels]

    @property
    def has_decimals(self) -> bool:
        """Whether all labels are numbers, and not all of them whole."""
        return None not in self.numbers and any(x % 1 for x in self.numbers if x is not None)

    @property
    def has_few(self) -> bool:
        """Whether the labels are so few, or so often met again, that each is a class."""
        several_times = 2 * self.distinct <= len(self.labels)
        return self.distinct <= FEW_LABELS or (several_times and None in self.numbers)

    @cached_property
    def why_several(self) -> str:
        """Why examples of a single text have several labels each; "" if nothing tells so."""
        if len(self.texts) != 1:
            return ""
        if any(isinstance(value, list | tuple) for value in self.labels):
            return "the labels are lists"
        if self.label.casefold() in SEVERAL:
            return f"the column is called {self.label}"
        texts = [str(value) for value in self.labels]
        parted = sum(self.separator in text for text in texts)
        parts = {part.strip() for text in texts for part in text.split(self.separator)}
        if 10 * parted >= len(texts) and len(parts) <= len(set(texts)):
            return f"{self.separator!r} separates several in {parted:,} of {len(texts):,} examples"
        return ""
