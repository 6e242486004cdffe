"""Parquet files, and the .arrow files of Hugging Face's `datasets` → records, one at a time.

Repeated values are stored once, so a small file may contain large rows. Texts stay
dictionary-encoded until the size of a row is known.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.readers.records import Record
from roformer_tf.readers.streams import LONGEST, Budget, UnreadableError

# Rows that are converted to Python objects at a time; fewer if they are large.
_ROWS_DECODED = 256
# Rows to read from Parquet at a time. With fewer, dictionaries are copied too often.
_ROWS_READ = 4096
# Minimum bytes of a value: its reference in a list.
_REFERENCE = 8

# The first bytes of a file in Arrow's file format; a stream follows, and then an index.
_FILE_MARK = b"ARROW1\0\0"


# The names of the columns, and the rows, to be read once.
ColumnsAndRows: TypeAlias = tuple[tuple[str, ...], Iterator[Record]]


def parquet_records(source: Any, columns: list[str] | None = None) -> ColumnsAndRows:
    """Open a seekable Parquet file; its rows have all columns, or some.

    Raises UnreadableError for any other file, at damaged rows, and for a file or a row that is too
    large when unpacked.
    """
    budget = Budget(source.seek(0, 2))
    with _report_damage("Parquet"):
        from pyarrow.parquet import ParquetFile

        # Opened twice: only the metadata tell which columns are texts.
        plain = ParquetFile(source)
        # Pages are decompressed, and nulls decoded, as a whole: the declared sizes are checked.
        groups = [plain.metadata.row_group(i) for i in range(plain.metadata.num_row_groups)]
        chunks = [group.column(j) for group in groups for j in range(group.num_columns)]
        budget.check(sum(x.total_uncompressed_size for x in chunks))
        budget.check(sum(x.num_values for x in chunks))
        leaves = [plain.schema.column(i) for i in range(len(plain.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        file = ParquetFile(source, metadata=plain.metadata, read_dictionary=texts)
        batches = file.iter_batches(batch_size=_ROWS_READ, columns=columns)
    schema = plain.schema_arrow
    return tuple(schema.names), _records("Parquet", batches, budget, class_names(schema))


def arrow_records(sources: Sequence[Any]) -> ColumnsAndRows:
    """The rows of open .arrow files with the same columns, numbered from 1 over all files.

    They are in the stream or the file format of Arrow. Raises UnreadableError for any other file,
    for a damaged one, and for rows that are too large when unpacked.
    """
    budget = Budget(sum(source.seek(0, 2) for source in sources))
    with _report_damage("Arrow"):
        import pyarrow as pa

        schema = pa.ipc.open_stream(_start_of_stream(sources[0])).schema
    batches = chain.from_iterable(map(_arrow_batches, sources))
    return tuple(schema.names), _records("Arrow", batches, budget, class_names(schema))


def class_names(schema: Any) -> dict[str, Any]:
    """The features of columns with a `datasets.ClassLabel`, maybe in lists or dictionaries.

    `datasets` writes them into the metadata of the schema, under the key huggingface.
    """
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: x for name, x in features.items() if '"ClassLabel"' in json.dumps(x)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # no metadata, or those of another program


def _records(
    kind: str, batches: Iterable[Any], budget: Budget, names: dict[str, Any]
) -> Iterator[Record]:
    """The rows of batches. `names`: as in `class_names`. Raises UnreadableError at damaged ones."""
    number = 0
    with _report_damage(kind):
        for batch in batches:
            for part in _parts(batch, budget, number):
                for cells in part.to_pylist():
                    for column in names.keys() & cells.keys():
                        cells[column] = class_name(cells[column], names[column])
                    number += 1
                    yield Record(number, cells)


def class_name(value: Any, feature: Any) -> Any:
    """A value with the names of its class numbers; None for -1, an unknown label."""
    # Lists are [feature] or {"_type": "List", "feature": …}, dictionaries {key: feature}. The rows
    # of a `Sequence` of dictionaries are dictionaries of lists.
    inner = feature.get("feature", feature) if isinstance(feature, dict) else feature
    if isinstance(value, list):
        inner = inner[0] if isinstance(feature, list) and feature else inner
        return [class_name(x, inner) for x in value]
    if not isinstance(inner, dict):
        return value
    if isinstance(value, dict):
        return {key: class_name(x, inner.get(key)) for key, x in value.items()}
    names = inner.get("names") if inner.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not isinstance(value, int):
        return value
    return str(names[value]) if 0 <= value < len(names) else None


def _parts(batch: Any, budget: Budget, before: int) -> Iterator[Any]:
    """Split a batch until no part has many rows or is larger than a row may be; decode texts."""
    import pyarrow as pa

    # Of single rows the size is exact enough; of many it may be too high, and halving refines it.
    size = sum(map(_size, batch.columns))
    if len(batch) > _ROWS_DECODED or (size > LONGEST and len(batch) > 1):
        half = len(batch) // 2
        yield from _parts(batch.slice(0, half), budget, before)
        yield from _parts(batch.slice(half), budget, before + half)
        return
    budget.take_row(before + 1, size)
    columns = [  # decoded texts become objects faster; pyarrow cannot decode all other types
        column.dictionary_decode()
        if pa.types.is_dictionary(column.type) and _is_binary(column.type.value_type)
        else column
        for column in batch.columns
    ]
    yield pa.record_batch(columns, names=batch.schema.names)


def _size(array: Any) -> int:
    """An upper bound on the bytes of an array's values once they are decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, own = array.type, _REFERENCE * len(array)
    if pa.types.is_dictionary(kind):
        if pa.types.is_primitive(kind.value_type):
            return own
        if not _is_binary(kind.value_type):
            # An upper bound: the value of a row may be nearly the whole dictionary.
            return own + len(array) * _size(array.dictionary)
        # Each value counts as often as it is referred to.
        counts = pc.value_counts(array.indices)
        values = array.dictionary.take(counts.field("values"))
        sizes = pc.multiply(pc.cast(pc.binary_length(values), "int64"), counts.field("counts"))
        return own + int(pc.sum(sizes).as_py() or 0)
    if _is_binary(kind):
        return own + int(pc.sum(pc.cast(pc.binary_length(array), "int64")).as_py() or 0)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # A view is four integers, of which the first is the length of its text.
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        return own + int(views[array.offset :][: len(array), 0].clip(0).sum(dtype=np.int64))
    if isinstance(kind, pa.BaseExtensionType):
        return _size(array.storage)
    if pa.types.is_map(kind):
        # The keys and items of a slice are those of the whole array; the offsets select its own.
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        parts = (array.keys, array.items)
        return own + sum(_size(part.slice(first, last - first)) for part in parts)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return own + _size(array.flatten())
    if pa.types.is_struct(kind):
        return own + sum(map(_size, array.flatten()))
    if pa.types.is_null(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return own
    raise UnreadableError(f"has a column of the Arrow type {kind}, which is not read. Remove it")


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    of = pa.types
    tests = (of.is_string, of.is_large_string, of.is_binary, of.is_large_binary)
    return any(test(kind) for test in (*tests, of.is_fixed_size_binary))


def _start_of_stream(source: Any) -> Any:
    """Move to the stream: Arrow's file format contains one, after a mark."""
    source.seek(0)
    if source.read(len(_FILE_MARK)) != _FILE_MARK:
        source.seek(0)
    return source


def _arrow_batches(source: Any) -> Iterator[Any]:
    """Yield batches after validation: without it, pyarrow trusts the offsets in a file."""
    import pyarrow as pa

    for batch in pa.ipc.open_stream(_start_of_stream(source)):
        batch.validate(full=True)
        yield batch


@contextmanager
def _report_damage(kind: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException):
        raise UnreadableError(f"is no {kind} file, or damaged. Write it again") from None
