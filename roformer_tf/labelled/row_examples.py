"""The rows of a file → examples, or rows with a problem, one at a time.

A `task` here is one of `tasks.table`, or its class. That folder imports this one, so its type is
`Any`. Reading needs its `name`, its `labelling` and, to predict, its `text_columns`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.readers.kinds import kind_of
from roformer_tf.readers.lines import text_lines
from roformer_tf.readers.records import BLANK, Row
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import read_sentences

Item = TypeVar("Item")


def examples_of(
    path: str | Path, layout: Any, columns: ColumnsConfig, labelled: bool
) -> Iterator[Example | Row]:
    """An Example for every row of a table, or every sentence of CoNLL; or the row with a problem.

    `layout`: the `reading.Layout`. `labelled`: whether the examples are to be learned from, or
    evaluated: then units are read with their labels, which CoNLL has in no named column.
    """
    task, texts, label, _, annotations = layout
    kind = kind_of(path, columns.sheet)
    if kind == "conll":
        if not task.labelling.has_units:
            raise InputError(f"{path} is a CoNLL file, which is for tagging, not {task.name}.")
        sentences = read_sentences(path, columns.encoding, labelled)
        return (read_row(sentence, _sentence) for sentence in sentences)
    if task.labelling.has_units and labelled and annotations is None:
        raise no_units(path, task)
    if kind == "txt" and len(first_cells(path, columns.encoding)) == 1:
        return plain_examples(path, task, columns.encoding)
    table = columns.open(path, (*texts, label))
    if annotations is not None:
        return (read_row(row, annotations.read) for row in table.rows)

    def read(row: Row) -> Example:
        example: Example = task.labelling.read_row(row, texts, label, columns.label_separator)
        if labelled:
            task.labelling.check(example)
        return example

    return (read_row(row, read) for row in table.rows)


def plain_examples(path: str | Path, task: Any, encoding: str) -> Iterator[Example | Row]:
    """An example for every line of a .txt file, or of stdin; several texts are in columns."""
    name, texts = "stdin" if is_stdin(path) else path, task.text_columns
    for number, line in enumerate(text_lines(path, encoding), start=1):
        # Only the line end is removed: white space at the ends of a text belongs to it.
        source_line, line = f"{name}:{number}", line.removesuffix("\n").removesuffix("\r")
        # With one text a line, a tab is part of the text.
        cells = line.split("\t") if len(texts) > 1 else [line]
        if not line.strip():
            row = Row(source_line, {}, BLANK)
        elif len(cells) == len(texts):
            row = Row(source_line, dict(zip(texts, cells, strict=True)))
        else:
            row = Row(source_line, {}, f"has {len(cells)} of {len(texts)} texts, separated by tabs")
        yield read_row(row, task.labelling.read_row, texts, None, "")


def read_row(row: Row, read: Callable[..., Item], *settings: Any) -> Item | Row:
    """What a function reads from a row, such as an example; or the row with its problem."""
    if row.problem:
        return row
    try:
        return read(row, *settings)
    except BadCellError as error:
        return row._replace(cells={}, problem=str(error))


def _sentence(row: Row) -> Example:
    """A sentence of CoNLL."""
    units = row.cells["units"]
    return Example(("".join(units),), row.cells.get("tags"), row.source_line, units)


def no_units(path: str | Path, task: Any) -> InputError:
    """An error for a file without a label for every unit, or without entities."""
    if task.labelling.has_spans:
        return InputError(
            f"{path}: {task.name} needs a column of entities next to the texts, such as "
            '[{"start": 0, "end": 2, "label": "LOC"}] with the end after the last character. Give '
            "such a .jsonl or .parquet file, a .ann file of brat, or a .conll file."
        )
    return InputError(
        f"{path}: {task.name} needs a label for every character or word. Give a .conll file: "
        "one and its tag a line, a blank line between sentences; lists in the columns tokens and "
        "ner_tags of a .jsonl or .parquet file; or by --label-column the column of a table that "
        "has all tags of a text, with spaces between them."
    )


def first_cells(path: str | Path, encoding: str) -> list[str]:
    """The cells of a .txt file's first line that is not blank, such as Excel's "Unicode text"."""
    return next(filter(None, map(str.strip, text_lines(path, encoding))), "").split("\t")
