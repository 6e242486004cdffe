"""Triples from real news whose evidence lies beyond token 512: which of B and C continues A?

A is the first half of an article, B and C the second halves of that and of another one. In front of
each stand reviews by chance, different ones, which tell nothing. A row holds two texts: read to 512
tokens it has 254 of each, and these are reviews alone; read to 1,024 or 1,536, more of the news.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from roformer_tf.files import write_text
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

IN_FRONT = 280
"""Tokens of reviews in front of the news: more than the 254 that rows of 512 have of a text."""
HALF = 360
"""Most tokens of half an article."""
LEAST = 300
"""Characters of an article at least."""
SIZES = {"train": 400, "valid": 100, "test": 300}


def write_triples(corpus: Path, folder: Path, vocabulary: Path) -> None:
    """Write train.tsv, valid.tsv and test.tsv, unless they are there; no article is in two."""
    if all((folder / f"{name}.tsv").exists() for name in SIZES):
        return
    lines = corpus.read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["text"].replace("\t", " ") for line in lines]
    news = [text.replace("\n", "") for text in documents if "\n" in text]
    news = [text for text in news if len(text) >= LEAST]
    reviews = [text for text in documents if "\n" not in text]
    rng = np.random.default_rng(0)
    tokenizer = RoFormerTokenizer.from_pretrained(vocabulary)
    rng.shuffle(news)
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for name, size in SIZES.items():
        articles = news[start : start + 2 * size]
        start += 2 * size
        rows = list(_triples(articles, reviews, tokenizer, rng))
        cells = ["\t".join(row) for row in [("A", "B", "C", "label"), *rows]]
        write_text(folder / f"{name}.tsv", "\n".join(cells) + "\n")


def _triples(
    articles: Sequence[str],
    reviews: Sequence[str],
    tokenizer: RoFormerTokenizer,
    rng: np.random.Generator,
) -> Iterator[tuple[str, str, str, str]]:
    """A triple of every two articles: three texts and which of the last two continues the first."""
    for one, other in zip(articles[::2], articles[1::2], strict=True):
        (first, second), (_, strange) = (_halves(x, tokenizer) for x in (one, other))
        texts = [_front(reviews, tokenizer, rng) + half for half in (first, second, strange)]
        if rng.random() < 0.5:
            yield texts[0], texts[1], texts[2], "B"
        else:
            yield texts[0], texts[2], texts[1], "C"


def _halves(text: str, tokenizer: RoFormerTokenizer) -> tuple[str, str]:
    """The last tokens of an article's first half, and the first ones of its second."""
    middle = len(text) // 2
    offsets = tokenizer.offsets(text[:middle])[-HALF:]
    behind = tokenizer.offsets(text[middle:])[:HALF]
    return text[offsets[0][0] : middle], text[middle : middle + behind[-1][1]]


def _front(reviews: Sequence[str], tokenizer: RoFormerTokenizer, rng: np.random.Generator) -> str:
    """Reviews of `IN_FRONT` tokens together."""
    text = ""
    while len(offsets := tokenizer.offsets(text)) < IN_FRONT:
        text += reviews[rng.integers(len(reviews))]
    return text[: offsets[IN_FRONT - 1][1]]
