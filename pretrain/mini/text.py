"""Clean documents from the sources, without repeated lines and lines of the suite's test sets."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from pretrain.mini.sources import CHINESE, PAIRS, SOURCES, Source, chinese_strings, folder_of
from roformer_tf.files import temporary_folder

# A line that shares this many consecutive characters with a test text is considered a copy.
SHINGLE_LENGTH = 13
# Shorter test texts, such as labels and idioms, are allowed.
MIN_TEST_LENGTH = 6
# Minimum fraction of Chinese characters in a line.
MIN_CHINESE_FRACTION = 0.4
# Shorter lines, such as "是的。", may be repeated.
SHORT_LINE = 10
# Maximum characters of a document; longer ones are truncated.
MAX_CHARACTERS = 20_000
_SPACE = re.compile(r"[ \t\u3000\xa0]+")


@dataclass
class Counts:
    """Counts of the text of a source and of removed lines."""

    documents: int = 0
    characters: int = 0
    repeated_lines: int = 0
    other_lines: int = 0
    """Lines with too few Chinese characters."""
    tested_lines: int = 0
    """Lines that share 13 consecutive characters with a test text or equal one."""


@dataclass
class Cleaner:
    """Removes lines that are not Chinese, repeated, or in a test set."""

    test_shingles: set[str]
    seen: set[int] = field(default_factory=set)

    def clean(self, text: str, counts: Counts) -> str:
        """Return the remaining lines of a document, and count the removed ones."""
        lines = []
        for raw in text[:MAX_CHARACTERS].splitlines():
            line = _SPACE.sub(" ", raw).strip()
            if not line or len(CHINESE.findall(line)) < MIN_CHINESE_FRACTION * len(line):
                counts.other_lines += bool(line)
            elif len(line) >= SHORT_LINE and hash(line) in self.seen:
                counts.repeated_lines += 1
            elif self.is_test_text(line):
                counts.tested_lines += 1
            else:
                self.seen.add(hash(line))
                lines.append(line)
        return "\n".join(lines)

    def is_test_text(self, line: str) -> bool:
        """Return whether the line equals a test text or shares 13 consecutive characters."""
        return any(part in self.test_shingles for part in shingles(line))


def shingles(text: str) -> Iterator[str]:
    """Yield all substrings of 13 characters without white space, or the whole shorter text."""
    text = "".join(text.split())
    for start in range(max(1, len(text) - SHINGLE_LENGTH + 1)):
        yield text[start : start + SHINGLE_LENGTH]


def write_text(output: Path, clones: Path, corpora: Path, test_files: Iterable[Path]) -> None:
    """Write OUTPUT/NAME.jsonl for each corpus, pairs.jsonl, and counts.json."""
    test_shingles = {part for text in test_texts(test_files) for part in shingles(text)}
    test_shingles = {part for part in test_shingles if len(part) >= MIN_TEST_LENGTH}
    cleaner = Cleaner(test_shingles)
    report: dict[str, Any] = {"test_shingles": len(test_shingles), "sources": []}
    with temporary_folder(output) as folder:
        files: dict[str, IO[str]] = {}
        for source in SOURCES:
            if source.corpus not in files:
                path = folder / f"{source.corpus}.jsonl"
                files[source.corpus] = path.open("w", encoding="utf-8")
            counts = write_source(source, clones, corpora, cleaner, files[source.corpus])
            facts = {"corpus": source.corpus, "repository": source.repository}
            report["sources"].append({**facts, "licence": source.licence, **asdict(counts)})
            print(f"{source.corpus:11}{source.repository:40}{counts.characters:>12,} characters")
        for file in files.values():
            file.close()
        write_pairs(folder / "pairs.jsonl", clones, test_shingles)
        (folder / "counts.json").write_text(
            json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )


def write_source(
    source: Source, clones: Path, corpora: Path, cleaner: Cleaner, file: IO[str]
) -> Counts:
    """Append the documents of a source to a file, and return the counts."""
    counts = Counts()
    for text in documents(source, folder_of(source, clones, corpora)):
        if source.characters and counts.characters >= source.characters:
            break
        if cleaned := cleaner.clean(text, counts):
            counts.documents += 1
            counts.characters += len(cleaned)
            file.write(json.dumps({"text": cleaned}, ensure_ascii=False) + "\n")
    return counts


def documents(source: Source, folder: Path) -> Iterator[str]:
    """Yield the documents of a source.

    If only some are used, the files are in an order whose first part is spread over all files.
    """
    paths = [path for pattern in source.files for path in sorted(folder.glob(pattern))]
    if not paths:
        raise FileNotFoundError(f"{source.repository}: no {source.files} below {folder}")
    order = sorted(range(len(paths)), key=lambda number: number * 0.618033988749895 % 1)
    for number in order if source.characters else range(len(paths)):
        yield from source.read(paths[number])


def write_pairs(path: Path, clones: Path, test_shingles: set[str]) -> None:
    """Write pairs of title and text, on which sentence vectors are trained."""
    with path.open("w", encoding="utf-8") as file:
        for source in SOURCES:
            read = PAIRS.get(source.repository)
            if read is None:
                continue
            cleaner, counts = Cleaner(test_shingles), Counts()
            for name in sorted((clones / source.repository).glob(source.files[0])):
                for title, text in read(name):
                    a = cleaner.clean(title, counts)
                    b = cleaner.clean(text, counts)[:400]
                    if a and len(b) >= SHORT_LINE:
                        file.write(
                            json.dumps({"text_a": a, "text_b": b}, ensure_ascii=False) + "\n"
                        )


def test_texts(files: Iterable[Path]) -> Iterator[str]:
    """Yield the texts of test files: .tsv, .jsonl, or one token a line; gzipped or plain."""
    for path in files:
        open_text = gzip.open if path.suffix == ".gz" else open
        with open_text(path, "rt", encoding="utf-8") as lines:
            text = lines.read()
        if ".jsonl" in path.suffixes:
            for line in text.splitlines():
                yield from chinese_strings(json.loads(line))
        elif "\n\n" in text:  # CoNLL: one character and its tag a line
            for sentence in text.split("\n\n"):
                yield "".join(line.split("\t")[0] for line in sentence.splitlines())
        else:
            for line in text.splitlines():
                yield from line.split("\t")
