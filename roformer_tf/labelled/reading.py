"""Labelled files → examples: which columns are used, for which task, and the examples of all rows.

text,label
房间很干净,1    → find_layout, read_examples →    Example(("房间很干净",), "1", "train.csv:2")

What a cell means depends on the task: `Reads` is what this module needs of one.
"""

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import (
    BadCellError,
    find_cell,
    is_missing,
    read_text,
    read_texts,
    to_number,
    without_nan,
)
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import (
    SAMPLE,
    FirstLine,
    LabelSample,
    check_header,
    check_no_header,
    find_column,
    find_label,
    find_optional_label,
    find_several_texts,
    find_texts,
    find_texts_to_predict,
    open_named,
    sheet_of,
    shown_lines,
)
from roformer_tf.labelled.examples import GROUP, BadLine, Example, SkippedRows
from roformer_tf.labelled.token_labels import (
    UnitColumns,
    find_unit_columns,
    find_units,
    read_units,
)
from roformer_tf.readers.lines import check_encoding, find_encoding, text_lines
from roformer_tf.readers.records import ANY, BLANK
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Row, Table, kind_of, read_sentences


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Which columns hold texts and labels. Default: chosen by name and content, and printed."""

    text_columns: tuple[str, ...] = ()
    """Columns of the texts, by name or by number from 1: one, a pair, or A, B and C."""
    label_column: str | None = None
    """Column of the labels, by name or by number from 1."""
    first_line: FirstLine = "auto"
    """Whether the first line of a tsv, csv or xlsx is a header or an example. auto: by names and
    content."""
    label_separator: str = ","
    """Separator between the labels of a multilabel example."""
    encoding: str = "auto"
    """Encoding of the files, such as gb18030. auto: detects UTF-8, UTF-16 and GB18030."""
    sheet: str | None = None
    """Sheet of an .xlsx file, by its name. Default: the first visible sheet with cells."""
    strict: bool = False
    """Stop at rows that give no example. Default: skip and report them."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        if len(set(self.text_columns)) < len(self.text_columns) or len(self.text_columns) > 3:
            raise InputError(
                f"text_columns is {' '.join(self.text_columns)}, but an example has one, two or "
                "three texts, each in a column of its own."
            )
        if self.label_column in self.text_columns:
            raise InputError(
                f"the column {self.label_column} is both a text and the label column. Give "
                "different columns."
            )
        if not self.label_separator.strip():
            raise InputError(
                "label_separator is blank. Give the separator between labels: ',' or ';'."
            )


class Reads(Protocol):
    """What a task, or the task of a fine-tuned model, provides for reading."""

    @property
    def name(self) -> str:
        """As `--task` has it."""

    @property
    def labelling(self) -> Any:
        """The part that reads labels: `tasks.parts.Labelling`, which this folder cannot import."""


class ReadsTexts(Reads, Protocol):
    """What the task of a fine-tuned model provides for reading texts to predict."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Names of the text columns of the training data."""

    @property
    def label_separator(self) -> str:
        """Between the labels of an example that has several."""


T = TypeVar("T", bound=Reads)


@dataclass(frozen=True)
class Layout(Generic[T]):
    """The columns of a file and the task they are used for."""

    task: T
    text_columns: tuple[str, ...]
    label_column: str | None
    said: str
    """A report for the user: what was chosen, and how."""


# Layouts of labelled files


