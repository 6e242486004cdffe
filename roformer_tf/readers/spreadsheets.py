"""Sheets of .xlsx files, as offices send them → records.

Read by openpyxl, a row at a time; but all texts of a workbook stand in one list of it, and the row
being read is a tree, both in memory. So what a file may hold is bounded before openpyxl sees it.
"""

import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.readers.records import Record
from roformer_tf.readers.streams import (
    LONGEST,
    MAX_RATIO,
    PIECE,
    Budget,
    ReadError,
    check_row,
    opened_as_stored,
    within_limits,
)

MAX_BYTES = 1 << 29
"""What a file may unpack to: a million texts of 150 Chinese characters."""
UNSUSPICIOUS = 1 << 22
"""Bytes that any file may unpack to: fewer than of other kinds, for all texts are in memory."""
MAX_ELEMENTS = 12_000_000
"""XML elements of one member: three columns of all rows that a sheet may have take 7 million."""
MAX_UNFINISHED = 500_000
"""Of them, those between the ends of rows or texts: a row of all 16,384 cells has 50,000."""
MAX_ROWS = 1 << 20
"""Rows of a sheet; Excel has no more."""

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How files of Office begin that are encrypted, or older than .xlsx."""

_FORMULA = re.compile(rb"<(\w+:)?f[ >/]")
_MERGED = re.compile(rb"""<(?:\w+:)?mergeCell [^>]*?ref=["']([A-Z]+\d+:[A-Z]+\d+)["']""")


class _Merged(NamedTuple):
    """A merged range: its first and last column and row, from 1."""

    column: int
    first_row: int
    last_column: int
    last_row: int


class UncomputedFormula(str):
    """An empty cell whose formula has no stored value, as other programs than Excel write it."""


class Sheet(NamedTuple):
    """A sheet of a file."""

    name: str
    """Where it is one of several, else ""."""
    records: Iterator[Record]
    """Its rows that are not blank."""
    merged: int
    """Merged ranges of several rows, each of which has their value."""


class _Content(NamedTuple):
    """What some member of a file has."""

    merged: bool
    formulas: bool


def open_sheet(path: str | Path, sheet: str | None = None) -> Sheet:
    """Open a sheet; None is the first that is not hidden and has a cell that is not empty.

    All rows have at least as many cells as the first. Raises InputError for a file that is none,
    encrypted or damaged, would unpack to what no such file does, has no such sheet, and where
    openpyxl is not installed.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise InputError(
            f"{path} is read by openpyxl, which is not installed. Run `pip install "
            "'roformer-tf[xlsx]'`, or save the file as .csv."
        ) from None
    raw = opened_as_stored(path)
    reading = {"read_only": True, "keep_links": False}
    try:
        content = _check(raw, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is not text, such as rules for input
            book = load_workbook(raw, data_only=True, **reading)
            # A cell is a value in one reading, a formula in the other.
            formulas = load_workbook(raw, **reading) if content.formulas else None
    except InputError:
        raise
    except Exception as error:  # openpyxl has none of its own for a broken file
        raise _damaged(path, error) from None
    sheets = {one.title: one for one in book.worksheets}
    if not sheets:
        raise InputError(f"{path} has no sheet with cells. Give a file that has one.")
    for one in (*sheets.values(), *(formulas.worksheets if formulas else ())):
        one.reset_dimensions()  # the stored dimensions may be wrong

    def records(name: str, merged: Iterable[_Merged] = ()) -> Iterator[Record]:
        rows = _rows(sheets[name], path)
        texts: Iterable[list[str]] = ([_text(cell) for cell in row] for row in rows)
        if formulas:
            both = zip(_rows(sheets[name], path), _rows(formulas[name], path), strict=True)
            texts = (_marked(*pair) for pair in both)
        return _records(_filled(texts, merged), path, Budget(raw.seek(0, 2)))

    if sheet is None:
        visible = [name for name, one in sheets.items() if one.sheet_state == "visible"]
        some = visible or list(sheets)
        sheet = next((name for name in some if any(records(name))), some[0])
    if sheet not in sheets:
        raise InputError(f"{path} has no sheet {sheet!r}. It has: {', '.join(sheets)}.")
    merged = _merged(raw, sheet) if content.merged else []
    return Sheet(sheet * (len(sheets) > 1), records(sheet, merged), len(merged))


def _check(raw: BinaryIO, path: str | Path) -> _Content:
    """Raise InputError for no zip, and one that is too large inside; what else it contains.

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
        contents = []
        for member in archive.infolist():
            with archive.open(member) as stream:
                content = _scan(stream)
                if content is None:
                    raise InputError(
                        f"{path} holds more in {member.filename} than a sheet that is read may. If "
                        "you trust it, save it as .csv."
                    )
                contents.append(content)
    return _Content(*map(any, zip(*contents, strict=True)))


def _scan(stream: IO[bytes]) -> _Content | None:
    """Tell what a member has; None if the tree that openpyxl makes of it may not stay small.

    It lets go of what is in a row, or in a text of the list of texts, once that ends. The counts
    may be off by one where a piece ends.
    """
    elements = unfinished = bare = 0
    merged = formulas = False
    tail = b""
    while piece := stream.read(PIECE):
        count = _elements(piece, 0)
        elements += count
        end = max(piece.rfind(b"row>"), piece.rfind(b"si>"))
        unfinished = unfinished + count if end < 0 else _elements(piece, end)
        bare = 0 if b"<" in piece else bare + len(piece)
        if elements > MAX_ELEMENTS or unfinished > MAX_UNFINISHED or bare > LONGEST:
            return None
        seen = tail + piece
        if b"<!DOCTYPE" in seen:  # its entities may grow without bound; Excel writes none
            return None
        merged = merged or b"mergeCell " in seen
        formulas = formulas or bool(_FORMULA.search(seen))
        tail = piece[-16:]
    return _Content(merged, formulas)


def _elements(piece: bytes, start: int) -> int:
    """How many elements begin after a position."""
    return piece.count(b"<", start) - piece.count(b"</", start)


def _damaged(path: str | Path, error: Exception) -> InputError:
    if isinstance(error, ReadError):
        return InputError(f"cannot read {path}: {error.reason}. Try again.")
    return InputError(f"{path} is no .xlsx file, or damaged. Save it again, or as .csv.")


def _rows(sheet: Any, path: str | Path) -> Iterator[Any]:
    """Yield openpyxl's rows of cells. Raises InputError where the file is damaged."""
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


def _merged(raw: BinaryIO, sheet: str) -> list[_Merged]:
    """The merged ranges of several rows. openpyxl drops them where it reads row by row."""
    from openpyxl.reader.excel import ExcelReader
    from openpyxl.utils import range_boundaries

    reader = ExcelReader(raw, read_only=True, keep_links=False)
    reader.read_manifest()
    reader.read_workbook()
    members = {one.name: link.target for one, link in reader.parser.find_sheets()}
    references, tail = [], b""
    with reader.archive.open(members[sheet]) as stream:
        while piece := stream.read(PIECE):
            seen = tail + piece
            references += _MERGED.findall(seen)
            tail = seen[seen.rfind(b"<") :][-PIECE:]
    ranges = (_Merged(*range_boundaries(ref.decode())) for ref in references)
    return sorted(one for one in ranges if one.first_row < one.last_row)


def _filled(rows: Iterable[list[str]], merged: Iterable[_Merged]) -> Iterator[list[str]]:
    """Give the value of a merged range to each of its rows that has a value of its own.

    Only in its first column: a title over several columns is one cell. Rows without any value of
    their own are the rest of a high header, or of one example.
    """
    starts: dict[int, list[_Merged]] = {}
    for one in merged:
        starts.setdefault(one.first_row, []).append(one)
    open_ranges: dict[int, tuple[int, str]] = {}  # by the column: last row and value
    for number, cells in enumerate(rows, start=1):
        if open_ranges and any(map(str.strip, cells)):
            for column, (last, value) in list(open_ranges.items()):
                if number > last:
                    del open_ranges[column]
                    continue
                cells += [""] * (column - len(cells))
                cells[column - 1] = cells[column - 1] or value
        for one in starts.get(number, ()):
            if one.column <= len(cells):
                open_ranges[one.column] = (one.last_row, cells[one.column - 1])
        yield cells


def _marked(values: Sequence[Any], formulas: Sequence[Any]) -> list[str]:
    """The texts of a row, those of formulas without a stored value marked."""
    return [
        UncomputedFormula()
        if formula.data_type == "f" and value.value is None and value.data_type == "n"
        else _text(value)
        for value, formula in zip(values, formulas, strict=True)
    ]


def _records(rows: Iterable[list[str]], path: str | Path, budget: Budget) -> Iterator[Record]:
    """Skip cells with formats alone, which may reach far beyond the visible ones.

    Texts are stored once and referred to by cells, so a small file may hold many large ones.
    """
    width = 0
    last = 0
    for number, cells in enumerate(rows, start=1):
        while len(cells) > width and not _is_filled(cells[-1]):
            cells.pop()
        if not any(map(str.strip, cells)):
            continue
        with within_limits(path):
            size = sum(map(len, cells))
            check_row(number, size)
            budget.take(size)
        width = width or len(cells)
        yield from (Record(blank, []) for blank in range(last + 1, number))
        yield Record(number, cells + [""] * (width - len(cells)))
        last = number


def _is_filled(text: str) -> bool:
    return bool(text.strip()) or isinstance(text, UncomputedFormula)


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
