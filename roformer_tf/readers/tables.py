"""Files of examples → rows: tsv, csv, jsonl, Parquet, xlsx and CoNLL.

A file is read a row at a time. A row that cannot be read says why, and the next one is read:
training stops there, prediction marks it and goes on.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import damage, text_lines
from roformer_tf.readers.records import (
    BLANK,
    ParquetRecords,
    Record,
    json_records,
    quoted_records,
    sentences,
    tabbed_records,
)
from roformer_tf.readers.spreadsheets import sheet_records
from roformer_tf.readers.streams import (
    DECOMPRESSORS,
    DamagedError,
    StoredFile,
    is_url,
    opened_as_stored,
)

KINDS = {  # how a file's name ends, but for its compression
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
    ".conll": "conll",
    ".bio": "conll",
    ".txt": "txt",
}
SPREADSHEETS = (".xls", ".xlsb", ".xlsm", ".ods", ".et", ".numbers")
"""Kinds that are not read, but can be saved as one that is."""

_SEEN_FIRST = 100
"""Rows that tell whether the first is a header, and which columns a .jsonl file has."""


class Row(NamedTuple):
    """One row of a file."""

    place: str
    """Where it begins: "train.tsv:12", the line; of a Parquet file the number of the row."""
    cells: dict[str, Any]
    """What stands in each column; of a sentence, "units" and "tags"."""
    problem: str = ""
    """Why it cannot be read; "" if it can."""


class Table(NamedTuple):
    """A file with columns."""

    columns: tuple[str, ...]
    """Their names; "1", "2", … where no header gives them."""
    has_header: bool
    """Whether they have names."""
    rows: Iterator[Row]
    """To be read once."""
    sheet: str = ""
    """The sheet that it is, where the file has several."""


def kind_of(path: str | Path, sheet: str | None = None) -> str:
    """Tell a file's kind from its name.

    Raises InputError for a folder, another kind, and a sheet of a file that has none.
    """
    if not is_url(path) and Path(path).is_dir():
        raise InputError(f"{path} is a folder. Give a file in it.")
    file = StoredFile(str(path), 0, "")
    if file.kind in SPREADSHEETS:
        raise InputError(f"{path} is of no kind that can be read. Save it as .xlsx or .csv.")
    kind = KINDS.get(file.kind)
    if kind is None or (kind in ("parquet", "xlsx") and file.compression):
        raise InputError(
            f"{path} is of no kind that can be read. Its name has to end in one of "
            f"{', '.join(KINDS)}; all but Parquet and xlsx may be compressed, with "
            f"{', '.join(DECOMPRESSORS)} behind."
        )
    if not is_url(path) and not Path(path).exists():
        raise InputError(f"there is no file {path}. Check the path and the spelling.")
    if sheet is not None and kind != "xlsx":
        raise InputError(f"{path} has no sheets, as an .xlsx file has: leave --sheet out.")
    return kind


def open_table(
    path: str | Path,
    is_header: Callable[[list[list[str]]], bool],
    encoding: str = "auto",
    sheet: str | None = None,
) -> Table:
    """Open a tsv, csv, jsonl, Parquet or xlsx file.

    `is_header` tells from the first rows of a tsv, csv or xlsx whether the first is a header. A
    tsv's quotes are text unless the file keeps the rules of quoting throughout (see `_is_quoted`).
    `sheet` is of an xlsx; None for the first. Raises InputError for a file that is empty, or cannot
    be read at all.
    """
    kind = kind_of(path, sheet)
    if kind == "parquet":
        return _parquet(path)
    if kind == "jsonl":
        return _json_lines(path, encoding)
    name = ""
    if kind == "xlsx":
        name, records = sheet_records(path, sheet)
    elif kind == "csv":
        records = quoted_records(text_lines(path, encoding), "excel")
    elif _is_quoted(path, encoding):
        records = quoted_records(text_lines(path, encoding), "excel-tab")
    else:
        records = tabbed_records(text_lines(path, encoding))
    return _delimited(path, records, is_header)._replace(sheet=name)


def read_sentences(path: str | Path, encoding: str = "auto", tagged: bool = True) -> Iterator[Row]:
    """Yield the sentences of a CoNLL file, as `records.sentences` reads them."""
    return (
        Row(f"{path}:{number}", cells, problem)
        for number, cells, problem in sentences(text_lines(path, encoding), tagged)
    )


def _delimited(
    path: str | Path,
    records: Iterator[Record],
    is_header: Callable[[list[list[str]]], bool],
) -> Table:
    """Take the header off, and give every row's cells their columns."""
    records = (r if r.problem or any(map(str.strip, r.cells)) else _blank(r) for r in records)
    start = list(islice(records, _SEEN_FIRST))
    readable = [record for record in start if record.cells]
    if not readable:
        raise _nothing(path, [_row(path, record, ()) for record in start])
    first = readable[0]
    if broken := damage("".join(first.cells)):
        raise InputError(f"{path}:{first.number} {broken}.")
    has_header = is_header([record.cells for record in readable])
    columns = tuple(str(i + 1) for i in range(len(first.cells)))
    if has_header:
        columns = _checked_names(path, [cell.strip() for cell in first.cells])
        start.remove(first)
    rows = (_row(path, record, columns) for record in chain(start, records))
    return Table(columns, has_header, rows)


