"""Parquet files, and the .arrow files of Hugging Face's `datasets` → records, one at a time.

Repeated values are stored once, so a small file may hold large rows: texts stay dictionary-encoded
until the size of a row is known.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.readers.budget import LONGEST, Budget, LimitError, check_row
from roformer_tf.readers.records import Record
from roformer_tf.readers.streams import DamagedError

_ROWS_DECODED = 256
"""Rows that are Python objects at a time, or fewer of large ones."""
_ROWS_READ = 4096
"""Rows that are read from Parquet at a time. With fewer, dictionaries are copied too often."""
_REFERENCE = 8
"""Bytes that a value counts at least: what a list takes for it."""


_ARROW_FILE = b"ARROW1"
"""How a file in Arrow's file format begins and ends."""
_DICTIONARY, _BATCH = 2, 3  # types of messages


class _Table(NamedTuple):
    """A table of a flatbuffer."""

    data: bytes
    start: int

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        """The outermost one."""
        return cls(data, *struct.unpack_from("<I", data))

    def place(self, field: int) -> int:
        """Where a field is; 0 for one that is absent."""
        (back,) = struct.unpack_from("<i", self.data, self.start)
        (size,) = struct.unpack_from("<H", self.data, self.start - back)
        at = 4 + 2 * field
        if at >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, self.start - back + at)
        return self.start + int(offset) if offset else 0

    def _followed(self, field: int) -> int:
        place = self.place(field)
        return place + int(struct.unpack_from("<I", self.data, place)[0])

    def table(self, field: int) -> "_Table":
        """The table in a field."""
        return _Table(self.data, self._followed(field))

    def structs(self, field: int, layout: str) -> list[tuple[Any, ...]]:
        """The vector of structs in a field."""
        if not self.place(field):
            return []
        start = self._followed(field)
        (count,) = struct.unpack_from("<I", self.data, start)
        size = struct.calcsize(layout)
        return list(struct.iter_unpack(layout, self.data[start + 4 :][: count * size]))


class ParquetRecords:
    """The rows of an open Parquet file, whose position may be moved.

    Raises DamagedError for any other file, and where damaged rows are read; LimitError for a file
    or a row that is too large inside.
    """

    def __init__(self, source: Any) -> None:
        self._budget = Budget(source.seek(0, 2))
        with _damage_met("Parquet"):
            from pyarrow.parquet import ParquetFile

            plain = ParquetFile(source)
            self._check_declared(plain.metadata)
            schema = plain.schema
            leaves = [schema.column(i) for i in range(len(schema))]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            self._file = ParquetFile(source, metadata=plain.metadata, read_dictionary=texts)
        self._names = class_names(plain.schema_arrow)
        self.columns: tuple[str, ...] = tuple(plain.schema_arrow.names)
        self.rows: int = plain.metadata.num_rows

    def _check_declared(self, metadata: Any) -> None:
        """Check what the file declares: pages are decompressed, and nulls decoded, as a whole."""
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        columns = [group.column(j) for group in groups for j in range(group.num_columns)]
        self._budget.check(sum(column.total_uncompressed_size for column in columns))
        self._budget.check(sum(column.num_values for column in columns))

    def read(self, columns: list[str] | None = None) -> Iterator[Record]:
        """Yield the rows with all columns, or some."""
        number = 0
        with _damage_met("Parquet"):
            for batch in self._file.iter_batches(batch_size=_ROWS_READ, columns=columns):
                for cells in _decoded(batch, self._budget, number, self._names):
                    number += 1
                    yield Record(number, cells)


class ArrowRecords:
    """The rows of .arrow files, in the stream or the file format of Arrow.

    Raises DamagedError for any other file and for one that is damaged, LimitError for rows that are
    too large inside and for compressed files.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        """`sources`: open files, all with the same columns."""
        self._sources = sources
        with _damage_met("Arrow"):
            schema = _arrow_reader(sources[0]).schema
        self._names = class_names(schema)
        self.columns: tuple[str, ...] = tuple(schema.names)

    def read(self) -> Iterator[Record]:
        """Yield the rows of all files, numbered from 1."""
        number = 0
        for source in self._sources:
            budget = Budget(source.seek(0, 2))
            with _damage_met("Arrow"):
                for batch in _arrow_batches(source):
                    for cells in _decoded(batch, budget, number, self._names):
                        number += 1
                        yield Record(number, cells)


def class_names(schema: Any) -> dict[str, list[str]]:
    """Names of the integers in columns of `datasets.ClassLabel`, or lists of them, by the column.

    `datasets` writes them into the schema's metadata, under the key huggingface.
    """
    found = {}
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        for column, feature in features.items():
            while isinstance(feature, list) or feature.get("_type") != "ClassLabel":
                feature = feature[0] if isinstance(feature, list) else feature.get("feature")
                if not isinstance(feature, dict | list):
                    break
            else:
                found[column] = [str(name) for name in feature["names"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # no metadata, or another program's
    return found


def _decoded(
    batch: Any, budget: Budget, before: int, names: dict[str, list[str]]
) -> Iterator[dict[str, Any]]:
    """The rows of a batch as dictionaries. `before`: rows of the file before it."""
    for start in range(0, len(batch), _ROWS_DECODED):
        for part in _parts(batch.slice(start, _ROWS_DECODED), budget, before + start):
            for cells in part.to_pylist():
                for column in names.keys() & cells.keys():
                    cells[column] = _named(cells[column], names[column])
                yield cells


def _named(value: Any, names: list[str]) -> Any:
    """A class's name by its number; of -1, which stands for an unknown label, None."""
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def _parts(batch: Any, budget: Budget, before: int) -> Iterator[Any]:
    """Cut a batch until no part is larger than a row may be, and decode texts."""
    import pyarrow as pa

    size = sum(map(_size, batch.columns))
    if size > LONGEST and len(batch) > 1:
        half = len(batch) // 2
        yield from _parts(batch.slice(0, half), budget, before)
        yield from _parts(batch.slice(half), budget, before + half)
        return
    check_row(before + 1, size)
    budget.take(size)
    columns = [  # which makes objects faster; pyarrow cannot decode all others
        column.dictionary_decode() if _is_text_dictionary(column.type) else column
        for column in batch.columns
    ]
    yield pa.record_batch(columns, names=batch.schema.names)


