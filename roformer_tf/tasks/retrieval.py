"""Retrieval as search people judge it: ranks of what belongs to a query → recall, MRR, nDCG.

A query's ranks are those of all documents that belong to it, from 1. Figures are functions of how
often each query counts, as all of `metrics` are, so that a bootstrap's interval is the same lines.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roformer_tf.tasks.metrics import Measure, Metric, mean
from roformer_tf.translation import Message

CUTS = (1, 5, 10)
"""Ranks down to which a user looks."""
LAST = 10
"""The rank down to which MRR and nDCG look."""

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
METRICS = (NDCG, MRR, *RECALLS)


def retrieval_measure(ranks: Sequence[Sequence[int]]) -> Measure:
    """recall@1, 5, 10, MRR@10 and nDCG@10 of N queries, by the ranks of what belongs to each.

    A query may have several documents, and must have one. A document that a search did not give at
    all has a rank beyond every cut.
    """
    each = query_figures(ranks)
    return lambda weights: {name: mean(values, weights) for name, values in each.items()}


def query_figures(ranks: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Each figure for each query: {"recall_at_1": (N,) float64, …}.

    >>> query_figures([[2], [1, 30]])["recall_at_10"].tolist()
    [1.0, 0.5]
    """
    found = [np.sort(np.asarray(one, np.float64)) for one in ranks]
    figures = {
        NDCG.name: np.array([_gain(one) / _gain(1.0 + np.arange(len(one))) for one in found]),
        MRR.name: np.array([1 / one[0] if one[0] <= LAST else 0.0 for one in found]),
    }
    for metric, cut in zip(RECALLS, CUTS, strict=True):
        figures[metric.name] = np.array([np.mean(one <= cut) for one in found])
    return figures


def _gain(ranks: Any) -> float:
    """Discounted gain of documents at these ranks, down to the last that counts."""
    return float(np.sum(1 / np.log2(1 + ranks[ranks <= LAST])))
