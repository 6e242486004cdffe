"""Texts ranked by their cosines with a query: ranks, and the figures of retrieval.

The ranks of a query are those of its relevant documents, from 1. Figures are functions of how often
each query counts, as in `metrics`, so a bootstrap can compute their intervals.
Axes: N examples, S texts of an example, H features.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.labelled.text_sides import EncodedSides, Positives
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.parts import Prediction
from roformer_tf.top_k import top_k
from roformer_tf.translation import Message

# Nearest texts that a prediction keeps.
NEAREST = 3
# Scores in memory at a time, float32: 32 MB.
SCORES_AT_ONCE = 8_000_000
# Cosines that differ by less are equal: products of the same numbers have other rounding errors.
EQUAL = 1e-6
# Ranks at which recall is computed.
CUTS = (1, 5, 10)
# The last rank that counts for MRR and nDCG.
LAST = 10

RECALLS = tuple(
    Metric(
        f"recall_at_{cut}",
        Message("recall@{cut}", cut=cut),
        meaning=Message(
            "fraction of the relevant documents that are among the first {cut}", cut=cut
        ),
        by_example=True,  # the examples of a fine-tuned model have one relevant document each
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


def query_figures(ranks: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    """recall@1, 5, 10, MRR@10 and nDCG@10 of each query: {"recall_at_1": (N,) float64, …}.

    From the ranks of relevant documents, one or more for a query. A document that a search did not
    return has a rank beyond every cut.

    >>> query_figures([[2], [1, 30]])["recall_at_10"].tolist()
    [1.0, 0.5]
    """
    # The first of the sorted ranks is that of the nearest relevant document.
    sorted_ranks = [np.sort(np.asarray(of_query, np.float64)) for of_query in ranks]
    figures = {
        # The best possible ranks of n documents are 1 to n.
        NDCG.name: np.array([_gain(x) / _gain(1.0 + np.arange(len(x))) for x in sorted_ranks]),
        MRR.name: np.array([1 / x[0] if x[0] <= LAST else 0.0 for x in sorted_ranks]),
    }
    for metric, cut in zip(RECALLS, CUTS, strict=True):
        figures[metric.name] = np.array([np.mean(x <= cut) for x in sorted_ranks])
    return figures


def _gain(ranks: Any) -> float:
    """Discounted gain of documents at these ranks, up to `LAST`."""
    # Relevance is binary here: a relevant document gains 1 before the discount, whatever its label.
    return float(np.sum(1 / np.log2(1 + ranks[ranks <= LAST])))


class Retrieved(NamedTuple):
    """How near an example's second text is to its first, compared with all texts of the set."""

    rank: int
    """Rank of the second text, from 1; other texts that belong to the first do not count."""
    ahead: bool
    """Whether it is nearer than the third text of a triple, or, without one, than all texts."""
    other: float
    """The cosine of a random text that does not belong to the first; NaN if there is none."""
    neighbours: tuple[tuple[int, int, float], ...]
    """The nearest texts: the index of an example of the set, which of its texts, the cosine."""


class DifferentTexts:
    """The different texts of a set that are ranked ("documents"): all except first texts."""

    def __init__(self, encoded: EncodedSides) -> None:
        numbers = encoded.numbers
        texts, first, documents = np.unique(numbers[:, 1:], return_index=True, return_inverse=True)
        # `known` also has numbers of first texts, which are no documents, such as the anchor's own.
        known = Positives(numbers[:, :2]).of
        document = {text: i for i, text in enumerate(texts.tolist())}
        # For each example the other documents that belong to its first text, or are equal to it.
        self.excluded = [
            [document[text] for text in known[anchor] if text in document and text != own]
            for anchor, own in numbers[:, :2].tolist()
        ]
        # `first` is an index of the flattened (N, S − 1) array: example · (S − 1) + text, from 0.
        # (documents,) an example that has the text, and its index among those texts, from 1.
        self.examples, sides = np.divmod(first, numbers.shape[1] - 1)
        self.sides = 1 + sides
        # (N, S − 1) the document of each text of an example, except the first.
        self.documents = documents.reshape(len(numbers), -1)

    def retrieved(self, number: int, scores: np.ndarray) -> Prediction:
        """The rank of an example's second text by the scores (documents,) of all."""
        # [second] of a pair, [second, third] of a triple.
        own, *third = self.documents[number].tolist()
        near = top_k(scores, NEAREST)
        # A copy: the score of `own` is read again below.
        negatives = scores.astype(np.float32)
        negatives[[own, *self.excluded[number]]] = -np.inf
        # The right text comes last among equal scores: a model with one vector for all texts must
        # not look perfect.
        rank = 1 + int(np.sum(negatives > scores[own] - EQUAL))
        left = np.flatnonzero(np.isfinite(negatives))
        # Seeded by the example's number, so that a report shows the same random text every time.
        drawn = np.random.default_rng(number).integers(len(left)) if len(left) else 0
        label = Retrieved(
            rank=rank,
            ahead=bool(scores[own] - scores[third[0]] > EQUAL) if third else rank == 1,
            other=float(scores[third[0] if third else left[drawn]]) if len(left) else float("nan"),
            neighbours=tuple(
                (int(self.examples[i]), int(self.sides[i]), float(scores[i])) for i in near
            ),
        )
        return Prediction(label, np.array([scores[own]], np.float32))


def unit(row_vectors: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Vectors of sequences → (sequences, H) float32 of length 1; a vector of 0 stays 0."""
    vectors = np.asarray(row_vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))


def scores_of(
    vectors: np.ndarray, encoded: EncodedSides, texts: DifferentTexts
) -> Iterator[np.ndarray]:
    """For each example the cosines (documents,) of its first text with all `texts`.

    vectors (sequences, H) of length 1. Of several sequences the best one counts.
    """
    first = encoded.first_rows[texts.examples, texts.sides]
    counts = encoded.counts[texts.examples, texts.sides]
    # The sequences of each document, one document after the other: `begins` is where each starts.
    begins = np.cumsum([0, *counts[:-1]])
    # first [5, 9] and counts [2, 1] → begins [0, 2] → [5, 5, 7] + [0, 1, 2] = [5, 6, 9].
    rows = np.repeat(first - begins, counts) + np.arange(counts.sum())
    documents = vectors[rows]
    queries = encoded.first_rows[:, 0]
    at_once = max(1, SCORES_AT_ONCE // len(rows))
    for chunk in np.split(queries, range(at_once, len(queries), at_once)):
        # The cosines of all sequences, then the highest of each document.
        yield from np.maximum.reduceat(vectors[chunk] @ documents.T, begins, axis=1)
