"""Files of predictions: .tsv and .jsonl for programs, .csv and .xlsx for Excel.

Excel computes a cell of a .csv that looks like a formula, so an apostrophe is put before such a
text. In an .xlsx every text has the type of a text, and is written unchanged.
"""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from roformer_tf.errors import InputError, check_packages
from roformer_tf.files import check_writable, is_folder, temporary_file
from roformer_tf.labelled.examples import Example
from roformer_tf.readers.tables import FORMULA
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.terminal import until_pipe_closes
from roformer_tf.translation import Message

# The name of the standard output.
STANDARD = "-"
# Column of what is wrong with a row.
ERROR = "error"
# What the names of files may end in; a name without an ending is that of a TSV.
TSV = (".tsv", ".txt")
WRITTEN = (*TSV, ".csv", ".jsonl", ".xlsx")
# Characters (UTF-16 units) that a cell of Excel holds.
MAX_CELL = 32_767
# Rows of a sheet, with the header.
MAX_ROWS = 1 << 20
# Notes on cells that had to be changed, or that Excel will change.
GUARDED = (
    "cells that look like a formula: {count:,} (an apostrophe is put before them, so that Excel "
    "does not compute them)"
)
LONG = f"cells with more than the {MAX_CELL:,} characters that Excel reads: {{count:,}}"
CUT = f"cells cut at the {MAX_CELL:,} characters that Excel holds: {{count:,}}"

_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def cell_names(task: Task) -> list[str]:
    """Names of the columns of a prediction: the task's own, and `error`."""
    return [*task.decoding.cell_names(), ERROR]


def text_names(texts: Sequence[str], ours: Collection[str]) -> tuple[str, ...]:
    """Names of the columns of texts: one that is also a name of ours is prefixed with "text:".

    Without a header, columns are numbers: these become "text", or "text1", "text2" of several.
    """
    numbered = "text{}" if len(texts) > 1 else "text"
    names = [numbered.format(i) if x.isdecimal() else x for i, x in enumerate(texts, 1)]
    return tuple(f"text:{name}" if name in ours else name for name in names)


def cells(example: Example, prediction: Prediction, task: Task) -> dict[str, Any]:
    """A prediction by column: texts, numbers, tuples of them, and entities; no error."""
    return dict(
        zip(cell_names(task), [*task.decoding.cells(example, prediction), None], strict=True)
    )


def tsv_line(cells: Iterable[Any], between: str = ",") -> str:
    """Cells with tabs between them, and a line break; a tuple is joined by `between`."""
    return "\t".join(_tsv_cell(value, between) for value in cells) + "\n"


@dataclass(frozen=True)
class PredictionFile:
    """A file of predictions, written row by row."""

    write: Callable[[Mapping[str, Any]], Any]
    """Writes a row, by column."""
    changed: Counter[str] = field(default_factory=Counter)
    """How many cells had to be changed, by the note about them."""

    def notes(self) -> list[str]:
        """For the user: cells that had to be changed."""
        return [note.format(count=count) for note, count in self.changed.items()]


def check_output(output: str | Path | None, *inputs: str | None, only: Sequence[str] = TSV) -> None:
    """Raise InputError for an --output that is a folder or an input, or cannot be written.

    Also for a name that ends in something other than the `only` ones, and for a format whose
    package is not installed.
    """
    if output is None or output == STANDARD:
        return
    if is_folder(output):
        raise InputError(f"--output {output} is a folder. Name a file.")
    if any(_is_same_file(name, output) for name in inputs if name):
        raise InputError(Message("--output {x} is also the input. Name another file.", x=output))
    suffix = Path(str(output).lower()).suffix
    # A name without an ending is that of a text.
    if suffix not in only and (suffix or ".txt" not in only):
        raise InputError(f"--output {output}: name a {', '.join(sorted(only))} file.")
    if suffix == ".xlsx":
        check_packages(str(output), "xlsx", "openpyxl", otherwise="name a .csv file")
    check_writable(output)


def _is_same_file(name: str, output: str | Path) -> bool:
    with suppress(OSError, ValueError):  # it is not there, or no name of a file
        return Path(name).samefile(output)
    return False


