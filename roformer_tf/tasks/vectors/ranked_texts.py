"""Texts ranked by their cosines with a query: ranks, and the figures of retrieval.

A query's ranks are those of all documents that belong to it, from 1. Figures are functions of how
often each query counts, as all of `metrics` are, so that the same lines give a bootstrap's
interval. Axes: N examples, S texts of an example, H features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.labelled.text_sides import EncodedSides, Positives
from roformer_tf.tasks.metrics import Measure, Metric, mean
from roformer_tf.tasks.task_settings import Prediction
from roformer_tf.top_k import top_k
from roformer_tf.translation import Message

NEAREST = 3
"""Texts that a prediction keeps, the nearest first."""
CUTS = (1, 5, 10)
"""Ranks up to which recall is computed."""
LAST = 10
"""The last rank that counts for MRR and nDCG."""

RECALLS = tuple(
    Metric(
        f"recall_at_{cut}",
        Message("recall@{cut}", cut=cut),
        meaning=Message(
            "fraction of the relevant documents that are among the first {cut}", cut=cut
        ),
    )
    for cut in CUTS
)
MRR = Metric(
    "mrr_at_10",
    Message("MRR@10"),
    "coefficient",
    meaning=Message("1 over the rank of the first relevant document, 0 beyond rank 10"),
)
NDCG = Metric(
    "ndcg_at_10",
    Message("nDCG@10"),
    "coefficient",
    meaning=Message(
        "all relevant documents count, each the less, the lower its rank; 1 is perfect"
    ),
)
RETRIEVAL = (NDCG, MRR, *RECALLS)


def retrieval_measure(ranks: Sequence[Sequence[int]]) -> Measure:
    """recall@1, 5, 10, MRR@10 and nDCG@10 of N queries, by the ranks of what belongs to each.

    A query may have several documents, and must have one. A document that a search did not return
    has a rank beyond every cut.
    """
    each = query_figures(ranks)
    return lambda weights: {name: mean(values, weights) for name, values in each.items()}


def query_figures(ranks: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Each figure for each query: {"recall_at_1": (N,) float64, …}.

    >>> query_figures([[2], [1, 30]])["recall_at_10"].tolist()
    [1.0, 0.5]
    """
    sorted_ranks = [np.sort(np.asarray(one, np.float64)) for one in ranks]
    figures = {
        NDCG.name: np.array([_gain(x) / _gain(1.0 + np.arange(len(x))) for x in sorted_ranks]),
        MRR.name: np.array([1 / x[0] if x[0] <= LAST else 0.0 for x in sorted_ranks]),
    }
    for metric, cut in zip(RECALLS, CUTS, strict=True):
        figures[metric.name] = np.array([np.mean(x <= cut) for x in sorted_ranks])
    return figures


def _gain(ranks: Any) -> float:
    """Discounted gain of documents at these ranks, down to the last that counts."""
    return float(np.sum(1 / np.log2(1 + ranks[ranks <= LAST])))


class Retrieved(NamedTuple):
    """The rank of the text that belongs to an example's first one, among all others of the set."""

    rank: int
    """From 1; other texts that belong to it do not count."""
    ahead: bool
    """Whether it is nearer than the text of a triple that does not belong, or else than all."""
    other: float
    """The cosine of a random text that does not belong to it; NaN if there is none."""
    neighbours: tuple[tuple[int, int, float], ...]
    """The nearest texts: the number of an example of the set, which of its texts, the cosine."""


@dataclass(frozen=True)
class DifferentTexts:
    """The different texts of a set that are ranked: all except the examples' first ones."""

    examples: np.ndarray
    """(documents,) an example that has the text."""
    sides: np.ndarray
    """(documents,) which of its texts it is, from 1."""
    places: np.ndarray
    """(N, S − 1) the document numbers of an example's other texts."""
    excluded: list[list[int]]
    """For each example the documents that also belong to its first text, or are equal to it."""

    @classmethod
    def of(cls, encoded: EncodedSides) -> "DifferentTexts":
        """Of the texts of a set."""
        numbers = encoded.numbers
        documents, first, places = np.unique(numbers[:, 1:], return_index=True, return_inverse=True)
        known = Positives(numbers[:, :2]).of
        place = {x: i for i, x in enumerate(documents.tolist())}
        excluded = [
            [place[x] for x in known[anchor] if x in place and x != own]
            for anchor, own in numbers[:, :2].tolist()
        ]
        examples, others = np.divmod(first, numbers.shape[1] - 1)
        return cls(examples, 1 + others, places.reshape(len(numbers), -1), excluded)

    def retrieved(self, number: int, scores: np.ndarray) -> Prediction:
        """The rank of an example's second text by the scores (documents,) of all."""
        own, *third = self.places[number].tolist()
        near = top_k(scores, NEAREST)
        others = scores.astype(np.float32)
        others[[own, *self.excluded[number]]] = -np.inf
        # Of equal scores, others come first: a model that gives all texts one vector must not look
        # perfect.
        rank = 1 + int(np.sum(others >= scores[own]))
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


def positives(encoded: EncodedSides) -> Positives:
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
