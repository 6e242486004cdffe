"""Random corpora with the lengths of news, made from the words of a fixture vocabulary."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.vocabularies import read_vocabulary

VOCABULARY = Path(__file__).parents[1] / "fixtures" / "tokenizer" / "word" / "vocab.txt"


@pytest.fixture(scope="session")
def vocab_file():
    return VOCABULARY


@pytest.fixture(scope="session")
def write_news():
    """A function that writes random documents with the length distribution of news.

    write_news(path, documents, seed=0) returns the texts.
    """
    words = [t for t in read_vocabulary(VOCABULARY) if t.isalpha() and t[0] >= "\u4e00"]

    def write(path, documents, seed=0):
        rng = np.random.default_rng(seed)
        sizes = np.clip(rng.lognormal(5.6, 0.8, documents), 5, 4000).astype(int)
        texts = ["，".join(_sentences(rng.choice(words, size))) + "。" for size in sizes]
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return texts

    return write


def _sentences(words):
    return ["".join(words[start : start + 12]) for start in range(0, len(words), 12)]
