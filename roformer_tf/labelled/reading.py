"""Labelled files → examples: the columns, the task, and the examples of all rows.

text,label
房间很干净,1    → find_layout, read_examples →    Example(("房间很干净",), "1", "train.csv:2")

A `task` is one of `tasks.table`, or its class; `rows` lists what reading needs of it.
"""

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.labelled.annotations import UNITS, EntityColumns, find_entities, find_unit_columns
from roformer_tf.labelled.cells import BadCellError, ellipsized, is_missing, to_number
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import (
    ColumnsConfig,
    LabelSample,
    find_column,
    find_label,
    find_texts,
    find_texts_to_predict,
)
from roformer_tf.labelled.examples import UNLABELLED, Example, LongTexts, SkippedRows
from roformer_tf.labelled.headers import TableSample, check_header, check_no_header
from roformer_tf.labelled.row_examples import examples_of, first_cells, no_units, plain_examples
from roformer_tf.readers.kinds import kind_of
from roformer_tf.readers.lines import find_encoding
from roformer_tf.readers.records import ANY, BLANK, TYPED, Row, tag_pattern
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Table, find_tags
from roformer_tf.terminal import printable
from roformer_tf.translation import Message, either

# Names of columns in which `predict` writes what a label column would hold.
PREDICTED = ("label", "labels", "score", "answer", "tags", "entities", "spans", "cosine")
# The column with the labels of the data in predictions.tsv of a run.
GOLD = "gold"
# A tag of a cell with several.
_TAG = re.compile(r"""[^\s,，|\x02'"\[\]]+""")


class Layout(NamedTuple):
    """The columns of a file and the task they are used for."""

    task: Any
    text_columns: tuple[str, ...]
    label_column: str | None
    report: str
    """For the user: what was chosen, and how."""
    annotations: Any = None
    """Of a table with labels of all units, or entities: its `UnitColumns` or `EntityColumns`."""

    def task_of(
        self,
        training: Sequence[Example],
        columns: ColumnsConfig,
        long_texts: LongTexts,
        **settings: Any,
    ) -> Any:
        """The task that training examples define, with these columns.

        Raises InputError for a choice of `long_texts` that the task does not have.
        """
        task = self.task.from_examples(
            training,
            text_columns=self.text_columns,
            label_column=self.label_column,
            label_separator=columns.label_separator,
            long_texts=long_texts,
            **settings,
        )
        if long_texts != "head" and (fixed := task.labelling.why_long_texts_fixed()):
            raise InputError(
                f"long_texts is {long_texts}, but with {task.name} {fixed} Remove --long-texts."
            )
        return task


# Layouts of labelled files


