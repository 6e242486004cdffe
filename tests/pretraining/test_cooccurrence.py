"""Neighbour vectors compared with direct counting and a full SVD."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.pretraining.initialization import (
    neighbour_counts,
    neighbour_vectors,
    positive_information,
)


class Rows(list):
    """A list of rows (3, L) that replaces `PreparedRows`."""

    length = 12


def packed(documents):
    """Pack documents of token ids into rows; every token is a word."""
    bounds = np.cumsum([0, *map(len, documents)])
    joined = Documents(np.concatenate(documents), np.arange(bounds[-1]), bounds)
    return Rows(pack(joined, length=Rows.length, cls_id=2, sep_id=3)[0])


DOCUMENTS = st.lists(st.lists(st.integers(5, 9), min_size=1, max_size=8), min_size=1, max_size=6)


@given(DOCUMENTS)
def test_neighbours_are_counted_only_within_documents(documents):
    counts = neighbour_counts(packed(documents), 10).toarray()
    by_hand = np.zeros((10, 10))
    for ids in documents:
        for before, after in pairwise([2, *ids, 3]):
            by_hand[before, after] += 1
    assert (counts == by_hand).all()


@given(DOCUMENTS)
def test_positive_information_equals_its_definition(documents):
    counts = neighbour_counts(packed(documents), 10)
    together = counts.toarray().astype("float64") / counts.sum()
    independent = np.outer(together.sum(1), together.sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        want = np.where(together > 0, np.maximum(np.log(together / independent), 0), 0)
    got = positive_information(counts).toarray()
    assert np.abs(got - np.hstack([want, want.T])).max() < 1e-5


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return packed([rng.integers(5, 40, rng.integers(2, 9)).tolist() for _ in range(300)])


def test_products_of_vectors_equal_those_of_a_full_svd(rows):
    vectors = neighbour_vectors(rows, 50, 64).astype("float64")  # the full rank, up to a rotation
    left, strength, _ = np.linalg.svd(positive_information(neighbour_counts(rows, 50)).toarray())
    full = left * np.sqrt(strength)
    lengths = np.linalg.norm(full, axis=1)
    full /= np.maximum(lengths, np.median(lengths[lengths > 1e-6]))[:, None]
    assert np.abs(vectors @ vectors.T - full @ full.T).max() < 1e-4


def test_absent_tokens_have_no_vector_and_no_norm_exceeds_1(rows):
    lengths = np.linalg.norm(neighbour_vectors(rows, 50, 16), axis=1)
    assert (lengths[[0, 1, 4, *range(40, 50)]] == 0).all()
    assert lengths.max() == pytest.approx(1, abs=1e-5)
    assert (lengths[5:40] > 0.1).all()


def test_tokens_with_similar_neighbours_have_similar_vectors():
    """7 and 8 occur in the same contexts, 9 in others."""
    frames = [(10, 11), (12, 13), (14, 15)]
    documents = [[a, word, b] for word in (7, 8) for a, b in frames] + [[20, 9, 21], [22, 9, 23]]
    vectors = neighbour_vectors(packed(documents * 3), 30, 8)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9
    assert vectors[7] @ vectors[8] > 0.99
    assert vectors[7] @ vectors[9] < 0.5


def test_vectors_are_reproducible(rows):
    assert (neighbour_vectors(rows, 50, 16) == neighbour_vectors(rows, 50, 16)).all()


def test_text_without_information_gives_zero_vectors():
    assert (neighbour_vectors(packed([[5] * 5] * 3), 10, 4)[5:] == 0).sum() >= 16
    single = Rows([row * 0 for row in packed([[5]])])
    assert (neighbour_vectors(single, 10, 4) == 0).all()
