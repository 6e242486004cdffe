"""Files of text → documents, one at a time, whatever the size of the files."""

import glob
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from roformer_tf.errors import InputError

SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
EXAMPLES = 5  # bad lines that a report names


@dataclass(frozen=True)
class CorpusConfig:
    """Where documents come from.

    In a .txt file every line is a document; in a .jsonl file every line is a JSON object whose
    `field` is one. Both may be gzipped. Blank lines and blank texts are skipped.
    """

    corpus: tuple[str, ...]
    """Files, or patterns such as 'data/*.jsonl.gz'."""
    field: str = "text"
    """Key of the text in a .jsonl file."""
    strict: bool = False
    """Stop at the first bad line instead of counting and skipping it."""


@dataclass
class CorpusReport:
    """What reading met so far; `read_documents` keeps it up to date."""

    documents: int = 0
    characters: int = 0
    bytes_read: int = 0
    """Of the files as they lie on the disk, so that it compares with their sizes."""
    bad: Counter[str] = field(default_factory=Counter)
    """Lines skipped, by what was wrong with them."""
    examples: list[str] = field(default_factory=list)
    """The first few of them, as "file:line: what was wrong"."""

    def add_bad(self, place: str, kind: str) -> None:
        """Count a bad line, and keep its place if it is among the first."""
        self.bad[kind] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{place}: {kind}")

    def summary(self) -> str:
        """One line without bad lines, else one more for each kind and example."""
        lines = [f"{self.documents:,} documents, {self.characters:,} characters"]
        if self.bad:
            kinds = ", ".join(f"{count:,} × {kind}" for kind, count in sorted(self.bad.items()))
            lines.append(f"skipped {self.bad.total():,} bad lines ({kinds}), the first of them:")
            lines += [f"  {example}" for example in self.examples]
        return "\n".join(lines)


class _BadLineError(ValueError):
    """A line that gives no document; its text says what is wrong."""


def find_files(globs: Iterable[str]) -> list[Path]:
    """List the files that the patterns match, sorted, each once.

    Raises InputError for a pattern that matches no file, and for a file of another kind than
    `SUFFIXES`.
    """
    found: dict[Path, Path] = {}
    for pattern in globs:
        matches = _matches(pattern)
        if not matches:
            raise InputError(_no_match(pattern))
        found |= {path.resolve(): path for path in matches}
    if not found:
        raise InputError("no corpus is given. Name files or patterns, such as 'data/*.jsonl'.")
    for path in found.values():
        if not path.name.endswith(SUFFIXES):
            raise InputError(
                f"{path} is of no kind that can be read. "
                f"A corpus file's name ends in one of {', '.join(SUFFIXES)}."
            )
    return sorted(found.values())


def read_documents(
    files: Sequence[Path], config: CorpusConfig, report: CorpusReport
) -> Iterator[str]:
    """Yield the texts of the files in order, holding one line at a time.

    Bad lines are counted in `report` and skipped: not UTF-8, not JSON, no object, no text under
    the field. A gzip file that is cut off or damaged counts as one bad line, and what comes
    before the damage is used. Raises InputError for a file that cannot be opened and, under
    `config.strict`, at the first bad line.
    """
    for path in files:
        try:
            with path.open("rb") as raw:
                yield from _read_file(path, raw, config, report)
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror or error}. Make it readable, or leave it out."
            ) from None


def _read_file(
    path: Path, raw: BinaryIO, config: CorpusConfig, report: CorpusReport
) -> Iterator[str]:
    """Yield the documents of one open file, and report on it."""
    before = report.bytes_read
    number = 0
    key = config.field if ".jsonl" in path.suffixes else None
    try:
        for number, line in enumerate(_stream(path, raw), start=1):
            report.bytes_read = before + raw.tell()
            try:
                text = _text_of(line, number, key)
            except _BadLineError as error:
                _skip(f"{path}:{number}", str(error), config, report)
                continue
            if text.strip():
                report.documents += 1
                report.characters += len(text)
                yield text
    except (EOFError, gzip.BadGzipFile, zlib.error):
        _skip(f"{path}:{number + 1}", "gzip data cut off or damaged here", config, report)
    report.bytes_read = before + path.stat().st_size


def _skip(place: str, kind: str, config: CorpusConfig, report: CorpusReport) -> None:
    """Report a bad line, or stop at it if the user wants that."""
    report.add_bad(place, kind)
    if config.strict:
        raise InputError(f"{place}: {kind}. Correct it, or run without --strict to skip bad lines.")


def _stream(path: Path, raw: BinaryIO) -> Iterable[bytes]:
    """Iterate over the lines of a file, unzipped if its name says so."""
    return gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw


def _text_of(line: bytes, number: int, key: str | None) -> str:
    """Read the text of one line, which without a key is all of it.

    Raises _BadLineError where there is none.
    """
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")  # the byte order mark that Windows editors write
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise _BadLineError("not UTF-8") from None
    if key is None or not text.strip():
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # the latter for a line of a thousand brackets
        raise _BadLineError("not JSON") from None
    if not isinstance(record, dict):
        raise _BadLineError("not a JSON object")
    if key not in record:
        raise _BadLineError(f'no field "{key}"')
    if not isinstance(record[key], str):
        raise _BadLineError(f'field "{key}" is not a text')
    return str(record[key])


def _matches(pattern: str) -> list[Path]:
    """List the files that a pattern matches; a file whose own name has brackets is itself."""
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob: no absolute patterns)
    return [Path(name) for name in names if Path(name).is_file()]


def _no_match(pattern: str) -> str:
    """Say that no file matches, and what to type for a folder."""
    if Path(pattern).expanduser().is_dir():
        return f"{pattern} is a folder, not a file. Name its files, such as '{pattern}/*.jsonl'."
    return f"no file matches the corpus pattern {pattern!r}. Check the path and the spelling."
