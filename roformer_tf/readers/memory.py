"""Rows in memory → JSON lines, which are then read as a file.

    [("房间很干净", 1)]  →  {"text": "房间很干净", "label": 1}

So columns, bad rows and a resumed run are treated as for any other file: line 12 is row 12.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from reprlib import repr as shortened
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.readers.arrow_tables import class_name, class_names
from roformer_tf.readers.tables import check_different

# Names of the cells of a tuple, by their number: texts, then the label.
COLUMNS: tuple[tuple[str, ...], ...] = (
    ("text",),
    ("text", "label"),
    ("text_a", "text_b", "label"),
    ("text_a", "text_b", "text_c", "label"),
)
_ROWS = (
    "a list of tuples (text, label) or of dictionaries, a pandas or polars data frame, or a "
    "datasets.Dataset"
)


def json_lines(data: Any, name: str, *, unlabelled: int = 0) -> str:
    """The rows of a data frame, a `datasets.Dataset` or a list, each as a line of JSON.

    name: of the data, for messages. unlabelled: how many texts a tuple may have without a label:
    its columns are called 1, 2, …, as those of a file without a header. With more cells the last
    one is the label.
    Raises InputError for anything else, and for a row that is neither a tuple nor a dictionary.
    """
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(data, name, unlabelled)]
    if not lines:
        raise InputError(f"{name} has no rows. Give {_ROWS}.")
    # Half of a surrogate pair is no Unicode; as an escape it is read again as the same character.
    return "".join(lines).encode("utf-8", "backslashreplace").decode()


def _rows(data: Any, name: str, unlabelled: int) -> Iterator[dict[str, Any]]:
    if hasattr(data, "to_dicts"):  # polars
        data = data.to_dicts()
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        check_different(name, list(map(str, data.columns)))  # its rows have only the last one
        data = data.to_dict("records")
    elif isinstance(data, Mapping | bytes | str) or not isinstance(data, Iterable):
        raise InputError(f"{name} is {shortened(data)}. Give the path of a file, or {_ROWS}.")
    # Of a `datasets.Dataset`, as in the files that it writes.
    schema = getattr(getattr(data, "features", None), "arrow_schema", None)
    classes = class_names(schema)
    for number, row in enumerate(data, start=1):
        if hasattr(row, "_asdict"):  # a named tuple, as of `DataFrame.itertuples`
            row = row._asdict()
        if isinstance(row, Mapping):
            yield {str(x): class_name(_plain(y), classes.get(str(x))) for x, y in row.items()}
            continue
        values = [row] if isinstance(row, str) else row
        if hasattr(values, "tolist"):  # a row of an array
            values = values.tolist()
        if not isinstance(values, tuple | list):
            raise InputError(f"row {number} of {name} is {shortened(row)}. Give {_ROWS}.")
        width = len(values)
        if not 1 <= width <= len(COLUMNS):
            raise InputError(
                f"row {number} of {name} has {width} cells, but a tuple has up to three texts and "
                "a label. Give dictionaries, whose keys are the names of columns."
            )
        columns = COLUMNS[width - 1] if width > unlabelled else map(str, range(1, width + 1))
        yield dict(zip(columns, map(_plain, values), strict=True))


def _plain(value: Any) -> Any:
    """A value as JSON has it: NumPy's as Python's, NaN and pandas' NA as null, others as text.

    Bytes are UTF-8; what is not becomes half of a character, which is refused as in a file.
    """
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):  # a tensor of `tf.data`
        value = value.numpy()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy, tensors
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(cell) for key, cell in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(cell) for cell in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=str)
    # By name, so that pandas is not imported.
    if type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, float) and value != value
    ):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)
