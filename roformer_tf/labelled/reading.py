"""Labelled files → examples: which columns hold what, which task they are for, and their rows.

text,label
房间很干净,1    → find_layout, read_examples →    Example(("房间很干净",), "1", "train.csv:2")

What a cell means depends on the task, of which `Reads` is all that is needed here.
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
    check_roles,
    find_column,
    find_label,
    find_optional_label,
    find_several_texts,
    find_texts,
    find_texts_to_predict,
    header_by_content,
    names_labels,
    open_named,
    sheet_of,
    shown_lines,
)
from roformer_tf.labelled.examples import GROUP, Example
from roformer_tf.labelled.skipped import BadLine, SkippedRows
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
    """Sheet of an .xlsx file, by its name. Unset: the first that is not hidden, nor empty."""
    strict: bool = False
    """Stop at rows that give no example; unset, they are skipped, and named all at once."""

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


class Reads(Protocol):
    """A task as far as reading needs it: its class, or the task of a fine-tuned model."""

    @property
    def name(self) -> str:
        """As `--task` has it."""

    @property
    def labelling(self) -> Any:
        """The part that reads labels: `tasks.parts.Labelling`, which this folder cannot import."""


class ReadsTexts(Reads, Protocol):
    """The task of a fine-tuned model, as far as reading what to predict needs it."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Names of the columns that the texts were in."""

    @property
    def label_separator(self) -> str:
        """Between the labels of an example that has several."""


T = TypeVar("T", bound=Reads)


@dataclass(frozen=True)
class Layout(Generic[T]):
    """Where a file's texts and labels stand, and what they are for."""

    task: T
    text_columns: tuple[str, ...]
    label_column: str | None
    said: str
    """For the user: what was found, and what of it is a guess."""


def find_layout(
    path: str | Path, columns: ColumnsConfig, task: str | None, tasks: Mapping[str, T]
) -> Layout[T]:
    """Find columns and task of a file with labels; what the user gives is not guessed.

    `task` is a name among `tasks`, all that there are; of those that fit, the first is taken.
    Raises InputError where there is more than one possibility, or the task does not fit.
    """
    kind = kind_of(path, columns.sheet)
    if task and tasks[task].labelling.label_optional:
        return _optional_layout(path, kind, columns, tasks[task], tasks)
    if kind == "conll":
        return _conll_layout(path, columns, task, tasks)
    if kind == "txt" and not _has_tabs(path, columns.encoding):
        raise InputError(
            f"{path}: a .txt file holds texts alone. Name a file with columns .tsv or .csv, "
            "and one with a tag for every character or word .conll."
        )
    table, by_labels = _open(path, columns)
    rows = _readable(path, islice(table.rows, SAMPLE))
    if task is None or tasks[task].labelling.has_units:
        units = find_unit_columns(path, table, rows, columns.text_columns, columns.label_column)
        if units:
            return _units_layout(path, table, units, tasks, task)
    label, why_label = find_label(path, table, rows, columns.text_columns, columns.label_column)
    texts, why_texts = find_texts(path, table, rows, columns.text_columns, label)
    if label in texts:
        raise InputError(f"{path}: the column {label} is given both as text and as label.")
    if not (columns.text_columns or columns.label_column):
        check_roles(path, table, rows, texts, label)
    labels = [row[label] for row in rows if label in row and not is_missing(row[label])]
    sample = LabelSample(texts, label, without_nan(labels), columns.label_separator)
    found, why = (tasks[task], "") if task else _guess_task(path, sample, tasks)
    _check_texts(path, found, texts, tasks)
    said = _say(path, found.name, why, table, texts, label, (why_texts, why_label))
    if by_labels:
        said += (
            f" {by_labels!r} stands nowhere among the labels: the first line is a header "
            "(--first-line example, if it is not)."
        )
    said += _say_spellings(found, labels, columns.label_separator)
    return Layout(found, texts, label, said + _say_format(path, kind, columns.encoding, table))


