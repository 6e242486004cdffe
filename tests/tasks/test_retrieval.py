"""Retrieval metrics against scikit-learn and plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from roformer_tf.tasks.metrics import bootstrap, mean
from roformer_tf.tasks.vectors.ranked_texts import query_figures


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 3))
def test_metrics_equal_scikit_learn_and_sorting(seed, documents, max_relevant):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(7, documents))
    count = min(max_relevant, documents)
    relevance, ranks = np.zeros((7, documents)), []
    for number, row in enumerate(scores):
        relevant = rng.choice(documents, count, replace=False)
        relevance[number, relevant] = 1
        ranks.append([int(np.sum(row >= row[document])) for document in relevant])
    got = query_figures(ranks)
    assert got["ndcg_at_10"].mean() == pytest.approx(ndcg_score(relevance, scores, k=10))
    best = np.argsort(-scores, axis=1)[:, :10]
    recall = np.take_along_axis(relevance, best, axis=1).sum(axis=1) / count
    assert got["recall_at_10"].mean() == pytest.approx(np.mean(recall))


def test_metrics_of_each_query():
    figures = query_figures([[2], [1, 30], [11]])
    assert figures["recall_at_1"].tolist() == [0, 0.5, 0]
    assert figures["recall_at_10"].tolist() == [1, 0.5, 0]
    assert figures["mrr_at_10"].tolist() == [0.5, 1, 0]
    ideal = 1 + 1 / np.log2(3)
    np.testing.assert_allclose(figures["ndcg_at_10"], [1 / np.log2(3), 1 / ideal, 0])


def test_confidence_intervals_resample_queries():
    ranks = [[1]] * 50 + [[20]] * 50
    each = query_figures(ranks)["recall_at_10"]
    low, high = bootstrap(lambda weights: {"recall": mean(each, weights)}, 100)["recall"]
    assert 0.38 < low < 0.44
    assert 0.56 < high < 0.62
