"""Scaled dot-product attention with dropout on its weights (arXiv 1706.03762, section 3.2.1).

There is a form for every backend, a fast one for training on a CPU with TensorFlow, and cuDNN's
kernel for JAX on an NVIDIA GPU, which does not store the matrix of scores.
"""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.dropout import drop, dropped_plainly
from roformer_tf.kernels.forms import Tensor, fast, flashes, island, wide, with_gradient

HIDDEN = {"float16": -3e4}
"""Added to the scores of masked keys, so that their weights are exactly 0. Other dtypes: −1e9."""
# The largest number of float16 is 65,504. It is not −∞, because a query without keys would be NaN.


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    training: bool | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """dropped(softmax(query · keyᵀ + bias)) · value.

    query, scaled already, (B, N, T, H), key, value (B, N, S, H), visible (B, T, S) bool,
    seed (2,) int for dropout, bias (B or 1, N, T, S) → (B, N, T, H) in value's dtype.
    For a query without keys the result is the mean of all values, weighted by the bias.

    The fast form, in training and without a bias, stores the weights before dropout for its
    gradient, and draws the dropout mask again. On a GPU, JAX can use flash attention without
    dropout and with T = S, except for float64, which that would round.
    """
    # What flash attention can compute: no dropout, T = S, and no float64.
    suits = not rate and query.shape[2] == key.shape[2] and wide(query) == "float32"
    if suits and bias is None and may_flash(query.shape[2]):
        return attend_by_keras(query, key, value, visible)
    hidden = None
    if visible is not None:
        low = HIDDEN.get(keras.backend.standardize_dtype(query.dtype), -1e9)
        hidden = ops.where(visible, ops.cast(0, query.dtype), ops.cast(low, query.dtype))
        hidden = hidden[:, None]  # (B, 1, T, S)
    if training and fast() and bias is None:
        return _fast(query, key, value, hidden, seed, rate)
    return attend_plainly(query, key, value, hidden, seed, rate, bias)


def attend_plainly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    seed: Tensor | None,
    rate: float,
    bias: Tensor | None = None,
) -> Tensor:
    """The plain form; `hidden` and `bias` are added to the scores."""
    # softmax(q kᵀ / √H) v, equation 1; q is already divided by √H
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    scores = scores if bias is None else scores + bias
    weights = ops.softmax(scores if hidden is None else scores + hidden, axis=-1)
    return ops.matmul(dropped_plainly(weights, seed, rate) if rate else weights, value)


def _fast(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    seed: Tensor | None,
    rate: float,
) -> Tensor:
    import tensorflow as tf

    @with_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)
        # With the multiplication by 1, TensorFlow fuses the matrix product and the addition.
        scores = scores if hidden is None else scores * tf.ones((), scores.dtype) + hidden
        # Not in an island: oneDNN's softmax is seven times as fast as XLA's on a CPU (docs/LOG.md).
        weights = tf.nn.softmax(scores)
        output = tf.matmul(drop(weights, seed, rate) if rate else weights, value)

        # For S = q kᵀ, P = softmax S, U = dropped P and O = U v (FlashAttention, arXiv 2205.14135,
        # appendix B.2): dU = dO vᵀ, dv = Uᵀ dO, dq = dS k, dk = dSᵀ q.
        def gradients(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            to_dropped = tf.matmul(upstream, value, transpose_b=True)
            total = _row_products(upstream, output)
            # U and dS, both (B, N, T, S)
            used, to_scores = _backward(weights, to_dropped, total, seed, rate)
            return (
                tf.matmul(to_scores, key),
                tf.matmul(to_scores, query, transpose_a=True),
                tf.matmul(used, upstream, transpose_a=True),
            )

        return output, gradients

    return attend(query, key, value)


@island
def _row_products(upstream: Tensor, output: Tensor) -> Tensor:
    """The term that the gradient of softmax subtracts, Σ_j w_j · dw_j, without the mask."""
    # Σ_j U_ij dU_ij = Σ_j U_ij (dO_i · v_j) = dO_i · O_i: H numbers a query instead of S.
    products = ops.cast(upstream, wide(output)) * ops.cast(output, wide(output))
    # A product with ones, because XLA on a CPU sums rows one element after the other.
    return ops.matmul(products, ops.ones((products.shape[-1], 1), products.dtype))


@island
def _backward(
    weights: Tensor, to_dropped: Tensor, total: Tensor, seed: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    """Weights after dropout, and the gradient of the scores, both (B, N, T, S)."""
    used = dropped_plainly(weights, seed, rate) if rate else weights  # drawn again, not stored
    # dS_ij = P_ij (m_ij dU_ij − dO_i · O_i) for the mask m of 0 and 1 / (1 − rate), and U = m P
    after, upstream, before = (ops.cast(x, wide(weights)) for x in (used, to_dropped, weights))
    return used, ops.cast(after * upstream - before * total, weights.dtype)


def attend_by_keras(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None
) -> Tensor:
    """softmax(query · keyᵀ) · value: `attend` without dropout.

    query, scaled already, key, value (B, N, T, H), visible (B, T, T) bool, query before key →
    (B, N, T, H) in value's dtype; softmax in float32. For a query without keys the result is
    unspecified.

    For lengths that `may_flash` allows. The kernel runs if Keras supports it: 16-bit numbers, a
    head size that is a multiple of 8, Ampere or newer. Otherwise XLA compiles products and softmax.
    The public function has no dropout: train long sequences without dropout of attention weights.
    """
    if visible is not None:
        # Rows that fill up a batch have no key: with such rows the loss on an H200 was nan.
        sees_none = ops.logical_not(ops.any(visible, axis=-1, keepdims=True))
        visible = ops.logical_or(visible, sees_none)
    attended = ops.dot_product_attention(
        *(ops.swapaxes(x, 1, 2) for x in (query, key, value)),  # (B, T, N, H), at no cost in XLA
        mask=None if visible is None else visible[:, None],  # (B, 1, T, T): no axis of T may be 1
        scale=1.0,
    )
    return ops.swapaxes(attended, 1, 2)


def may_flash(length: int) -> bool:
    """Whether Keras may choose flash attention for sequences of this length.

    Only for even lengths: cuDNN's gradient with a mask does not support others, and fails too late
    for a fallback.
    """
    return flashes() and length % 2 == 0
