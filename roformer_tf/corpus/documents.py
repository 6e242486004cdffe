"""Files of text → documents, one at a time, whatever the size of the files."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

from roformer_tf.errors import InputError, check_numbers
from roformer_tf.readers.arrow_tables import parquet_records
from roformer_tf.readers.lines import NOT_ENCODED, DamagedLine, TextLines, check_encoding, damage
from roformer_tf.readers.records import BLANK, json_records, quoted_records
from roformer_tf.readers.streams import (
    DECOMPRESSORS,
    StoredFile,
    UnreadableError,
    decompressed,
    find,
    is_url,
)

EXAMPLES = 5  # bad lines that a report lists
_NAMED = re.compile("([A-Za-z0-9_-]+)=(.+)", re.DOTALL)  # matches no URL: its colon comes first


@dataclass(frozen=True)
class CorpusConfig:
    """The files of a corpus and how documents are read from them.

    In a .txt file every line is a document; in a .jsonl or .json file every line is a JSON object
    whose `field` is one; in .csv and .parquet files `field` is a column. A file without an ending
    has either lines or JSON objects. All but Parquet may be compressed: .gz, .xz, .zst. The
    encoding (UTF-8, GB18030, Big5, UTF-16) of each file is detected. Blank lines and blank texts
    are skipped.
    """

    corpus: Annotated[tuple[str, ...], "FILE"]
    """Files, patterns such as 'data/*.jsonl.gz', or URLs that fsspec opens. Several corpora have
    names, such as 'news=data/news/*.jsonl' 'wiki=data/wiki/*.txt': all of a name are one corpus."""
    field: str = "text"
    """Key of the text in a .jsonl file, column of it in a .csv or .parquet file."""
    encoding: str = "auto"
    """Encoding of the files, such as gb18030. auto: detects UTF-8, UTF-16, GB18030 and Big5."""
    strict: bool = False
    """Stop at the first bad line instead of counting and skipping it."""
    min_characters: int = 0
    """Skip documents with fewer characters, not counting white space around them."""
    drop_repeated_lines: bool = False
    """Remove lines that repeat an earlier one of the same document, such as menus of web pages."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        check_numbers(self, "min_characters", at_least=0)


@dataclass(frozen=True, order=True)
class CorpusFile(StoredFile):
    """A file of a corpus."""

    corpus: str = ""
    """The corpus' name; "" for none."""


@dataclass
class CorpusReport:
    """Statistics of the files read so far; `read_documents` updates them."""

    documents: int = 0
    characters: int = 0
    bytes_read: int = 0
    """Before decompression, to compare with the sizes of the files."""
    bad: Counter[str] = field(default_factory=Counter)
    """Skipped lines, by problem."""
    examples: list[str] = field(default_factory=list)
    """The first few of them: "file:line: problem"."""
    encodings: dict[str, str] = field(default_factory=dict)
    """The detected encodings of files, except UTF-8."""

    def summary(self) -> str:
        """Documents and characters; then lines about bad lines and encodings except UTF-8."""
        lines = [f"{self.documents:,} documents, {self.characters:,} characters"]
        if self.bad:
            kinds = ", ".join(f"{count:,} × {kind}" for kind, count in sorted(self.bad.items()))
            lines.append(f"skipped bad lines: {self.bad.total():,} ({kinds}), the first of them:")
            lines += [f"  {example}" for example in self.examples]
        for encoding in sorted(set(self.encodings.values())):
            files = [file for file, codec in self.encodings.items() if codec == encoding]
            more = f" and {len(files) - EXAMPLES:,} more" if len(files) > EXAMPLES else ""
            lines.append(f"read as {encoding.upper()}: {', '.join(files[:EXAMPLES])}{more}")
        return "\n".join(lines)


# Number and text of a line, record or row, and its problem, or "".
_Text: TypeAlias = tuple[int, str, str]


def filtered(texts: Iterable[str], config: CorpusConfig) -> tuple[list[str | None], int]:
    """Remove repeated lines from documents, then skip documents that are too short.

    Returns the documents, None for a skipped one, and the number of removed lines.
    """
    lines = 0
    kept: list[str | None] = []
    for text in texts:
        if config.drop_repeated_lines:
            text, dropped = without_repeated_lines(text)
            lines += dropped
        kept.append(text if len(text.strip()) >= config.min_characters else None)
    return kept, lines


