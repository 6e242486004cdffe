"""A cell of a table → a text, a label, or an error."""

import ast
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from reprlib import repr as shortened
from typing import Any

from roformer_tf.readers.lines import damage
from roformer_tf.readers.spreadsheets import UncomputedFormula, number_text

# Around texts and labels: byte order marks and zero-width spaces, left by joined or copied files.
_INVISIBLE = "\ufeff\u200b\u200c\u200d\u2060"
# Numbers as spreadsheets show them.
_SHOWN = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([%％]?)", re.ASCII)
# NumPy prints an array of texts without commas: ['a' 'b'].
_ADJACENT = re.compile(r"(['\"])\s+(?=['\"])")


class BadCellError(ValueError):
    """A cell that is no text, or no label. The message follows a line: "has …" or "is …"."""


def find_cell(cells: dict[str, Any], column: str) -> Any:
    """The cell of a column. Raises BadCellError if the row does not have it."""
    if column not in cells:  # JSON objects of one file may have different keys
        raise BadCellError(f"has no {column!r}")
    return cells[column]


def read_text(cells: dict[str, Any], column: str) -> str:
    """The text in a column; a number as text. Raises BadCellError if there is none."""
    text = find_cell(cells, column)
    # An UncomputedFormula is an empty str: without this check, the problem would be an empty text.
    _check_computed(text)
    if is_missing(text):
        raise BadCellError(f"has an empty text in {column!r}")
    if isinstance(text, int | float):
        text = number_text(text)
    if isinstance(text, bytes):
        raise BadCellError(f"has binary data in {column!r}, which is no text: write it as text")
    if not isinstance(text, str):
        raise BadCellError(f"has a {type(text).__name__} in {column!r}, which is no text")
    return _sound(text)


def read_texts(cells: dict[str, Any], column: str) -> tuple[str, ...]:
    """The texts in a column that may hold a list of them. Raises BadCellError as `read_text`."""
    texts = parsed(find_cell(cells, column))
    if not isinstance(texts, list | tuple):
        return (read_text(cells, column),)
    return tuple(read_text({column: text}, column) for text in texts)


def read_label(value: Any) -> str:
    """A label as text, without white space or invisible characters around it; NaN means none.

    Raises BadCellError for a missing label, and for a list of several labels.
    """
    if isinstance(value, list | tuple) and len(value) < 2:  # as doccano writes it
        value = value[0] if value else None
    if isinstance(value, list | tuple | dict):
        raise BadCellError(f"has the label {shortened(value)}, but the task takes a single one")
    _check_computed(value)
    if is_missing(value):
        raise BadCellError("has no label")
    return _sound(stripped(value))


def read_labels(value: Any, separator: str) -> tuple[str, ...]:
    """Several labels, each once and sorted; none in an empty cell."""
    _check_computed(value)
    labels = listed(value, separator)
    return tuple(sorted({read_label(label) for label in labels if stripped(label)}))


def parsed(value: Any) -> Any:
    """The list or dictionary that a text is, as JSON or pandas writes it; any other value as is.

    Label Studio's CSV and short JSON have {"choices": […]} for several labels: it is the list.
    """
    value = _parsed(value)
    return value["choices"] if isinstance(value, dict) and [*value] == ["choices"] else value


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and (text := value.strip()).startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            # NumPy's ['a' 'b'] would be 'ab' in Python.
            return ast.literal_eval(_ADJACENT.sub(r"\1, ", text))
    return value


def listed(value: Any, separator: str) -> Sequence[Any]:
    """The labels of a cell as they are written: a list, also as text, or what is separated."""
    value = parsed(value)
    if value is None:
        return []
    if isinstance(value, str):
        return value.split(separator)
    return value if isinstance(value, list | tuple) else [value]


def is_missing(value: Any) -> bool:
    """Whether a label is missing: empty, null or NaN. The text "nan" is a label: 男 in pinyin."""
    # Only NaN differs from itself. MySQL writes \N for NULL.
    return value is None or value != value or stripped(value) in ("", r"\N")


def stripped(value: Any) -> str:
    """A cell as text, without white space or invisible characters around it."""
    # pandas writes 1 as 1.0 in a column with missing values.
    whole = isinstance(value, float) and value.is_integer()
    # White space may be on both sides of an invisible character, as in " \ufeff 好".
    return str(int(value) if whole else value).strip().strip(_INVISIBLE).strip()


def ellipsized(text: str, length: int) -> str:
    """The first characters of a text, for a message or a report."""
    return text if len(text) <= length else f"{text[:length]}…"


def to_number(value: Any, as_shown: bool = False) -> float | None:
    """A finite number, also if spelled as text, or `as_shown`: 1,234.5 or 85%; else None."""
    if isinstance(value, str):
        value = stripped(value)
        if "_" in value:  # a code: float("1_2") is 12.0
            return None
        if as_shown and (shown := _SHOWN.fullmatch(value)):
            # A cell of an .xlsx that shows 85% holds 0.85.
            value = float(shown[1].replace(",", "")) / (100 if shown[2] else 1)
    # float(True) is 1.0, but True is no number in a table.
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # a whole number of over 308 digits
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def _check_computed(value: Any) -> None:
    if isinstance(value, UncomputedFormula):
        raise BadCellError(
            "has an error such as #N/A, or a formula without a stored value: correct it, or open "
            "the file in Excel or WPS, and save it"
        )


def _sound(text: str) -> str:
    if problem := damage(text):
        raise BadCellError(problem)
    return text
