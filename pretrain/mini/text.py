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
SHARED = 13
# Shorter test texts, such as labels and idioms, are allowed.
SHORTEST = 6
# Minimum fraction of Chinese characters in a line.
CHINESE_SHARE = 0.4
# Shorter lines, such as "是的。", may be repeated.
REPEATABLE = 10
# Maximum characters of a document; longer ones are truncated.
LONGEST = 20_000
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

    tested: set[str]
    seen: set[int] = field(default_factory=set)

    def clean(self, text: str, counts: Counts) -> str:
        """Return the remaining lines of a document, and count the removed ones."""
        kept = []
        for raw in text[:LONGEST].splitlines():
            line = _SPACE.sub(" ", raw).strip()
            if not line or len(CHINESE.findall(line)) < CHINESE_SHARE * len(line):
                counts.other_lines += bool(line)
            elif len(line) >= REPEATABLE and hash(line) in self.seen:
                counts.repeated_lines += 1
            elif self.is_tested(line):
                counts.tested_lines += 1
            else:
                self.seen.add(hash(line))
                kept.append(line)
        return "\n".join(kept)

    def is_tested(self, line: str) -> bool:
        """Return whether the line equals a test text or shares 13 consecutive characters."""
        return any(part in self.tested for part in shingles(line))


def shingles(text: str) -> Iterator[str]:
    """Yield all substrings of 13 characters without white space, or the whole shorter text."""
    text = "".join(text.split())
    for start in range(max(1, len(text) - SHARED + 1)):
        yield text[start : start + SHARED]


def write_text(output: Path, clones: Path, corpora: Path, test_files: Iterable[Path]) -> None:
    """Write OUTPUT/NAME.jsonl for each corpus, pairs.jsonl, and counts.json."""
    tested = {part for text in test_texts(test_files) for part in shingles(text)}
    tested = {part for part in tested if len(part) >= SHORTEST}
    cleaner = Cleaner(tested)
    report: dict[str, Any] = {"test_shingles": len(tested), "sources": []}
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
        write_pairs(folder / "pairs.jsonl", clones, tested)
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
    spread = sorted(range(len(paths)), key=lambda number: number * 0.618033988749895 % 1)
    for number in spread if source.characters else range(len(paths)):
        yield from source.read(paths[number])


def write_pairs(path: Path, clones: Path, tested: set[str]) -> None:
    """Write pairs of title and text, on which sentence vectors are trained."""
    with path.open("w", encoding="utf-8") as file:
        for source in SOURCES:
            read = PAIRS.get(source.repository)
            if read is None:
                continue
            cleaner, counts = Cleaner(tested), Counts()
            for name in sorted((clones / source.repository).glob(source.files[0])):
                for title, text in read(name):
                    a = cleaner.clean(title, counts)
                    b = cleaner.clean(text, counts)[:400]
                    if a and len(b) >= REPEATABLE:
                        file.write(
                            json.dumps({"text_a": a, "text_b": b}, ensure_ascii=False) + "\n"
                        )


def test_texts(files: Iterable[Path]) -> Iterator[str]:
    """Yield the texts of test files: .tsv, .jsonl, or one token a line; gzipped or plain."""
    for path in files:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
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