@contextmanager
def prediction_file(output: str, names: Sequence[str], task: Task) -> Iterator[PredictionFile]:
    """A file with a header that is written whole or not at all; "-" is the standard output.

    Its name gives the format: .jsonl, .csv, .xlsx, else a TSV. Raises InputError for too many rows.
    """
    kind, between = Path(output.lower()).suffix, task.decoding.joined_by or task.label_separator
    if kind == ".xlsx":
        with temporary_file(output) as temporary, _sheet(temporary, names, between) as sheet:
            yield sheet
        return
    # Excel recognizes UTF-8 by its mark.
    with opened_text(output, "utf-8-sig" if kind == ".csv" else "utf-8") as out:
        if kind == ".csv":
            yield _csv(out, names, between)
        elif kind == ".jsonl":
            yield PredictionFile(
                lambda cells: out.write(json.dumps(cells, ensure_ascii=False) + "\n")
            )
        else:
            out.write(tsv_line(names))
            yield PredictionFile(lambda cells: out.write(tsv_line(cells.values(), between)))


def _csv(out: TextIO, names: Sequence[str], between: str) -> PredictionFile:
    """A CSV by RFC 4180; a text may span lines, in quotes."""
    writer = csv.writer(out)
    changed: Counter[str] = Counter()

    def safe(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if _width(value) > MAX_CELL:
            changed[LONG] += 1
        if value.startswith(FORMULA) and not _NUMBER.fullmatch(value):
            changed[GUARDED] += 1
            return f"'{value}"
        return value

    def write(cells: Iterable[Any]) -> None:
        writer.writerow([safe(_value(cell, between)) for cell in cells])

    write(names)
    return PredictionFile(lambda cells: write(cells.values()), changed)


@contextmanager
def _sheet(path: Path, names: Sequence[str], between: str) -> Iterator[PredictionFile]:
    """An .xlsx file with one sheet, of which nothing is on the disk before the whole."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    sheet.freeze_panes = "A2"
    changed: Counter[str] = Counter()
    rows = count()

    def typed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = _NOT_IN_XML.sub(lambda x: x[0].encode("unicode_escape").decode("ascii"), value)
        if _width(value) > MAX_CELL:
            changed[CUT] += 1
            # Two bytes for each unit, one unit less for the …; `ignore` drops half of a character
            # outside the BMP, which has two units.
            fits = value.encode("utf-16-le")[: 2 * (MAX_CELL - 1)].decode("utf-16-le", "ignore")
            value = f"{fits}…"
        cell = WriteOnlyCell(sheet, value)
        if value.startswith(FORMULA) or cell.data_type != "s":
            cell.data_type = "s"  # openpyxl takes "=…" for a formula, and "#N/A" for an error
            cell.quotePrefix = True  # and Excel does, when somebody edits the cell
        return cell

    def write(cells: Iterable[Any]) -> None:
        if next(rows) == MAX_ROWS:
            raise InputError(
                f"a sheet of .xlsx holds {MAX_ROWS:,} rows, and there are more predictions. Name "
                "a .csv file."
            )
        sheet.append([typed(_value(cell, between)) for cell in cells])

    write(names)
    try:
        yield PredictionFile(lambda cells: write(cells.values()), changed)
        book.save(path)
    finally:  # openpyxl would print an error when a file that is given up is collected
        if not sheet.closed:
            with suppress(Exception):  # the error that ended the writing is reported
                sheet.close()


def _tsv_cell(value: Any, between: str) -> str:
    """A value in one line: tabs and line breaks are written as their escapes in Python."""
    text = "" if value is None else str(_value(value, between))
    # JSON of a list has escaped tabs and line breaks already.
    return text if isinstance(value, list) else text.translate(_ESCAPES)


def _value(value: Any, between: str) -> Any:
    """A cell's number or text; a tuple is joined; a list is JSON, as is a tuple with `between`."""
    # ("a", "b") → a,b but ("a,b", "c") → ["a,b", "c"], which can be read back without a doubt.
    if isinstance(value, tuple) and not any(between in str(x) for x in value):
        return between.join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple) else value


def _width(text: str) -> int:
    """Length in UTF-16 units, as Excel counts."""
    # A character has at most two units: short texts are not encoded to count them.
    return len(text) if 2 * len(text) <= MAX_CELL else len(text.encode("utf-16-le", "replace")) // 2


@contextmanager
def opened_text(output: str, encoding: str = "utf-8") -> Iterator[TextIO]:
    """A text file that is written whole or not at all; "-" is the standard output.

    A lone surrogate, which JSON may hold, is written as its escape.
    """
    # newline "": line breaks are written as they are, also on Windows; the csv module writes its
    # own.
    text: Any = {"encoding": encoding, "errors": "backslashreplace", "newline": ""}
    if output == STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):  # not a notebook's
            sys.stdout.reconfigure(**text)
        with until_pipe_closes():
            yield sys.stdout
    else:
        with temporary_file(output) as temporary, temporary.open("w", **text) as out:
            yield out
