"""Sheets of .xlsx files → records.

openpyxl reads a row at a time, but holds the list of all texts of a workbook in memory. So the size
of a file is checked before openpyxl reads it.
"""

import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from roformer_tf.errors import InputError, check_packages
from roformer_tf.readers.records import Record
from roformer_tf.readers.streams import PIECE, Budget, naming, opened_as_stored

if TYPE_CHECKING:
    from openpyxl.worksheet.cell_range import CellRange

_FORMULA = re.compile(rb"<(\w+:)?f[ >/]")
_MERGED = re.compile(rb"""<(?:\w+:)?mergeCell [^>]*?ref=["']([A-Z]+\d+:[A-Z]+\d+)["'][^>]*>""")


class UncomputedFormula(str):
    """An empty cell with an error such as #N/A, or a formula without a stored value.

    Programs other than Excel store no values.
    """


def open_sheet(path: str | Path, sheet: str | None = None) -> tuple[str, Iterator[Record], int]:
    """Open a sheet; None is the first one that is visible and not empty.

    Returns its name, "" if the file has no other; its rows that are not blank; and the number of
    merged ranges of several rows, whose value each row gets.
    All rows have at least as many cells as the first. Raises InputError for a file that is
    encrypted, damaged or too large when unpacked, for a missing sheet, and without openpyxl.
    """
    check_packages(f"{path}", "xlsx", "openpyxl", otherwise="save the file as .csv")
    from openpyxl import load_workbook

    raw = opened_as_stored(path)
    reading = {"read_only": True, "keep_links": False}
    with _reading(path):
        has_formulas = _check(raw, path)
        book = load_workbook(raw, data_only=True, **reading)
        # A cell is its value in one workbook, its formula in the other.
        formulas = load_workbook(raw, **reading) if has_formulas else None
    sheets = {each.title: each for each in book.worksheets}
    if not sheets:
        raise InputError(f"{path} has no sheet with cells. Give a file that has one.")
    for each in (*sheets.values(), *(formulas.worksheets if formulas else ())):
        each.reset_dimensions()  # the stored dimensions may be wrong

    def records(name: str, merged: Iterable["CellRange"] = ()) -> Iterator[Record]:
        rows = _rows(sheets[name], path)
        texts: Iterable[list[str]] = ([_text(cell) for cell in row] for row in rows)
        if formulas:
            both = zip(_rows(sheets[name], path), _rows(formulas[name], path), strict=True)
            texts = (_marked(*pair) for pair in both)
        return _records(_filled(texts, merged), path, Budget(raw.seek(0, 2)))

    if sheet is None:
        visible = [name for name, each in sheets.items() if each.sheet_state == "visible"]
        candidates = visible or list(sheets)
        sheet = next((name for name in candidates if any(records(name))), candidates[0])
    if sheet not in sheets:
        raise InputError(
            f"{path} has no sheet {sheet!r}. It has: {', '.join(sheets)}. Name one of these. "
            "A name is for all files: save sheets of other names as files."
        )
    merged = _merged(raw, sheet)
    name = sheet if len(sheets) > 1 else ""
    return name, records(sheet, merged), len(merged)


