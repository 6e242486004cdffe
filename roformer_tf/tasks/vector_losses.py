"""Losses of vectors, by which sentence embeddings are trained. float32 throughout.

Axes: B examples, S texts of an example, H features, C candidates. A vector is as the pooling gives
it; its length only counts in `classifier_features`, which are RoFormer-Sim's.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from roformer_tf.kernels.forms import Tensor

SCALE = 20.0
"""Factor of cosines before a softmax: a temperature of 0.05."""
FAR = 1e12
"""Subtracted from what must not count in a softmax, as in bert4keras and
sentence-transformers."""


def unit(vectors: "Tensor") -> "Tensor":
    """The same with length 1, whose products are cosines; a vector of 0 stays 0."""
    from keras import ops

    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, 1e-24))


def in_batch_softmax(targets: "Tensor", vectors: "Tensor", weights: "Tensor") -> "Tensor":
    """Cross-entropy of the right candidate for each first text, by cosines × 20: a scalar.

    vectors (B, S, H): anchors, the text that belongs to each, and negatives. All texts of the batch
    except the anchors are candidates: C = (S − 1) B. targets (B, C) int:
    1 for an anchor's own, 0 for others, and below 0 for what does not count. weights (B,), whose
    sum divides.
    """
    from keras import ops

    sides = unit(vectors)
    candidates = ops.reshape(ops.transpose(sides[:, 1:], (1, 0, 2)), (-1, vectors.shape[-1]))
    scores = SCALE * ops.matmul(sides[:, 0], ops.transpose(candidates))  # (B, C)
    right = ops.sum(ops.where(targets > 0, scores, 0.0), axis=1)
    scores = ops.where(targets < 0, -FAR, scores)
    losses = ops.logsumexp(scores, axis=1) - right
    return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)


def cosent(targets: "Tensor", vectors: "Tensor", weights: "Tensor") -> "Tensor":
    """CoSENT (Su Jianlin, kexue.fm, 8847): a scalar.

        log(1 + Σ exp(20 (cos_i − cos_j)))   over all pairs with score_i < score_j

    vectors (B, 2, H), targets (B,) scores; an example of weight 0 is in no sum.
    """
    from keras import ops

    sides = unit(vectors)
    scores = SCALE * ops.sum(sides[:, 0] * sides[:, 1], axis=-1)  # (B,)
    counts = weights > 0
    ordered = (targets[:, None] < targets[None, :]) & counts[:, None] & counts[None, :]
    apart = ops.where(ordered, scores[:, None] - scores[None, :], -FAR)
    everything = ops.concatenate([ops.zeros((1,)), ops.reshape(apart, (-1,))])
    return ops.logsumexp(everything)


def classifier_features(vectors: "Tensor") -> "Tensor":
    """[a, b, |a − b|] of pairs, not normalised: (B, 2, H) → (B, 3H)."""
    from keras import ops

    a, b = vectors[:, 0], vectors[:, 1]
    return ops.concatenate([a, b, ops.abs(a - b)], axis=-1)


def classes(targets: "Tensor", logits: "Tensor", weights: "Tensor") -> "Tensor":
    """Mean cross-entropy of classes: targets (B,) int32, logits (B, K), weights (B,) → scalar."""
    from keras import ops

    losses = ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)


def neighbours(targets: "Tensor", vectors: "Tensor", weights: "Tensor") -> "Tensor":
    """RoFormer-Sim's stage 1: each row's neighbour among all others, by cosines × 20: a scalar.

    vectors (R, H) of rows 2i and 2i + 1 that mean the same; targets (R, R) as `in_batch_softmax`
    has them, a row itself below 0; weights (R,).
    """
    from keras import ops

    sides = unit(vectors)
    scores = SCALE * ops.matmul(sides, ops.transpose(sides))
    right = ops.sum(ops.where(targets > 0, scores, 0.0), axis=1)
    losses = ops.logsumexp(ops.where(targets < 0, -FAR, scores), axis=1) - right
    return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)


def distilled(targets: "Tensor", vectors: "Tensor", weights: "Tensor") -> "Tensor":
    """RoFormer-Sim's stage 2: 100 · mean((cosines − a teacher's)²) of all pairs of rows: a scalar.

    vectors (R, H), targets (R, R) the teacher's cosines, weights (R,).
    """
    from keras import ops

    sides = unit(vectors)
    apart = ops.square(ops.matmul(sides, ops.transpose(sides)) - targets)
    counts = weights[:, None] * weights[None, :]
    return 100 * ops.sum(apart * counts) / ops.maximum(ops.sum(counts), 1.0)


def second_texts(losses: "Tensor", segment_ids: "Tensor") -> "Tensor":
    """Mean loss of the tokens of segment 1, each predicted from those before it: a scalar.

    losses (R, T): that at a position is of the next token; segment_ids (R, T), 0 for padding.
    """
    from keras import ops

    second = ops.cast(segment_ids[:, 1:], "float32")
    return ops.sum(losses[:, :-1] * second) / ops.maximum(ops.sum(second), 1.0)


def over_cuts(
    loss: "Callable[[Tensor, Tensor, Tensor], Tensor]",
    dimensions: Sequence[int],
    targets: "Tensor",
    vectors: "Tensor",
    weights: "Tensor",
) -> "Tensor":
    """Mean of a loss of vectors that are cut to each of these lengths (Matryoshka)."""
    losses = [loss(targets, vectors[..., :size], weights) for size in dimensions]
    return sum(losses[1:], losses[0]) / len(losses)


def softmax_each(sides: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Loss (B,) of each example by `in_batch_softmax`: sides (B, S, H)."""
    anchors = sides[:, 0].astype(np.float64)
    candidates = sides[:, 1:].transpose(1, 0, 2).reshape(-1, sides.shape[-1])
    scores = SCALE * anchors @ candidates.T.astype(np.float64)
    right = np.diagonal(scores[:, : len(sides)])
    highest = scores.max(axis=1, keepdims=True)
    total = np.sum(np.exp(scores - highest) * (wanted >= 0), axis=1)
    return np.asarray(np.log(total) + highest[:, 0] - right)


def cosent_each(sides: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """What each pair (B,) adds to `cosent`: how wrong its order is among all."""
    cosines = SCALE * np.einsum("nh,nh->n", sides[:, 0], sides[:, 1]).astype(np.float64)
    apart = cosines[:, None] - cosines[None, :]
    below = np.where(scores[:, None] < scores[None, :], np.exp(apart), 0.0).sum(axis=1)
    above = np.where(scores[:, None] > scores[None, :], np.exp(-apart), 0.0).sum(axis=1)
    return np.asarray(np.log1p(below + above))
