"""CRF decoding and marginals against an enumeration of all label sequences."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.tasks.tags.chain import NEVER, Chain, best_path, marginals

C = 4


def total(path, scores, chain):
    actual = chain.start[path[0]] + chain.end[path[-1]]
    actual += sum(row[label] for row, label in zip(scores, path, strict=True))
    return actual + sum(chain.steps[a, b] for a, b in pairwise(path))


def random_chain(rng):
    """Return a chain in which some transitions are forbidden, but none of a label to itself."""
    chain = Chain(rng.normal(size=C), rng.normal(size=(C, C)), rng.normal(size=C))
    forbidden = (rng.random((C, C)) < 0.4) & ~np.eye(C, dtype=bool)
    return chain._replace(steps=np.where(forbidden, NEVER, chain.steps))


@pytest.mark.parametrize("seed", range(5))
def test_paths_and_marginals_equal_an_enumeration(seed):
    rng = np.random.default_rng(seed)
    chain = random_chain(rng)
    for units in (5, 1, 2, 4, 3, 5):
        scores = 3 * rng.normal(size=(units, C)).astype("float32")
        sequences = list(product(range(C), repeat=units))
        totals = np.array([total(item, scores.astype("float64"), chain) for item in sequences])
        assert tuple(best_path(scores, chain)) == sequences[totals.argmax()]
        weights = np.exp(totals - totals.max()) / np.exp(totals - totals.max()).sum()
        want = np.zeros((units, C))
        for item, weight in zip(sequences, weights, strict=True):
            want[np.arange(units), item] += weight
        actual = marginals(scores, chain)
        np.testing.assert_allclose(actual, want, atol=1e-6)
        assert actual.dtype == np.float32


def test_empty_texts_have_no_labels():
    chain, empty = random_chain(np.random.default_rng(0)), np.zeros((0, C))
    assert best_path(empty, chain).tolist() == []
    assert marginals(empty, chain).shape == (0, C)


def test_decoding_returns_a_path_if_all_are_illegal():
    chain = Chain(np.array([NEVER, NEVER]), np.zeros((2, 2)), np.zeros(2))
    assert best_path(np.array([[0.0, 1.0]]), chain).tolist() == [1]


@given(st.lists(st.integers(0, C - 1), max_size=6), st.integers(0, 20))
def test_first_illegal_is_the_first_forbidden_transition(path, seed):
    chain = random_chain(np.random.default_rng(seed))
    forbidden = [chain.steps[a, b] == NEVER for a, b in pairwise(path)]
    want = forbidden.index(True) + 1 if any(forbidden) else None
    assert chain.first_illegal(np.array(path, np.int64)) == want