def _check(raw: BinaryIO, path: str | Path) -> bool:
    """Whether a file has formulas. Raises InputError if it is too large when unpacked.

    The declared sizes are enough: zipfile reads no byte beyond the size of a member.
    """
    budget = Budget(raw.seek(0, 2))
    with zipfile.ZipFile(raw) as archive, naming(path):
        budget.check(sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            with archive.open(member) as stream:
                if any(True for _ in _matches(_FORMULA, stream)):
                    return True
    return False


def _matches(pattern: re.Pattern[bytes], stream: IO[bytes]) -> Iterator[re.Match[bytes]]:
    """Find the tags of a pattern in a member of a file, which is read in chunks."""
    tail = b""
    while chunk := stream.read(PIECE):
        seen = tail + chunk
        yield from pattern.finditer(seen)
        # A tag may be split between two chunks; those that are complete were found above.
        tail = seen[seen.rfind(b">") + 1 :][-PIECE:]


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Hide openpyxl's warnings, and convert its errors into an InputError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about features other than texts
            yield
    except InputError:
        raise
    except Exception:  # openpyxl has no error class for a broken file
        raise InputError(
            f"{path} is no .xlsx file, or damaged, or has a password. Save it again, or as .csv."
        ) from None


def _rows(sheet: Any, path: str | Path) -> Iterator[Any]:
    """Yield openpyxl's rows of cells. Raises InputError where the file is damaged."""
    rows = iter(sheet.iter_rows())
    while True:
        with _reading(path):  # damage shows only while rows are read
            row = next(rows, None)
        if row is None:
            return
        yield row


def _merged(raw: BinaryIO, sheet: str) -> list["CellRange"]:
    """The merged ranges of several rows, which openpyxl skips when it reads row by row."""
    from openpyxl.reader.excel import ExcelReader
    from openpyxl.worksheet.cell_range import CellRange

    reader = ExcelReader(raw, read_only=True, keep_links=False)
    reader.read_manifest()
    reader.read_workbook()
    members = {each.name: link.target for each, link in reader.parser.find_sheets()}
    with reader.archive.open(members[sheet]) as stream:
        ranges = [CellRange(match[1].decode()) for match in _matches(_MERGED, stream)]
    return [each for each in ranges if each.min_row < each.max_row]


def _filled(rows: Iterable[list[str]], merged: Iterable["CellRange"]) -> Iterator[list[str]]:
    """Copy the value of a merged range to each of its rows that has values in other columns.

    Only its first column gets it: a title over several columns is one cell. Rows without other
    values are the rest of a high header, or of one example.
    """
    starts: dict[int, list[CellRange]] = {}
    for each in merged:
        starts.setdefault(each.min_row, []).append(each)
    open_ranges: dict[int, tuple[int, str]] = {}  # by column: last row and value
    for number, cells in enumerate(rows, start=1):
        if is_filled(cells):
            # Ranges that begin in this row are added below: their first row has its own value.
            for column, (last, value) in open_ranges.items():
                if number <= last:
                    cells += [""] * (column - len(cells))
                    cells[column - 1] = cells[column - 1] or value
        for each in starts.get(number, ()):
            if each.min_col <= len(cells):
                open_ranges[each.min_col] = (each.max_row, cells[each.min_col - 1])
        yield cells


def _marked(values: Sequence[Any], formulas: Sequence[Any]) -> list[str]:
    """The texts of a row; formulas without a stored value become UncomputedFormula."""
    return [
        UncomputedFormula()
        if formula.data_type == "f" and value.value is None and value.data_type == "n"
        else _text(value)
        for value, formula in zip(values, formulas, strict=True)
    ]


def _records(rows: Iterable[list[str]], path: str | Path, budget: Budget) -> Iterator[Record]:
    """Rows without the trailing cells that only have formats, which may be very many.

    Texts are stored once and referred to by cells, so a small file may contain large rows.
    """
    width = 0
    last = 0
    for number, cells in enumerate(rows, start=1):
        while len(cells) > width and not is_filled(cells[-1:]):
            cells.pop()
        if not is_filled(cells):
            continue
        with naming(path):
            budget.take_row(number, sum(map(len, cells)))
        # Blank rows are reported with their numbers; the first filled row defines the width.
        width = width or len(cells)
        yield from (Record(blank, []) for blank in range(last + 1, number))
        yield Record(number, cells + [""] * (width - len(cells)))
        last = number


def is_filled(cells: Iterable[str]) -> bool:
    """Whether a row has a text, or a formula or an error in its place."""
    return any(cell.strip() or isinstance(cell, UncomputedFormula) for cell in cells)


def number_text(value: int | float) -> str:
    """A number as spreadsheets show it: 1.0 → "1", 0.1 + 0.2 → "0.3", True → "TRUE"."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.15g}"
    return str(value).upper()


def _text(cell: Any) -> str:
    """The text of a cell: a number as it is shown, a date → "2024-01-31"."""
    value = cell.value
    if cell.data_type == "e":
        return UncomputedFormula()
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("_x000D_", "\r")  # Excel's escape of CR
    if type(value) is int and re.fullmatch("0+", cell.number_format):  # a code: 007
        return str(value).zfill(len(cell.number_format))
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, datetime):
        return str(value.replace(microsecond=0)).removesuffix(" 00:00:00")
    return str(value)
