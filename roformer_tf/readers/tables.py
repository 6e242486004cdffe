"""Files of examples → rows: tsv, csv, jsonl, Parquet, Arrow, xlsx, brat and CoNLL.

A file is read row by row. A row that cannot be read has a problem, and reading continues.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.readers.arrow_tables import arrow_records, parquet_records
from roformer_tf.readers.brat import annotated_lines
from roformer_tf.readers.json_arrays import find_json, json_array, questions_of
from roformer_tf.readers.kinds import KINDS, arrow_files, kind_of
from roformer_tf.readers.lines import damage, text_lines
from roformer_tf.readers.records import (
    ANY,
    BLANK,
    Record,
    Row,
    json_records,
    quoted_records,
    sentences,
    tabbed_records,
    tag_pattern,
)
from roformer_tf.readers.spreadsheets import is_filled, open_sheet
from roformer_tf.readers.streams import StoredFile, naming, opened_as_stored
from roformer_tf.translation import Message

# A number of a word in CoNLL-U: 3, also 3-4 or 3.1. In the Weibo NER corpus a number follows each
# character: 科0 技1.
_NUMBER = re.compile(r"\d+([-.]\d+)?|\D\d")
# Rows from which the header of a table is detected.
_SEEN_FIRST = 100
# Objects of JSON from which the columns are detected, and sentences for the pattern of tags.
_SAMPLE = 10_000
# Minimum fraction of rows with the same length, for another delimiter than the usual one.
_ALIKE = 0.9
# Delimiters that also occur in texts: they need a header of known names.
_IN_TEXTS = (",", "，")
# All delimiters that occur, and what they are called.
_DELIMITERS = {
    ",": Message("commas"),
    "\t": Message("tabs"),
    ";": Message("semicolons"),
    "，": Message("full-width commas"),
}
# First characters of what a spreadsheet takes for a formula; full-width ones in East Asia.
FORMULA = tuple("=+-@\t\r＝＋－＠")


class Table(NamedTuple):
    """A file with columns."""

    path: str | Path
    columns: tuple[str, ...]
    """Their names; "1", "2", … without a header."""
    has_header: bool
    """Whether a row of the file names the columns."""
    rows: Iterator[Row]
    """To be read once."""
    sheet: str = ""
    """Name of the sheet, if the file has several."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about unusual properties of the file."""

    @property
    def place(self) -> str:
        """The path, and the name of the sheet if the file has several."""
        return f"{self.path} of the sheet {self.sheet}" if self.sheet else str(self.path)


class Top(NamedTuple):
    """The rows above the examples of a table."""

    titles: int = 0
    """Number of rows at the beginning that are no part of the table, such as a title."""
    has_header: bool = False
    """Whether the next row names the columns."""
    is_repeated: bool = False
    """Whether the row after it names them again, such as in another language."""


# Detects the rows above the examples from the first rows that are not blank.
FindTop: TypeAlias = Callable[[list[list[str]]], Top]


