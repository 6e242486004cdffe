"""An embedder without a model: the vector of a passage depends only on its characters."""

from functools import cache
from types import SimpleNamespace

import numpy as np


@cache
def _of_character(character, size):
    return np.random.default_rng(ord(character)).normal(size=size)


class FakeEmbedder:
    """A fake of `TextEmbedder`. Each character is a token, and passages do not overlap."""

    def __init__(self, fingerprint="fake", size=16):
        self.fingerprint, self.source, self.size = fingerprint, fingerprint, size
        self.config = SimpleNamespace(max_length=512, pooling="mean")
        self.dimensions = None

    def vector(self, passage):
        total = np.sum([_of_character(x, self.size) for x in passage], axis=0)
        return (total / np.linalg.norm(total)).astype(np.float32)

    def embed(self, texts):
        return np.stack([self.vector(text) for text in texts])

    def passages_of(self, text, length):
        return [text[start : start + length] for start in range(0, len(text), length)]

    def passages(self, texts, length):
        return [self.embed(self.passages_of(text, length)) for text in texts]