def find_layout(
    path: str | Path, columns: ColumnsConfig, task: str | None, tasks: Mapping[str, T]
) -> Layout[T]:
    """Choose columns and task of a file with labels, where the user does not give them.

    `task` is a name in `tasks`; without it the first task that fits is taken. Raises InputError if
    there is more than one possibility, or if the task does not fit.
    """
    kind = kind_of(path, columns.sheet)
    chosen = tasks[task] if task else None
    plain = kind == "txt" and not _has_tabs(path, columns.encoding)
    if chosen and chosen.labelling.label_optional:
        if kind == "conll":
            raise InputError(
                f"{path}: a CoNLL file is for tagging, not {task}. Give texts in columns."
            )
        if plain:
            note = f"{path}: task {task}, one text a line."
            return Layout(chosen, ("text",), None, note + _note_encoding(path, columns.encoding))
        return _optional_layout(path, columns, chosen, tasks)
    if kind == "conll":
        return _conll_layout(path, columns, task, tasks)
    if plain:
        raise InputError(
            f"{path}: a .txt file holds texts alone. Name a file with columns .tsv or .csv, "
            "and one with a tag for every character or word .conll."
        )
    named = (*columns.text_columns, columns.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet)
    rows = _readable(path, islice(table.rows, SAMPLE))
    is_unsure = columns.first_line == "auto" and kind in ("csv", "tsv", "txt", "xlsx")
    names = {folded(name) for name in named if name and not name.isdecimal()}
    if is_unsure and table.has_header and names.isdisjoint(map(folded, table.columns)):
        check_header(path, table, rows)
    if chosen is None or chosen.labelling.has_units:
        units = find_unit_columns(path, table, rows, columns.text_columns, columns.label_column)
        if units:
            return _units_layout(path, table, units, task, tasks)
    label, label_note = find_label(path, table, rows, columns.text_columns, columns.label_column)
    texts, text_note = find_texts(path, table, rows, columns.text_columns, label)
    if label in texts:
        raise InputError(
            f"{path}: the column {label} is both a text and the label column. Give different "
            "--text-columns and --label-column."
        )
    if is_unsure and not table.has_header:
        check_no_header(path, table, rows, label, columns.label_separator)
    labels = [row[label] for row in rows if label in row and not is_missing(row[label])]
    sample = LabelSample(texts, label, without_nan(labels), columns.label_separator)
    found, why = (chosen, "") if chosen else _guess_task(path, table, rows, sample, tasks)
    _check_texts(path, found, texts, tasks)
    note = _describe(path, found.name, why, table, (texts, text_note), (label, label_note))
    note += _note_spellings(found, labels, columns.label_separator)
    return Layout(found, texts, label, note + _note_format(path, columns.encoding, table))


def _units_layout(
    path: str | Path, table: Table, units: UnitColumns, task: str | None, tasks: Mapping[str, T]
) -> Layout[T]:
    """The layout of a table with a label for every unit, in lists."""
    tagging = _units_task(path, task, tasks)
    note = _describe(path, tagging.name, "", table, ((units.units,), ""), (units.label, ""))
    if units.numbers:
        note += (
            " Its tags are numbers without names, which mark no entities: replace them by B-LOC, "
            "I-LOC, O or similar tags if they do."
        )
    return Layout(tagging, (units.units,), units.label, note)


def _conll_layout(
    path: str | Path, columns: ColumnsConfig, task: str | None, tasks: Mapping[str, T]
) -> Layout[T]:
    tagging = _units_task(path, task, tasks)
    note = f"{path}: task {tagging.name}, units in the first column and tags in the last."
    return Layout(tagging, ("text",), None, note + _note_encoding(path, columns.encoding))


def _units_task(path: str | Path, task: str | None, tasks: Mapping[str, T]) -> T:
    """The task with a label for every unit. Raises InputError if the user chose another."""
    candidates = [one for one in tasks.values() if one.labelling.has_units]
    for one in candidates:
        if task in (None, one.name):
            return one
    raise InputError(
        f"{path} has a label for every character or word, which is the task "
        f"{' or '.join(one.name for one in candidates)}, not {task}. Remove --task, or give a file "
        "with one label for each text."
    )


def _optional_layout(
    path: str | Path, columns: ColumnsConfig, task: T, tasks: Mapping[str, T]
) -> Layout[T]:
    """The layout of a table for a task whose files may have texts alone."""
    named = (*columns.text_columns, columns.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet)
    rows = _readable(path, islice(table.rows, SAMPLE))
    label = find_optional_label(path, table, rows, columns.text_columns, columns.label_column)
    texts, text_note = find_several_texts(path, table, rows, columns.text_columns, label)
    _check_texts(path, task, texts, tasks)
    note = _describe(path, task.name, "", table, (texts, text_note), (label, ""))
    return Layout(task, texts, label, note + _note_format(path, columns.encoding, table))