def _units_layout(
    path: str | Path, table: Table, units: UnitColumns, tasks: Mapping[str, T], task: str | None
) -> Layout[T]:
    """The layout of a file with a label for every unit in columns."""
    found = next(
        (x for x in tasks.values() if x.labelling.has_units and task in (None, x.name)), None
    )
    if found is None:
        raise InputError(f"{path} has a label for every unit, which is for tagging. Give --task.")
    names = (units.units,)
    said = _say(path, found.name, "", table, names, units.label, ("", ""))
    if units.numbers:
        said += (
            " Its tags are numbers without names, which mark no entities: write B-LOC, I-LOC, O "
            "or the like in their place, if they do."
        )
    return Layout(found, names, units.label, said)


def _optional_layout(
    path: str | Path, kind: str, columns: ColumnsConfig, task: T, tasks: Mapping[str, T]
) -> Layout[T]:
    """Find the columns for a task whose files may have texts alone, which belong together."""
    if kind == "conll":
        raise InputError(
            f"{path}: a CoNLL file is for tagging, not {task.name}. Give texts in columns."
        )
    if kind == "txt" and not _has_tabs(path, columns.encoding):
        said = f"{path}: task {task.name}, one text a line." + _say_encoding(path, columns.encoding)
        return Layout(task, ("text",), None, said)
    table, _ = _open(path, columns, labelled=False)
    rows = _readable(path, islice(table.rows, SAMPLE))
    label = find_optional_label(path, table, rows, columns.text_columns, columns.label_column)
    texts, why = find_several_texts(path, table, rows, columns.text_columns, label)
    _check_texts(path, task, texts, tasks)
    said = _say(path, task.name, "", table, texts, label, (why, ""))
    return Layout(task, texts, label, said + _say_format(path, kind, columns.encoding, table))


def read_examples(path: str | Path, layout: Layout[Any], columns: ColumnsConfig) -> list[Example]:
    """Read all examples with their labels. Rows that give none are skipped, and told on stderr.

    Raises InputError that names them all where `columns.strict` is set or too many cannot be read,
    and for a file without any example.
    """
    examples = []
    skipped = SkippedRows(path)
    for one in _examples(path, layout, columns, labelled=True):
        one = _checked(one, layout.task)
        if isinstance(one, Example):
            examples.append(one)
        else:
            skipped.add(one)
    if not examples and not skipped.bad:
        raise InputError(f"{path} has no example. Add some.")
    if skipped.bad and (columns.strict or not examples):
        raise InputError(f"{skipped}. Correct {skipped.them}, or take {skipped.them} out.")
    if skipped.unreadable > len(examples):
        raise InputError(
            f"{path}: most rows cannot be read, {skipped.unreadable:,} beside {len(examples):,} "
            f"that can:\n{skipped}\nMend what is wrong with the file, or take them out."
        )
    if skipped.rows:
        print(skipped.notice(len(examples)), file=sys.stderr)
    completed: list[Example] = layout.task.labelling.complete(examples)
    return completed


class Unanswered(NamedTuple):
    """What is to be predicted."""

    said: str
    """For the user: which columns the texts are taken from; "" where that goes without saying."""
    examples: Iterator[Example | BadLine]
    """One a row, in order; to be read once."""


def open_unanswered(path: str | Path, task: ReadsTexts, columns: ColumnsConfig) -> Unanswered:
    """Open what to predict; labels are not read.

    A .txt file, or stdin for "-", has one text a line, or the task's two or three with tabs
    between; other files, and a .txt whose first line names columns of training between tabs, have
    the columns of training, or ones that can be nothing else, or the units of CoNLL. Raises
    InputError for a file that cannot be read.
    """
    kind = "txt" if is_stdin(path) else kind_of(path, columns.sheet)
    if kind == "txt" and not _names_columns(path, task, columns.encoding):
        found, said = _plain_examples(path, task, columns.encoding), ""
    elif kind == "conll":
        layout = Layout(task, task.text_columns, None, "")
        found, said = _examples(path, layout, columns, labelled=False), ""
    else:
        texts, said = _find_unanswered(path, kind, task, columns)
        columns = replace(columns, text_columns=texts)
        found = _examples(path, Layout(task, texts, None, said), columns, labelled=False)
    return Unanswered(
        said,
        (one if isinstance(one, BadLine) else task.labelling.for_prediction(one) for one in found),
    )