def open_table(
    path: str | Path, find_top: FindTop, encoding: str = "auto", sheet: str | None = None
) -> Table:
    """Open a tsv, csv, jsonl, Parquet, xlsx or brat file, or a .txt with the cells of a tsv.

    The quotes of a tsv are text unless the whole file follows the rules of quoting (`_is_quoted`).
    Another delimiter than the usual one is accepted if nearly all rows have it. `sheet`: name of a
    sheet of an xlsx; None for the first. Raises InputError for an empty or unreadable file.
    """
    kind = kind_of(path, sheet)
    if kind in ("parquet", "arrow"):
        return _arrow(path, kind)
    if kind in ("jsonl", "json"):
        return _json(path, kind, encoding)
    if kind == "brat":
        return Table(path, ("text", "entities"), True, annotated_lines(path, encoding))
    notes: list[str] = []
    name = delimiter = ""
    if kind != (named := KINDS.get(StoredFile(str(path)).kind)) and named != "txt":
        notes.append(Message("It is read as .{kind}, whatever its name.", kind=kind))
    if kind == "xlsx":
        name, records, merged = open_sheet(path, sheet)
        if merged:
            notes.append(
                Message("Merged ranges filled with their value: {ranges:,}.", ranges=merged)
            )
    else:
        usual = "," if kind == "csv" else "\t"
        delimiter = _find_delimiter(path, usual, encoding, find_top)
        if delimiter != usual:
            sign = _DELIMITERS[delimiter]
            notes.append(Message("Its cells are separated by {sign}.", sign=sign))
        lines = text_lines(path, encoding)
        if kind == "csv":
            quoted = quoted_records(lines, delimiter)
            records = (r._replace(cells=[*map(_without_guard, r.cells)]) for r in quoted)
        elif _is_quoted(path, encoding, delimiter):
            records = quoted_records(lines, delimiter)
        else:
            records = tabbed_records(lines, delimiter)
    return _delimited(path, records, find_top, pad=kind == "xlsx")._replace(
        sheet=name, notes=tuple(notes)
    )


def _find_delimiter(path: str | Path, usual: str, encoding: str, find_top: FindTop) -> str:
    """The delimiter of a file: the usual one of its kind unless nearly all rows have another."""
    lines = list(islice(text_lines(path, encoding), _SEEN_FIRST))
    # A first line with the usual delimiter settles it: the others may occur in its texts.
    first = next((line for line in lines if line.strip()), "")
    if usual in first:
        return usual
    for delimiter in filter(first.__contains__, _DELIMITERS):
        records = quoted_records(lines, delimiter)
        rows = [cells for _, cells, _ in records if any(map(str.strip, cells))]
        alike = sum(len(row) == len(rows[0]) for row in rows)
        if not rows or len(rows[0]) < 2 or alike < _ALIKE * len(rows):
            continue
        if delimiter not in _IN_TEXTS or find_top(rows).has_header:
            return delimiter
    return usual


def _without_guard(cell: str) -> str:
    """A cell without what keeps Excel from changing it: ="0012" → 0012, '=1 → =1."""
    if cell.startswith('="') and cell.endswith('"') and len(cell) > 2:
        return cell[2:-1]
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell


def read_sentences(path: str | Path, encoding: str = "auto", tagged: bool = True) -> Iterator[Row]:
    """Yield the sentences of a CoNLL file, as `records.sentences` reads them."""
    pattern = find_tags(path, encoding)
    return _placed(path, sentences(text_lines(path, encoding), pattern if tagged else None))


def find_tags(path: str | Path, encoding: str = "auto") -> re.Pattern[str]:
    """The pattern of the tags of a CoNLL file; `ANY` if it has none.

    Raises InputError where the first column has numbers, as CoNLL-U has, or tags.
    """
    first = islice(sentences(text_lines(path, encoding), ANY), _SAMPLE)
    cells = [record.cells for record in first if record.cells]
    units = [unit for each in cells for unit in each["units"]]
    pattern = tag_pattern(tag for each in cells for tag in each["tags"])
    are_numbers = len(units) > 1 and all(map(_NUMBER.fullmatch, units))
    if are_numbers or (pattern is ANY and tag_pattern(units) is not ANY):
        raise InputError(
            f"{path} has {'numbers' if are_numbers else 'tags'} in its first column, not "
            "characters or words. Write lines of a character or word and its tag."
        )
    return pattern


def _placed(path: str | Path, records: Iterable[Record]) -> Iterator[Row]:
    """The records of a file as rows, each with its line."""
    for number, cells, problem in records:
        yield Row(f"{path}:{number}", cells, problem)


