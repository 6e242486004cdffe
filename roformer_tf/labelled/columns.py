"""Which columns of a table hold texts and labels, and what speaks in them for a task.

What the user names is taken; what is left is found by the columns' names, or by what stands in
them, and refused where there is more than one possibility.
"""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import UNCOMPUTED, is_missing, to_number
from roformer_tf.labelled.column_names import (
    BELONGING,
    KNOWN,
    LABELS,
    PAIRS,
    SEVERAL,
    TEXTS,
    TRIPLES,
    folded,
)
from roformer_tf.readers.spreadsheets import UncomputedFormula
from roformer_tf.readers.tables import Table, Top, open_table

SAMPLE = 10_000
"""Rows that a guess rests on."""

FEW_LABELS = 50
"""Distinct values that are labels even where none repeats."""

SELDOM = 1 / 20
"""Share of examples with a label of their own up to which the first is hardly one of them."""

FirstLine: TypeAlias = Literal["auto", "header", "example"]
"""What the first line of a tsv, csv or xlsx is; "auto" finds out."""


FEW_NUMBERS = 5
"""Distinct numbers that are labels where nothing but the numbers tells so."""

LONG = 8
"""Mean length of texts from which a cell of half of it is hardly their column's name."""

LONGER = 4
"""Times the others' mean length that a column of texts has, where its length alone tells it."""

_TITLES = 5  # rows above a header, at most
_CELL, _CELLS = 20, 12  # characters of a cell, and cells of a line, that a message shows
_CODE = re.compile(r"(?=.*\d)[\w.@:/+-]+", re.ASCII)  # a number of something, a phone, an address
_DATE = re.compile(r"\d{2,4}\s*[-/.年:]\s*\d{1,2}\b.*")
_LINK = re.compile(r"(https?://|www\.)\S+")


def open_named(
    path: str | Path,
    encoding: str,
    named: Iterable[str | None],
    first_line: FirstLine = "auto",
    sheet: str | None = None,
    labelled: bool = True,
) -> Table:
    """Open a table whose header has a known name, or one of those named, unless told what is.

    Rows above the header are no part of it if they have fewer cells than it. In a file with labels
    a single cell above rows of several is a title even where no name is known.
    """
    names = {folded(name) for name in named if name and not name.isdecimal()}

    def find_top(rows: list[list[str]]) -> Top:
        titles, known = _find_header(rows, names)
        if not known and labelled:
            titles = _title_rows(rows)
        if first_line == "auto":
            return Top(titles, known)
        titles = 0 if first_line == "example" else titles
        return Top(titles, first_line == "header")

    return open_table(path, find_top, encoding, sheet)


def _find_header(rows: list[list[str]], named: Collection[str]) -> tuple[int, bool]:
    """Tell which of the first rows names columns, as its place, and whether one does.

    The first row does if a cell is a name that the user gave, or a known one that no row under it
    repeats: then it is a label that happens to be called so. One further down does with more such
    names, of which it has all that the user gave or two that are known, below rows with gaps.
    """
    counts = [_count_names(rows, i, named) for i in range(min(len(rows), 1 + _TITLES))]
    best = counts.index(max(counts))
    if best:
        names = {folded(cell) for cell in rows[best]}
        widest = max(_filled(row) for row in rows[:best])
        sure = counts[best] > 1 or (bool(named) and set(named) <= names)
        if not sure or widest >= _filled(rows[best]):
            best = 0
    return best, counts[best] > 0


def _count_names(rows: list[list[str]], place: int, named: Collection[str]) -> int:
    """How many cells of a row name columns."""
    names = [folded(cell) for cell in rows[place]]
    given = len(set(named) & set(names))
    given += max((len(x) for x in (TRIPLES[0], *BELONGING) if set(x) <= set(names)), default=0)
    known = 0
    # Beside a known name of labels it is a name, too: `text,label`, though the texts are few words
    beside = any(name in TEXTS for name in names) and any(name in LABELS for name in names)
    for i, name in enumerate(names):
        if name in KNOWN and name not in named:
            below = [row[i] for row in rows[place + 1 :] if i < len(row)]
            is_label = name not in LABELS and not beside and _are_classes(below)  # a topic, 新闻
            known += not is_label and rows[place][i] not in below
    if given + known == 1 == known and _has_text(rows, place):
        known = 0  # an example whose label is called 情感, until all labels are seen
    return given + known


def _are_classes(cells: Sequence[str]) -> bool:
    found = profile(cells)
    return _look_like_labels(found) and not found.numbers


def _has_text(rows: list[list[str]], place: int) -> bool:
    """Whether a cell of a row is a text as those below it: as long, where they are long."""
    for i, cell in enumerate(rows[place]):
        below = profile(row[i] for row in rows[place + 1 :] if i < len(row))
        is_long = _look_like_texts(below) and below.mean_length >= LONG
        if is_long and 2 * len(cell.strip()) >= below.mean_length:
            return True
    return False