def without_repeated_lines(text: str) -> tuple[str, int]:
    r"""The text without repeated lines, and how many were removed.

    Lines end in \n. White space around them makes no difference, and blank ones stay.

    >>> without_repeated_lines("Home\n甲\n\n Home\n乙")
    ('Home\n甲\n\n乙', 1)
    """
    lines = text.split("\n")
    seen: set[str] = set()
    kept = []
    for line in lines:
        # Blank lines separate paragraphs: they may repeat.
        plain = line.strip()
        if plain not in seen or not plain:
            kept.append(line)
            seen.add(plain)
    return "\n".join(kept), len(lines) - len(kept)


def find_files(entries: Iterable[str]) -> list[CorpusFile]:
    """List the files that patterns, or NAME=PATTERN, match: corpus by corpus, sorted, each once.

    Corpora are in order of their first entries. An entry that is the path of a file has no name.
    Raises InputError for a pattern without matches, a file of two corpora, and a file of a kind
    that cannot be read.
    """
    files: dict[str, CorpusFile] = {}
    order: dict[str, int] = {}
    for entry in entries:
        named = _NAMED.fullmatch(entry)
        name, pattern = named.groups() if named and not Path(entry).is_file() else ("", entry)
        order.setdefault(name, len(order))
        matches = find(pattern)
        if not matches:
            raise InputError(_no_match(name, pattern))
        for file in matches:
            # A file that several patterns of one corpus match counts once.
            known = files.setdefault(file.url, CorpusFile(file.url, file.size, file.stamp, name))
            if known.corpus != name:
                raise InputError(
                    f"{file.url} is of two corpora, {known.corpus!r} and {name!r}. Give patterns "
                    "that share no file."
                )
    if not files:
        raise InputError("no corpus is given. Name files or patterns, such as 'data/*.jsonl'.")
    for file in files.values():
        if file.kind not in KINDS or (file.kind == ".parquet" and file.compression):
            raise InputError(
                f"{file.url} is of no kind that can be read. A corpus file's name ends in "
                f"{', '.join(filter(None, KINDS))}; all but .parquet may be compressed: "
                f"{', '.join(DECOMPRESSORS)}."
            )
    return sorted(files.values(), key=lambda file: (order[file.corpus], file))


def read_documents(
    files: Sequence[StoredFile], config: CorpusConfig, report: CorpusReport
) -> Iterator[str]:
    """Yield the texts of the files in order, holding one line, record or batch of rows at a time.

    Bad lines are counted in `report` and skipped: another encoding, no JSON, no object, no text
    under the field, quotes that break the rules of csv. A file that is truncated, damaged or too
    large when unpacked counts as one bad line, and its documents before that line are used. Raises
    ReadError for a file that cannot be opened or read on. Raises InputError for a csv or Parquet
    file without the column, a file that is one JSON array and, under `config.strict`, at the first
    bad line.
    """
    for file in files:
        if not file.size and not is_url(file.url):  # empty when it was listed; it may have grown
            continue
        with file.open() as raw:
            yield from _read_file(file, raw, config, report)


def _read_file(
    file: StoredFile, raw: BinaryIO, config: CorpusConfig, report: CorpusReport
) -> Iterator[str]:
    """Yield the documents of one open file, and report on it."""
    # Position in the compressed file, so that progress is in proportion to the sizes of files.
    before = report.bytes_read
    number = 0
    try:
        with decompressed(raw, file.compression) as stream:
            if file.kind == ".parquet":
                lines, texts = None, _parquet_rows(stream, file, config.field)
            else:
                lines = TextLines(stream, config.encoding)
                texts = _READERS[file.kind](lines, file, config.field)
            for number, text, problem in texts:
                report.bytes_read = before + raw.tell()
                if problem:
                    _skip(f"{file.url}:{number}", _kind(problem, lines), config, report)
                elif text.strip():
                    report.documents += 1
                    report.characters += len(text)
                    yield text
    except UnreadableError as error:
        rest = "" if config.strict else " (the rest of the file is skipped)"
        _skip(f"{file.url}:{number + 1}", _kind(f"{error}{rest}", None), config, report)
    # Not known earlier: the encoding is detected while the lines are read.
    if config.encoding == "auto" and lines and lines.encoding not in (None, "utf-8"):
        report.encodings[file.url] = str(lines.encoding)
    # All of the file, even if its rest was skipped: the progress bar has the sum of the sizes.
    report.bytes_read = before + file.size


def _kind(problem: str, lines: TextLines | None) -> str:
    """A problem in the words of the report."""
    if problem != NOT_ENCODED:
        return problem.removeprefix("is ")
    return f"not {((lines and lines.encoding) or 'utf-8').upper()}"


