"""Files of texts that are checked as a whole before any text is used, and then read again.

A matrix of vectors, for example, needs the number of texts, and a text in every row.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import read_text
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import BadLine, Example, SkippedRows
from roformer_tf.labelled.headers import FirstLine
from roformer_tf.labelled.reading import open_unanswered
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Row


@dataclass(frozen=True, kw_only=True)
class TextFileConfig:
    """How files of texts are read."""

    text_columns: tuple[str, ...] = ()
    """Columns of the texts, by name or by number from 1. Default: by their usual names, or those of
    training. Of documents several, such as title and text, are read as one."""
    encoding: str = "auto"
    """Of the files, such as utf-8 or gb18030. Default: detected."""
    first_line: FirstLine = "auto"
    """Whether the first line of a tsv, csv or xlsx is a header or an example. Default: detected."""
    sheet: str | None = None
    """Name of the sheet of an .xlsx file. Default: the first that is not hidden or empty."""

    def columns(self) -> ColumnsConfig:
        """The same settings for files of examples."""
        return ColumnsConfig(
            text_columns=self.text_columns,
            encoding=self.encoding,
            first_line=self.first_line,
            sheet=self.sheet,
        )


@dataclass(frozen=True)
class TextRow:
    """Stands in for a task when a file of texts is read: one text a row, or several."""

    text_columns: tuple[str, ...] = ("text",)
    name: str = "texts"
    has_units: bool = False
    label_optional: bool = False
    label_separator: str = ","

    @property
    def labelling(self) -> "TextRow":
        """Itself: what a task has in a part of its own."""
        return self

    @property
    def text_counts(self) -> tuple[int, ...]:
        """How many texts a row has."""
        return (len(self.text_columns),)

    def read_row(
        self, row: Row, texts: Sequence[str], label: str | None, separator: str
    ) -> Example:
        """The texts of a row, without a label."""
        return Example(tuple(read_text(row.cells, column) for column in texts), None, row.place)

    def check(self, example: Example) -> None:
        """Accept every text."""

    def for_prediction(self, example: Example) -> Example:
        """Leave the example unchanged."""
        return example


@dataclass
class CheckedTexts:
    """The texts of a file, of which every row has one; it can be read several times."""

    said: str
    """For the user: the columns that were detected; or ""."""
    _file: IO[str]
    rows: int = 0

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        self._file.seek(0)
        for line in self._file:
            yield tuple(json.loads(line))

    def texts(self) -> Iterator[str]:
        """The texts, where a row has one."""
        return (text for (text,) in self)


@contextmanager
def checked_texts(
    path: str, config: TextFileConfig, columns: tuple[str, ...] = ("text",)
) -> Iterator[CheckedTexts]:
    """The texts of any file that `predict` reads, or of the standard input for "-".

    They are kept in a temporary file, so that memory holds one at a time and a pipe is read once.
    Raises InputError, naming them all, for rows that are empty or cannot be read, and for a file
    without any text.
    """
    unanswered = open_unanswered(path, TextRow(columns), config.columns())
    name = "stdin" if is_stdin(path) else path
    skipped = SkippedRows(name)
    with tempfile.TemporaryFile("w+", encoding="ascii") as file:
        checked = CheckedTexts(unanswered.report, file)
        for row in unanswered.examples:
            if isinstance(row, BadLine):
                skipped.add(row)
            else:
                # In ASCII, since JSON may hold a lone surrogate.
                file.write(json.dumps(row.texts) + "\n")
                checked.rows += 1
        if skipped.rows:
            bad = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
            which = "1 row has" if skipped.rows == 1 else f"{skipped.rows:,} rows have"
            raise InputError(f"{which} no text:\n{bad}\nFix or remove them.")
        if not checked.rows:
            raise InputError(f"{name} holds no text. Give a file with one in each line.")
        yield checked
