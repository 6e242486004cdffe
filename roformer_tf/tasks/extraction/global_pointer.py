"""GlobalPointer: pointers of tokens → a score of every span and label, and their loss.

The score of label c for the span from token i to token j ≥ i (Efficient GlobalPointer, Su et al.,
arXiv 2208.03054, whose biases are linear in the hidden states here):

    s(i, j, c) = R_i q_i · R_j k_j / √K + start(i, c) + end(j, c)

q, k, start and end are the pointers of `models.heads.RoFormerForSpanExtraction`. R_i rotates pairs
of neighbouring dimensions by the angles of position i (RoFormer, equation 34), so that the product
depends on the distance of i and j.

Axes: B sequences, T tokens, K = 64, C labels, P spans, M candidates.
"""

from typing import Any

import numpy as np

from roformer_tf.config import POINTER_SIZE
from roformer_tf.tasks import keras_ops as ops
from roformer_tf.tasks.losses import FAR, Tensor
from roformer_tf.tasks.probabilities import sigmoid
from roformer_tf.top_k import top_k

# Spans of a lower probability are never predicted: the lowest threshold is 0.05.
LOWEST = 0.05


def split(pointers: Any) -> list[Any]:
    """Pointers (…, T, 2K + 2C) → query and key (…, T, K), start and end (…, T, C)."""
    # The last axis has 2K + 2C numbers, of which K is known.
    labels = pointers.shape[-1] // 2 - POINTER_SIZE
    ends = np.cumsum([POINTER_SIZE, POINTER_SIZE, labels, labels]).tolist()
    return [pointers[..., a:b] for a, b in zip([0, *ends], ends, strict=False)]


def span_scores(pointers: Tensor) -> Tensor:
    """Scores of all spans, in operations of Keras: (B, T, 2K + 2C) → (B, C, T, T) float32."""
    from roformer_tf.layers.rotary import rotate

    query, key, start, end = split(pointers)
    positions = ops.arange(ops.shape(pointers)[1], dtype="int32")
    # `rotate` takes (B, T, N, K): these are a single head.
    query, key = (rotate(x[:, :, None], positions)[:, :, 0] for x in (query, key))
    products = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / POINTER_SIZE**0.5
    start, end = (ops.transpose(x, (0, 2, 1)) for x in (start, end))
    return products[:, None] + start[..., None] + end[:, :, None]


def span_losses(targets: Tensor, pointers: Tensor, *settings: Any, soft: bool = False) -> Tensor:
    """Multi-label cross-entropy of each sequence, mean over the labels: (B,).

    log(1 + Σ exp s) over the spans without the label + log(1 + Σ exp −s) over those that have it
    (Su Jianlin, kexue.fm, 7359). targets (B, 1 + P, 3) int32 as in `SpansLabelling.in_rows`;
    the settings are for other losses. soft: targets (B, 1 + P, 4) float32 have a fourth column, t
    from 0 to 1; the loss is log(1 + Σ (1 − t) exp s) + log(1 + Σ t exp −s) over all spans
    (kexue.fm, 9064), which is the same for 0 and 1.
    """
    scores = span_scores(pointers)
    batch, labels, length = ops.shape(scores)[:3]
    positions = ops.arange(length, dtype="int32")
    # All tokens of the text: not [CLS], what is before the text, [SEP] and padding.
    ends = ops.cast(targets[:, 0, :2], "int32")
    counts = (positions > ends[:, 1:]) & (positions < ends[:, :1] - 1)  # (B, T)
    pairs = counts[:, :, None] & counts[:, None] & (positions[:, None] <= positions)
    start, last, label = (ops.cast(targets[:, 1:, i], "int32") for i in range(3))  # (B, P)
    row = ops.zeros_like(start) + ops.arange(batch, dtype="int32")[:, None]
    indices = ops.reshape(ops.stack([row, label, start, last], axis=-1), (-1, 4))
    # A target of zeros is no span: token 0 is [CLS].
    shares = targets[:, 1:, 3] if soft else ops.cast(start > 0, "float32")
    shape = batch, labels, length, length
    # (B, C, T, T). Values at equal indices add up; a span that occurs twice counts once.
    wanted = ops.minimum(ops.scatter(indices, ops.reshape(shares, (-1,)), shape), 1.0)

    def log_of_sum(scores: Tensor, factors: Tensor) -> Tensor:
        """log(1 + Σ factors · exp scores): (B, C)."""
        # The logarithm of 0 would make gradients NaN, although the next line drops it.
        logarithms = ops.log(ops.where(factors > 0, factors, 1.0))
        counted = ops.where(factors > 0, scores + logarithms, -FAR)
        # softplus(log x) = log(1 + x).
        return ops.softplus(ops.logsumexp(counted, axis=(-2, -1)))

    without = ops.where(pairs[:, None], 1 - wanted, 0.0)
    return ops.mean(log_of_sum(scores, without) + log_of_sum(-scores, wanted), axis=-1)


def candidates(pointers: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The likeliest spans of a sequence, among those of a probability above `LOWEST`.

    pointers (T, 2K + 2C), tokens (U,) int: where spans may begin and end → (M, 4) float32: the
    indices in `tokens` of the first and the last one, the label and its probability. M is at most T
    or 32: an untrained model may find all spans likely.
    """
    query, key, start, end = split(np.asarray(pointers, np.float32)[tokens])
    # By their positions in the sequence, as in training, not by their indices in `tokens`.
    query, key = (_rotated(x, tokens) for x in (query, key))
    products = query @ key.T / np.float32(POINTER_SIZE**0.5)
    products[np.tril_indices(len(tokens), -1)] = -np.inf  # it would end before it starts
    # The threshold as a logit: only the scores above it need a sigmoid, not all of T · T · C.
    lowest = np.log(LOWEST / (1 - LOWEST))
    spans = []
    for label in range(start.shape[-1]):
        scores = products + start[:, None, label] + end[None, :, label]
        first, last = np.nonzero(scores > lowest)
        numbers = np.full(len(first), label)
        spans.append(np.stack([first, last, numbers, sigmoid(scores[first, last])], axis=-1))
    likely = np.concatenate(spans).astype(np.float32)
    return likely[top_k(likely[:, 3], max(len(pointers), 32))]


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate x (U, K) by positions (U,): (a, b) → (a cos θ − b sin θ, b cos θ + a sin θ)."""
    speeds = 10_000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions[:, None] * speeds
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[:, ::2], x[:, 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
