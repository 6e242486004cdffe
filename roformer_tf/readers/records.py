"""Lines of text → records, one at a time.

A record that cannot be read holds its problem, and reading continues with the next one.
"""

import csv
import json
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from roformer_tf.readers.lines import BYTE_ORDER_MARK, NOT_ENCODED, DamagedLine, damage
from roformer_tf.readers.streams import LONGEST

# Texts in memory at a time, where they need not all be; within them, those of similar length form
# batches.
CHUNK = 8192
# Fewer texts, if they have as many characters together: lines may be whole books.
CHUNK_CHARACTERS = 1_000_000

# The problem of an empty record, which is harmless.
BLANK = "is blank"
NO_OBJECT = "is not a JSON object"

TYPED = re.compile(r"O|[BIESMLU][-_]\S+")
BARE = re.compile("[OBIESMLU]")
# Tags of entities with a type, of entities or words without a type, and any other tags.
ANY = re.compile(r"\S+")

Item = TypeVar("Item")


class Record(NamedTuple):
    """A record of a file: a line, a row, or a sentence."""

    number: int
    """Number of its first line, from 1; in Parquet and spreadsheets, of its row."""
    cells: Any
    """A list of texts, or a dictionary from JSON or Parquet; empty where unreadable."""
    problem: str = ""
    """Why it cannot be read, such as "is not JSON"; "" if it can."""


class Row(NamedTuple):
    """A record of a table: its cells have the names of columns."""

    source_line: str
    """File and first line: "train.tsv:12"; in Parquet files the number of the row."""
    cells: dict[str, Any]
    """The cell of each column; of a sentence, "units" and "tags"."""
    problem: str = ""
    """Why it cannot be read; "" if it can."""


def json_records(lines: Iterable[str]) -> Iterator[Record]:
    """Read a JSON object from every line."""
    for number, line in enumerate(lines, start=1):
        if type(line) is DamagedLine:
            yield Record(number, {}, NOT_ENCODED)
            continue
        line = line.removeprefix(BYTE_ORDER_MARK)  # within a file that was joined from several
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # RecursionError: a line of a thousand brackets
            problem = (damage(line) or "is not JSON") if line.strip() else BLANK
            yield Record(number, {}, problem)
            continue
        yield object_record(number, record)


def object_record(number: int, value: Any) -> Record:
    """The record of a JSON value, which has to be an object."""
    return Record(number, value) if isinstance(value, dict) else Record(number, {}, NO_OBJECT)


