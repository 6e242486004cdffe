"""Sampling of the next token, by NumPy.

Axes: B texts, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.top_k import top_k as largest

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

# Tokens that usually contain those of top_p: to sort the whole vocabulary takes much longer.
SHORTLIST = 512


class Distribution(NamedTuple):
    """Candidates for the next token, likeliest first, and their probabilities: both (B, K)."""

    token_ids: Ints
    probabilities: Floats


def penalize_repetition(logits: Floats, seen: Sequence[Sequence[int]], penalty: float) -> Floats:
    """Make tokens less likely that are already in the text (CTRL, arXiv 1909.05858, 4.1).

    logits (B, V), seen: the ids of each text → (B, V). As in transformers, the logit of such a
    token is divided by the penalty if it is above 0, and else multiplied by it.
    """
    # Pairs (text, id): [[7, 8], [9]] → rows 0 0 1, tokens 7 8 9.
    rows = np.repeat(np.arange(len(seen)), list(map(len, seen)))
    tokens = np.concatenate(seen)
    # Read before any is changed: a token that occurs twice is penalized once.
    old = logits[rows, tokens]
    penalized = logits.copy()
    penalized[rows, tokens] = np.where(old > 0, old / penalty, old * penalty)
    return penalized


def distribution(
    logits: Floats, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Distribution:
    """The distribution to sample from: softmax(logits / temperature), cut to top_k, then to top_p.

    logits (B, V). top_k keeps so many likeliest tokens, top_p the smallest set of likeliest tokens
    with this total probability (nucleus sampling, arXiv 1904.09751); both renormalize. The order of
    the three is that of transformers and bert4keras.
    """
    from scipy.special import softmax

    probabilities = softmax(logits.astype(np.float64) / temperature, axis=1)
    if top_k is None and (top_p is None or top_p == 1):
        every = np.broadcast_to(np.arange(probabilities.shape[1]), probabilities.shape)
        return Distribution(every, probabilities)
    # The most probable tokens usually suffice; the whole vocabulary is sorted only if not.
    if top_k is None:
        ids, shares = _likeliest(probabilities, SHORTLIST)
        if (shares.sum(axis=1) < top_p).any():
            ids, shares = _likeliest(probabilities, probabilities.shape[1])
    else:
        ids, shares = _likeliest(probabilities, top_k)
        shares = shares / shares.sum(axis=1, keepdims=True)
    if top_p is not None and top_p < 1:
        # The token that crosses top_p is included, so that at least one remains.
        before = np.cumsum(shares, axis=1) - shares
        shares = np.where(before < top_p, shares, 0.0)
        # Tokens are sorted, so that the columns from here on are 0 in all texts.
        kept = int((shares > 0).sum(axis=1).max())
        ids, shares = ids[:, :kept], shares[:, :kept]
        shares = shares / shares.sum(axis=1, keepdims=True)
    return Distribution(ids, shares)


def _likeliest(weights: Floats, count: int) -> Distribution:
    """The largest weights of each text, largest first; of equal ones the lower id."""
    ids = np.stack([largest(row, count) for row in weights])
    return Distribution(ids, np.take_along_axis(weights, ids, axis=1))


def draw(distribution: Distribution, uniform: Floats) -> Ints:
    """Sample a token for each text, by a random number (B,) from 0 to below 1."""
    bounds = np.cumsum(distribution.probabilities, axis=1)
    bounds /= bounds[:, -1:]  # the sum of rounded probabilities is not exactly 1
    # The number of bounds that are not above the random number is the index of its interval.
    chosen = (bounds <= uniform[:, None]).sum(axis=1)
    return np.take_along_axis(distribution.token_ids, chosen[:, None], axis=1)[:, 0]
