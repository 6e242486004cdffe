"""The texts of a set that are looked for, and where each was found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roformer_tf.labelled.text_sides import EncodedSides, Positives
from roformer_tf.tasks.base import Prediction
from roformer_tf.top_k import top_k

NEAREST = 3
"""Texts that are kept of an answer, the nearest first."""


class Retrieved(NamedTuple):
    """Where the text that belongs to an example's first was found among all others of its set."""

    rank: int
    """From 1, what else belongs to it left aside."""
    ahead: bool
    """Whether it is nearer than what is known not to belong; without such, than all others."""
    other: float
    """The cosine of a text, taken by chance, that does not belong to it; NaN if there is none."""
    neighbours: tuple[tuple[int, int, float], ...]
    """The nearest texts: the number of an example of the set, which of its texts, the cosine."""


@dataclass(frozen=True)
class DifferentTexts:
    """The different texts of a set that are looked for: all but the first ones of the examples."""

    examples: np.ndarray
    """(documents,) an example that each is of."""
    sides: np.ndarray
    """(documents,) which of its texts it is, from 1."""
    places: np.ndarray
    """(N, S − 1) the documents that an example's other texts are."""
    left_out: list[list[int]]
    """For each example the documents that belong to its first text, too, or are equal to it."""

    @classmethod
    def of(cls, encoded: EncodedSides) -> "DifferentTexts":
        """Of the texts of a set."""
        numbers = encoded.numbers
        found, first, places = np.unique(numbers[:, 1:], return_index=True, return_inverse=True)
        known, place = Positives(numbers[:, :2]).of, {x: i for i, x in enumerate(found.tolist())}
        left_out = [
            [place[x] for x in known[anchor] if x in place and x != own]
            for anchor, own in numbers[:, :2].tolist()
        ]
        examples, others = np.divmod(first, numbers.shape[1] - 1)
        return cls(examples, 1 + others, places.reshape(len(numbers), -1), left_out)

    def retrieved(self, number: int, scores: np.ndarray) -> Prediction:
        """Where an example's second text stands by the scores (documents,) of all."""
        own, *third = self.places[number].tolist()
        near = top_k(scores, NEAREST)
        others = scores.astype(np.float32)
        others[[own, *self.left_out[number]]] = -np.inf
        rank = 1 + int(np.sum(others >= scores[own]))  # of equal ones others come first
        left = np.flatnonzero(np.isfinite(others))
        drawn = np.random.default_rng(number).integers(len(left)) if len(left) else 0
        label = Retrieved(
            rank=rank,
            ahead=bool(scores[own] > scores[third[0]]) if third else rank == 1,
            other=float(scores[third[0] if third else left[drawn]]) if len(left) else float("nan"),
            neighbours=tuple(
                (int(self.examples[i]), int(self.sides[i]), float(scores[i])) for i in near
            ),
        )
        return Prediction(label, np.array([scores[own]], np.float32))


def belonging(encoded: EncodedSides) -> Positives:
    """Which of the texts of a set belong together: the first two of each example."""
    return Positives(encoded.numbers[:, :2])


def unit(row_vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Vectors of rows → (rows, H) float32 of length 1; a vector of 0 stays 0."""
    vectors = np.asarray(row_vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))


def scores_of(
    vectors: np.ndarray, encoded: EncodedSides, texts: DifferentTexts
) -> Iterator[np.ndarray]:
    """For each example the cosines (documents,) of its first text with all `texts`.

    vectors (rows, H) of length 1. A text in several rows has the cosine of the best of them.
    """
    first = encoded.first_rows[texts.examples, texts.sides]
    counts = encoded.counts[texts.examples, texts.sides]
    begins = np.cumsum([0, *counts[:-1]])
    rows = np.repeat(first - begins, counts) + np.arange(counts.sum())
    documents = vectors[rows]
    for row in encoded.first_rows[:, 0]:
        yield np.maximum.reduceat(documents @ vectors[row], begins)


def best_sides(vectors: np.ndarray, encoded: EncodedSides) -> np.ndarray:
    """One vector of each text: (N, S, H); of several rows that of the one nearest to the first."""
    chosen = encoded.first_rows.copy()
    for example, side in np.argwhere(encoded.counts > 1).tolist():
        begin, count = int(chosen[example, side]), int(encoded.counts[example, side])
        cosines = vectors[begin : begin + count] @ vectors[chosen[example, 0]]
        chosen[example, side] = begin + int(np.argmax(cosines))
    return np.asarray(vectors[chosen])