def find_layout(
    path: str | Path,
    columns: ColumnsConfig,
    task: str | None,
    tasks: Mapping[str, Any],
    texts: Sequence[str] = (),
    label: str | None = None,
) -> Layout:
    """Select the columns and the task of a labelled file; the user's settings come first.

    `task` is a name in `tasks`; without it the first task that suits the columns is selected.
    `texts`, `label`: names of the columns in training, for another file than that of training.
    Raises InputError for several possibilities, or a task that does not suit the columns.
    """
    # In this order: CoNLL, texts alone, tables that may have no label, tables whose columns have
    # fixed names, tables with a label for every unit or with entities, tables with labels of rows.
    kind = kind_of(path, columns.sheet)
    chosen = tasks[task] if task else None
    if kind == "conll":
        tagging = _units_task(path, task, tasks)
        note = Message(
            "{path}: task {task}, units in the first column and tags in the last.",
            path=path,
            task=tagging.name,
        )
        report = _sentences(note, _note_tags(find_tags(path, columns.encoding)))
        return _unnamed_layout(path, columns, tagging, report)
    if kind == "txt" and len(first_cells(path, columns.encoding)) == 1:
        if chosen is not None and chosen.labelling.label_optional:
            note = Message("{path}: task {task}, one text a line.", path=path, task=task)
            return _unnamed_layout(path, columns, chosen, note)
        raise InputError(
            f"{path}: a .txt file holds texts alone. Name a file with columns .tsv or .csv, "
            "and one with a tag for every character or word .conll; of brat give the .ann file."
        )
    named = (*(columns.text_columns or texts), columns.label_column or label)
    table = columns.open(path, named)
    # Of predictions.tsv the column with the usual name is the prediction.
    if {GOLD, "error"} <= {*table.columns} and columns.label_column is None:
        columns = replace(columns, label_column=GOLD)
    columns = columns.with_columns_of_training(table, texts, label)
    sample = TableSample(table)
    # JSON and Parquet name their columns; in other kinds the user's names settle the doubt.
    is_unsure = columns.first_line == "auto" and kind in ("csv", "tsv", "txt", "xlsx")
    names = {folded(name) for name in named if name and not name.isdecimal()}
    if is_unsure and table.has_header and names.isdisjoint(map(folded, table.columns)):
        check_header(sample)
    for candidate in [chosen] if chosen else tasks.values():
        known = candidate.labelling.column_names
        present = [x for x in known if {*x} <= {*map(folded, table.columns)}]
        if known and (chosen or present):
            # The names are those of the texts, then that of the label. If the user chose the task,
            # but no such tuple is complete, `find_column` reports the first missing name.
            usual = (present or known)[0]
            texts = tuple(find_column(table, x) for x in columns.text_columns or usual[:-1])
            label = find_column(table, columns.label_column or usual[-1])
            return _table_layout(sample, columns, candidate, (texts, ""), (label, ""))
    # Before labels: a column of tags would be taken for labels of whole texts.
    if chosen is None or chosen.labelling.has_units:
        layout = _units_or_entities_layout(sample, columns, task, tasks)
        if layout:
            return layout
        # One tag in a cell, as in CoNLL, or those of a text: O O, O,O, ['O', 'O'] or PaddleNLP's.
        last = (str(row.get(table.columns[-1])) for row in sample.rows[:100])
        tags = _TAG.findall(" ".join(last))
        if chosen or ("O" in tags and tag_pattern(tags) is TYPED):
            raise no_units(path, chosen or _units_task(path, None, tasks))
    return _labels_layout(sample, columns, chosen, tasks)


def _labels_layout(
    sample: TableSample, columns: ColumnsConfig, chosen: Any, tasks: Mapping[str, Any]
) -> Layout:
    """The layout of a table with a label for each row; with texts alone for tasks that allow it."""
    path, separator = sample.table.path, columns.label_separator
    is_optional = chosen is not None and chosen.labelling.label_optional
    named = columns.text_columns
    label, label_note = find_label(sample, named, columns.label_column, is_optional)
    # Before the texts, whose names may be in the first line.
    if label and columns.first_line == "auto" and not sample.table.has_header:
        check_no_header(sample, label, separator)
    texts, text_note = find_texts(sample, named, label, is_optional or label is None)
    selection = (texts, text_note), (label, label_note)
    if label is None and not is_optional:
        kinds = [x for x in tasks.values() if len(texts) in x.labelling.text_counts]
        flags = [f"--task {x.name}" for x in kinds if x.labelling.label_optional]
        raise InputError(
            f"{path} has no column of labels; {', '.join(texts)} are names of matching texts. "
            f"Give {either([*flags, '--label-column'])}."
        )
    if label in texts:
        raise InputError(
            f"{path}: the column {label} is both a text and the label column. Give different "
            "--text-columns and --label-column."
        )
    if is_optional or label is None:
        return _table_layout(sample, columns, chosen, *selection)
    labels = [x[label] for x in sample.rows if label in x and not is_missing(x[label])]
    candidates = LabelSample(texts, label, labels, separator)
    selected, why = (chosen, "") if chosen else _guess_task(sample, candidates, tasks)
    are_several = selected.labelling.separates_labels
    # If the user chose a task with single labels, a sign in a label is part of it.
    if chosen is None or are_several:
        candidates.check_separator(path, are_several)
    spellings = _note_spellings(selected, labels, separator)
    # Such as the keywords of CSL, or the aspect that a label is about.
    unread = ", ".join(name for name in sample.table.columns if name not in (*texts, label))
    note = Message("Columns that are not read: {names}.", names=printable(ellipsized(unread, 100)))
    more = _sentences(note, spellings) if unread else spellings
    return _table_layout(sample, columns, selected, *selection, why, more)


