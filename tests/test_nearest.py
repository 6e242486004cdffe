"""The best of many, against sorting everything in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.inference import nearest
from roformer_tf.inference.nearest import NONE, Found, best_of, exact, fused, recall


def units(count, size=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_the_best_are_those_that_a_stable_sort_puts_first(rows, top):
    scores = np.array(rows, np.float32)  # full of ties
    found = best_of(scores, top, first=100)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    kept = order.shape[1]
    np.testing.assert_array_equal(found.places[:, :kept], order + 100)
    np.testing.assert_array_equal(found.scores[:, :kept], np.take_along_axis(scores, order, 1))
    assert (found.places[:, kept:] == NONE).all()
    assert (found.scores[:, kept:] == -np.inf).all()


@pytest.mark.parametrize(("block", "queries"), [(7, 3), (16_384, 256), (1, 1)])
@pytest.mark.parametrize("top", [1, 10, 80])
def test_exact_search_is_a_sort_of_all_products(block, queries, top, monkeypatch):
    monkeypatch.setattr(nearest, "BLOCK", block)
    monkeypatch.setattr(nearest, "QUERIES", queries)
    documents, asked = units(60), units(10, seed=1)
    documents[40] = documents[3]  # of two that are equal the first comes first
    found = exact(asked, documents, top)
    products = asked.astype(np.float64) @ documents.T.astype(np.float64)
    want = np.argsort(-np.round(products, 6), axis=1, kind="stable")[:, :top]
    np.testing.assert_array_equal(found.places[:, : want.shape[1]], want)
    np.testing.assert_allclose(
        found.scores[:, : want.shape[1]], np.take_along_axis(products, want, 1), atol=1e-6
    )
    assert (found.places[:, want.shape[1] :] == NONE).all()


def test_nothing_asked_and_nothing_there():
    assert exact(units(0), units(5), 3).places.shape == (0, 3)
    assert (exact(units(2), units(0), 3).places == NONE).all()


def test_fusion_sums_the_reciprocals_of_ranks():
    first = Found(np.array([[4, 2, 9]]), np.array([[0.9, 0.8, 0.1]], np.float32))
    second = Found(np.array([[2, 7, NONE]]), np.array([[30.0, 1.0, -np.inf]], np.float32))
    found = fused([first, second], 5)
    assert found.places.tolist() == [[2, 4, 7, 9, NONE]]
    want = [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63, -np.inf]
    np.testing.assert_allclose(found.scores, [want], rtol=1e-6)


def found(*rows):
    """Places, and scores that fall with them."""
    places = np.array(rows)
    return Found(places, np.float32(1) - places.astype(np.float32) / 100)


def test_recall_counts_what_is_among_the_nearest():
    assert recall(found([0, 1, 2]), found([0, 1, 2])) == 1
    assert recall(found([2, 1, 0], [0, 1, 9]), found([0, 1, 2], [0, 1, 2])) == 5 / 6


def test_one_that_is_as_near_counts():
    tied = Found(np.array([[0, 7]]), np.float32([[1, 0.99]]))
    assert recall(tied, found([0, 1])) == 1