def _nothing(path: str | Path, rows: Iterable[Row]) -> InputError:
    """Say why the first rows have no cells: what is wrong with one, or that there are none."""
    broken = next((f"{r.place} {r.problem}" for r in rows if r.problem != BLANK), None)
    return InputError(f"{broken or f'{path} is empty'}. Give a file with examples.")


def _blank(record: Record) -> Record:
    return Record(record.number, [], BLANK)


def _checked_names(path: str | Path, names: list[str]) -> tuple[str, ...]:
    twice = {name for name in names if name and names.count(name) > 1}
    if twice:
        raise InputError(
            f"{path} has two columns named {min(twice)!r}. Give each a name of its own."
        )
    return tuple(names)


def _row(path: str | Path, record: Record, columns: tuple[str, ...]) -> Row:
    place, found = f"{path}:{record.number}", len(record.cells)
    if record.problem:
        return Row(place, {}, record.problem)
    if found != len(columns):
        what = "line break" if found < len(columns) else "delimiter"
        many = f"{found} column{'s' * (found != 1)}"
        return Row(
            place, {}, f"has {many}, the first line {len(columns)} (is there a {what} in a text?)"
        )
    return Row(place, dict(zip(columns, record.cells, strict=True)))


def _is_quoted(path: str | Path, encoding: str) -> bool:
    """Tell whether a tsv quotes cells as a csv does, rather than that texts hold quotes.

    It does if some cell begins with a quote, the csv module reads the file without an error, and
    all records are of the same length. If all lines are, too, the two readings have to agree on
    where a row ends: else one text's opening quote would swallow lines up to another's.
    """
    if not any(line.startswith('"') or '\t"' in line for line in text_lines(path, encoding)):
        return False
    records = list(_widths(quoted_records(text_lines(path, encoding), "excel-tab")))
    if len(set(records)) != 1 or records[0] == 0:
        return False
    lines = list(_widths(tabbed_records(text_lines(path, encoding))))
    return len(set(lines)) > 1 or len(lines) == len(records)


def _widths(records: Iterable[Record]) -> Iterator[int]:
    """Number of cells of each record that is not blank; 0 where it cannot be read."""
    for record in records:
        if record.problem or any(map(str.strip, record.cells)):
            yield len(record.cells)


def _json_lines(path: str | Path, encoding: str) -> Table:
    """Columns are the keys of the first records, in the order in which they are met."""
    rows = (
        Row(f"{path}:{number}", cells, problem)
        for number, cells, problem in json_records(text_lines(path, encoding))
    )
    start = list(islice(rows, _SEEN_FIRST))
    if not any(row.cells for row in start):
        raise _nothing(path, start)
    columns = dict.fromkeys(key for row in start for key in row.cells)
    return Table(tuple(columns), True, chain(start, rows))


def _parquet(path: str | Path) -> Table:
    """A damaged page is met while rows are read; the rows before it are given."""

    def unreadable() -> InputError:
        return InputError(f"{path} is no Parquet file, or damaged. Write it again.")

    def rows() -> Iterator[Row]:
        try:
            for number, cells, _ in file.read():
                yield Row(f"{path}:{number}", cells)
        except DamagedError:
            raise unreadable() from None

    try:
        file = ParquetRecords(opened_as_stored(path))
    except DamagedError:
        raise unreadable() from None
    if not file.rows:
        raise InputError(f"{path} is empty. Give a file with examples.")
    return Table(file.columns, True, rows())
