"""Sheets of .xlsx files, as offices send them → records.

Read by openpyxl, a row at a time; but all texts of a workbook stand in one list of it, and the row
being read is a tree, both in memory. So what a file may hold is bounded before openpyxl sees it.
"""

import warnings
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime, time
from pathlib import Path
from typing import IO, Any, BinaryIO

from roformer_tf.errors import InputError
from roformer_tf.readers.records import Record
from roformer_tf.readers.streams import PIECE, ReadError, opened_as_stored

MAX_BYTES = 1 << 29
"""What a file may unpack to: a million texts of 150 Chinese characters."""
MAX_RATIO = 100
"""Times its own size that a file may unpack to, from `UNSUSPICIOUS` on. Usual ones: 5 to 20."""
UNSUSPICIOUS = 1 << 22
"""Bytes that any file may unpack to."""
MAX_ELEMENTS = 12_000_000
"""XML elements of one member: three columns of all rows that a sheet may have take 7 million."""
MAX_UNFINISHED = 500_000
"""Of them, those between the ends of rows or texts: a row of all 16,384 cells has 50,000."""
MAX_TEXT = 1 << 24
"""Bytes without an element between: a cell holds 32,767 characters."""
MAX_ROWS = 1 << 20
"""Rows of a sheet; Excel has no more."""

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How files of Office begin that are encrypted, or older than .xlsx."""


def sheet_records(path: str | Path, sheet: str | None = None) -> tuple[str, Iterator[Record]]:
    """Open a sheet: its name where it is one of several, else "", and its rows that are not blank.

    None is the first sheet that is not hidden and has a cell that is not empty. All rows have at
    least as many cells as the first. Raises InputError for a file that is none, encrypted or
    damaged, would unpack to what no such file does, has no such sheet, and where openpyxl is not
    installed.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise InputError(
            f"{path} is read by openpyxl, which is not installed. Run `pip install "
            "'roformer-tf[xlsx]'`, or save the file as .csv."
        ) from None
    raw = opened_as_stored(path)
    try:
        _check(raw, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not text, such as rules for input
            book = load_workbook(raw, read_only=True, data_only=True, keep_links=False)
    except InputError:
        raise
    except Exception as error:  # openpyxl has none of its own for a broken file
        raise _damaged(path, error) from None
    sheets = {one.title: one for one in book.worksheets}
    if not sheets:
        raise InputError(f"{path} has no sheet with cells. Give a file that has one.")
    for one in sheets.values():
        one.reset_dimensions()  # what a file says of them may be wrong
    if sheet is None:
        visible = [name for name, one in sheets.items() if one.sheet_state == "visible"]
        some = visible or list(sheets)
        sheet = next((name for name in some if any(_records(_rows(sheets[name], path)))), some[0])
    if sheet not in sheets:
        raise InputError(f"{path} has no sheet {sheet!r}. It has: {', '.join(sheets)}.")
    return sheet * (len(sheets) > 1), _records(_rows(sheets[sheet], path))


def _check(raw: BinaryIO, path: str | Path) -> None:
    """Refuse what is no zip, and what no .xlsx unpacks to.

    Sizes are those that it declares. They bind: zipfile gives no byte beyond a member's.
    """
    head = raw.read(len(_OLE))
    if head == _OLE:
        raise InputError(
            f"{path} is encrypted, or no .xlsx file but one of another name. Open it in Excel or "
            "WPS, and save it as .xlsx without a password."
        )
    packed = raw.seek(0, 2)
    with zipfile.ZipFile(raw) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > min(MAX_BYTES, max(UNSUSPICIOUS, MAX_RATIO * packed)):
            raise InputError(
                f"{path} has {packed / 1e6:,.2f} MB, but would unpack to {unpacked / 1e6:,.0f} MB, "
                "more than is read. If you trust it, save it as .csv."
            )
        for member in archive.infolist():
            with archive.open(member) as stream:
                if not _is_harmless(stream):
                    raise InputError(
                        f"{path} holds more in {member.filename} than a sheet that is read may. If "
                        "you trust it, save it as .csv."
                    )


def _is_harmless(stream: IO[bytes]) -> bool:
    """Tell whether the tree that openpyxl makes of a member stays small.

    It lets go of what is in a row, or in a text of the list of texts, once that ends. The counts
    may be off by one where a piece ends.
    """
    elements = unfinished = bare = 0
    tail = b""
    while piece := stream.read(PIECE):
        found = _elements(piece, 0)
        elements += found
        end = max(piece.rfind(b"row>"), piece.rfind(b"si>"))
        unfinished = unfinished + found if end < 0 else _elements(piece, end)
        bare = 0 if b"<" in piece else bare + len(piece)
        if elements > MAX_ELEMENTS or unfinished > MAX_UNFINISHED or bare > MAX_TEXT:
            return False
        if b"<!DOCTYPE" in tail + piece:  # its entities may grow without bound; Excel writes none
            return False
        tail = piece[-8:]
    return True


def _elements(piece: bytes, start: int) -> int:
    """How many elements begin behind a place."""
    return piece.count(b"<", start) - piece.count(b"</", start)


def _damaged(path: str | Path, error: Exception) -> InputError:
    if isinstance(error, ReadError):
        return InputError(f"cannot read {path}: {error.reason}. Try again.")
    return InputError(f"{path} is no .xlsx file, or damaged. Save it again, or as .csv.")


def _rows(sheet: Any, path: str | Path) -> Iterator[Any]:
    """Yield openpyxl's rows of cells; where the file is damaged, say so."""
    rows = iter(sheet.iter_rows())
    for _ in range(MAX_ROWS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise _damaged(path, error) from None
        yield row
    if next(rows, None) is not None:
        raise InputError(f"{path} has more than the {MAX_ROWS:,} rows that a sheet may have.")


def _records(rows: Iterable[Any]) -> Iterator[Record]:
    """Read the cells as text. Formats reach far below and beside what a person sees: left out."""
    width = 0
    last = 0
    for number, row in enumerate(rows, start=1):
        cells = [_text(cell) for cell in row]
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        if not any(map(str.strip, cells)):
            continue
        width = width or len(cells)
        yield from (Record(blank, []) for blank in range(last + 1, number))
        yield Record(number, cells + [""] * (width - len(cells)))
        last = number


def _text(cell: Any) -> str:
    """What a cell shows: 1.0 → "1", 0.1 + 0.2 → "0.3", a date → "2024-01-31"; "" for an error."""
    value = cell.value
    if value is None or cell.data_type == "e":
        return ""
    if isinstance(value, str):
        return value.replace("_x000D_", "\r")
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.15g}"
    if isinstance(value, datetime):
        midnight = value.time() == time()
        return str(value.date() if midnight else value.replace(microsecond=0))
    return str(value)