def renamed(values: dict[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The values of an object by their usual names: {usual name: (name, another, …)}.

    Of several names that it has the first counts; values with other names are dropped.
    """
    return {
        usual: next(values[name] for name in known if name in values)
        for usual, known in names.items()
        if not values.keys().isdisjoint(known)
    }


def quoted_records(lines: Iterable[str], delimiter: str = ",") -> Iterator[Record]:
    """Read records that may span lines, by the strict rules of the csv module.

    Lines include their ends. A record that breaks the rules loses only its first line: reading
    continues with the second, so a quote that is never closed does not swallow the lines after it.
    """
    # A limit of the process. A longer cell means that a quote is never closed.
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    # The csv module pulls lines as it needs them; `source` records which ones a record took.
    source = _ReturnedLines(lines)
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    number = 1
    while True:
        source.taken.clear()
        try:
            yield Record(number, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            advice = "double the quotes in a quoted cell, and close every cell that a quote opens"
            problem = f"breaks the rules of quoting ({error}): {advice}"
            # A NUL of UTF-16, for which Python 3.10 raises in any case, is the cause.
            yield Record(number, [], damage("".join(source.taken)) or problem)
            source.give_back()
            # The old one may be exhausted.
            reader = csv.reader(source, delimiter=delimiter, strict=True)
        number += len(source.taken)


class _ReturnedLines(Iterator[str]):
    """Lines; those of the last record can be returned, except its first line."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._again: deque[str] = deque()
        self.taken: list[str] = []

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        return line

    def give_back(self) -> None:
        self._again.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def tabbed_records(lines: Iterable[str], delimiter: str = "\t") -> Iterator[Record]:
    """Split every line at its tabs, or at another delimiter; quotes are text."""
    for number, line in enumerate(lines, start=1):
        yield Record(number, line.removesuffix("\n").removesuffix("\r").split(delimiter))


def tag_pattern(tags: Iterable[str]) -> re.Pattern[str]:
    """The pattern of most tags of a file: a tag that does not match it is a mistake.

    Tags mark entities with types (B-LOC) or without (B, I), or anything else, as parts of speech.
    """
    counted = Counter(tags)
    # O matches both patterns, so it decides nothing. A Counter accepts an absent key here.
    del counted["O"]
    # Parts of speech may be single letters, too, so `BARE` needs nearly all tags.
    for pattern, fraction in ((TYPED, 0.5), (BARE, 0.9)):
        matching = sum(number for tag, number in counted.items() if pattern.fullmatch(tag))
        if counted and matching >= fraction * counted.total():
            return pattern
    return ANY


def sentences(lines: Iterable[str], tags: re.Pattern[str] | None) -> Iterator[Record]:
    """Read the sentences of CoNLL: units in the first column, tags in the last.

        北 B-LOC
        京 I-LOC      → {"units": ("北", "京", "人"), "tags": ("B-LOC", "I-LOC", "O")}
        人 O

    Columns are separated by tabs or spaces, sentences by blank lines. Lines before a sentence that
    begin with "# " and have no tag, or another number of columns, are comments. A sentence has a
    problem if a line has no tag, or one that does not match `tags`. With None no tags are read.
    """
    numbered = enumerate(lines, start=1)
    for blank, group in groupby(numbered, key=lambda numbered: not numbered[1].strip()):
        sentence = [] if blank else [(n, _columns_of(line)) for n, line in group]
        sentence = [(n, cells) for n, cells in sentence if cells[0] != "-DOCSTART-"]
        while sentence and _is_comment(sentence[0][1], sentence[-1][1], tags):
            del sentence[0]
        if sentence:
            yield _sentence(sentence, tags)


def _is_comment(cells: list[str], last: list[str], tags: re.Pattern[str] | None) -> bool:
    """Whether a line is a comment, such as "# id 7", and not the unit # with its tag."""
    is_unit = len(cells) == len(last) and (tags is None or tags.fullmatch(cells[-1]))
    return cells[0].startswith("# ") or (cells[0] == "#" and len(cells) > 1 and not is_unit)


def _sentence(lines: list[tuple[int, list[str]]], tags: re.Pattern[str] | None) -> Record:
    for number, cells in lines:
        if problem := damage("".join(cells)) or (tag_problem(cells, tags) if tags else ""):
            return Record(number, {}, problem)
    sentence = {"units": tuple(cells[0] for _, cells in lines)}
    if tags:
        sentence["tags"] = tuple(cells[-1] for _, cells in lines)
    return Record(lines[0][0], sentence)


def _columns_of(line: str) -> list[str]:
    """Split a CoNLL line at tabs or, without tabs, at spaces; a wide space (U+3000) is a unit."""
    if "\t" in line:
        return line.rstrip(" \r\n").split("\t")
    return re.split(" +", line.strip(" \r\n"))


def tag_problem(cells: list[str], tags: re.Pattern[str]) -> str:
    """The problem of a unit and its tag, the first and the last cell; "" for none."""
    if not cells[0]:
        return "has no character or word before its tag"
    if len(cells) < 2:
        return f"has no tag next to {cells[0]!r}"
    if not tags.fullmatch(cells[-1]):
        usual = "O, or such as B-LOC and I-LOC" if tags is TYPED else "single letters such as B"
        usual = "without white space" if tags is ANY else usual
        return f"has the tag {cells[-1]!r}, but tags are {usual}"
    return ""


def text_key(texts: Iterable[str]) -> bytes:
    """16 bytes that equal texts share: equal except for white space and width (NFKC)."""
    plain = ("".join(unicodedata.normalize("NFKC", text).split()) for text in texts)
    # NUL, which no readable text has, keeps ("ab", "c") and ("a", "bc") different.
    return blake2b("\0".join(plain).encode(errors="surrogatepass"), digest_size=16).digest()


def chunks(
    items: Iterable[Item],
    size: float = CHUNK,
    characters: int = CHUNK_CHARACTERS,
    length: Callable[[Item], int] = len,  # type: ignore[assignment]
) -> Iterator[list[Item]]:
    """Lists of `size` items; of fewer, if they have as many `characters` together.

    length: the characters of an item.
    """
    chunk: list[Item] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += length(item)
        if len(chunk) == size or total >= characters:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
