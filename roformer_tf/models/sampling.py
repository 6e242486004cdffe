"""The next token of each row, drawn from what the model expects. NumPy alone.

Axes: B rows, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

SHORTLIST = 512
"""Tokens that mostly hold the share that top_p asks for: sorting them all takes much longer."""


class Distribution(NamedTuple):
    """Tokens that may come next, likeliest first, and their probabilities: both (B, K)."""

    token_ids: Ints
    probabilities: Floats


def penalize_repetition(logits: Floats, seen: Ints, penalty: float) -> Floats:
    """Make tokens less likely that stand in the rows already (CTRL, arXiv 1909.05858, 4.1).

    logits (B, V), seen (B, T) int, negative where there is none → (B, V): a logit above 0 of such a
    token is divided by the penalty, another one multiplied with it, as transformers does.
    """
    if penalty == 1:
        return logits
    rows, places = np.nonzero(seen >= 0)
    tokens = seen[rows, places]
    old = logits[rows, tokens]
    penalized = logits.copy()
    penalized[rows, tokens] = np.where(old > 0, old / penalty, old * penalty)
    return penalized


def distribution(
    logits: Floats,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Distribution:
    """What to draw from: softmax(logits / temperature), cut to top_k, then to top_p.

    logits (B, V). Of top_k the likeliest so many are left, and renormalized; of top_p as few of the
    likeliest as make up that share (nucleus sampling, arXiv 1904.09751). The order of the three is
    that of transformers and bert4keras.
    """
    from scipy.special import softmax

    probabilities = softmax(logits.astype(np.float64) / temperature, axis=1)
    if top_k is None and (top_p is None or top_p == 1):
        every = np.broadcast_to(np.arange(probabilities.shape[1]), probabilities.shape)
        return Distribution(every, probabilities)
    if top_k is None:
        ids, shares = _likeliest(probabilities, SHORTLIST)
        if (shares.sum(axis=1) < top_p).any():
            ids, shares = _likeliest(probabilities, probabilities.shape[1])
    else:
        ids, shares = _likeliest(probabilities, top_k)
        shares = shares / shares.sum(axis=1, keepdims=True)
    if top_p is not None and top_p < 1:
        before = np.cumsum(shares, axis=1) - shares
        shares = np.where(before < top_p, shares, 0.0)
        kept = int((shares > 0).sum(axis=1).max())
        ids, shares = ids[:, :kept], shares[:, :kept]
        shares = shares / shares.sum(axis=1, keepdims=True)
    return Distribution(ids, shares)


def _likeliest(weights: Floats, count: int) -> Distribution:
    """The heaviest so many of each row, heaviest first; of equal ones the lower id."""
    if count < weights.shape[1]:
        ids = np.sort(np.argpartition(-weights, count - 1, axis=1)[:, :count], axis=1)
        weights = np.take_along_axis(weights, ids, axis=1)
    else:
        ids = np.broadcast_to(np.arange(weights.shape[1]), weights.shape)
    order = np.argsort(-weights, axis=1, kind="stable")
    return Distribution(
        np.take_along_axis(ids, order, axis=1), np.take_along_axis(weights, order, axis=1)
    )


def draw(given: Distribution, uniform: Floats) -> Ints:
    """The token of each row at a share (B,), at least 0 and below 1, of all the probability."""
    bounds = np.cumsum(given.probabilities, axis=1)
    bounds /= bounds[:, -1:]  # what rounding left over
    places = (bounds <= uniform[:, None]).sum(axis=1)
    return np.take_along_axis(given.token_ids, places[:, None], axis=1)[:, 0]
