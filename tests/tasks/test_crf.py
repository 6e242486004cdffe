"""CRF decoding and marginals against an enumeration of all label sequences."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.tasks.tags.chain import NEVER, Chain, best_paths, marginals

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
def test_paths_and_marginals_equal_an_enumeration(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    chain = random_chain(rng)
    texts = [3 * rng.normal(size=(units, C)).astype("float32") for units in (5, 1, 2, 4, 3, 5)]
    for batch_size in (32, 2, 1):  # batches of all texts, of two, of one
        monkeypatch.setattr("roformer_tf.tasks.tags.chain.TOGETHER", batch_size)
        paths, probabilities = best_paths(texts, chain), marginals(texts, chain)
        for scores, path, marginal in zip(texts, paths, probabilities, strict=True):
            sequences = list(product(range(C), repeat=len(scores)))
            totals = np.array([total(item, scores.astype("float64"), chain) for item in sequences])
            assert tuple(path) == sequences[totals.argmax()]
            weights = np.exp(totals - totals.max()) / np.exp(totals - totals.max()).sum()
            want = np.zeros((len(scores), C))
            for item, weight in zip(sequences, weights, strict=True):
                want[np.arange(len(item)), item] += weight
            np.testing.assert_allclose(marginal, want, atol=1e-6)
            assert marginal.dtype == np.float32


def test_empty_texts_have_no_labels():
    chain = random_chain(np.random.default_rng(0))
    assert best_paths([], chain) == []
    empty = np.zeros((0, C))
    assert [path.tolist() for path in best_paths([empty], chain)] == [[]]
    assert [marginal.shape for marginal in marginals([empty], chain)] == [(0, C)]


def test_decoding_returns_a_path_if_all_are_illegal():
    chain = Chain(np.array([NEVER, NEVER]), np.zeros((2, 2)), np.zeros(2))
    (path,) = best_paths([np.array([[0.0, 1.0]])], chain)
    assert path.tolist() == [1]


@given(st.lists(st.integers(0, C - 1), max_size=6), st.integers(0, 20))
def test_first_illegal_is_the_first_forbidden_transition(path, seed):
    chain = random_chain(np.random.default_rng(seed))
    forbidden = [chain.steps[a, b] == NEVER for a, b in pairwise(path)]
    want = forbidden.index(True) + 1 if any(forbidden) else None
    assert chain.first_illegal(np.array(path, np.int64)) == want