def _delimited(path: str | Path, records: Iterator[Record], find_top: FindTop, pad: bool) -> Table:
    """Separate titles and header, and assign the cells of every row to columns.

    `pad`: a row with fewer cells than the first is padded with empty ones.
    """
    records = (r if _is_filled(r) else r._replace(cells=[], problem=BLANK) for r in records)
    start = list(islice(records, _SEEN_FIRST))
    readable = [record for record in start if record.cells]
    if all(damage("".join(record.cells)) for record in readable):
        broken = (r._replace(problem=r.problem or damage("".join(r.cells))) for r in start)
        raise no_rows(path, _placed(path, broken))
    top = find_top([record.cells for record in readable])
    first = readable[top.titles]
    columns = tuple(str(i + 1) for i in range(len(first.cells)))
    if top.has_header:
        if problem := damage("".join(first.cells)):
            raise InputError(f"{path}:{first.number} {problem}.")
        columns = _checked_names(path, [" ".join(cell.split()) for cell in first.cells])
    if top.has_header or top.titles:
        # Titles, the header, and blank rows above them are no bad examples.
        # The row after the header; if there are only titles, the first example.
        begin = first.number + top.has_header
        start = [r for r in start if r.number >= begin or r.problem not in ("", BLANK)]
    # Remarks next to a sheet are no part of it. Where most rows are longer, the header is doubtful.
    longer = sum(len(record.cells) > len(columns) for record in readable)
    end = len(columns) if pad and 2 * longer < len(readable) else None
    headers = [r.cells for r in readable[top.titles :][: top.has_header + top.is_repeated]]
    rest = (
        r._replace(problem="repeats the header")  # also where files were joined
        if r.cells in headers
        else r._replace(cells=r.cells[:end])
        for r in chain(start, records)
    )
    rows = (_row(path, record, columns, pad) for record in rest)
    return Table(path, columns, top.has_header, rows)


def no_rows(path: str | Path, rows: Iterable[Row], empty: Message | None = None) -> InputError:
    """An error for a file without readable rows: their first problem, or `empty`."""
    broken = next((f"{r.source_line} {r.problem}" for r in rows if r.problem != BLANK), None)
    problem = broken or empty or Message("{path} is empty", path=path)
    return InputError(Message("{problem}. Give a file with examples.", problem=problem))


def _checked_names(path: str | Path, names: list[str]) -> tuple[str, ...]:
    """Names of columns; a column without a name, as next to a merged cell, gets its number."""
    check_different(path, list(filter(None, names)))
    return tuple(
        name or (str(i) if str(i) not in names else f"{i}.") for i, name in enumerate(names, 1)
    )


