"""Pages of a manual with their titles and index entries, from Debian's package.

    python -m benchmarks.search.manual --output manual        on Debian or Ubuntu

Writes the data that `benchmarks.search --data` reads. Pages are split by a hash of their names, so
all queries of a page are in the same split. Figures on another split, such as those of SEARCH.md,
are not exactly comparable.
"""

import gzip
import hashlib
import html.parser
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.command_line import settings_of
from benchmarks.debian import CHINESE, MIN_CHINESE, html_text, unpack
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

PACKAGE = "libreoffice-help-zh-cn"
DOCUMENTS, QUERIES = "documents.jsonl.gz", "queries_{}.tsv.gz"
# Pages of each split, in percent.
SHARES = {"train": 73, "valid": 12, "test": 15}
_TITLE = re.compile(r"<h1\b.*?</h1>", re.DOTALL)


@dataclass(frozen=True)
class ManualConfig:
    """Create documents and queries from the Chinese manual of LibreOffice."""

    output: Path
    """Folder for documents.jsonl.gz and queries_{train,valid,test}.tsv.gz."""
    package: Path | None = None
    """Folder with the unpacked package. Default: apt downloads it."""


class Page(NamedTuple):
    """A page of the manual."""

    name: str
    """Path of the page, such as scalc/guide/calc_date."""
    text: str
    """Text without the title."""
    queries: tuple[str, ...]
    """Title and index entries."""


def main(config: ManualConfig) -> None:
    """Write the files. Raises InputError if the package is missing or has no such pages."""
    with tempfile.TemporaryDirectory() as folder:
        if config.package is None:
            unpack(PACKAGE, Path(folder))
        actual = list(pages(config.package or Path(folder)))
    queries = dict(unique_queries(actual))
    if not queries:
        raise InputError(
            f"there are no pages with titles in {config.package}. Give the folder that "
            f"`dpkg-deb --extract` makes of {PACKAGE}."
        )
    config.output.mkdir(parents=True, exist_ok=True)
    documents = (json.dumps({"id": x.name, "text": x.text}, ensure_ascii=False) for x in actual)
    _write(config.output / DOCUMENTS, documents)
    counts = []
    for split in SHARES:
        rows = [f"{query}\t{page}" for query, page in queries.items() if split_of(page) == split]
        _write(config.output / QUERIES.format(split), ["query\tid", *sorted(rows)])
        counts.append(f"{len(rows):,} for {split}")
    print(f"{config.output}: {len(actual):,} pages; queries: {', '.join(counts)}")


def pages(folder: Path) -> Iterator[Page]:
    """Yield the Chinese pages below a folder, sorted by path."""
    for path in sorted(folder.rglob("*.html")):
        page = path.read_text(encoding="utf-8", errors="replace")
        text = html_text(_TITLE.sub("", page)).replace("\n", " ")
        place = path.relative_to(folder).with_suffix("").as_posix()
        _, _, name = place.partition("/text/")
        if name and len(CHINESE.findall(text)) >= MIN_CHINESE:
            yield Page(name, text, _entries(page))


def unique_queries(pages: Iterable[Page]) -> Iterator[tuple[str, str]]:
    """Yield each title or index entry that belongs to exactly one page, with the page's name."""
    pages_by_query: dict[str, set[str]] = {}
    for page in pages:
        for query in page.queries:
            pages_by_query.setdefault(query, set()).add(page.name)
    return ((query, names.pop()) for query, names in pages_by_query.items() if len(names) == 1)


def split_of(name: str) -> str:
    """Return train, valid or test, by a hash of the page's name that is equal on all machines."""
    place = int(hashlib.blake2b(name.encode(), digest_size=8).hexdigest(), 16) % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("shares are of a hundred")


def _entries(page: str) -> tuple[str, ...]:
    """Return a page's unique title and index entries, without untranslated ones."""
    reader = _Entries()
    reader.feed(page)
    plain = (" ".join(entry.split()) for entry in ("".join(reader.title), *reader.keywords))
    return tuple(dict.fromkeys(entry for entry in plain if CHINESE.search(entry)))


class _Entries(html.parser.HTMLParser):
    """Collects the first heading and the index entries."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.keywords: list[str] = []
        self._headings = 0
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "h1":
            self._headings += 1
            self._in_heading = self._headings == 1
        actual = dict(attrs)
        if tag == "meta" and actual.get("itemprop") == "keywords":
            self.keywords.append(actual.get("content") or "")

    def handle_endtag(self, tag: str) -> None:
        self._in_heading &= tag != "h1"

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.title.append(data)


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a gzipped file, with identical bytes every time."""
    content = "".join(f"{line}\n" for line in lines).encode()
    with temporary_file(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main(settings_of(ManualConfig))