def _is_text_dictionary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(kind)) and _is_binary(kind.value_type)


def _size(array: Any) -> int:
    """How many bytes the values of an array take once they are decoded, or more."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, own = array.type, _REFERENCE * len(array)
    if pa.types.is_dictionary(kind):
        if pa.types.is_primitive(kind.value_type):
            return own
        if not _is_binary(kind.value_type):
            return own + len(array) * _size(array.dictionary)
        counts = pc.value_counts(array.indices)
        values = array.dictionary.take(counts.field("values"))
        sizes = pc.multiply(pc.cast(pc.binary_length(values), "int64"), counts.field("counts"))
        return own + int(pc.sum(sizes).as_py() or 0)
    if _is_binary(kind):
        return own + int(pc.sum(pc.cast(pc.binary_length(array), "int64")).as_py() or 0)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # A view is four integers, the first of which is its text's length.
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        return own + int(views[array.offset :][: len(array), 0].clip(0).sum(dtype=np.int64))
    if isinstance(kind, pa.BaseExtensionType):
        return _size(array.storage)
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        parts = (array.keys, array.items)
        return own + sum(_size(part.slice(first, last - first)) for part in parts)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return own + _size(array.flatten())
    if pa.types.is_struct(kind):
        return own + sum(map(_size, array.flatten()))
    if pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return own
    raise LimitError(f"has a column of the Arrow type {kind}, which is not read. Leave it out")


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    of = pa.types
    tests = (of.is_string, of.is_large_string, of.is_binary, of.is_large_binary)
    return any(test(kind) for test in (*tests, of.is_fixed_size_binary))


def _arrow_reader(source: Any) -> Any:
    """Open the file format, which begins with a mark, or the stream format."""
    import pyarrow as pa

    return pa.ipc.open_file(source) if _is_file(source) else pa.ipc.open_stream(source)


def _is_file(source: Any) -> bool:
    source.seek(0)
    mark = source.read(len(_ARROW_FILE))
    source.seek(0)
    return bool(mark == _ARROW_FILE)


def _arrow_batches(source: Any) -> Iterator[Any]:
    """Yield batches whose buffers are checked: pyarrow trusts a file's offsets unless asked.

    Raises LimitError for compressed batches, which pyarrow decompresses as a whole.
    """
    if any(map(_is_compressed, _headers(source))):
        raise LimitError("is compressed inside. Write it uncompressed, or as .parquet")
    batches = reader = _arrow_reader(source)
    if hasattr(reader, "num_record_batches"):  # the file format's reader is no iterator
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _headers(source: Any) -> Iterator[_Table]:
    """The headers of all dictionaries and batches, which pyarrow does not show.

    They are flatbuffers of the format's messages: https://arrow.apache.org/docs/format/IPC.html.
    """
    if _is_file(source):
        end = source.seek(-len(_ARROW_FILE) - 4, 2)
        (size,) = struct.unpack("<i", source.read(4))
        source.seek(end - size)
        footer = _Table.root(source.read(size))
        # Of dictionaries and of batches: blocks of an offset, two numbers and the body's length
        starts = [block[0] for field in (2, 3) for block in footer.structs(field, "<qiiq")]
        messages = (_message_at(source, start) for start in starts)
    else:
        import pyarrow as pa

        stream = pa.ipc.MessageReader.open_stream(source)
        messages = (message.metadata.to_pybytes() for message in stream)
    for message in messages:
        root = _Table.root(message)
        kind = message[root.place(1)]
        if kind in (_DICTIONARY, _BATCH):
            header = root.table(2)
            yield header.table(1) if kind == _DICTIONARY else header


def _message_at(source: Any, start: int) -> bytes:
    """The flatbuffer of a message, after its mark and length."""
    source.seek(start)
    _, size = struct.unpack("<ii", source.read(8))
    return bytes(source.read(max(0, size)))


def _is_compressed(batch: _Table) -> bool:
    return bool(batch.place(3))


@contextmanager
def _damage_met(what: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException, struct.error, IndexError):
        raise DamagedError(f"{what} data cut off or damaged") from None