def _table_layout(
    sample: TableSample,
    columns: ColumnsConfig,
    task: Any,
    texts: tuple[tuple[str, ...], str],
    label: tuple[str | None, str],
    why: str = "",
    more: str = "",
) -> Layout:
    """The layout of a table for a task; texts, label: columns, and how they were selected.

    Raises InputError for another number of texts than the task takes.
    """
    if len(texts[0]) not in task.labelling.text_counts:
        wanted = " or ".join(map(str, task.labelling.text_counts))
        raise InputError(
            f"{sample.table.path}: text columns of the task {task.name}: {wanted}, not "
            f"{len(texts[0])} ({', '.join(texts[0])}). Give other --text-columns or another --task."
        )
    named = Message("task {task}", task=task.name)
    if why:
        named = Message("task {task} (a guess: {why})", task=task.name, why=why)
    name, note = label
    labels = Message("no label")
    if name:
        labels = Message(
            "label in column {name}{note}", name=printable(name), note=_in_brackets(note)
        )
    report = Message(
        "{place}: {task}, {texts}, {labels}",
        place=sample.table.place,
        task=named,
        texts=_name_texts(*texts),
        labels=labels,
    )
    rest = {*sample.table.columns} - {name}
    if name in PREDICTED and any(x == "error" or x.startswith("p(") for x in rest):
        # Of a file that `predict` wrote, a model would be compared with itself.
        predicted = Message(
            "Other columns are those that `predict` writes. If {name} is a prediction, too, give "
            "the column of the true labels by --label-column.",
            name=name,
        )
        more = _sentences(predicted, more)
    return Layout(task, texts[0], name, _with_format(report, sample.table, columns.encoding, more))


def _units_or_entities_layout(
    sample: TableSample, columns: ColumnsConfig, task: str | None, tasks: Mapping[str, Any]
) -> Layout | None:
    """The layout of a table with a label for every unit, or with entities; None for another."""
    args = sample, columns.text_columns, columns.label_column
    # CLUENER's layout is both: labels of characters unless the user wants entities.
    if task is not None and tasks[task].labelling.has_spans:
        detected = find_entities(*args) or find_unit_columns(*args)
        detected = detected or find_entities(*args, by_name=True)
    else:
        detected = find_unit_columns(*args)
        if detected is None and task is None:
            detected = find_entities(*args, by_name=kind_of(sample.table.path) == "brat")
    if detected is None:
        return None
    # Both name first the column of the text or its units, then that of the labels.
    text, label, more = detected[0], detected[1], ""
    if isinstance(detected, EntityColumns):
        kind = next(kind for kind in tasks.values() if kind.labelling.has_spans)
    else:
        kind = _units_task(sample.table.path, task, tasks)
        more = _note_tags(detected.tags)
    layout = _table_layout(sample, columns, kind, ((text,), ""), (label, ""), more=more)
    return layout._replace(annotations=detected)


def _unnamed_layout(path: str | Path, columns: ColumnsConfig, task: Any, note: str) -> Layout:
    """The layout of a file whose columns have no names."""
    report = _sentences(note, _note_encoding(path, columns.encoding))
    return Layout(task, ("text",), None, report)


def _units_task(path: str | Path, task: str | None, tasks: Mapping[str, Any]) -> Any:
    """The task with a label for every unit. Raises InputError if the user chose another."""
    candidates = {name: kind for name, kind in tasks.items() if kind.labelling.has_units}
    if task is None or task in candidates:
        return candidates[task or next(iter(candidates))]
    raise InputError(
        f"{path} has a label for every character or word, but the task is {task}. Give a file with "
        "one label for each text, or another --task or model."
    )