def _readable(path: str | Path, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The cells of rows that can be read. Raises InputError if there are none."""
    rows = list(rows)
    readable = [row.cells for row in rows if not row.problem]
    if not readable:
        problem = next((f"{row.place} {row.problem}" for row in rows if row.problem != BLANK), "")
        raise InputError(f"{problem or f'{path} has a header, but no example'}. Add examples.")
    return readable


def _guess_task(
    path: str | Path,
    table: Table,
    rows: Sequence[dict[str, Any]],
    sample: LabelSample,
    tasks: Mapping[str, T],
) -> tuple[T, str]:
    """The first task that suits the columns, and why. Raises InputError if none does."""
    for task in tasks.values():
        if why := task.labelling.guess(sample):
            return task, why
    raise InputError(
        f"{path}: cannot tell the task: the label column {sample.label} has {sample.distinct:,} "
        f"different values in {len(sample.labels):,} rows. {shown_lines(table, rows)} Give --task, "
        "or another --text-columns and --label-column."
    )


def _check_texts(path: str | Path, task: Reads, texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Raise InputError unless the task has as many texts as there are text columns."""
    if task.labelling.has_units:
        raise _no_units(path, task)
    if len(texts) not in task.labelling.text_counts:
        wanted = " or ".join(map(str, task.labelling.text_counts))
        raise InputError(
            f"{path}: the task {task.name} takes {wanted} column{'s' * (wanted != '1')} of text, "
            f"but there are {len(texts)}: {', '.join(texts)}. Give other --text-columns, or as "
            f"--task one of {', '.join(tasks)}."
        )


def _no_units(path: str | Path, task: Reads) -> InputError:
    return InputError(
        f"{path}: {task.name} needs a label for every character or word. Give a .conll file: "
        "one and its tag a line, a blank line between sentences; or lists in the columns "
        "tokens and ner_tags of a .jsonl or .parquet file."
    )


def _has_tabs(path: str | Path, encoding: str) -> bool:
    """Whether a .txt file has columns, as Excel's "Unicode text" has."""
    return "\t" in _first_line(path, encoding).strip()


def _first_line(path: str | Path, encoding: str) -> str:
    return next((line for line in text_lines(path, encoding) if line.strip()), "")


# The report of what was chosen


def _describe(
    path: str | Path,
    task: str,
    why: str,
    table: Table,
    texts: tuple[Sequence[str], str],
    label: tuple[str | None, str],
) -> str:
    """Task and columns, each with a note on how it was chosen."""
    guess = f" (a guess: {why})" if why else ""
    name, note = label
    labels = f"label in column {name}{_in_brackets(note)}" if name else "no label"
    header = "" if table.has_header else "; the first line is an example, not a header"
    return f"{path}{sheet_of(table)}: task {task}{guess}, {_name_texts(*texts)}, {labels}{header}."


def _name_texts(columns: Sequence[str], note: str) -> str:
    plural = "s" if len(columns) > 1 else ""
    return f"text in column{plural} {', '.join(columns)}{_in_brackets(note)}"


def _in_brackets(note: str) -> str:
    return f" ({note})" if note else ""


def _note_format(path: str | Path, encoding: str, table: Table) -> str:
    """Encoding, delimiter and other properties of the file that are unusual."""
    notes = "".join(f" {sentence}" for sentence in table.told)
    if kind_of(path) in ("parquet", "arrow", "xlsx", "json"):
        return notes
    return notes + _note_encoding(path, encoding)


def _note_encoding(path: str | Path, encoding: str) -> str:
    """The detected encoding, unless it is UTF-8."""
    detected = find_encoding(path) if encoding == "auto" else "utf-8"
    return "" if detected == "utf-8" else f" It is read as {detected.upper()}."


def _note_spellings(task: Reads, labels: Sequence[Any], separator: str) -> str:
    """Labels that differ only in spelling: 1 and 1.0, A and a, １ and 1."""
    spellings: dict[str, set[str]] = {}
    for value in labels:
        try:
            label = task.labelling.read_label(value, separator)
        except BadCellError:
            continue
        for one in label if isinstance(label, tuple) else (label,):
            if isinstance(one, str):
                text = unicodedata.normalize("NFKC", one).casefold()
                number = to_number(text)
                spellings.setdefault(text if number is None else f"{number:g}", set()).add(one)
    several = sorted(sorted(names) for names in spellings.values() if len(names) > 1)
    if not several:
        return ""
    shown = "; ".join(" and ".join(map(repr, names)) for names in several[:3])
    return f" Labels that differ in spelling alone are different labels here: {shown}."


# Examples


def read_examples(path: str | Path, layout: Layout[Any], columns: ColumnsConfig) -> list[Example]:
    """Read all examples with their labels. Rows that give none are skipped and reported on stderr.

    Raises InputError that lists them if `columns.strict` is set or most rows cannot be read, and
    for a file without any example.
    """
    examples = []
    skipped = SkippedRows(path)
    for one in _examples(path, layout, columns, labelled=True):
        try:
            if isinstance(one, Example):
                layout.task.labelling.check(one)
                examples.append(one)
            else:
                skipped.add(one)
        except BadCellError as error:
            skipped.add(BadLine(one.place, str(error)))
    if not examples and not skipped.bad:
        raise InputError(f"{path} has no example. Add some.")
    if skipped.bad and (columns.strict or not examples):
        raise InputError(f"{skipped}. Correct {skipped.them}, or remove {skipped.them}.")
    if skipped.unreadable > len(examples):
        raise InputError(
            f"{path}: most rows cannot be read: {skipped.unreadable:,}, and {len(examples):,} "
            f"can:\n{skipped}\nFix the file, or remove these rows."
        )
    if skipped.rows:
        print(skipped.notice(len(examples)), file=sys.stderr)
    completed: list[Example] = layout.task.labelling.complete(examples)
    return completed


class Unanswered(NamedTuple):
    """The texts of a file to predict."""

    said: str
    """A report for the user: which columns the texts are in; "" if there is only one way."""
    examples: Iterator[Example | BadLine]
    """One for each row, in order; to be read once."""


def open_unanswered(path: str | Path, task: ReadsTexts, columns: ColumnsConfig) -> Unanswered:
    """Open a file of texts to predict; labels are not read.

    A .txt file, or stdin for "-", has one text a line, or the task's two or three separated by
    tabs. Other files, and a .txt whose first line names columns of training, have the columns of
    training, or columns that can be nothing else, or the units of CoNLL. Raises InputError for a
    file that cannot be read.
    """
    kind = "txt" if is_stdin(path) else kind_of(path, columns.sheet)
    note = ""
    if kind == "txt" and not _names_columns(path, task, columns.encoding):
        examples = _plain_examples(path, task, columns.encoding)
    else:
        layout = Layout(task, task.text_columns, None, "")
        if kind != "conll":
            texts, note = _columns_to_predict(path, task, columns)
            layout = replace(layout, text_columns=texts)
            columns = replace(columns, text_columns=texts)
        examples = _examples(path, layout, columns, labelled=False)
    return Unanswered(
        note,
        (
            one if isinstance(one, BadLine) else task.labelling.for_prediction(one)
            for one in examples
        ),
    )


def stream_examples(
    path: str | Path,
    task: ReadsTexts,
    encoding: str = "auto",
    first_line: FirstLine = "auto",
    sheet: str | None = None,
) -> Iterator[Example | BadLine]:
    """Yield one Example or BadLine for each row to predict, as `open_unanswered` opens them."""
    columns = ColumnsConfig(encoding=encoding, first_line=first_line, sheet=sheet)
    return open_unanswered(path, task, columns).examples


def _columns_to_predict(
    path: str | Path, task: ReadsTexts, columns: ColumnsConfig
) -> tuple[tuple[str, ...], str]:
    """The text columns of a file to predict, and a report."""
    wanted = columns.text_columns or task.text_columns
    if len(wanted) != len(task.text_columns):
        raise InputError(
            f"--text-columns names {len(wanted)} columns, but the model was trained on "
            f"{len(task.text_columns)}: {', '.join(task.text_columns)}. Name as many."
        )
    table = open_named(path, columns.encoding, wanted, columns.first_line, columns.sheet)
    units = find_units(table) if task.labelling.has_units and not columns.text_columns else None
    texts: tuple[str, ...]
    if units and wanted[0] not in table.columns:
        texts, note = (units,), "by its name"
    else:
        texts, note = find_texts_to_predict(path, table, wanted, columns.first_line)
    header = "" if table.has_header else "; the first line is a text, not a header"
    report = f"{path}{sheet_of(table)}: {_name_texts(texts, note)}{header}."
    return texts, report + _note_format(path, columns.encoding, table)


def _names_columns(path: str | Path, task: ReadsTexts, encoding: str) -> bool:
    """Whether the first line of a .txt file names the columns of training, separated by tabs."""
    if is_stdin(path) or not _has_tabs(path, encoding):
        return False
    names = {folded(name) for name in _first_line(path, encoding).split("\t")}
    return all(not n.isdecimal() and folded(n) in names for n in task.text_columns)


def _examples(
    path: str | Path, layout: Layout[Any], columns: ColumnsConfig, labelled: bool
) -> Iterator[Example | BadLine]:
    """An Example or a BadLine for every row of a table, or every sentence of CoNLL."""
    task, kind = layout.task, kind_of(path, columns.sheet)
    if kind == "conll":
        if not task.labelling.has_units:
            raise InputError(f"{path} is a CoNLL file, which is for tagging, not {task.name}.")
        return map(_sentence_example, read_sentences(path, columns.encoding, labelled))
    if task.labelling.has_units and labelled:
        return _unit_examples(path, layout, columns)
    if task.labelling.label_optional and kind == "txt" and not _has_tabs(path, columns.encoding):
        return _plain_examples(path, task, columns.encoding)
    named = (*layout.text_columns, layout.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet)
    texts = [find_column(path, table, name) for name in layout.text_columns]
    label = None
    if labelled and (layout.label_column or not task.labelling.label_optional):
        label = find_column(path, table, layout.label_column or "")
    return (_example(row, texts, label, task, columns.label_separator) for row in table.rows)


def _unit_examples(
    path: str | Path, layout: Layout[Any], columns: ColumnsConfig
) -> Iterator[Example | BadLine]:
    """The rows of a table with a label for every unit; its columns may have other names."""

    def opened() -> Table:
        return open_named(path, columns.encoding, (), columns.first_line, columns.sheet)

    table = opened()
    rows = _readable(path, islice(table.rows, SAMPLE))
    present = {*layout.text_columns, layout.label_column or ""} <= {*table.columns, ""}
    names = (layout.text_columns, layout.label_column) if present else ((), None)
    units = find_unit_columns(path, table, rows, *names)
    if units is None:
        raise _no_units(path, layout.task)
    return (_unit_example(row, units) for row in opened().rows)


def _unit_example(row: Row, columns: UnitColumns) -> Example | BadLine:
    if row.problem:
        return BadLine(row.place, row.problem)
    try:
        return read_units(row.cells, columns, row.place)
    except BadCellError as error:
        return BadLine(row.place, str(error))


def _plain_examples(
    path: str | Path, task: ReadsTexts, encoding: str
) -> Iterator[Example | BadLine]:
    """The lines of a .txt file, or of stdin."""
    name, texts = "stdin" if is_stdin(path) else path, task.text_columns
    for number, line in enumerate(text_lines(path, encoding), start=1):
        place, line = f"{name}:{number}", line.removesuffix("\n").removesuffix("\r")
        parts = line.split("\t") if len(texts) > 1 else [line]
        if len(parts) == len(texts):
            row = Row(place, dict(zip(texts, parts, strict=True)))
        else:
            row = Row(place, {}, f"has {len(parts)} of {len(texts)} texts, separated by tabs")
        yield _example(row, texts, None, task, task.label_separator)


def _example(
    row: Row, texts: Sequence[str], label: str | None, task: Reads, separator: str
) -> Example | BadLine:
    """Read the cells of a row; the label too, unless it has no column."""
    if task.labelling.has_units:
        return _unit_example(row, UnitColumns(texts[0], None, ANY))
    if row.problem:
        return BadLine(row.place, row.problem)
    try:
        if task.labelling.label_optional and any(isinstance(row.cells.get(x), list) for x in texts):
            group = tuple(text for column in texts for text in read_texts(row.cells, column))
            return Example(group, GROUP, row.place)
        cells = tuple(read_text(row.cells, column) for column in texts)
        value = (
            None
            if label is None
            else task.labelling.read_label(find_cell(row.cells, label), separator)
        )
    except BadCellError as error:
        return BadLine(row.place, str(error))
    return Example(cells, value, row.place)


def _sentence_example(row: Row) -> Example | BadLine:
    if row.problem:
        return BadLine(row.place, row.problem)
    units = row.cells["units"]
    return Example(("".join(units),), row.cells.get("tags"), row.place, units)
