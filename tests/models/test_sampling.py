"""Tests of sampling against the probabilities defined by its settings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from roformer_tf.models.strategies import (
    SHORTLIST,
    distribution,
    draw,
    penalize_repetition,
)

LOGITS = np.array([2.0, 1.7, 1.1, 0.9, 0.3, -0.2, -1.0, -2.5], "float32")
DRAWS = 20_000


def expected(logits, temperature=1.0, top_k=None, top_p=None):
    """Apply temperature, then top_k, then top_p, exactly as defined."""
    probabilities = np.exp(logits.astype("float64") / temperature)
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    if top_k is not None:
        probabilities[order[top_k:]] = 0
        probabilities /= probabilities.sum()
    if top_p is not None:
        count = int(np.argmax(np.cumsum(probabilities[order]) >= top_p - 1e-12)) + 1
        probabilities[order[count:]] = 0
        probabilities /= probabilities.sum()
    return probabilities


def sampled_counts(seed=0, **settings):
    """Return how often each token is sampled."""
    probabilities = distribution(np.tile(LOGITS, (DRAWS, 1)), **settings)
    tokens = draw(probabilities, np.random.default_rng(seed).random(DRAWS))
    return np.bincount(tokens, minlength=len(LOGITS))


def p_value(counts, probabilities):
    assert not counts[probabilities == 0].any()
    possible = probabilities > 0
    return stats.chisquare(counts[possible], DRAWS * probabilities[possible]).pvalue


ALL_THREE = {"temperature": 1.5, "top_k": 5, "top_p": 0.8}
"""Four tokens remain; with top_p before top_k five, with top_p before the temperature three."""
CUTS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.8},
    ALL_THREE,
    {"temperature": 0.6, "top_p": 0.7},
    {"top_p": 1.0, "top_k": 8},
]


@pytest.mark.parametrize("settings", CUTS, ids=str)
def test_sampled_tokens_follow_the_distribution(settings):
    assert p_value(sampled_counts(**settings), expected(LOGITS, **settings)) > 1e-4


def test_the_cuts_are_applied_in_the_defined_order():
    counts = sampled_counts(**ALL_THREE)
    temperature_last = expected(LOGITS, top_k=5, top_p=0.8) ** (1 / 1.5)
    top_p_first = expected(LOGITS, temperature=1.5, top_p=0.8)
    top_p_first[np.argsort(-top_p_first)[5:]] = 0
    assert np.count_nonzero(counts) == 4
    assert (np.count_nonzero(temperature_last), np.count_nonzero(top_p_first)) == (3, 5)


@given(
    arrays.arrays(np.int64, (2, 12), elements=st.integers(-64, 64), unique=True),
    st.floats(0.2, 3),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.05, 1),
)
def test_the_distribution_equals_the_definition(logits, temperature, top_k, top_p):
    logits = (logits / 8).astype("float32")  # distinct enough that rounding does not make two equal
    actual = distribution(logits, temperature, top_k, top_p)
    for row in range(2):
        probabilities = np.zeros(12)
        probabilities[actual.token_ids[row]] = actual.probabilities[row]
        want = expected(logits[row], temperature, top_k, top_p)
        if top_p is None or abs(np.cumsum(np.sort(want)[::-1]) - top_p).min() > 1e-9:
            np.testing.assert_allclose(probabilities, want, atol=1e-12)


def test_top_p_may_need_more_tokens_than_the_shortlist():
    logits = np.random.default_rng(0).normal(size=(1, 4 * SHORTLIST)).astype("float32")
    actual = distribution(logits, top_p=0.99)
    assert actual.probabilities.shape[1] > SHORTLIST
    probabilities = np.zeros(4 * SHORTLIST)
    probabilities[actual.token_ids[0]] = actual.probabilities[0]
    np.testing.assert_allclose(probabilities, expected(logits[0], top_p=0.99), atol=1e-12)


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_random_numbers_give_possible_tokens(uniform):
    actual = distribution(LOGITS[None], top_k=3)
    (token,) = draw(actual, np.array([uniform]))
    assert token == (0 if uniform == 0 else 2)


def test_the_repetition_penalty_lowers_logits_of_previous_tokens():
    logits = np.array([[2.0, -1.0, 3.0, 0.5]], "float32")
    previous = [[0, 1, 1]]
    np.testing.assert_allclose(penalize_repetition(logits, previous, 2.0), [[1.0, -2.0, 3.0, 0.5]])
    np.testing.assert_allclose(logits, [[2.0, -1.0, 3.0, 0.5]])