def _guess_task(
    sample: TableSample, labels: LabelSample, tasks: Mapping[str, Any]
) -> tuple[Any, str]:
    """The first task that suits the columns, and the reason. Raises InputError if none does."""
    for task in tasks.values():
        if why := task.labelling.guess(labels):  # each excludes what suits a later task better
            return task, why
    raise InputError(
        f"{sample.table.path}: cannot tell the task: the label column {labels.label} has "
        f"{labels.distinct:,} different values in {len(labels.labels):,} rows. {sample.shown()} "
        "Give --task, or another --text-columns and --label-column."
    )


# The report for the user


def _name_texts(columns: Sequence[str], note: str) -> str:
    listed, brackets = printable(", ".join(columns)), _in_brackets(note)
    if len(columns) > 1:
        return Message("text in columns {names}{note}", names=listed, note=brackets)
    return Message("text in column {name}{note}", name=listed, note=brackets)


def _in_brackets(note: str) -> str:
    return Message(" ({note})", note=note) if note else ""


def _with_format(report: str, table: Table, encoding: str, more: str = "") -> str:
    """The report as a sentence; then `more`, encoding, delimiter and what else is unusual."""
    if table.has_header:
        report = Message("{report}.", report=report)
    else:
        report = Message("{report}; the first line is an example, not a header.", report=report)
    notes = [more, *table.notes]
    # Binary formats have no encoding, and .json reports its own.
    if kind_of(table.path) not in ("parquet", "arrow", "xlsx", "json", "brat"):
        notes.append(_note_encoding(table.path, encoding))
    return _sentences(report, *notes)


def _sentences(first: str, *more: str) -> str:
    """Sentences, without empty ones, in one line."""
    for sentence in filter(None, more):
        first = Message("{sentences} {more}", sentences=first, more=sentence)
    return first


def _note_tags(tags: re.Pattern[str]) -> str:
    """A note on tags such as parts of speech, numbers, or LOC-B."""
    note = Message(
        "Its tags mark no entities: replace them by B-LOC, I-LOC, O or similar tags if they do."
    )
    return note if tags is ANY else ""


def _note_encoding(path: str | Path, encoding: str) -> str:
    """The detected encoding, unless it is UTF-8."""
    detected = find_encoding(path) if encoding == "auto" else "utf-8"
    read = Message("It is read as {encoding}.", encoding=detected.upper())
    return "" if detected == "utf-8" else read


def _note_spellings(task: Any, labels: Sequence[Any], separator: str) -> str:
    """A warning of labels that differ only in spelling: 1 and 1.0, A and a, １ and 1."""
    spellings: defaultdict[str, set[str]] = defaultdict(set)
    names = set[str]()
    for value in labels:
        with suppress(BadCellError):
            names |= task.labelling.labels_in(task.labelling.read_label(value, separator))
    for name in names:
        # １ and 1, A and a, 1 and 1.0 have the same key.
        text = unicodedata.normalize("NFKC", name).casefold()
        number = to_number(text)
        # All digits: 50008090 and 50008091 are two codes.
        spellings[text if number is None else repr(number)].add(name)
    several = sorted(sorted(names) for names in spellings.values() if len(names) > 1)
    if not several:
        return ""
    shown = "; ".join(" and ".join(map(repr, names)) for names in several[:3])
    return Message(
        "Labels that differ in spelling alone are different labels here: {labels}.", labels=shown
    )


# Examples


def read_examples(path: str | Path, layout: Layout, columns: ColumnsConfig) -> list[Example]:
    """Read all examples with their labels. Raises InputError as `good_examples`."""
    rows = examples_of(path, layout, columns, labelled=True)
    return layout.task.labelling.complete(good_examples(path, rows, columns.strict))


