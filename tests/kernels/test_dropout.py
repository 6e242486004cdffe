"""Statistical tests of the dropout mask: its rate, and the independence of its values."""

import numpy as np
import pytest
from keras import ops
from scipy import stats

from roformer_tf.kernels.dropout import kept


def dropout_mask(seed, shape, rate):
    return ops.convert_to_numpy(kept(ops.array(np.array(seed, "int64")), shape, rate))


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


def significant(correlation, size):
    """Return whether a correlation of `size` pairs is significant (five standard deviations)."""
    return abs(correlation) > 5 / np.sqrt(size)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [(0, 0), (0, 1), (123456789, 3), (2**31 - 1, 10**6)])
def test_the_rate_is_as_requested(rate, seed):
    mask = dropout_mask(seed, (1000, 1001), rate)
    assert stats.binomtest(int((~mask).sum()), mask.size, rate).pvalue > 1e-6


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_rate_is_the_same_in_every_slice(axis):
    counts = dropout_mask((7, 1), (64, 100, 128), 0.1).sum(axis=tuple({0, 1, 2} - {axis}))
    expected = np.full(len(counts), counts.mean())
    variance = 0.9 * 0.1 * (64 * 100 * 128 / len(counts))
    spread = ((counts - expected) ** 2).sum() / variance  # chi-squared
    assert 1e-6 < stats.chi2.sf(spread, len(counts) - 1) < 1 - 1e-6


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 8, 16, 63, 64, 65, 512, 1024, 4096, 65536])
def test_neighbouring_values_are_uncorrelated(shift):
    flat = dropout_mask((3, 5), (1 << 20,), 0.5)
    assert not significant(correlation(flat[:-shift], flat[shift:]), flat.size - shift)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ((11, 4), (11, 5)),  # the next step
        ((11, 4), (12, 4)),  # another layer
        ((11, 4), (4, 11)),
        ((11, 4), (12, 3)),
        ((11, 4), (11 + (1 << 16), 4)),
        ((0, 0), (0, 1)),
    ],
)
def test_masks_of_different_seeds_are_uncorrelated(first, other):
    a, b = (dropout_mask(seed, (512, 1024), 0.5) for seed in (first, other))
    for shift in (0, 1, 5, 1024):  # also when one is shifted
        assert not significant(correlation(a, np.roll(b, shift)), a.size)
        assert not significant(correlation(a, np.roll(b, -shift)), a.size)


def test_patterns_of_eight_neighbours_are_equally_likely():
    patterns = dropout_mask((1, 2), (1 << 17, 8), 0.5) @ (1 << np.arange(8))
    assert stats.chisquare(np.bincount(patterns, minlength=256)).pvalue > 1e-6


def test_gaps_are_distributed_as_for_independent_draws():
    dropped = np.flatnonzero(~dropout_mask((9, 9), (1 << 20,), 0.1))
    gaps = np.minimum(np.diff(dropped), 60)
    expected = stats.geom(0.1).pmf(np.arange(1, 60))
    expected = np.append(expected, 1 - expected.sum()) * len(gaps)
    assert stats.chisquare(np.bincount(gaps, minlength=61)[1:], expected).pvalue > 1e-6


def test_a_mask_depends_only_on_seed_and_index():
    mask = dropout_mask((5, 6), (4, 6, 8), 0.3)
    np.testing.assert_array_equal(mask, dropout_mask((5, 6), (4, 6, 8), 0.3))
    np.testing.assert_array_equal(mask.ravel(), dropout_mask((5, 6), (192,), 0.3))
    np.testing.assert_array_equal(mask[:2], dropout_mask((5, 6), (2, 6, 8), 0.3))
