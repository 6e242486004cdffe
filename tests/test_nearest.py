"""The largest of many, against sorting everything in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.nearest import in_blocks, nearest, recall, top_k


def units(count, size=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 9))
def test_the_largest_are_those_that_a_stable_sort_puts_first(row, k):
    scores = np.array(row, np.float32)  # full of ties
    np.testing.assert_array_equal(top_k(scores, k), np.argsort(-scores, kind="stable")[:k])


def test_scores_of_minus_infinity_come_last():
    assert top_k(np.float32([-np.inf, 1, -np.inf, 2]), 3).tolist() == [3, 1, 0]


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize("k", [1, 10, 80])
def test_the_nearest_are_those_of_all_products(block, k, monkeypatch):
    monkeypatch.setattr("roformer_tf.nearest.QUERIES", 3)
    documents, asked = units(60), units(10, seed=1)
    documents[40] = documents[3]  # of two that are equal the first comes first
    indices, scores = nearest(asked, in_blocks(documents, block), k)
    products = asked.astype(np.float64) @ documents.T.astype(np.float64)
    want = np.argsort(-np.round(products, 6), axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices, want)
    np.testing.assert_allclose(scores, np.take_along_axis(products, want, 1), atol=1e-6)


def test_no_queries_and_no_vectors():
    assert nearest(units(0), [units(5)], 3)[0].shape[0] == 0
    assert nearest(units(2), [], 3)[0].shape == (2, 0)


def test_recall_counts_what_is_among_the_nearest_and_what_is_as_near():
    def scored(*rows):
        return np.array(rows), np.float32(1) - np.array(rows, np.float32) / 100

    assert recall(*scored([0, 1, 2]), *scored([0, 1, 2])) == 1
    assert recall(*scored([2, 1, 0], [0, 1, 9]), *scored([0, 1, 2], [0, 1, 2])) == 5 / 6
    assert recall(np.array([[0, 7]]), np.float32([[1, 0.99]]), *scored([0, 1])) == 1