def _skip(place: str, kind: str, config: CorpusConfig, report: CorpusReport) -> None:
    """Count a bad line, and store its place if it is among the first; InputError if `strict`."""
    report.bad[kind] += 1
    if len(report.examples) < EXAMPLES:
        report.examples.append(f"{place}: {kind}")
    if config.strict:
        raise InputError(f"{place}: {kind}. Correct it, or run without --strict to skip bad lines.")


def _plain_texts(lines: Iterable[str], file: StoredFile, field: str) -> Iterator[_Text]:
    """Every line is a text, except those that WikiExtractor puts around articles."""
    for number, line in enumerate(lines, start=1):
        if type(line) is DamagedLine:
            yield number, "", NOT_ENCODED
        elif not line.startswith(("<doc id=", "</doc>")):
            yield number, line.rstrip("\r\n"), ""


def _json_texts(lines: Iterable[str], file: StoredFile, field: str) -> Iterator[_Text]:
    """Every line that is not blank is a JSON object with a text under the field."""
    rest = iter(lines)
    first = next(rest, "")
    # In a .jsonl file such a line is a bad one among others that may be good.
    if file.kind == ".json" and first.lstrip().startswith("["):
        raise InputError(
            f"{file.url} is one JSON array, but a corpus has a JSON object in each line. Write it "
            "as .jsonl, such as by `jq -c '.[]'`."
        )
    for number, record, problem in json_records(chain([first], rest)):
        if problem:
            yield number, "", problem if problem != BLANK else ""
        elif field not in record:
            yield number, "", f'no field "{field}"'
        else:
            yield _value(number, record[field], field)


def _other_texts(lines: Iterable[str], file: StoredFile, field: str) -> Iterator[_Text]:
    """The texts of a file without an ending, such as wiki_00 or part-00000."""
    rest = iter(lines)
    first = next(rest, "")
    read = _json_texts if first.lstrip().startswith("{") else _plain_texts
    return read(chain([first], rest), file, field)


def _csv_texts(lines: Iterable[str], file: StoredFile, field: str) -> Iterator[_Text]:
    """Records by the rules of the csv module, which may span lines; the first names the columns."""
    # Blank rows above the header, and between records, are skipped.
    columns: list[str] = []
    column = 0
    # A cell that spans lines is the same text, whether its file has line ends of Windows or Unix.
    whole_lines = (line.rstrip("\r\n") + "\n" for line in lines)
    for number, cells, problem in quoted_records(whole_lines):
        if problem or not cells:
            yield number, "", problem
        elif not columns:
            columns = [cell.strip() for cell in cells]
            column = _column(file, columns, field)
        elif len(cells) != len(columns):
            yield number, "", f"{len(cells)} instead of {len(columns)} columns"
        elif damage(cells[column]):
            yield number, "", NOT_ENCODED
        else:
            yield number, cells[column], ""


def _parquet_rows(stream: Any, file: StoredFile, field: str) -> Iterator[_Text]:
    """The values of one column."""
    columns, records = parquet_records(stream, [field])
    _column(file, columns, field)
    for number, cells, _ in records:
        yield _value(number, cells[field], field)


def _value(number: int, value: Any, field: str) -> _Text:
    """The value of the field, which should be a text."""
    if isinstance(value, str):
        return number, value, ""
    return number, "", f'field "{field}" is not a text'


def _column(file: StoredFile, columns: Sequence[str], field: str) -> int:
    """The index of the field among the columns. Raises InputError without it."""
    if field not in columns:
        raise InputError(
            f"{file.url} has no column {field!r}. Between commas it has: {', '.join(columns)}. "
            "Name the one with the text by --field."
        )
    return list(columns).index(field)


# Readers of lines of text, by the file's kind.
_READERS: dict[str, Callable[[Iterable[str], StoredFile, str], Iterator[_Text]]] = {
    ".txt": _plain_texts,
    ".jsonl": _json_texts,
    ".ndjson": _json_texts,
    ".json": _json_texts,
    ".csv": _csv_texts,
    "": _other_texts,
}
KINDS = (*_READERS, ".parquet")


def _no_match(name: str, pattern: str) -> str:
    """The message for no match, with advice for a folder, or a path with an equals sign."""
    if not is_url(pattern) and Path(pattern).expanduser().is_dir():
        return f"{pattern} is a folder, not a file. Name its files, such as '{pattern}/*.jsonl'."
    message = f"no file matches the corpus pattern {pattern!r}. Check the path and the spelling."
    if name:
        message += f" If {name}= is part of the path, write './{name}={pattern}'."
    elif "=" in pattern:
        message += " The name of a corpus, before =, has only ASCII letters, digits, - and _."
    return message
