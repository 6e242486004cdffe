"""Labelled files → examples: which columns hold what, which task they are for, and their rows.

text,label
房间很干净,1    → find_layout, read_examples →    Example(("房间很干净",), "1", "train.csv:2")
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import (
    FirstLine,
    check_texts,
    find_column,
    find_label,
    find_texts,
    guess_task,
    is_missing,
    names_labels,
    open_named,
    to_number,
    without_nan,
)
from roformer_tf.labelled.task import RANKED, Example, Label, Task, TaskName
from roformer_tf.readers.lines import check_encoding, damage, find_encoding, text_lines
from roformer_tf.readers.records import BLANK
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Row, Table, kind_of, read_sentences

SAMPLE = 10_000
"""Rows that a guess rests on."""


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Where texts and labels stand in a file. What is not given is found, and said."""

    text_columns: tuple[str, ...] = ()
    """Columns of the texts, by name or by number from 1: one, a pair, or A, B and C."""
    label_column: str | None = None
    """Column of the labels, by name or by number from 1."""
    first_line: FirstLine = "auto"
    """What the first line of a tsv, csv or xlsx is: a header or an example; "auto" finds out."""
    label_separator: str = ","
    """What stands between the labels of a multilabel example."""
    encoding: str = "auto"
    """Encoding of the files, such as gb18030; "auto" tells UTF-8, UTF-16 and GB18030."""
    sheet: str | None = None
    """Sheet of an .xlsx file, by its name. Unset: the first that is not hidden."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if len(set(self.text_columns)) < len(self.text_columns) or len(self.text_columns) > 3:
            raise InputError(
                f"text_columns is {' '.join(self.text_columns)}, but an example has one, two or "
                "three texts, each in a column of its own."
            )
        if self.label_column in self.text_columns:
            raise InputError(f"the column {self.label_column} is given both as text and as label.")
        if not self.label_separator.strip():
            raise InputError(
                "label_separator is blank. Give what stands between labels: ',' or ';'."
            )


@dataclass(frozen=True)
class Layout:
    """Where a file's texts and labels stand, and what they are for."""

    task: TaskName
    text_columns: tuple[str, ...]
    label_column: str | None
    said: str
    """For the user: what was found, and what of it is a guess."""


class BadLine(NamedTuple):
    """What of a file gives no example."""

    place: str
    problem: str


class _BadCellError(ValueError):
    """A cell that is no text, or no label; its text says why, as "has …" or "is …"."""


def find_layout(path: str | Path, columns: ColumnsConfig, task: TaskName | None) -> Layout:
    """Find columns and task of a file with labels; what the user gives is not guessed.

    Raises InputError where there is more than one possibility, or the task does not fit.
    """
    kind = kind_of(path, columns.sheet)
    if kind == "conll":
        return _conll_layout(path, columns, task)
    if kind == "txt":
        raise InputError(
            f"{path}: a .txt file holds texts alone. Name a file with columns .tsv or .csv, "
            "and one with a tag for every character or word .conll."
        )
    table, by_labels = _open(path, columns)
    rows = _readable(path, islice(table.rows, SAMPLE))
    label = find_label(path, table, rows, columns.text_columns, columns.label_column)
    texts = find_texts(path, table, rows, columns.text_columns, label)
    if label in texts:
        raise InputError(f"{path}: the column {label} is given both as text and as label.")
    labels = [row[label] for row in rows if label in row and not is_missing(row[label])]
    guess, why = guess_task(texts, label, without_nan(labels), columns.label_separator)
    found = task or guess
    if found is None:
        raise InputError(f"{path}: cannot tell the task: {why}. Give --task.")
    check_texts(path, found, texts)
    said = _say(path, found, "" if task else why, table, texts, label)
    if by_labels:
        said += (
            f" {label!r} stands nowhere among the labels: the first line is a header "
            "(--first-line example, if it is not)."
        )
    return Layout(found, texts, label, said + _say_encoding(path, kind, columns.encoding))


def read_examples(
    path: str | Path, layout: Layout, columns: ColumnsConfig, *, labelled: bool = True
) -> list[Example]:
    """Read all examples, with labels if `labelled`. Blank rows are skipped.

    Raises InputError at the first row that gives no example, naming file and line, and for a file
    without any.
    """
    found = _examples(path, layout, columns, labelled)
    examples = [_example_or_error(one) for one in found if one != BadLine(one.place, BLANK)]
    if not examples:
        raise InputError(f"{path} has no example. Add some.")
    if labelled and layout.task in ("classification", "pair"):
        _check_numbers(examples)
    if layout.task == "tagging" and words_are_units(examples):
        return [one._replace(texts=(" ".join(one.units),)) for one in examples]
    return examples