def good_examples(path: str | Path, rows: Iterable[Example | Row], strict: bool) -> list[Example]:
    """The examples of a file. Bad rows are skipped and reported on stderr.

    Raises InputError that lists the bad rows, under `strict` or if they are the majority; and for a
    file without any example.
    """
    skipped = SkippedRows(path)
    examples = skipped.good(rows)
    # Blank rows are harmless, even under `strict`.
    bad = skipped.count(BLANK)
    if not examples and not bad:
        raise InputError(f"{path} has no example. Add some.")
    if bad and (strict or not examples):
        raise InputError(f"{skipped}. Correct or remove these rows.")
    # A wrong delimiter or column would otherwise train on the few rows that can be read by chance.
    if (unreadable := skipped.count(BLANK, UNLABELLED)) > len(examples):
        raise InputError(
            f"{path}: most rows cannot be read: {unreadable:,}, and {len(examples):,} can:\n"
            f"{skipped}\nFix the file, or remove these rows."
        )
    if skipped.count():
        print(skipped.notice(len(examples)), file=sys.stderr)
    return examples


class TextsToPredict(NamedTuple):
    """The texts of a file to predict."""

    report: str
    """For the user: the columns of the texts; "" for a file without columns."""
    examples: Iterator[Example | Row]
    """One for each row, in order, or the row with its problem; to be read once."""


def open_texts_to_predict(path: str | Path, task: Any, columns: ColumnsConfig) -> TextsToPredict:
    """Open a file of texts to predict; labels are not read.

    A .txt file, or stdin for "-", has one text a line, or the task's two or three separated by
    tabs. A .txt with tabs is a table if its first line names columns of training, or the user names
    columns. Tables have the columns of training, or columns that can only be the texts; CoNLL files
    have units. Raises InputError for a file that cannot be read.
    """
    # Stdin can be read only once: it has no header to look for.
    kind = "txt" if is_stdin(path) else kind_of(path, columns.sheet)
    texts, note = task.text_columns, ""
    if kind == "txt" and not _has_columns(path, task, columns):
        if columns.text_columns and len(texts) == 1:  # several texts in a line have these names
            raise InputError(
                f"{'stdin' if is_stdin(path) else path} has one text in each line, but "
                "--text-columns is for files with columns. Remove it, or give such a file."
            )
        examples = plain_examples(path, task, columns.encoding)
    else:
        if kind != "conll":
            texts, note = columns_to_predict(path, task, columns)
        layout = Layout(task, texts, None, note)
        examples = examples_of(path, layout, columns, labelled=False)
    prepare = task.labelling.for_prediction
    return TextsToPredict(note, (x if isinstance(x, Row) else prepare(x) for x in examples))


def columns_to_predict(
    path: str | Path, task: Any, columns: ColumnsConfig
) -> tuple[tuple[str, ...], str]:
    """The text columns of a file to predict, and a report."""
    usual, named = task.text_columns, columns.text_columns
    if named and len(named) != len(usual):
        raise InputError(
            f"--text-columns is {', '.join(named)}, but the model was trained on "
            f"{', '.join(usual)}. Name as many."
        )
    table = columns.open(path, named or usual)
    units = [name for name in table.columns if folded(name) in UNITS]
    if named or usual[0] in table.columns or not (units and task.labelling.has_units):
        texts, note = find_texts_to_predict(table, usual, columns)
    else:
        # The first column with a usual name of units, such as tokens, whatever it was in training.
        texts, note = (units[0],), Message("by its name")
    report = Message("{place}: {texts}", place=table.place, texts=_name_texts(texts, note))
    return texts, _with_format(report, table, columns.encoding)


def _has_columns(path: str | Path, task: Any, columns: ColumnsConfig) -> bool:
    """Whether a .txt file has tabs, and its first line or the user names columns of texts."""
    names = [] if is_stdin(path) else [*map(folded, first_cells(path, columns.encoding))]
    # Numbers as names mean that training had no header.
    named = all(not n.isdecimal() and folded(n) in names for n in task.text_columns)
    return len(names) > 1 and (bool(columns.text_columns) or named)
