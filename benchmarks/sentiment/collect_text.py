"""Collect free Chinese text for pretraining: python benchmarks/sentiment/collect_text.py OUT …

Reads Debian's packages of Chinese documentation (downloaded with apt and unpacked, not installed)
and any given .jsonl, .tsv (column `text`) or .txt file. Writes one JSON document a line.
"""

import gzip
import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PACKAGES = ("libreoffice-help-zh-cn", "manpages-zh", "debian-reference-zh-cn")
_BLOCK = re.compile(r"</?(?:p|div|li|td|th|tr|h\d|pre|dt|dd|br|title|table|ul|ol)\b[^>]*>", re.I)
_HIDDEN = re.compile(r"<(script|style|head)\b.*?</\1>", re.S | re.I)
_TAG = re.compile(r"<[^>]+>")
_ROFF = re.compile(r"\\f.|\\&|\\\(..|\\[-|^e ]|\\s[-+]?\d")
_CHINESE = re.compile("[一-鿿]")


def main() -> None:
    """Write the documents of the packages and of the given files without duplicates."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    target, *files = map(Path, sys.argv[1:])
    texts = chain(from_debian(), *(from_file(file) for file in files))
    unique = dict.fromkeys(text.strip() for text in texts)
    documents = [text for text in unique if len(_CHINESE.findall(text)) >= 5]
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in documents)
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(documents):,} documents, {sum(map(len, documents)):,} characters: {target}")


def from_debian() -> Iterator[str]:
    """Yield the pages of the packages that are mostly Chinese, without markup."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            root = Path(folder, package.stem)
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
            before = 0
            for path in sorted(root.rglob("*")):
                if path.is_file() and (text := readable(path)):
                    before += len(text)
                    yield text
            print(f"{package.name}: {before:,} characters", file=sys.stderr)


def readable(path: Path) -> str:
    """Return the text of a documentation file, or "" for other files and other languages."""
    suffixes = path.suffixes
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".html" in suffixes:
        text = html.unescape(
            _TAG.sub("", _BLOCK.sub("\n", _HIDDEN.sub("", raw.decode("utf-8", "ignore"))))
        )
    elif "man" in str(path) and ".gz" in suffixes:
        lines = raw.decode("utf-8", "ignore").split("\n")
        kept = [
            re.sub(r"^\.[A-Za-z]+ ?", "", line) for line in lines if not line.startswith('.\\"')
        ]
        text = _ROFF.sub("", "\n".join(kept))
    elif ".txt" in suffixes:
        text = raw.decode("utf-8", "ignore")
    else:
        return ""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    text = "\n".join(line for line in lines if _CHINESE.search(line))
    return text if len(_CHINESE.findall(text)) > 0.3 * len(text) else ""


def from_file(path: Path) -> Iterator[str]:
    """Yield the documents of a .jsonl or .tsv file or the lines of a text, gzipped or plain."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        if ".jsonl" in path.suffixes:
            yield from (json.loads(line)["text"] for line in lines)
        elif ".tsv" in path.suffixes:
            column = next(lines).rstrip("\n").split("\t").index("text")
            yield from (line.rstrip("\n").split("\t")[column] for line in lines)
        else:
            yield from lines


if __name__ == "__main__":
    main()
