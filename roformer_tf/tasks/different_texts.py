"""The texts of a set that are looked for, and where each was found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roformer_tf.labelled.apart import Belonging, text_numbers
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.tasks.base import Prediction

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
    def of(cls, encoded: EncodedTexts) -> "DifferentTexts":
        """Of the rows of a set, S for each example."""
        numbers = text_numbers(encoded.token_ids).reshape(encoded.examples, -1)
        found, first, places = np.unique(numbers[:, 1:], return_index=True, return_inverse=True)
        known, place = Belonging(numbers[:, :2]).of, {x: i for i, x in enumerate(found.tolist())}
        left_out = [
            [place[x] for x in known[anchor] if x in place and x != own]
            for anchor, own in numbers[:, :2].tolist()
        ]
        examples, others = np.divmod(first, numbers.shape[1] - 1)
        return cls(examples, 1 + others, places.reshape(len(numbers), -1), left_out)

    def retrieved(self, number: int, scores: np.ndarray) -> Prediction:
        """Where an example's second text stands by the scores (documents,) of all."""
        own, *third = self.places[number].tolist()
        few = np.argpartition(-scores, min(NEAREST, len(scores)) - 1)[:NEAREST]
        near = sorted(few.tolist(), key=lambda i: (-scores[i], i))
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


def belonging(encoded: EncodedTexts) -> Belonging:
    """Which of the texts of a set belong together: the first two of each example."""
    numbers = text_numbers(encoded.token_ids).reshape(encoded.examples, -1)
    return Belonging(numbers[:, :2])


def unit_sides(row_vectors: Sequence[np.ndarray], encoded: EncodedTexts) -> np.ndarray:
    """Vectors of rows → (N, S, H) float32 of length 1; a vector of 0 stays 0."""
    vectors = np.asarray(row_vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = vectors / np.maximum(lengths, 1e-12)
    return unit.reshape(encoded.examples, -1, vectors.shape[-1])
