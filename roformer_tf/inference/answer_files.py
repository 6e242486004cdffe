"""Files of answers: .tsv and .jsonl for programs, .csv and .xlsx for who opens them in Excel.

In a .csv, which Excel reads as if it were typed, a text that begins as a formula does gets an
apostrophe in front; in an .xlsx every text is one, and stands as it is.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from roformer_tf.errors import InputError
from roformer_tf.files import file_beside
from roformer_tf.inference.answers import json_line, one_line, tsv_line
from roformer_tf.tasks.base import Task

STANDARD = "-"
MAX_CELL = 32_767
"""Characters (UTF-16 units) that a cell of Excel holds."""
MAX_ROWS = 1 << 20
"""Rows of a sheet, the header among them."""

_FORMULA = tuple("=+-@\t\r＝＋－＠")
"""First characters by which a spreadsheet takes a cell for a formula, wide ones in East Asia."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class AnswerFile(Protocol):
    """Takes answers, one by one."""

    def write(self, cells: Mapping[str, Any]) -> None:
        """Write an answer by column."""

    def flush(self) -> None:
        """Let who reads along see what is written."""

    def notes(self) -> list[str]:
        """For the user: what had to be changed."""


def check_format(output: str) -> None:
    """Raise InputError where a file of that name needs what is not installed."""
    if output.lower().endswith(".xlsx"):
        try:
            import openpyxl  # noqa: F401
        except ImportError:
            raise InputError(
                f"{output} is written by openpyxl, which is not installed. Run `pip install "
                "'roformer-tf[xlsx]'`, or name a .csv file."
            ) from None


@contextmanager
def answer_file(output: str, names: Sequence[str], task: Task) -> Iterator[AnswerFile]:
    """A file that is written whole or not at all, or the standard output for "-", with a header.

    Its name tells the format; what ends in none of .jsonl, .csv and .xlsx is a TSV. Raises
    InputError where it cannot be written, or holds no more.
    """
    kind = Path(output.lower()).suffix
    if kind == ".xlsx":
        with _written(output) as beside, closing(_Sheet(names, task)) as sheet:
            yield sheet
            sheet.save(beside)
    elif kind == ".csv":
        with _opened(output, "utf-8-sig") as out:  # by the mark Excel knows UTF-8
            yield _Csv(out, names, task)
    else:
        with _opened(output, "utf-8") as out:
            yield _Lines(out, names, task, is_json=kind == ".jsonl")


class _Lines:
    """A TSV with a header, or JSON lines: one line an answer."""

    def __init__(self, out: TextIO, names: Sequence[str], task: Task, is_json: bool) -> None:
        self._out, self._task = out, task
        self._line = json_line if is_json else tsv_line
        if not is_json:
            out.write("\t".join(map(one_line, names)) + "\n")

    def write(self, cells: Mapping[str, Any]) -> None:
        self._out.write(self._line(cells, self._task) + "\n")

    def flush(self) -> None:
        self._out.flush()

    def notes(self) -> list[str]:
        return []


class _Csv:
    """A CSV by RFC 4180; a text may span lines, in quotes."""

    def __init__(self, out: TextIO, names: Sequence[str], task: Task) -> None:
        self._out, self._task = out, task
        self._writer = csv.writer(out)
        self._guarded = self._long = 0
        self._writer.writerow([self._safe(name) for name in names])

    def write(self, cells: Mapping[str, Any]) -> None:
        self._writer.writerow([self._safe(_value(one, self._task)) for one in cells.values()])

    def flush(self) -> None:
        self._out.flush()

    def notes(self) -> list[str]:
        notes = []
        if self._guarded:
            notes.append(
                f"cells that begin as a formula does: {self._guarded:,} (an apostrophe stands in "
                "front, so that Excel computes nothing)"
            )
        if self._long:
            notes.append(
                f"cells of more than the {MAX_CELL:,} characters that Excel takes in one: "
                f"{self._long:,}"
            )
        return notes

    def _safe(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        self._long += _width(value) > MAX_CELL
        if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
            self._guarded += 1
            return f"'{value}"
        return value


class _Sheet:
    """An .xlsx file with one sheet."""

    def __init__(self, names: Sequence[str], task: Task) -> None:
        from openpyxl import Workbook

        self._task = task
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("answers")
        self._sheet.freeze_panes = "A2"
        self._rows = self._cut = 0
        self._append(names)

    def write(self, cells: Mapping[str, Any]) -> None:
        if self._rows == MAX_ROWS:
            raise InputError(
                f"a sheet of .xlsx holds {MAX_ROWS:,} rows, and there are more answers. Name a "
                ".csv file."
            )
        self._append([_value(one, self._task) for one in cells.values()])

    def flush(self) -> None:
        pass

    def notes(self) -> list[str]:
        if not self._cut:
            return []
        return [f"cells cut at the {MAX_CELL:,} characters that Excel holds: {self._cut:,}"]

    def save(self, path: Path) -> None:
        self._book.save(path)

    def close(self) -> None:
        """Let openpyxl end a file that is given up; collected later, it would complain itself."""
        if not self._sheet.closed:
            with suppress(Exception):  # why it is given up is told, be it that the disk is full
                self._sheet.close()

    def _append(self, values: Sequence[Any]) -> None:
        self._sheet.append([self._cell(value) for value in values])
        self._rows += 1

    def _cell(self, value: Any) -> Any:
        from openpyxl.cell import WriteOnlyCell

        if not isinstance(value, str):
            return value
        value = _NOT_IN_XML.sub(_escaped, value)
        if _width(value) > MAX_CELL:
            self._cut += 1
            fits = value.encode("utf-16-le")[: 2 * (MAX_CELL - 1)].decode("utf-16-le", "ignore")
            value = f"{fits}…"
        cell = WriteOnlyCell(self._sheet, value)
        if value.startswith(_FORMULA) or cell.data_type != "s":
            cell.data_type = "s"  # openpyxl takes "=…" for a formula, and "#N/A" for an error
            cell.quotePrefix = True  # and Excel would, once somebody edits the cell
        return cell


def _value(value: Any, task: Task) -> Any:
    """A cell's number or text; several are joined as they were in training, a list is JSON."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return (task.decoding.joined_by or task.label_separator).join(map(str, value))
    return value


def _width(text: str) -> int:
    """Length in UTF-16 units, as Excel counts."""
    return len(text) if 2 * len(text) <= MAX_CELL else len(text.encode("utf-16-le", "replace")) // 2


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


@contextmanager
def _opened(output: str, encoding: str) -> Iterator[TextIO]:
    """A text file that is written whole or not at all, or the standard output.

    A lone surrogate, which JSON may hold, becomes its escape.
    """
    text: Any = {"encoding": encoding, "errors": "backslashreplace", "newline": ""}
    if output == STANDARD:
        with (
            suppress(BrokenPipeError),  # as by `| head`: who reads has seen enough
            open(sys.stdout.fileno(), "w", closefd=False, **text) as out,
        ):
            yield out
        return
    with _written(output) as beside, beside.open("w", **text) as out:
        yield out


@contextmanager
def _written(output: str) -> Iterator[Path]:
    try:
        with file_beside(output) as beside:
            yield beside
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}. Name another file.") from None
