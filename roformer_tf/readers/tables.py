"""Files of examples → rows: tsv, csv, jsonl, Parquet and CoNLL.

A file is read a row at a time. A row that cannot be read says why, and the next one is read:
training stops there, prediction marks it and goes on.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import damage, read_lines
from roformer_tf.readers.streams import DamagedError

KINDS = {  # how a file's name ends, but for .gz
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".txt": "txt",
}
BLANK = "is blank"
"""The problem of a row with nothing in it, which training may skip."""

LONGEST_CELL = 1 << 24
"""Characters; more means that a quote is never closed."""

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


class _Record(NamedTuple):
    """What lies between two delimiters of rows."""

    line: int
    cells: list[str]
    problem: str = ""


def kind_of(path: str | Path) -> str:
    """Tell a file's kind from its name. Raises InputError for a folder, and for another kind."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give a file in it.")
    name = path.name.lower()
    kind = KINDS.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None or (kind == "parquet" and name.endswith(".gz")):
        raise InputError(
            f"{path} is of no kind that can be read. Its name has to end in one of "
            f"{', '.join(KINDS)}; all but Parquet may be gzipped, with .gz behind."
        )
    if not path.exists():
        raise InputError(f"there is no file {path}. Check the path and the spelling.")
    return kind


def open_table(
    path: str | Path,
    is_header: Callable[[list[list[str]]], bool],
    encoding: str = "auto",
) -> Table:
    """Open a tsv, csv, jsonl or Parquet file.

    `is_header` tells from the first rows of a tsv or csv whether the first is a header. A tsv's
    quotes are text unless the file keeps the rules of quoting throughout (see `_is_quoted`).
    Raises InputError for a file that is empty, or cannot be read at all.
    """
    kind = kind_of(path)
    if kind == "parquet":
        return _parquet(path)
    if kind == "jsonl":
        return _json_lines(path, encoding)
    if kind == "csv":
        records = quoted_records(read_lines(path, encoding), "excel")
    elif _is_quoted(path, encoding):
        records = quoted_records(read_lines(path, encoding), "excel-tab")
    else:
        records = _plain_records(read_lines(path, encoding))
    return _delimited(path, records, is_header)


def read_sentences(path: str | Path, encoding: str = "auto", tagged: bool = True) -> Iterator[Row]:
    """Yield the sentences of a CoNLL file: units in the first column, tags in the last.

        北 B-LOC
        京 I-LOC      → {"units": ("北", "京", "人"), "tags": ("B-LOC", "I-LOC", "O")}
        人 O

    Columns are separated by tabs or spaces, sentences by blank lines. A line without a tag is its
    sentence's problem if `tagged`, which else gives no tags.
    """
    lines = enumerate(read_lines(path, encoding), start=1)
    for blank, group in groupby(lines, key=lambda numbered: not numbered[1].strip()):
        sentence = [] if blank else [(n, _columns_of(line)) for n, line in group]
        sentence = [(n, cells) for n, cells in sentence if cells[0] != "-DOCSTART-"]
        if sentence:
            yield _sentence(path, sentence, tagged)


def _sentence(path: str | Path, lines: list[tuple[int, list[str]]], tagged: bool) -> Row:
    for number, cells in lines:
        problem = damage("".join(cells)) or _tag_problem(cells) * tagged
        if problem:
            return Row(f"{path}:{number}", {}, problem)
    found = {"units": tuple(cells[0] for _, cells in lines)}
    if tagged:
        found["tags"] = tuple(cells[-1] for _, cells in lines)
    return Row(f"{path}:{lines[0][0]}", found)


def _columns_of(line: str) -> list[str]:
    """Split a CoNLL line at tabs or, without any, at spaces; a wide one (U+3000) is a unit."""
    if "\t" in line:
        return line.rstrip("\r\n").split("\t")
    return re.split(" +", line.strip(" \r\n"))


def _tag_problem(cells: list[str]) -> str:
    if not cells[0]:
        return "has no character or word before its tag"
    if len(cells) < 2:
        return f"has no tag beside {cells[0]!r}"
    if not re.fullmatch(r"O|[BIESMLU]-\S+", cells[-1]):
        return f"has the tag {cells[-1]!r}, but tags are O, or such as B-LOC and I-LOC"
    return ""