def stream_examples(
    path: str | Path,
    task: ReadsTexts,
    encoding: str = "auto",
    first_line: FirstLine = "auto",
    sheet: str | None = None,
) -> Iterator[Example | BadLine]:
    """Yield what to predict, as `open_unanswered` opens it, one Example or BadLine a row."""
    columns = ColumnsConfig(encoding=encoding, first_line=first_line, sheet=sheet)
    return open_unanswered(path, task, columns).examples


def _find_unanswered(
    path: str | Path, kind: str, task: ReadsTexts, columns: ColumnsConfig
) -> tuple[tuple[str, ...], str]:
    """The columns of the texts to predict, by their names in the file, and what to say of them."""
    wanted = columns.text_columns or task.text_columns
    if len(wanted) != len(task.text_columns):
        raise InputError(
            f"--text-columns names {len(wanted)} columns, but the model was trained on "
            f"{len(task.text_columns)}: {', '.join(task.text_columns)}. Name as many."
        )
    table = open_named(
        path, columns.encoding, wanted, columns.first_line, columns.sheet, labelled=False
    )
    units = find_units(table) if task.labelling.has_units and not columns.text_columns else None
    if units and wanted[0] not in table.columns:
        return (units,), _say_texts(path, table, (units,), "by its name")
    texts, why = find_texts_to_predict(path, table, wanted, columns.first_line)
    return texts, _say_texts(path, table, texts, why) + _say_format(
        path, kind, columns.encoding, table
    )


def _has_tabs(path: str | Path, encoding: str) -> bool:
    """Whether a .txt file has columns, as Excel's "Unicode text" has."""
    first = next((line for line in text_lines(path, encoding) if line.strip()), "")
    return "\t" in first.strip()


def _names_columns(path: str | Path, task: ReadsTexts, encoding: str) -> bool:
    """Whether the first line of a .txt file names the columns of training, between tabs."""
    if is_stdin(path) or not _has_tabs(path, encoding):
        return False
    first = next(line for line in text_lines(path, encoding) if line.strip())
    names = {folded(name) for name in first.split("\t")}
    return all(not n.isdecimal() and folded(n) in names for n in task.text_columns)


def _guess_task(path: str | Path, sample: LabelSample, tasks: Mapping[str, T]) -> tuple[T, str]:
    """The first task that the columns speak for, and why. Raises InputError where none is."""
    for task in tasks.values():
        if why := task.labelling.guess(sample):
            return task, why
    raise InputError(
        f"{path}: cannot tell the task: its {sample.distinct:,} different labels in "
        f"{len(sample.labels):,} rows may also be numbers. Give --task."
    )


def _check_columns(path: str | Path, task: Reads) -> None:
    """Raise InputError for a task that needs other columns than a text and a label."""
    if task.labelling.has_units:
        raise _no_units(path, task)


def _no_units(path: str | Path, task: Reads) -> InputError:
    return InputError(
        f"{path}: {task.name} needs a label for every character or word. Give a .conll file: "
        "one and its tag a line, a blank line between sentences; or lists in the columns "
        "tokens and ner_tags of a .jsonl or .parquet file."
    )


def _check_texts(path: str | Path, task: Reads, texts: Sequence[str], tasks: Iterable[str]) -> None:
    """Raise InputError unless the task has as many texts as there are columns for."""
    _check_columns(path, task)
    if len(texts) not in task.labelling.text_counts:
        wanted = " or ".join(map(str, task.labelling.text_counts))
        raise InputError(
            f"{path}: the task {task.name} takes {wanted} column{'s' * (wanted != '1')} of text, "
            f"but there are {len(texts)}: {', '.join(texts)}. Give other --text-columns, or as "
            f"--task one of {', '.join(tasks)}."
        )


