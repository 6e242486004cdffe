"""What the units of a context have to do with a question: features that help to find its answer.

A unit is a Chinese character, or a word or number in lower case; punctuation is none.
"""

import re
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

# What CMRC's evaluation removes; it keeps other punctuation, such as "." and ",".
PUNCTUATION = re.compile(r"[-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』]")
# A Chinese character, a number or word, or a single other character.
_UNITS = re.compile(r"[\u4e00-\u9fa5]|\d+(?:[.,]\d+)*|[^\W\d_\u4e00-\u9fa5]+|\S")
_SENTENCE = re.compile(r"[^。！？!?；;\n]+[。！？!?；;\n]*|[。！？!?；;\n]+")
# Units over which a unit of the question reaches.
REACH = 8
FEATURES = 4


class Sentence(NamedTuple):
    """A sentence of a context."""

    start: int
    """Its first character."""
    end: int
    """The character after its last."""
    overlap: int
    """How many different units of the question it has."""


@lru_cache(1 << 16)
def units(text: str) -> tuple[str, ...]:
    """The units of a text."""
    return tuple(_UNITS.findall(_plain(text)))


def sentences(question: str, context: str) -> list[Sentence]:
    """The sentences of a context, which cover all of it."""
    asked = frozenset(units(question))
    return [
        Sentence(*match.span(), len(asked.intersection(units(match[0]))))
        for match in _SENTENCE.finditer(context)
    ]


class UnitFeatures(NamedTuple):
    """The units of a context, and their features."""

    starts: np.ndarray
    """(units,) int: first characters, rising."""
    features: np.ndarray
    """(units, FEATURES) float64: how many units of the question the unit's sentence has; whether
    the unit is in the question; whether it is in two successive units of it; how near the units of
    the question are: Σ exp(−distance / REACH)."""

    def at(self, characters: np.ndarray) -> np.ndarray:
        """Features (…, FEATURES) of the units at characters (…), or of those before them."""
        if not len(self.starts):
            return np.zeros((*characters.shape, FEATURES))
        return self.features[self.numbers(characters)]

    def numbers(self, characters: np.ndarray) -> np.ndarray:
        """Numbers (…) of the units at characters (…), or of those before them."""
        return np.maximum(np.searchsorted(self.starts, characters, "right") - 1, 0)


def unit_features(question: str, context: str) -> UnitFeatures:
    """Compare the units of a context with a question."""
    matches = list(_UNITS.finditer(_plain(context)))
    found, asked = [match[0] for match in matches], units(question)
    starts = np.array([match.start() for match in matches], np.int64)
    features = np.zeros((len(found), FEATURES))
    parts = sentences(question, context)
    of_units = np.searchsorted([part.start for part in parts], starts, "right") - 1
    features[:, 0] = np.array([part.overlap for part in parts])[of_units]
    features[:, 1] = [unit in asked for unit in found]
    pairs = set(pairwise(asked))
    repeated = np.array([pair in pairs for pair in pairwise(found)], np.bool_)
    features[:-1, 2] = repeated
    features[1:, 2] = np.maximum(features[1:, 2], repeated)
    numbers = np.arange(len(found))
    for unit in dict.fromkeys(asked):
        if places := [number for number, other in enumerate(found) if other == unit]:
            distances = np.abs(numbers[:, None] - places).min(axis=1)
            features[:, 3] += np.exp(-distances / REACH)
    return UnitFeatures(starts, features)


def _plain(text: str) -> str:
    """Lower case without punctuation, character by character."""
    lower = text.lower()  # of "İ" it has two characters
    return PUNCTUATION.sub(" ", lower if len(lower) == len(text) else text)