def stream_examples(
    path: str | Path,
    task: Task,
    encoding: str = "auto",
    first_line: FirstLine = "auto",
    sheet: str | None = None,
) -> Iterator[Example | BadLine]:
    """Yield what to predict, in order, one Example or BadLine a row; labels are not read.

    A .txt file, or stdin for "-", has one text a line, or the task's two or three with tabs
    between; other files have the columns of the training data, or the units of CoNLL. A raw
    text's units for tagging are its characters or, under `task.spaced_units`, what white space
    separates. Raises InputError for a file that cannot be read.
    """
    check_encoding(encoding)
    if is_stdin(path) or kind_of(path, sheet) == "txt":
        found = _plain_examples(path, task, encoding)
    else:
        layout = Layout(task.name, task.text_columns, None, "")
        columns = ColumnsConfig(encoding=encoding, first_line=first_line, sheet=sheet)
        found = _examples(path, layout, columns, labelled=False)
    if task.name != "tagging":
        return found
    return (_with_units(one, task.spaced_units) for one in found)


def words_are_units(examples: Iterable[Example]) -> bool:
    """Tell whether the units of tagging examples are words: a fifth has several characters.

    In Chinese cut into characters few have, such as numbers; in Chinese words about half.
    """
    lengths = [len(unit) for example in examples for unit in example.units]
    return 5 * sum(length > 1 for length in lengths) > len(lengths)


def _open(path: str | Path, columns: ColumnsConfig) -> tuple[Table, bool]:
    """Open a file with labels; tell whether its labels alone say that it has a header.

    Where columns go by number no name may be known: then the labels' own column tells. Raises
    InputError where it does not.
    """
    named = (*columns.text_columns, columns.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet)
    label = _label_by_number(table, columns)
    if label is None:
        return table, False
    labels = [row.cells[label] for row in table.rows if not row.problem]
    header = names_labels(labels, columns.label_separator) if labels else False
    if header is None:
        raise InputError(
            f"{path}: cannot tell whether the first line is a header: {labels[0]!r} stands nowhere "
            "else in the column of the labels, but others do so, too. Give --first-line header, or "
            "--first-line example."
        )
    first_line: FirstLine = "header" if header else "example"
    return open_named(path, columns.encoding, named, first_line, columns.sheet), header


def _label_by_number(table: Table, columns: ColumnsConfig) -> str | None:
    """The labels' column, given by its number or left beside those of texts; None if it has a name.

    Nor is it asked for where the user says what the first line is.
    """
    if table.has_header or columns.first_line != "auto":
        return None
    free = [name for name in table.columns if name not in columns.text_columns]
    left = free[0] if columns.text_columns and len(free) == 1 else None
    label = columns.label_column or left
    return label if label in table.columns else None