def _title_rows(rows: list[list[str]]) -> int:
    """How many rows at the beginning have a single cell, where nearly all others have more."""
    filled = [_filled(row) for row in rows]
    titles = next((i for i, count in enumerate(filled) if count > 1), 0)
    others = filled[titles:]
    several = sum(count > 1 for count in others)
    is_table = len(others) > 2 and several >= 0.8 * len(others)
    return titles if titles <= _TITLES and is_table else 0


def _filled(row: list[str]) -> int:
    return sum(bool(cell.strip()) for cell in row)


def header_by_content(table: Table, rows: Sequence[dict[str, Any]], separator: str) -> str:
    """Tell by what stands in the columns that the first row names them: a cell that says so.

    It does if it stands nowhere else in a column of labels or numbers, and no such column speaks
    against it (see `names_labels`). "" where nothing tells so.
    """
    told = []
    for column in table.columns:
        first, *others = [str(row.get(column, "")) for row in rows]
        found = profile(others)
        if not first.strip() or len(others) < 2 or not (found.numbers or _look_like_labels(found)):
            continue
        told.append((names_labels([first, *others], separator), first))
    if any(verdict is False for verdict, _ in told):
        return ""
    return next((first.strip() for verdict, first in reversed(told) if verdict), "")


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
    for alike in (str.casefold, folded):
        found = [name for name in table.columns if alike(name) == alike(wanted) != ""]
        if len(found) == 1:
            return found[0]
    if wanted.isdecimal() and 1 <= int(wanted) <= len(table.columns):
        return table.columns[int(wanted) - 1]
    there = f"its columns are {', '.join(table.columns)}"
    if not table.has_header:
        there = f"its first line names none of its {len(table.columns)}"
    raise InputError(
        f"{path} has no column {wanted!r}: {there}. Give --text-columns and --label-column by the "
        "names in a header, or by numbers from 1."
    )


class Profile(NamedTuple):
    """What stands in a column, missing cells left out."""

    filled: int
    distinct: int
    numbers: bool
    """Whether all are numbers."""
    counted: bool
    """Whether they number rows or things: whole numbers, consecutive, or many and all different."""
    other: bool
    """Whether nearly all are dates, links, or codes such as an order's number or an address."""
    mean_length: float
    """Characters of a cell."""


def profile(values: Iterable[Any]) -> Profile:
    """Look at the cells of a column."""
    cells = [value for value in values if not is_missing(value)]
    texts = [str(cell).strip() for cell in cells]
    numbers = [to_number(cell) for cell in cells]
    distinct = len(set(texts))
    all_numbers = bool(cells) and None not in numbers
    whole = [int(x) for x in numbers if x is not None and x == int(x)]
    counted = all_numbers and len(whole) == len(cells) == distinct
    steps = {after - before for before, after in pairwise(whole)}
    other = sum(bool(_CODE.fullmatch(t) or _DATE.fullmatch(t) or _LINK.fullmatch(t)) for t in texts)
    return Profile(
        filled=len(cells),
        distinct=distinct,
        numbers=all_numbers,
        counted=counted and len(cells) > 2 and (steps == {1} or len(cells) >= 20),
        other=not all_numbers and bool(texts) and other >= 0.9 * len(texts),
        mean_length=sum(map(len, texts)) / max(1, len(texts)),
    )


def _look_like_labels(found: Profile) -> bool:
    """Tell labels from texts: numbers that are measured, or few values."""
    few = 1 < found.distinct <= min(FEW_LABELS, found.filled / 2)
    return found.filled > 0 and not found.counted and (found.numbers or few)


def _look_like_texts(found: Profile) -> bool:
    """Tell texts from labels, numbers, dates, links and codes: most are different."""
    return not (found.numbers or found.other) and 2 * found.distinct > found.filled > 0


