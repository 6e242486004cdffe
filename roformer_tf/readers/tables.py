"""Files of examples → rows: tsv, csv, jsonl, Parquet, Arrow, xlsx and CoNLL.

A file is read row by row. A row that cannot be read has a problem, and the next one is read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.readers.arrow_tables import ArrowRecords, ParquetRecords
from roformer_tf.readers.json_arrays import find_json, json_array
from roformer_tf.readers.lines import damage, find_format, text_lines
from roformer_tf.readers.records import (
    ANY,
    BLANK,
    Record,
    json_records,
    quoted_records,
    sentences,
    tabbed_records,
    tag_pattern,
)
from roformer_tf.readers.spreadsheets import open_sheet
from roformer_tf.readers.streams import (
    DECOMPRESSORS,
    DamagedError,
    StoredFile,
    is_url,
    opened_as_stored,
    within_limits,
)

KINDS = {  # how a file's name ends, without its compression
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".xlsx": "xlsx",
    ".conll": "conll",
    ".bio": "conll",
    ".txt": "txt",
}
SPREADSHEETS = (".xls", ".xlsb", ".xlsm", ".ods", ".et", ".numbers")
"""Kinds that are not read, but can be saved as one that is."""

_SEEN_FIRST = 100
"""Rows from which the header of a table, and the columns of a .jsonl file, are detected."""
_SENTENCES = 10_000
"""Sentences from which the pattern of tags is detected."""
_ALIKE = 0.9
"""Fraction of rows that have the same length under a delimiter that is not the usual one."""
_DELIMITERS = {  # of each kind: the usual one, and others that occur
    "csv": (",", "\t", ";", "，"),
    "tsv": ("\t", ",", ";", "，"),
}
_IN_TEXTS = (",", "，")
"""Delimiters that also occur in texts: they count only with a header of known names."""
_CALLED = {",": "commas", "\t": "tabs", ";": "semicolons", "，": "full-width commas"}

_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How an .xlsx and an .xls file begin, whatever their name."""


class Row(NamedTuple):
    """One row of a file."""

    place: str
    """Where it begins: "train.tsv:12", the line; of a Parquet file the number of the row."""
    cells: dict[str, Any]
    """The cell of each column; of a sentence, "units" and "tags"."""
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
    told: tuple[str, ...] = ()
    """Sentences about unusual properties of the file, for the user."""


class Top(NamedTuple):
    """The rows above the examples of a table."""

    titles: int = 0
    """Rows at the beginning that are no part of it, such as a title above the header."""
    has_header: bool = False
    """Whether the next one names the columns."""


FindTop: TypeAlias = Callable[[list[list[str]]], Top]
"""Detects the rows above the examples, from the first rows that are not blank."""


def kind_of(path: str | Path, sheet: str | None = None) -> str:
    """A file's kind, from its name and its first bytes.

    Raises InputError for a folder, another kind, and a sheet of a file that has none.
    """
    if not is_url(path) and Path(path).is_dir():
        _check_folder(Path(path), sheet)
        return "arrow"
    file = StoredFile(str(path), 0, "")
    is_here = not is_url(path) and Path(path).exists()
    kind = _by_content(path, file) if is_here else ""
    if file.kind in SPREADSHEETS and not kind:
        raise InputError(f"{path} is of no kind that can be read. Save it as .xlsx or .csv.")
    kind = kind or KINDS.get(file.kind, "")
    if not kind or (kind in ("parquet", "arrow", "xlsx") and file.compression):
        raise InputError(
            f"{path} is of no kind that can be read. Its name has to end in one of "
            f"{', '.join(KINDS)}; all but Parquet, Arrow and xlsx may be compressed: "
            f"{', '.join(DECOMPRESSORS)}."
        )
    if not is_here and not is_url(path):
        raise InputError(f"there is no file {path}. Check the path and the spelling.")
    _check_sheet(path, sheet, kind)
    return kind