def _delimited(
    path: str | Path,
    records: Iterator[_Record],
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
        raise InputError(f"{path}:{first.line} {broken}.")
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


def _blank(record: _Record) -> _Record:
    return _Record(record.line, [], BLANK)


def _checked_names(path: str | Path, names: list[str]) -> tuple[str, ...]:
    twice = {name for name in names if name and names.count(name) > 1}
    if twice:
        raise InputError(
            f"{path} has two columns named {min(twice)!r}. Give each a name of its own."
        )
    return tuple(names)


def _row(path: str | Path, record: _Record, columns: tuple[str, ...]) -> Row:
    place, found = f"{path}:{record.line}", len(record.cells)
    if record.problem:
        return Row(place, {}, record.problem)
    if found != len(columns):
        what = "line break" if found < len(columns) else "delimiter"
        many = f"{found} column{'s' * (found != 1)}"
        return Row(
            place, {}, f"has {many}, the first line {len(columns)} (is there a {what} in a text?)"
        )
    return Row(place, dict(zip(columns, record.cells, strict=True)))


def _plain_records(lines: Iterable[str]) -> Iterator[_Record]:
    for number, line in enumerate(lines, start=1):
        yield _Record(number, line.removesuffix("\r").split("\t"))


def quoted_records(lines: Iterable[str], dialect: str) -> Iterator[_Record]:
    """Read records that may span lines, by the rules of the csv module, strictly.

    Lines are without their ends; dialect: "excel" or "excel-tab".
    """
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))  # the whole process's
    reader = csv.reader((line + "\n" for line in lines), dialect, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield _Record(line, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            advice = "double the quotes in a quoted cell, and close every cell that a quote opens"
            yield _Record(line, [], f"breaks the rules of quoting ({error}): {advice}")


def _is_quoted(path: str | Path, encoding: str) -> bool:
    """Tell whether a tsv quotes cells as a csv does, rather than that texts hold quotes.

    It does if some cell begins with a quote, the csv module reads the file without an error, and
    all records are of the same length. If all lines are, too, the two readings have to agree on
    where a row ends: else one text's opening quote would swallow lines up to another's.
    """
    if not any(line.startswith('"') or '\t"' in line for line in read_lines(path, encoding)):
        return False
    records = list(_widths(quoted_records(read_lines(path, encoding), "excel-tab")))
    if len(set(records)) != 1 or records[0] == 0:
        return False
    lines = list(_widths(_plain_records(read_lines(path, encoding))))
    return len(set(lines)) > 1 or len(lines) == len(records)


def _widths(records: Iterable[_Record]) -> Iterator[int]:
    """Number of cells of each record that is not blank; 0 where it cannot be read."""
    for record in records:
        if record.problem or any(map(str.strip, record.cells)):
            yield len(record.cells)


def _json_lines(path: str | Path, encoding: str) -> Table:
    """Columns are the keys of the first records, in the order in which they are met."""
    lines = enumerate(read_lines(path, encoding), start=1)
    rows = (_json_row(f"{path}:{number}", line) for number, line in lines)
    start = list(islice(rows, _SEEN_FIRST))
    if not any(row.cells for row in start):
        raise _nothing(path, start)
    columns = dict.fromkeys(key for row in start for key in row.cells)
    return Table(tuple(columns), True, chain(start, rows))


def _json_row(place: str, line: str) -> Row:
    if not line.strip():
        return Row(place, {}, BLANK)
    if damage(line):
        return Row(place, {}, damage(line))
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the latter for a line of a thousand brackets
        return Row(place, {}, "is not JSON")
    if not isinstance(record, dict):
        return Row(place, {}, "is not a JSON object")
    return Row(place, record)


def _parquet(path: str | Path) -> Table:
    """A damaged page is met while rows are read; the rows before it are given."""

    def unreadable() -> InputError:
        return InputError(f"{path} is no Parquet file, or damaged. Write it again.")

    def records() -> Iterator[dict[str, Any]]:
        try:
            for batch in parquet_batches(file):
                yield from batch.to_pylist()
        except DamagedError:
            raise unreadable() from None

    try:
        file = open_parquet(path)
    except DamagedError:
        raise unreadable() from None
    if not file.metadata.num_rows:
        raise InputError(f"{path} is empty. Give a file with examples.")
    rows = (Row(f"{path}:{number}", cells) for number, cells in enumerate(records(), start=1))
    return Table(tuple(file.schema_arrow.names), True, rows)


def open_parquet(source: Any) -> Any:
    """Open a path or an open file: pyarrow's ParquetFile. Raises DamagedError if it is none."""
    with _damage_met():
        from pyarrow.parquet import ParquetFile

        return ParquetFile(source)


def parquet_batches(file: Any, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield pyarrow's batches of rows, of all columns or some. Raises DamagedError, where met."""
    with _damage_met():
        yield from file.iter_batches(batch_size=256, columns=columns)


@contextmanager
def _damage_met() -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException):
        raise DamagedError("Parquet data cut off or damaged") from None