def check_different(path: str | Path, names: list[str]) -> None:
    """Raise InputError for two columns of the same name."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(
            f"{path} has two columns named {min(twice)!r}. Give each a name of its own."
        )


def _row(path: str | Path, record: Record, columns: tuple[str, ...], pad: bool) -> Row:
    source_line, cells = f"{path}:{record.number}", record.cells
    if record.problem:
        return Row(source_line, {}, record.problem)
    if pad:
        cells = cells + [""] * (len(columns) - len(cells))
    if not any(map(str.strip, cells[len(columns) :])):  # Excel writes formatted cells as empty
        cells = cells[: len(columns)]
    if len(cells) != len(columns):
        what = "line break" if len(cells) < len(columns) else "delimiter"
        what = "is a name in the header empty?" if pad else f"is there a {what} in a text?"
        return Row(source_line, {}, f"has {len(cells)} instead of {len(columns)} columns ({what})")
    return Row(source_line, dict(zip(columns, cells, strict=True)))


def _is_quoted(path: str | Path, encoding: str, delimiter: str) -> bool:
    """Whether a tsv quotes its cells as a csv does, or has quotes in its texts.

    It is quoted if a cell begins with a quote, and if the csv module leaves fewer broken rows than
    plain splitting. A broken row has another length than most.
    """
    begins = f'{delimiter}"'
    if not any(line.startswith('"') or begins in line for line in text_lines(path, encoding)):
        return False

    def quoted() -> Iterator[Record]:
        return quoted_records(text_lines(path, encoding), delimiter)

    # How many of the first records have each number of cells; the most frequent is the usual one.
    seen = Counter(len(r.cells) for r in islice(filter(_is_filled, quoted()), _SEEN_FIRST))
    usual = max(seen, key=seen.__getitem__, default=0)
    lines = tabbed_records(text_lines(path, encoding), delimiter)
    broken_lines = {line.number for line in lines if _is_broken(line, usual)}
    broken_records = sum(_is_broken(record, usual) for record in quoted())
    if usual == 0 or (broken_records > 0 and broken_records >= len(broken_lines)):
        return False
    if broken_lines and not broken_records:
        return True
    # The opening quote of one text must not swallow lines up to that of another: a record of
    # several lines has to contain a line that is broken on its own.
    end = 1 + sum(1 for _ in text_lines(path, encoding))
    starts = chain((record.number for record in quoted()), [end])
    long_records = (range(first, after) for first, after in pairwise(starts) if after - first > 1)
    return not any(broken_lines.isdisjoint(record) for record in long_records)


def _is_broken(record: Record, usual: int) -> bool:
    """Whether a record has another number of cells than usual."""
    return _is_filled(record) and len(record.cells) != usual


def _is_filled(record: Record) -> bool:
    """Whether a record is not blank."""
    return bool(record.problem) or is_filled(record.cells)


def _json(path: str | Path, kind: str, encoding: str) -> Table:
    """JSON lines, or one array of objects; in a .json file also as the "data" of an object.

    Columns are the keys of the first records, in order of appearance.
    """
    notes: tuple[str, ...] = ()
    codec, is_array = find_json(path, encoding, nested=kind == "json")
    if kind == "json" and codec not in ("utf-8", encoding):
        notes = (Message("It is read as {encoding}.", encoding=codec.upper()),)
    array = list(json_array(path, codec)) if is_array else None

    def rows() -> Iterator[Row]:
        records = json_records(text_lines(path, encoding)) if array is None else array
        return _placed(path, questions_of(records))

    # Objects may have different keys, such as a label only where there is one: the columns are
    # those of many rows together, which are read twice rather than held in memory.
    start = list(islice(rows(), _SEEN_FIRST))
    columns = dict.fromkeys(key for row in islice(rows(), _SAMPLE) for key in row.cells)
    if not columns:
        if kind == "json" and start:
            raise InputError(
                f"{path} holds neither a JSON object in each line nor one array of objects. Write "
                "it in one of these layouts."
            )
        raise no_rows(path, start)
    if {"prompt", "result_list"} <= columns.keys():
        advice = "Give the export of doccano or Label Studio that it was made from."
        raise InputError(f"{path} is in UIE's format, a row for each text and prompt. {advice}")
    # {"text": {"0": "好", "1": "差"}, "label": {"0": 1, "1": 0}}, or {"columns": …, "data": …}
    cells = start[0].cells if kind == "json" else {}
    of_objects = bool(cells) and all(isinstance(cell, dict) for cell in cells.values())
    if of_objects or {"columns", "data"} <= cells.keys() or {"schema", "data"} <= cells.keys():
        raise InputError(
            f"{path} is one object, as pandas writes by default, not an array of objects. Write it "
            "with to_json(path, orient='records')."
        )
    return Table(path, tuple(columns), True, rows(), notes=notes)


def _arrow(path: str | Path, kind: str) -> Table:
    """The rows of Parquet or Arrow files; damaged data raises InputError after the rows before."""

    def rows() -> Iterator[Row]:
        with naming(path):
            yield from _placed(path, records)

    with naming(path):
        if kind == "arrow":
            files = [opened_as_stored(each) for each in arrow_files(path)]
            columns, records = arrow_records(files)
        else:
            columns, records = parquet_records(opened_as_stored(path))
    remaining = rows()
    first = list(islice(remaining, 1))
    if not first:
        raise no_rows(path, [])
    return Table(path, columns, True, chain(first, remaining))