def _check_folder(path: Path, sheet: str | None) -> None:
    """Raise InputError for a folder unless `datasets` saved a data set in it."""
    splits = sorted(file.parent.name for file in path.glob("*/*.arrow"))
    if not _arrow_files(path):
        if splits:
            names = " or ".join(f"{path}/{name}" for name in dict.fromkeys(splits))
            raise InputError(f"{path} holds several data sets. Give one: {names}.")
        raise InputError(f"{path} is a folder. Give a file in it.")
    _check_sheet(path, sheet, "arrow")


def _check_sheet(path: str | Path, sheet: str | None, kind: str) -> None:
    if sheet is not None and kind != "xlsx":
        raise InputError(f"{path} has no sheets, as an .xlsx file has: remove --sheet.")


def _by_content(path: str | Path, file: StoredFile) -> str:
    """The kind of a file whose name is of another, as exports of web sites are; "" for no such.

    Raises InputError for an old spreadsheet, or a web page, under another name.
    """
    text = KINDS.get(file.kind) in ("csv", "tsv", "txt")
    if file.compression or not (text or file.kind == ".xls"):
        return ""
    with opened_as_stored(path) as raw:
        head = raw.read(4096)
    if head.startswith(_ZIP):
        return "xlsx"
    if head.startswith(_OLE) and text:
        raise InputError(
            f"{path} is a spreadsheet of the old kind, .xls, by another name. Open it in Excel or "
            "WPS, and save it as .xlsx."
        )
    if text or not head or head.startswith(_OLE[:4]):
        return ""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise InputError(
            f"{path} is a web page that is called .xls. Open it in Excel or WPS, and save it as "
            ".xlsx."
        )
    return "tsv" if b"\t" in head else ""


def open_table(
    path: str | Path,
    find_top: FindTop,
    encoding: str = "auto",
    sheet: str | None = None,
) -> Table:
    """Open a tsv, csv, jsonl, Parquet or xlsx file, or a .txt with the cells of a tsv.

    A tsv's quotes are text unless the file keeps the rules of quoting throughout (see
    `_is_quoted`). Cells may be separated by what is not usual for the kind, if all rows speak for
    it. `sheet` is of an xlsx; None for the first. Raises InputError for a file that is empty, or
    cannot be read at all.
    """
    kind = kind_of(path, sheet)
    if kind in ("parquet", "arrow"):
        return _arrow(path, kind)
    if kind in ("jsonl", "json"):
        return _json(path, kind, encoding)
    told = []
    name = delimiter = ""
    if kind != (named := KINDS.get(StoredFile(str(path), 0, "").kind)) and named != "txt":
        told.append(f"It is read as .{kind}, whatever its name.")
    if kind == "xlsx":
        name, records, merged = open_sheet(path, sheet)
        if merged:
            many = "ranges give their values" if merged > 1 else "range gives its value"
            told.append(f"{merged:,} merged {many} to each row.")
    else:
        usual, delimiter = _find_delimiter(path, kind, encoding, find_top)
        if delimiter != usual:
            told.append(f"Its cells are separated by {_CALLED[delimiter]}.")
        if find_format(path, encoding)[1]:
            told.append("Its lines end in CR.")
        lines = text_lines(path, encoding)
        if kind == "csv":
            records = map(_without_guard, quoted_records(lines, "excel", delimiter))
        elif _is_quoted(path, encoding, delimiter):
            records = quoted_records(lines, "excel-tab", delimiter)
        else:
            records = tabbed_records(lines, delimiter)
    return _delimited(path, records, find_top, pad=kind == "xlsx")._replace(
        sheet=name, told=tuple(told)
    )


def _find_delimiter(
    path: str | Path, kind: str, encoding: str, find_top: FindTop
) -> tuple[str, str]:
    """The delimiter that is usual for a kind of file, and the one that this file has."""
    usual, *rest = _DELIMITERS["csv" if kind == "csv" else "tsv"]
    lines = list(islice(text_lines(path, encoding), _SEEN_FIRST))

    def records(delimiter: str) -> list[list[str]]:
        rows = quoted_records(lines, "excel", delimiter)
        return [record.cells for record in rows if any(map(str.strip, record.cells))]

    first = next((line for line in lines if line.strip()), "")
    if usual in first:
        return usual, usual
    for delimiter in rest:
        if delimiter not in first:
            continue
        rows = records(delimiter)
        alike = sum(len(row) == len(rows[0]) for row in rows) if rows else 0
        if not rows or len(rows[0]) < 2 or alike < _ALIKE * len(rows):
            continue
        if delimiter not in _IN_TEXTS or find_top(rows).has_header:
            return usual, delimiter
    return usual, usual


