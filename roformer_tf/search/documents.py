"""Files of documents: their texts, ids and metadata, checked before the first one is embedded."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.files import remove, write_text
from roformer_tf.inference.text_files import TextFileConfig, TextRow, checked_texts
from roformer_tf.labelled.cells import BadCellError, read_text
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import find_column, find_texts_to_predict, open_named
from roformer_tf.labelled.examples import BadLine, Example, SkippedRows
from roformer_tf.labelled.reading import open_unanswered
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Row, Table, kind_of

# Of a reranker, in the run's folder, not in the model's: that is published, and these are the
# user's texts. What `search --rerank` measured on them is stored in the second file.
VALIDATION_PAIRS = "validation_pairs.jsonl"
MEASURED = "reranking.json"
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
ID = "id"
"""The column of ids, unless another one is named."""


class Document(NamedTuple):
    """A text to search for."""

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] = {}
    """Other columns of its file: numbers, strings, true and false."""

    @property
    def metadata_json(self) -> str:
        """The metadata as it is stored, in an order that depends on nothing."""
        # SQLite compares keys as they are written: Chinese must not be escaped, and what JSON
        # always escapes cannot be a field. A lone surrogate, which UTF-8 cannot hold, becomes "?"
        plain = {key: x for key, x in self.metadata.items() if not _ESCAPED.search(key)}
        text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
        return text.encode(errors="replace").decode()

    @property
    def content(self) -> bytes:
        """16 bytes that equal documents share."""
        whole = json.dumps([self.text, self.id, self.metadata_json])
        return blake2b(whole.encode(), digest_size=16).digest()


class CheckedDocuments:
    """Documents of a file, all of them readable; can be iterated several times."""

    def __init__(self, description: str, file: IO[str]) -> None:
        self.description = description
        """For the user: which columns hold the texts; "" where that is obvious."""
        self._file = file
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        self._file.seek(0)
        for line in self._file:
            yield Document(*json.loads(line))

    def append(self, document: Document) -> None:
        """Add one; it is in a temporary file, as documents may be many."""
        self._file.write(json.dumps(document) + "\n")  # ASCII: lone surrogates, too
        self._count += 1


@contextmanager
def checked_documents(
    path: str, config: TextFileConfig, id_column: str | None = None
) -> Iterator[CheckedDocuments]:
    """The documents of a file, with their ids and metadata if it has columns.

    Of several text columns, such as a title and a text, a document has the texts of all, in their
    order. Raises InputError, naming them all, for rows that are empty or cannot be read.
    """
    if is_stdin(path) or kind_of(path, config.sheet) in ("txt", "conll"):
        if id_column is not None:
            raise InputError(f"--id-column {id_column}: {path} is a text file without columns.")
        with (
            checked_texts(path, config, config.text_columns or ("text",)) as rows,
            _temporary() as file,
        ):
            documents = CheckedDocuments(rows.said, file)
            for texts in rows:
                documents.append(Document(" ".join(texts)))
            yield documents
        return
    names = config.text_columns or ("text",)

    def opened() -> Table:
        return open_named(path, config.encoding, names, config.first_line, config.sheet)

    table = opened()
    texts, _ = find_texts_to_predict(path, table, names, config.first_line)
    ids = _find_ids(path, table, texts, id_column)
    reading = replace(config, text_columns=texts).columns()
    description = open_unanswered(path, TextRow(texts), reading).said
    skipped = SkippedRows(path)
    with _temporary() as file:
        documents = CheckedDocuments(description, file)
        for row in opened().rows:
            try:
                documents.append(_document(row, texts, ids))
            except BadCellError as error:
                skipped.add(BadLine(row.place, str(error)))
        if skipped.rows:
            bad = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
            which = "1 row has" if skipped.rows == 1 else f"{skipped.rows:,} rows have"
            raise InputError(f"{which} no text:\n{bad}\nFix them, or remove them.")
        if not len(documents):
            raise InputError(f"{path} has no document. Give a file with one in each row.")
        yield documents


def _temporary() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="ascii")


def _find_ids(path: str, table: Table, texts: tuple[str, ...], wanted: str | None) -> str | None:
    """The column of ids: the one that is named, or one called "id", if it is not a text."""
    if wanted is not None:
        column = str(find_column(path, table, wanted))
        if column in texts:
            raise InputError(f"{path}: the column {column} is given both as text and as id.")
        return column
    named = [name for name in table.columns if folded(name) == ID and name not in texts]
    return named[0] if len(named) == 1 else None


def _document(row: Row, texts: tuple[str, ...], ids: str | None) -> Document:
    """Read a row. Raises BadCellError where it has no text, or no id."""
    if row.problem:
        raise BadCellError(row.problem)
    text = " ".join(read_text(row.cells, column) for column in texts)
    name = None
    if ids is not None:
        value = row.cells.get(ids)
        name = str(value) if type(value) is int else read_text(row.cells, ids)
    others = {key: x for key, x in row.cells.items() if key not in (*texts, ids)}
    metadata = {key: _plain(x) for key, x in others.items()}
    return Document(text, name, {key: x for key, x in metadata.items() if x is not None})


def _plain(value: Any) -> str | float | bool | None:
    """A cell as metadata: a number also where it is written as text, but not "007"."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = value.isoformat() if isinstance(value, date) else str(value).strip()
    for number in (int, float):
        try:
            if str(number(text)) == text and abs(number(text)) < 2**53:
                return number(text)
        except ValueError:
            pass
    return text or None


def write_validation_pairs(folder: Path, examples: Sequence[Example]) -> None:
    """Write the pairs that a reranker was validated on into the run's folder."""
    remove(folder / MEASURED)
    lines = (json.dumps({"texts": x.texts, "label": x.label}) for x in examples)
    write_text(folder / VALIDATION_PAIRS, "".join(f"{line}\n" for line in lines))