def _readable(path: str | Path, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The cells of rows that can be read. Raises InputError if there are none."""
    seen = list(rows)
    readable = [row.cells for row in seen if not row.problem]
    if not readable:
        bad = next((f"{row.place} {row.problem}" for row in seen if row.problem != BLANK), "")
        raise InputError(f"{bad or f'{path} has a header, but no example'}. Add examples.")
    return readable


def _conll_layout(path: str | Path, columns: ColumnsConfig, task: TaskName | None) -> Layout:
    if task not in (None, "tagging"):
        raise InputError(
            f"{path}: a CoNLL file has a label for every character or word, which is the task "
            f"tagging, not {task}. Leave --task out, or give a file with columns."
        )
    said = f"{path}: task tagging, units in the first column and tags in the last."
    return Layout("tagging", ("text",), None, said + _say_encoding(path, "conll", columns.encoding))


def _say(
    path: str | Path, task: str, why: str, table: Table, texts: Sequence[str], label: str
) -> str:
    guessed = f" (a guess: {why})" if why else ""
    header = "" if table.has_header else "; the first line is an example, not a header"
    many = "columns" if len(texts) > 1 else "column"
    sheet = f" of the sheet {table.sheet}" if table.sheet else ""
    return (
        f"{path}{sheet}: task {task}{guessed}, text in {many} {', '.join(texts)}, "
        f"label in column {label}{header}."
    )


def _say_encoding(path: str | Path, kind: str, encoding: str) -> str:
    """Name an encoding that was found, unless it is the usual one."""
    if kind in ("parquet", "xlsx") or encoding != "auto":
        return ""
    found = find_encoding(path)
    return "" if found == "utf-8" else f" It is read as {found.upper()}."


# Rows → examples


def _examples(
    path: str | Path, layout: Layout, columns: ColumnsConfig, labelled: bool
) -> Iterator[Example | BadLine]:
    """Give an Example or a BadLine for every row of a file with columns, or of CoNLL."""
    if kind_of(path, columns.sheet) == "conll":
        if layout.task != "tagging":
            raise InputError(f"{path} is a CoNLL file, which is for tagging, not {layout.task}.")
        return map(_sentence_example, read_sentences(path, columns.encoding, labelled))
    if labelled:
        check_texts(path, layout.task, layout.text_columns)
    named = (*layout.text_columns, layout.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet)
    texts = [find_column(path, table, name) for name in layout.text_columns]
    label = find_column(path, table, layout.label_column or "") if labelled else None
    return (_example(row, texts, label, layout.task, columns.label_separator) for row in table.rows)


def _plain_examples(path: str | Path, task: Task, encoding: str) -> Iterator[Example | BadLine]:
    """Give an Example or a BadLine for every line of a .txt file, or of stdin."""
    name, texts = "stdin" if is_stdin(path) else path, task.text_columns
    for number, line in enumerate(text_lines(path, encoding), start=1):
        place, line = f"{name}:{number}", line.removesuffix("\n").removesuffix("\r")
        parts = line.split("\t") if len(texts) > 1 else [line]
        if len(parts) == len(texts):
            row = Row(place, dict(zip(texts, parts, strict=True)))
        else:
            row = Row(place, {}, f"has {len(parts)} of {len(texts)} texts with tabs between them")
        yield _example(row, texts, None, task.name, task.label_separator)


def _example(
    row: Row, texts: Sequence[str], label: str | None, task: TaskName, separator: str
) -> Example | BadLine:
    """Read the cells of a row; the label too, unless it has no column."""
    if row.problem:
        return BadLine(row.place, row.problem)
    try:
        found = tuple(_text(row.cells, column) for column in texts)
        value = None if label is None else _label(_cell(row.cells, label), task, separator)
    except _BadCellError as error:
        return BadLine(row.place, str(error))
    return Example(found, value, row.place)


def _sentence_example(row: Row) -> Example | BadLine:
    if row.problem:
        return BadLine(row.place, row.problem)
    units = row.cells["units"]
    return Example(("".join(units),), row.cells.get("tags"), row.place, units)


def _with_units(example: Example | BadLine, spaced: bool) -> Example | BadLine:
    """Cut a raw text into units, or join the units of a CoNLL sentence as training does."""
    if isinstance(example, BadLine):
        return example
    (text,) = example.texts
    if example.units:
        return example._replace(texts=((" " if spaced else "").join(example.units),))
    return example._replace(units=tuple(text.split() if spaced else text))


def _example_or_error(found: Example | BadLine) -> Example:
    if isinstance(found, BadLine):
        raise InputError(f"{found.place} {found.problem}. Correct it, or take it out of the file.")
    return found


def _check_numbers(examples: Sequence[Example]) -> None:
    """Raise InputError for the label "nan" where all others are numbers: it is a missing one."""
    labels = [example.label for example in examples]
    numbers = without_nan(labels)
    if len(numbers) < len(labels):
        bad = next(example for example in examples if example.label not in numbers)
        raise InputError(
            f"{bad.place} has the label {bad.label!r}, but all others are numbers. Correct it, or "
            "take it out of the file."
        )


# Cells


def _text(cells: dict[str, Any], column: str) -> str:
    """The text in a column. Raises _BadCellError where there is none."""
    text = _cell(cells, column)
    if text is None or (isinstance(text, str) and not text.strip()):
        raise _BadCellError(f"has an empty text in {column!r}")
    return _sound(text, column)


def _cell(cells: dict[str, Any], column: str) -> Any:
    if column not in cells:  # as of a JSON object
        raise _BadCellError(f"has no {column!r}")
    return cells[column]


def _sound(text: Any, column: str) -> str:
    if not isinstance(text, str):
        raise _BadCellError(f"has {text!r} in {column!r}, which is no text")
    if damage(text):
        raise _BadCellError(damage(text))
    return text


def _label(value: Any, task: TaskName, separator: str) -> Label:
    """The label as the task wants it. Raises _BadCellError for none, or another kind."""
    if task == "multilabel":
        return _labels(value, separator)
    name = _label_name(value)
    if task == "regression":
        found = to_number(value)
        if found is None:
            raise _BadCellError(f"has the label {name!r}, which is no number")
        return found
    if task == "ranking":
        if name.upper() not in RANKED:
            raise _BadCellError(f"has the label {name!r}, but it is B or C, the one nearer to A")
        return name.upper()
    return name


def _labels(value: Any, separator: str) -> tuple[str, ...]:
    """Several labels, each once, in an order that depends on nothing; an empty cell has none."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        value = value.split(separator) if isinstance(value, str) else [value]
    return tuple(sorted({_label_name(one) for one in value if str(one).strip()}))


def _label_name(value: Any) -> str:
    """A label as text, without white space around it; NaN is how a missing one is written."""
    if isinstance(value, list | tuple | dict):
        raise _BadCellError(f"has the label {value!r}, but the task takes a single one")
    if is_missing(value):
        raise _BadCellError("has no label")
    return _sound(str(value).strip(), "label")
