"""Two texts in one sequence: which tokens do both have, and what fraction of all is it?

Masked words and vectors of single texts never make a token look for itself in the other segment, so
a model of these alone does not learn to compare two texts (docs/LOG.md).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

# Inputs that `side_by_side` returns.
INPUTS = ("both", "segments", "shared", "overlap")
# Targets of tokens that are not asked: special ones and padding.
NOT_ASKED = -1


def side_by_side(
    titles: np.ndarray, texts: np.ndarray, special: Sequence[int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return titles (N, T) and texts (N, S), padded with 0, as sequences of two segments.

    `special`: the ids of [CLS], [SEP] and [UNK]. Of three titles one is next to its text, one to
    that of another title, and one to an altered copy of itself. Half of the sequences begin with
    the second side. The result, with L = max(T, S) + T - 1:

        both (N, L)       token ids
        segments (N, L)   0 and 1
        shared (N, L)     1 for a token that both sides have, 0 for others, -1 for those not asked
        overlap (N,)      fraction of the asked tokens that both sides have, float32
    """
    length = titles.shape[1] + max(titles.shape[1], texts.shape[1]) - 1
    both, segments = np.zeros((2, len(titles), length), "int32")
    shared = np.full_like(both, NOT_ASKED)
    swapped = rng.random(len(titles)) < 0.5
    for row, (title, text, other) in enumerate(
        zip(*map(_without_padding, (titles, texts, np.roll(texts, 2, axis=0))), strict=True)
    ):
        second = (text, other, altered(title, other, rng))[row % 3]
        first, second = (second, title) if swapped[row] else (title, second)
        ids = np.concatenate([first, second[1:]])  # the second one without [CLS]
        both[row, : len(ids)] = ids
        segments[row, len(first) : len(ids)] = 1
        is_shared = np.isin(ids, np.intersect1d(first, second))
        shared[row, : len(ids)] = np.where(np.isin(ids, special), NOT_ASKED, is_shared)
    asked = np.maximum((shared != NOT_ASKED).sum(axis=1), 1)
    overlap = ((shared == 1).sum(axis=1) / asked).astype("float32")
    return {"both": both, "segments": segments, "shared": shared, "overlap": overlap}


def _without_padding(rows: np.ndarray) -> list[np.ndarray]:
    return [row[row != 0] for row in rows]


def altered(title: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a copy of a title with some tokens of another text, and often in another order.

    Both are ids from [CLS] to [SEP]. A random fraction is replaced by the tokens of the other text
    at the same places. Half of the copies have their halves swapped.
    """
    length = min(len(title), len(other)) - 2
    is_kept = rng.random(length) < rng.random()
    copy = np.where(is_kept, title[1:][:length], other[1:][:length])
    if rng.random() < 0.5:
        copy = np.roll(copy, length // 2)
    return np.concatenate([title[:1], copy, title[-1:]])


def cut(ids: np.ndarray, length: int, separator: int) -> np.ndarray:
    """Return the first tokens of texts: (N, L) → (N, length), each still with a [SEP]."""
    result = ids[:, :length].copy()
    full = result[:, -1] != 0
    result[full, -1] = separator
    return result


def comparison_loss(logits: Any, shared: Any, overlap: Any) -> Any:
    """Return the loss of shared tokens plus that of the overlap, in nats.

    logits (N, L, 2) float32: channel 0 says whether both sides have the token, channel 1 of [CLS]
    how many both have. shared (N, L) and overlap (N,) are those of `side_by_side`.
    """
    is_asked = ops.cast(ops.not_equal(shared, NOT_ASKED), "float32")
    losses = ops.binary_crossentropy(
        ops.cast(shared, "float32") * is_asked, logits[..., 0], from_logits=True
    )
    overlap_losses = ops.binary_crossentropy(overlap, logits[:, 0, 1], from_logits=True)
    return ops.sum(losses * is_asked) / ops.sum(is_asked) + ops.mean(overlap_losses)
