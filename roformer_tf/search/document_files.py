"""Files of documents: their texts, ids and metadata, checked before the first one is embedded."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from hashlib import blake2b
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.inference.text_files import TextFileConfig, Texts, checked_rows, checked_texts
from roformer_tf.labelled.cells import read_text
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import find_column
from roformer_tf.labelled.reading import columns_to_predict
from roformer_tf.labelled.row_examples import read_row
from roformer_tf.readers.kinds import kind_of
from roformer_tf.readers.records import Row
from roformer_tf.readers.streams import is_stdin
from roformer_tf.readers.tables import Table

# Characters that JSON always escapes.
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
# The column of ids, unless another one is named.
ID = "id"


class Document(NamedTuple):
    """A text to search for."""

    text: str
    id: str | None = None
    metadata: Mapping[str, Any] = {}
    """Other columns of its file: numbers, strings, true and false."""

    @property
    def metadata_json(self) -> str:
        """The metadata as it is stored, in an order that depends on nothing."""
        # SQLite compares keys as they are written: Chinese must not be escaped, and a key with
        # characters that JSON escapes cannot be a field. A lone surrogate becomes a question mark,
        # since UTF-8 cannot hold it.
        plain = {key: x for key, x in self.metadata.items() if not _ESCAPED.search(key)}
        text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
        return text.encode(errors="replace").decode()

    @property
    def content(self) -> bytes:
        """16 bytes that equal documents share."""
        whole = json.dumps([self.text, self.id, self.metadata_json])
        return blake2b(whole.encode(), digest_size=16).digest()


def checked_documents(
    path: str, config: TextFileConfig, id_column: str | None = None
) -> list[Document]:
    """The documents of a file, with their ids and metadata if it has columns.

    Of several text columns, such as a title and a text, a document has the texts of all, in their
    order. Raises InputError, naming them all, for rows that are empty or cannot be read.
    """
    names, columns = config.text_columns or ("text",), config.columns()
    if is_stdin(path) or kind_of(path, config.sheet) in ("txt", "conll"):
        if id_column is not None:
            raise InputError(f"--id-column {id_column}: {path} is a text file without columns.")
        return checked_texts(path, config, names, lambda texts: Document(" ".join(texts)))

    texts, description = columns_to_predict(path, Texts(text_columns=names), columns)
    table = columns.open(path, names)
    ids = _find_ids(table, texts, id_column)
    rows = (read_row(row, _document, texts, ids) for row in table.rows)
    return checked_rows(path, rows, description)


def _find_ids(table: Table, texts: tuple[str, ...], wanted: str | None) -> str | None:
    """The column of ids: the one that is named, or one called "id", if it is not a text."""
    if wanted is not None:
        return find_column(table, wanted)
    named = [name for name in table.columns if folded(name) == ID and name not in texts]
    return named[0] if len(named) == 1 else None


def _document(row: Row, texts: tuple[str, ...], ids: str | None) -> Document:
    """The document in a row. Raises BadCellError where a text or the id is missing."""
    text = " ".join(read_text(row.cells, column) for column in texts)
    name = None if ids is None else read_text(row.cells, ids)
    rest = {key: x for key, x in row.cells.items() if key not in (*texts, ids)}
    return Document(text, name, as_metadata(rest))


def as_metadata(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a document from its cells, without empty ones."""
    plain = {key: _plain(x) for key, x in cells.items()}
    return {key: x for key, x in plain.items() if x is not None}


def _plain(value: Any) -> str | float | bool | None:
    """A cell as metadata: a number also where it is written as text, but not "007"."""
    # Larger integers become text below: those of SQLite have 64 bits.
    if value is None or (isinstance(value, bool | int) and abs(value) < 2**63):
        return value
    if isinstance(value, float):
        # JSON has neither NaN nor infinity: they count as empty cells.
        return value if abs(value) < float("inf") else None
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = str(value).strip()
    if isinstance(value, date):  # without a time at midnight, as spreadsheets have it
        text = text.removesuffix(" 00:00:00")
    # A number only if it is written as Python would: "007" and "1.50" may be codes or
    # versions. Above these limits SQLite's integers and real numbers would change digits.
    for number, limit in ((int, 2**63), (float, 2**53)):
        with suppress(ValueError):
            if str(number(text)) == text and abs(number(text)) < limit:
                return number(text)
    return text or None
