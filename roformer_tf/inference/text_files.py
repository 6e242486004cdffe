"""Files of texts that are answered whole or not at all: checked first, then read again.

What cannot be answered line by line, as a matrix of vectors cannot, must know before it begins
that every row holds a text, and how many there are.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import IO, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import FirstLine, find_texts_to_predict, open_named
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import ColumnsConfig, open_unanswered
from roformer_tf.labelled.skipped import BadLine, SkippedRows
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import kind_of


@dataclass(frozen=True, kw_only=True)
class TextFileConfig:
    """How files of texts are read. What is not given is found."""

    text_columns: tuple[str, ...] = ()
    """Column of the texts, by name or by number from 1; of documents several, such as a title's and
    a text's, which are read one behind the other."""
    encoding: str = "auto"
    """Of the files, such as utf-8 or gb18030; "auto" finds out."""
    first_line: FirstLine = "auto"
    """What the first line of a tsv, csv or xlsx is: a header or a text; "auto" finds out."""
    sheet: str | None = None
    """Sheet of an .xlsx file, by its name; unset, the first that is not hidden, nor empty."""

    def columns(self) -> ColumnsConfig:
        """The same, as files of examples are read."""
        return ColumnsConfig(
            text_columns=self.text_columns,
            encoding=self.encoding,
            first_line=self.first_line,
            sheet=self.sheet,
        )


@dataclass(frozen=True)
class TextRow:
    """What reading a file asks of a task: one text a row, or several."""

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

    def check(self, example: Example) -> None:
        """Every text will do."""

    def for_prediction(self, example: Example) -> Example:
        """The example as it is."""
        return example


class Document(NamedTuple):
    """What is searched for."""

    text: str
    name: str | None = None
    """Its `id`, where its file has a column of them."""

    @property
    def key(self) -> bytes:
        """16 bytes that equal documents share."""
        return blake2b(json.dumps(self).encode(), digest_size=16).digest()


@dataclass
class CheckedTexts:
    """The texts of a file, all there: row by row, as often as they are asked for."""

    said: str
    """For the user: which columns were found; "" where nothing is to be said."""
    _file: IO[str]
    rows: int = 0

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        self._file.seek(0)
        for line in self._file:
            yield tuple(json.loads(line))

    def texts(self) -> Iterator[str]:
        """Those of rows that have one."""
        return (text for (text,) in self)


@contextmanager
def checked_texts(
    path: str, config: TextFileConfig, columns: tuple[str, ...] = ("text",)
) -> Iterator[CheckedTexts]:
    """The texts of any file that `predict` reads, or of the standard input for "-".

    They lie in a temporary file meanwhile, so that memory holds one at a time and a pipe is read
    once. Raises InputError, naming them all, for rows that are empty or cannot be read, and for a
    file without any.
    """
    unanswered = open_unanswered(path, TextRow(columns), config.columns())
    name = "stdin" if is_stdin(path) else path
    skipped = SkippedRows(name)
    with tempfile.TemporaryFile("w+", encoding="ascii") as file:
        found = CheckedTexts(unanswered.said, file)
        for row in unanswered.examples:
            if isinstance(row, BadLine):
                skipped.add(row)
            else:
                file.write(json.dumps(row.texts) + "\n")  # ASCII: lone surrogates, too
                found.rows += 1
        if skipped.rows:
            bad = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
            which = "1 row has" if skipped.rows == 1 else f"{skipped.rows:,} rows have"
            raise InputError(f"{which} no text:\n{bad}\nMend them, or leave them out.")
        if not found.rows:
            raise InputError(f"{name} holds no text. Give a file with one in each line.")
        yield found


class CheckedDocuments:
    """Documents of a file, all there: one by one, as often as they are asked for.

    Of several columns, such as a title and a text, a document is the words of all, in their order.
    """

    def __init__(self, rows: CheckedTexts, named: bool) -> None:
        self.said, self._rows, self._named = rows.said, rows, named

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Document]:
        for row in self._rows:
            name, texts = (row[0], row[1:]) if self._named else (None, row)
            yield Document(" ".join(texts), name)


@contextmanager
def checked_documents(path: str, config: TextFileConfig) -> Iterator[CheckedDocuments]:
    """The documents of a file, with their names where it has a column `id`.

    Raises InputError as `checked_texts` does.
    """
    name, texts = _document_columns(path, config)
    reading = replace(config, text_columns=(*name, *texts)) if name else config
    with checked_texts(path, reading, (*name, *texts)) as rows:
        yield CheckedDocuments(rows, bool(name))


def _document_columns(path: str, config: TextFileConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The column of a file's names, if it has one, and those of its texts."""
    wanted = config.text_columns or ("text",)
    if is_stdin(path) or kind_of(path, config.sheet) in ("txt", "conll"):
        return (), wanted
    table = open_named(
        path, config.encoding, wanted, config.first_line, config.sheet, labelled=False
    )
    names = [name for name in table.columns if folded(name) == "id"]
    texts, _ = find_texts_to_predict(path, table, wanted, config.first_line)
    if len(names) != 1 or names[0] in texts:
        return (), wanted
    return (names[0],), texts
