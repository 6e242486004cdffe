"""Files of texts that are read and checked as a whole before any text is used.

A matrix of vectors, for example, needs the number of texts, and a text in every row.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import SkippedRows
from roformer_tf.labelled.headers import FirstLine
from roformer_tf.labelled.reading import open_texts_to_predict
from roformer_tf.readers.records import BLANK, Row
from roformer_tf.readers.streams import is_stdin
from roformer_tf.tasks.classification import Classification
from roformer_tf.translation import Message, Translator, terminal_language


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
        return ColumnsConfig(**vars(self))


@dataclass(frozen=True, kw_only=True)
class Texts(Classification):
    """Replaces a task when a file of texts is read: one text per row, or several."""

    name: ClassVar[str] = "texts"


def checked_rows(name: str, rows: Iterable[Any], description: str, blank: bool = True) -> list[Any]:
    """The rows of a file by its name, among which bad ones are a `Row`.

    description: printed on stderr, such as which columns are read; then which blank rows are
    skipped. Raises InputError, naming all of them, for other bad rows, without `blank` for blank
    ones, too, and for a file without any row.
    """
    skipped = SkippedRows(name)
    checked = skipped.good(rows)
    bad = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
    if skipped.count(*([BLANK] if blank else [])):
        raise InputError(f"rows without text: {skipped.count():,}\n{bad}\nFix or remove them.")
    if not checked:
        raise no_text(name)
    report(description, f"rows skipped: {skipped.count():,}\n{bad}" if bad else "")
    return checked


def no_text(name: str) -> InputError:
    """An error for a file without any row."""
    return InputError(
        Message("{name} holds no text. Give a file with one in each line.", name=name)
    )


def checked_texts(
    path: str,
    config: TextFileConfig,
    columns: tuple[str, ...] = ("text",),
    make: Callable[[Sequence[str]], Any] = lambda texts: texts[0],
    blank: bool = True,
) -> list[Any]:
    """The texts of any file that `predict` reads, or of the standard input for "-".

    make: what a row of several texts becomes; `blank`: of `checked_rows`, which also raises
    InputError.
    """
    to_predict = open_texts_to_predict(path, Texts(text_columns=columns), config.columns())
    rows = (row if isinstance(row, Row) else make(row.texts) for row in to_predict.examples)
    return checked_rows("stdin" if is_stdin(path) else path, rows, to_predict.report, blank)


def check_not_blank(name: str, texts: Sequence[str]) -> None:
    """Raise InputError for a text of the command line that is blank."""
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise InputError(f"{name} {number} is blank. Give a text.")


def report(*lines: str) -> None:
    """Print lines on stderr, except empty ones: the standard output holds predictions alone."""
    for line in filter(None, lines):
        print(Translator(terminal_language())(line), file=sys.stderr)