def _without_guard(record: Record) -> Record:
    """Take ="0012", as exports keep Excel from making 12 of it, for the text that it shows."""
    return record._replace(
        cells=[
            cell[2:-1] if cell.startswith('="') and cell.endswith('"') and len(cell) > 2 else cell
            for cell in record.cells
        ]
    )


def read_sentences(path: str | Path, encoding: str = "auto", tagged: bool = True) -> Iterator[Row]:
    """Yield the sentences of a CoNLL file, as `records.sentences` reads them."""
    pattern = None
    if tagged:
        first = islice(sentences(text_lines(path, encoding), ANY), _SENTENCES)
        pattern = tag_pattern(tag for record in first for tag in record.cells.get("tags", ()))
    return (
        Row(f"{path}:{number}", cells, problem)
        for number, cells, problem in sentences(text_lines(path, encoding), pattern)
    )


def _delimited(path: str | Path, records: Iterator[Record], find_top: FindTop, pad: bool) -> Table:
    """Take titles and header off, and give every row's cells their columns.

    `pad`: a row with fewer cells than the first is padded with empty ones.
    """
    records = (r if r.problem or any(map(str.strip, r.cells)) else _blank(r) for r in records)
    start = list(islice(records, _SEEN_FIRST))
    readable = [record for record in start if record.cells]
    if not readable:
        raise _nothing(path, [_row(path, record, (), pad) for record in start])
    top = find_top([record.cells for record in readable])
    first = readable[top.titles]
    columns = tuple(str(i + 1) for i in range(len(first.cells)))
    if top.has_header:
        if broken := damage("".join(first.cells)):
            raise InputError(f"{path}:{first.number} {broken}.")
        columns = _checked_names(path, [cell.strip() for cell in first.cells])
    if top.has_header or top.titles:  # what is blank above them is no example either
        numbers = {r.number for r in readable[: top.titles + top.has_header]}
        start = [
            r
            for r in start
            if r.number not in numbers and (r.problem != BLANK or r.number > first.number)
        ]
    rows = (_row(path, record, columns, pad) for record in chain(start, records))
    return Table(columns, top.has_header, rows)


def _nothing(path: str | Path, rows: Iterable[Row]) -> InputError:
    """Say why the first rows have no cells: what is wrong with one, or that there are none."""
    broken = next((f"{r.place} {r.problem}" for r in rows if r.problem != BLANK), None)
    return InputError(f"{broken or f'{path} is empty'}. Give a file with examples.")


def _blank(record: Record) -> Record:
    return Record(record.number, [], BLANK)


def _checked_names(path: str | Path, names: list[str]) -> tuple[str, ...]:
    """Names of columns; one without a name, as after a merged cell, is called by its number."""
    twice = {name for name in names if name and names.count(name) > 1}
    if twice:
        raise InputError(
            f"{path} has two columns named {min(twice)!r}. Give each a name of its own."
        )
    return tuple(
        name or (str(i) if str(i) not in names else f"{i}.") for i, name in enumerate(names, 1)
    )


def _row(path: str | Path, record: Record, columns: tuple[str, ...], pad: bool) -> Row:
    place, cells = f"{path}:{record.number}", record.cells
    if record.problem:
        return Row(place, {}, record.problem)
    if pad:
        cells = cells + [""] * (len(columns) - len(cells))
    if not any(map(str.strip, cells[len(columns) :])):  # as Excel writes for a formatted cell
        cells = cells[: len(columns)]
    if len(cells) != len(columns):
        what = "line break" if len(cells) < len(columns) else "delimiter"
        many = f"{len(cells)} column{'s' * (len(cells) != 1)}"
        return Row(
            place, {}, f"has {many}, the first line {len(columns)} (is there a {what} in a text?)"
        )
    return Row(place, dict(zip(columns, cells, strict=True)))


