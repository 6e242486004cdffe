"""Which columns of a table hold texts and labels, and which task they speak for.

What the user names is taken; what is left is found by the columns' names, or by what stands in
them, and refused where there is more than one possibility.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from roformer_tf.errors import InputError
from roformer_tf.labelled.task import TaskName
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

TEXTS_OF: dict[str, tuple[int, ...]] = {
    "classification": (1,),
    "multilabel": (1,),
    "pair": (2,),
    "regression": (1, 2),
    "ranking": (3,),
    "tagging": (1,),
}
"""How many texts an example of each task has."""

FEW = 50
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
    few = len(set(values)) <= min(FEW, len(values) / 2)
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


def guess_task(
    texts: Sequence[str], label: str, labels: list[Any], separator: str
) -> tuple[TaskName | None, str]:
    """Guess the task from columns and labels; the reason in words, also where there is none."""
    if len(texts) == 3:
        return "ranking", "there are three texts"
    one: TaskName = "pair" if len(texts) == 2 else "classification"
    several = _why_several(label, labels, separator) if one == "classification" else ""
    if several:
        return "multilabel", several
    numbers = [to_number(value) for value in labels]
    if None not in numbers and any(value % 1 for value in numbers if value is not None):
        return "regression", "the labels are numbers with decimals"
    distinct = len({str(value) for value in labels})
    if distinct <= FEW or (2 * distinct <= len(labels) and None in numbers):
        return one, f"there are {distinct} different labels"
    return None, f"its {distinct:,} different labels in {len(labels):,} rows may also be numbers"


def _why_several(label: str, labels: list[Any], separator: str) -> str:
    """Say why examples have several labels each; "" if nothing tells so."""
    if any(isinstance(value, list | tuple) for value in labels):
        return "the labels are lists"
    if label.casefold() in SEVERAL:
        return f"the column is called {label}"
    texts = [str(value) for value in labels]
    split = sum(separator in text for text in texts)
    parts = {part.strip() for text in texts for part in text.split(separator)}
    if 10 * split >= len(texts) and len(parts) <= len(set(texts)):
        return f"{separator!r} separates several in {split:,} of {len(texts):,} examples"
    return ""


def check_texts(path: str | Path, task: TaskName, texts: Sequence[str]) -> None:
    """Raise InputError unless the task has as many texts as there are columns for."""
    if task == "tagging":
        raise InputError(
            f"{path}: tagging needs a label for every character or word. Give a .conll file: "
            "one and its tag a line, a blank line between sentences."
        )
    if len(texts) not in TEXTS_OF[task]:
        wanted = " or ".join(map(str, TEXTS_OF[task]))
        raise InputError(
            f"{path}: the task {task} takes {wanted} column{'s' * (wanted != '1')} of text, but "
            f"there are {len(texts)}: {', '.join(texts)}. Give other --text-columns, or as --task "
            f"one of {', '.join(get_args(TaskName))}."
        )


def is_missing(value: Any) -> bool:
    """Tell whether a label is none: empty, null or NaN. The text "nan" is one: 男 in pinyin."""
    return value is None or value != value or not str(value).strip()


def without_nan(labels: Sequence[Any]) -> list[Any]:
    """Leave the text "nan" out where all other labels are numbers: there it is a missing one."""
    others = [label for label in labels if str(label).strip().casefold() != "nan"]
    numbers = bool(others) and all(to_number(label) is not None for label in others)
    return others if numbers else list(labels)


def to_number(value: Any) -> float | None:
    """A finite number, also if spelled as text; else None."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and not isinstance(value, bool) else None