def _open(path: str | Path, columns: ColumnsConfig, labelled: bool = True) -> tuple[Table, str]:
    """Open a file with labels; tell what, if content alone says that it has a header, stands in it.

    Where no name is known, or columns go by number, what stands in them tells: of a label's column
    that goes by number always. Raises InputError where it does not.
    """
    named = (*columns.text_columns, columns.label_column)
    table = open_named(path, columns.encoding, named, columns.first_line, columns.sheet, labelled)
    if table.has_header or columns.first_line != "auto" or not labelled:
        return table, ""
    label = _label_by_number(table, columns)
    if label is None:
        rows = [row.cells for row in islice(table.rows, SAMPLE) if not row.problem]
        said = header_by_content(table, rows, columns.label_separator) if rows else ""
    else:
        rows = [row.cells for row in table.rows if not row.problem]
        labels = [row[label] for row in rows]
        header = names_labels(labels, columns.label_separator) if labels else False
        if header is None:
            raise InputError(
                f"{path}: cannot tell whether the first line is a header: {labels[0]!r} stands "
                "nowhere else in the column of the labels, but others do so, too. "
                f"{shown_lines(table, rows)} Give --first-line header, or --first-line example."
            )
        said = labels[0].strip() if header else ""
    first_line: FirstLine = "header" if said else "auto"
    return open_named(path, columns.encoding, named, first_line, columns.sheet), said


def _label_by_number(table: Table, columns: ColumnsConfig) -> str | None:
    """The labels' column, given by its number or left beside those of texts; None if it is not."""
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


def _conll_layout(
    path: str | Path, columns: ColumnsConfig, task: str | None, tasks: Mapping[str, T]
) -> Layout[T]:
    of_units = [
        one for one in tasks.values() if one.labelling.has_units and task in (None, one.name)
    ]
    if not of_units:
        known = " or ".join(one.name for one in tasks.values() if one.labelling.has_units)
        raise InputError(
            f"{path}: a CoNLL file has a label for every character or word, which is the task "
            f"{known}, not {task}. Leave --task out, or give a file with columns."
        )
    found = of_units[0]
    said = f"{path}: task {found.name}, units in the first column and tags in the last."
    encoding = "" if columns.encoding != "auto" else find_encoding(path)
    said += f" It is read as {encoding.upper()}." * (encoding not in ("", "utf-8"))
    return Layout(found, ("text",), None, said)


def _say(
    path: str | Path,
    task: str,
    why: str,
    table: Table,
    texts: Sequence[str],
    label: str | None,
    told: tuple[str, str],
) -> str:
    guessed = f" (a guess: {why})" if why else ""
    header = "" if table.has_header else "; the first line is an example, not a header"
    many = "columns" if len(texts) > 1 else "column"
    by_text, by_label = (f" ({one})" if one else "" for one in told)
    of_label = f", label in column {label}{by_label}" if label else ", no label"
    return (
        f"{path}{sheet_of(table)}: task {task}{guessed}, text in {many} {', '.join(texts)}"
        f"{by_text}{of_label}{header}."
    )


def _say_texts(path: str | Path, table: Table, texts: Sequence[str], why: str) -> str:
    """Name the columns of what to predict."""
    many = "columns" if len(texts) > 1 else "column"
    by = f" ({why})" if why else ""
    header = "" if table.has_header else "; the first line is a text, not a header"
    return f"{path}{sheet_of(table)}: text in {many} {', '.join(texts)}{by}{header}."


def _say_format(path: str | Path, kind: str, encoding: str, table: Table) -> str:
    """Name an encoding that was found, unless it is the usual one, and what else is unusual."""
    told = "".join(f" {sentence}" for sentence in table.told)
    if kind in ("parquet", "arrow", "xlsx", "json"):
        return told
    return told + _say_encoding(path, encoding)


def _say_encoding(path: str | Path, encoding: str) -> str:
    """Name an encoding that was found, unless it is the usual one."""
    found = find_encoding(path) if encoding == "auto" else "utf-8"
    return "" if found == "utf-8" else f" It is read as {found.upper()}."