def _is_quoted(path: str | Path, encoding: str, delimiter: str) -> bool:
    """Whether a tsv quotes cells as a csv does, rather than having quotes in its texts.

    It does if some cell begins with a quote, and the rules of the csv module leave fewer rows
    broken or of another length than plain splitting. If none is left, both readings have to agree
    where a row ends, else each line that a row takes along on how long it should be: or one text's
    opening quote would swallow lines up to another's.
    """
    begins = f'{delimiter}"'
    if not any(line.startswith('"') or begins in line for line in text_lines(path, encoding)):
        return False

    def quoted() -> Iterator[Record]:
        return quoted_records(text_lines(path, encoding), "excel-tab", delimiter)

    seen = Counter(len(r.cells) for r in islice(filter(_is_filled, quoted()), _SEEN_FIRST))
    usual = max(seen, key=seen.__getitem__, default=0)
    lines = end = 0
    broken_lines = set()
    for line in tabbed_records(text_lines(path, encoding), delimiter):
        end = line.number + 1
        if _is_filled(line):
            lines += 1
            if len(line.cells) != usual:
                broken_lines.add(line.number)
    records = broken = 0
    start = 1
    spans = []  # of records with several lines
    for record in chain(quoted(), [Record(end, [])]):  # each shows where the one before it ends
        if record.number - start > 1:
            spans.append(range(start, record.number))
        start = record.number
        if _is_filled(record):
            records += 1
            broken += len(record.cells) != usual
    if usual == 0 or (broken > 0 and broken >= len(broken_lines)):
        return False
    if not broken:
        return bool(broken_lines) or lines == records
    return not any(broken_lines.isdisjoint(span) for span in spans)


def _is_filled(record: Record) -> bool:
    """Whether a record is not blank."""
    return bool(record.problem) or any(map(str.strip, record.cells))


def _json(path: str | Path, kind: str, encoding: str) -> Table:
    """JSON lines, or in a .json file one array of objects.

    Columns are the keys of the first records, in the order in which they are met.
    """
    told: tuple[str, ...] = ()
    if kind == "json":
        codec, is_array = find_json(path, encoding)
        if codec not in ("utf-8", encoding):
            told = (f"It is read as {codec.upper()}.",)
    if kind == "json" and is_array:
        records = json_array(path, codec)
    else:
        records = json_records(text_lines(path, encoding))
    rows = (Row(f"{path}:{number}", cells, problem) for number, cells, problem in records)
    start = list(islice(rows, _SEEN_FIRST))
    if not any(row.cells for row in start):
        if kind == "json" and start:
            raise InputError(
                f"{path} holds neither a JSON object in each line nor one array of objects. Write "
                "it in one of these layouts."
            )
        raise _nothing(path, start)
    columns = dict.fromkeys(key for row in start for key in row.cells)
    return Table(tuple(columns), True, chain(start, rows), told=told)


def _arrow(path: str | Path, kind: str) -> Table:
    """The rows of Parquet or Arrow files; damaged data raises after the rows before it."""

    @contextmanager
    def explained() -> Iterator[None]:
        try:
            with within_limits(path):
                yield
        except DamagedError:
            name = "Arrow" if kind == "arrow" else "Parquet"
            raise InputError(f"{path} is no {name} file, or damaged. Write it again.") from None

    def rows() -> Iterator[Row]:
        with explained():
            for number, cells, _ in file.read():
                yield Row(f"{path}:{number}", cells)

    with explained():
        file: ParquetRecords | ArrowRecords
        if kind == "arrow":
            file = ArrowRecords([opened_as_stored(one) for one in _arrow_files(path)])
        else:
            file = ParquetRecords(opened_as_stored(path))
    records = rows()
    first = list(islice(records, 1))
    if not first:
        raise InputError(f"{path} is empty. Give a file with examples.")
    return Table(file.columns, True, chain(first, records))


def _arrow_files(path: str | Path) -> list[str | Path]:
    """The file, or those of a folder that `datasets` saved, in their order."""
    if is_url(path) or not Path(path).is_dir():
        return [path]
    return sorted(p for p in Path(path).glob("*.arrow") if not p.name.startswith("cache-"))