def find_label(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[str, str]:
    """The label's column, and how it was told, unless it was given or is known by its name.

    It is the one given, the one with a known name, what is left beside the texts given, or what
    alone holds labels. Raises InputError where that may be more than one, or none.
    """
    if label is not None:
        return find_column(path, table, label), ""
    given = {find_column(path, table, name) for name in texts}
    free = [name for name in table.columns if name not in given]
    if given and len(free) == 1:
        return free[0], ""
    profiles = {name: profile(row.get(name) for row in rows) for name in free}
    likely = [name for name in free if _look_like_labels(profiles[name])]
    if not table.has_header:  # an unknown name of the column would stand once among the labels
        rest = [[row.get(name) for row in rows] for name in likely]
        found = [
            name
            for name, (first, *others) in zip(likely, rest, strict=True)
            if profiles[name].numbers or first in others
        ]
    elif named := [name for name in free if folded(name) in LABELS]:
        if len(named) == 1:
            return named[0], ""
        free = named
        found = [name for name in named if name in likely or profiles[name].numbers]
    else:
        found = [name for name in likely if folded(name) not in TEXTS]
        if len(found) == 1 and len(free) > 2 and profiles[found[0]].numbers:
            found *= profiles[found[0]].distinct <= FEW_NUMBERS  # else a price, or a count of likes
    if len(found) == 1:
        return found[0], _BY_CONTENT
    candidates = [(name,) for name in found or free]
    raise _unclear(path, table, rows, "column holds the labels", candidates, "--label-column")


def find_optional_label(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> str | None:
    """The label's column in a file that may have none: the one given, or known by its name.

    Else it is the one that alone holds numbers, beside texts. Raises InputError where it may be
    more than one.
    """
    if label is not None:
        return find_column(path, table, label)
    given = {find_column(path, table, name) for name in texts}
    free = [name for name in table.columns if name not in given]
    found = [x for x in free if folded(x) in LABELS and folded(x) not in TEXTS]
    names = {folded(name) for name in table.columns}
    if not (table.has_header and (found or any(names >= set(x) for x in BELONGING))):
        profiles = {name: profile(row.get(name) for row in rows) for name in free}
        found = [x for x in free if profiles[x].numbers and not profiles[x].counted]
    if len(found) > 1:
        candidates = [(name,) for name in found]
        raise _unclear(path, table, rows, "column holds the labels", candidates, "--label-column")
    return found[0] if found else None


def find_several_texts(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[tuple[str, ...], str]:
    """The texts' columns, and how they were told, where texts may belong together without a label.

    As `find_texts`, but two or three columns of texts, whatever they are called, are all meant.
    """
    given = tuple(find_column(path, table, name) for name in texts)
    free = tuple(name for name in table.columns if name != label)
    if not given and table.has_header:
        by_name = {folded(name): name for name in reversed(free)}
        for names in BELONGING:
            if by_name.keys() >= set(names):
                return tuple(by_name[name] for name in names), ""
    if not given and not any(len(names) > 1 for names in _named_texts(free)):
        likely = tuple(
            name
            for name in free
            if not (found := profile(row.get(name) for row in rows)).numbers
            and not found.other
            and found.filled
        )
        if len(likely) in (2, 3):
            return likely, "" if len(likely) == len(free) else _BY_CONTENT
    return find_texts(path, table, rows, texts, label)


def find_texts(
    path: str | Path,
    table: Table,
    rows: list[dict[str, Any]],
    texts: Iterable[str],
    label: str | None,
) -> tuple[tuple[str, ...], str]:
    """The texts' columns, and how they were told, unless they were given or known by their names.

    They are those given, those with known names, what is left beside the label, or what alone
    holds texts. Raises InputError where that may be more than one, or none.
    """
    given = tuple(find_column(path, table, name) for name in texts)
    if given:
        return given, ""
    free = tuple(name for name in table.columns if name != label)
    profiles = {name: profile(row.get(name) for row in rows) for name in free}
    found, why = _named_texts(free) if table.has_header else [], ""
    if len(found) > 1:  # one of them is no text, whatever it is called
        found = [names for names in found if _look_like_texts(profiles[names[0]])] or found
        why = _BY_CONTENT
    elif len(found) == 1 == len(found[0]) and profiles[found[0][0]].numbers:
        found += [(name,) for name in free if _look_like_texts(profiles[name])]  # the texts, rather
    if not found:
        why = _BY_CONTENT
        free = tuple(name for name in free if profiles[name].filled) or free
        found = _texts_by_content(free, profiles, table.has_header)
    if len(found) == 1:
        return found[0], "" if len(free) == len(found[0]) else why
    candidates = found or [(name,) for name in free]
    raise _unclear(path, table, rows, "columns hold the texts", candidates, "--text-columns")


def check_roles(
    path: str | Path, table: Table, rows: list[dict[str, Any]], texts: Sequence[str], label: str
) -> None:
    """Raise InputError where names tell the text and the label, but what stands there the opposite.

    Many different values in the label's column, and a few that come again in the text's.
    """
    if len(texts) == 1:
        text, labels = (profile(row.get(name) for row in rows) for name in (*texts, label))
        if _look_like_labels(text) and _look_like_texts(labels) and labels.distinct > FEW_LABELS:
            raise InputError(
                f"{path}{sheet_of(table)}: cannot tell which column holds the labels: {label} by "
                f"its name, {texts[0]} by what stands in it. {shown_lines(table, rows)} Give "
                f"--text-columns and --label-column, by name or by number from 1."
            )


_BY_CONTENT = "by what stands in it"


def _texts_by_content(
    free: tuple[str, ...], profiles: dict[str, Profile], has_header: bool
) -> list[tuple[str, ...]]:
    """The columns that may hold the texts, by what stands in them."""
    if has_header and len(free) == 1:
        return [free]
    if not has_header:  # nothing but texts, for all that can be seen
        texts = tuple(
            name
            for name in free
            if not (profiles[name].numbers or profiles[name].other) and profiles[name].filled
        )
        return [texts] * (1 <= len(texts) <= 3)
    likely = sorted(
        (name for name in free if _look_like_texts(profiles[name])),
        key=lambda name: -profiles[name].mean_length,
    )
    lengths = [profiles[name].mean_length for name in likely]
    if len(likely) == 1 or (len(likely) > 1 and lengths[0] >= LONGER * lengths[1]):
        return [(likely[0],)]
    return [(name,) for name in likely]


def _unclear(
    path: str | Path,
    table: Table,
    rows: Sequence[dict[str, Any]],
    what: str,
    candidates: Sequence[tuple[str, ...]],
    flag: str,
) -> InputError:
    """Ask for a column: with the lines that were seen, and the flags to type."""
    shown = " or ".join(" ".join(names) for names in candidates) or "none is left"
    typed = " or ".join(f"{flag} {_typed(names)}" for names in candidates[:4]) or flag
    return InputError(
        f"{path}{sheet_of(table)}: cannot tell which {what}: {shown}. {shown_lines(table, rows)} "
        f"Give {typed}, by name or by number from 1.{sheet_hint(table)}{_uncomputed(table, rows)}"
    )


def _uncomputed(table: Table, rows: Sequence[dict[str, Any]]) -> str:
    """Name a column of formulas that no program has computed, and what to do."""
    for name in table.columns:
        if any(isinstance(row.get(name), UncomputedFormula) for row in rows):
            return f" The column {name} has {UNCOMPUTED}."
    return ""


def _typed(names: Iterable[str]) -> str:
    """Names as they are typed in a shell."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else shlex.quote(name) for name in names)


def sheet_of(table: Table) -> str:
    """Which sheet a table is, where there are several."""
    return f" of the sheet {table.sheet}" if table.sheet else ""


def sheet_hint(table: Table) -> str:
    """That other sheets can be named, where there are some."""
    return " Or name another sheet with --sheet." if table.sheet else ""


def shown_lines(table: Table, rows: Sequence[dict[str, Any]]) -> str:
    """The header and the first example, or the first line where that names nothing."""
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


def _named_texts(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns with known names: three if there are, else two, else each that may be the one."""
    by_name = {folded(column): column for column in columns}
    for groups in (TRIPLES, PAIRS, tuple((name,) for name in by_name if name in TEXTS)):
        found = [names for names in groups if by_name.keys() >= set(names)]
        if found:
            return [tuple(by_name[name] for name in names) for names in found]
    return []


def find_texts_to_predict(
    path: str | Path,
    table: Table,
    wanted: Sequence[str],
    first_line: FirstLine,
) -> tuple[tuple[str, ...], str]:
    """The columns of what to predict, and how they were told; `wanted` are those of training.

    Where the file has other names, they are found as in training, if they are as many; where it
    has none, only if the user says so. Raises InputError where they are not certain.
    """
    try:
        return tuple(find_column(path, table, name) for name in wanted), ""
    except InputError as error:
        missing = error
    rows = [row.cells for row in islice(table.rows, SAMPLE) if not row.problem]
    if table.has_header or first_line != "auto":
        try:
            labels = [n for n in table.columns if folded(n) in LABELS and folded(n) not in TEXTS]
            found, why = find_texts(path, table, rows, (), labels[0] if len(labels) == 1 else None)
        except InputError:
            found = ()
        if len(found) == len(wanted):
            return found, why or ("by its name" if table.has_header else "")
    several = len(wanted) > 1
    candidates = [table.columns[: len(wanted)]] if several else [(n,) for n in table.columns[:4]]
    flags = " or ".join(f"--text-columns {_typed(names)}" for names in candidates)
    asked = "" if table.has_header else ", and --first-line header or --first-line example"
    reason = str(missing).split(". Give --text")[0]
    raise InputError(
        f"{reason}. {shown_lines(table, rows)} Give {flags}{asked}.{sheet_hint(table)}"
    )


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
        if folded(self.label) in SEVERAL:
            return f"the column is called {self.label}"
        texts = [str(value) for value in self.labels]
        if not texts:
            return ""
        parted = sum(self.separator in text for text in texts)
        parts = {part.strip() for text in texts for part in text.split(self.separator)}
        if 10 * parted >= len(texts) and len(parts) <= len(set(texts)):
            return f"{self.separator!r} separates several in {parted:,} of {len(texts):,} examples"
        return ""