def _say_spellings(task: Reads, labels: Sequence[Any], separator: str) -> str:
    """Name labels that are different in spelling alone: 1 and 1.0, A and a, １ and 1."""
    alike: dict[str, set[str]] = {}
    for value in labels:
        try:
            found = task.labelling.read_label(value, separator)
        except BadCellError:
            continue
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, str):
                text = unicodedata.normalize("NFKC", one).casefold()
                number = to_number(text)
                alike.setdefault(text if number is None else f"{number:g}", set()).add(one)
    twice = sorted(sorted(spelled) for spelled in alike.values() if len(spelled) > 1)
    if not twice:
        return ""
    shown = "; ".join(" and ".join(map(repr, spelled)) for spelled in twice[:3])
    return f" Labels that differ in spelling alone are different labels here: {shown}."


# Rows → examples


def _examples(
    path: str | Path, layout: Layout[Any], columns: ColumnsConfig, labelled: bool
) -> Iterator[Example | BadLine]:
    """Give an Example or a BadLine for every row of a file with columns, or of CoNLL."""
    if kind_of(path, columns.sheet) == "conll":
        if not layout.task.labelling.has_units:
            raise InputError(
                f"{path} is a CoNLL file, which is for tagging, not {layout.task.name}."
            )
        return map(_sentence_example, read_sentences(path, columns.encoding, labelled))
    if layout.task.labelling.has_units and labelled:
        return _unit_examples(path, layout, columns)
    kind = kind_of(path, columns.sheet)
    if (
        layout.task.labelling.label_optional
        and kind == "txt"
        and not _has_tabs(path, columns.encoding)
    ):
        return _plain_examples(path, layout.task, columns.encoding)
    named = (*layout.text_columns, layout.label_column)
    with_label = labelled and not (
        layout.task.labelling.label_optional and layout.label_column is None
    )
    table = open_named(
        path, columns.encoding, named, columns.first_line, columns.sheet, labelled=with_label
    )
    texts = [find_column(path, table, name) for name in layout.text_columns]
    label = find_column(path, table, layout.label_column or "") if with_label else None
    return (_example(row, texts, label, layout.task, columns.label_separator) for row in table.rows)


def _unit_examples(
    path: str | Path, layout: Layout[Any], columns: ColumnsConfig
) -> Iterator[Example | BadLine]:
    """Give an Example or a BadLine for every row of a file with a label for every unit.

    Its columns may be called otherwise than those of training.
    """

    def opened() -> Table:
        return open_named(path, columns.encoding, (), columns.first_line, columns.sheet)

    table = opened()
    rows = _readable(path, islice(table.rows, SAMPLE))
    there = {*layout.text_columns, layout.label_column or ""} <= {*table.columns, ""}
    names = (layout.text_columns, layout.label_column) if there else ((), None)
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
    """Give an Example or a BadLine for every line of a .txt file, or of stdin."""
    name, texts = "stdin" if is_stdin(path) else path, task.text_columns
    for number, line in enumerate(text_lines(path, encoding), start=1):
        place, line = f"{name}:{number}", line.removesuffix("\n").removesuffix("\r")
        parts = line.split("\t") if len(texts) > 1 else [line]
        if len(parts) == len(texts):
            row = Row(place, dict(zip(texts, parts, strict=True)))
        else:
            row = Row(place, {}, f"has {len(parts)} of {len(texts)} texts with tabs between them")
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
            found = tuple(text for column in texts for text in read_texts(row.cells, column))
            return Example(found, GROUP, row.place)
        found = tuple(read_text(row.cells, column) for column in texts)
        value = (
            None
            if label is None
            else task.labelling.read_label(find_cell(row.cells, label), separator)
        )
    except BadCellError as error:
        return BadLine(row.place, str(error))
    return Example(found, value, row.place)


def _checked(example: Example | BadLine, task: Reads) -> Example | BadLine:
    """An example, or why nothing can be learnt of it."""
    if isinstance(example, Example):
        try:
            task.labelling.check(example)
        except BadCellError as error:
            return BadLine(example.place, str(error))
    return example


def _sentence_example(row: Row) -> Example | BadLine:
    if row.problem:
        return BadLine(row.place, row.problem)
    units = row.cells["units"]
    return Example(("".join(units),), row.cells.get("tags"), row.place, units)
