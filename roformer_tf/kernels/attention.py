"""Scaled dot-product attention with dropout on its weights (arXiv 1706.03762, section 3.2.1)."""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels import flash
from roformer_tf.kernels.documents import PackedMask
from roformer_tf.kernels.dropout import drop, dropped_plainly
from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient

HIDDEN = {"float16": -3e4}
"""Added to scores of what must not be seen, so that its weight is exactly 0; elsewhere −1e9."""
# Float16 ends at 65,504. A finite number, not −∞: a row that sees nothing would be NaN.


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | PackedMask | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    training: bool | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """dropped(softmax(query · keyᵀ + bias)) · value.

    query, which brings its scale, (B, N, T, H), key, value (B, N, S, H), visible (B, T, S) bool, or
    as PackedMask, seed (2,) int for dropout, bias (B or 1, N, T, S) → (B, N, T, H) in value's
    dtype. A query that sees nothing gets the mean of all values, leaning as the bias does; under a
    PackedMask, that of those that see nothing either.
    A PackedMask goes to JAX's kernel that takes one, if that can do it. The fast form, in training,
    stores the weights before dropout for its gradient and draws the mask again; without dropout,
    JAX on a GPU may take flash attention where T = S, but for float64, of which it would make less.
    """
    if isinstance(visible, PackedMask):
        if bias is None and flash.takes_segments(query, visible, rate):
            return flash.attend_in_segments(query, key, value, visible.ids)
        visible = visible.mask()
    flashes = not rate and query.shape[2] == key.shape[2] and wide(query) == "float32"
    if flashes and bias is None and flash.may_flash(query.shape[2]):
        return flash.attend(query, key, value, visible)
    hidden = None
    if visible is not None:
        low = HIDDEN.get(keras.backend.standardize_dtype(query.dtype), -1e9)
        hidden = ops.where(visible, ops.cast(0, query.dtype), ops.cast(low, query.dtype))
        hidden = hidden[:, None]  # (B, 1, T, S)
    form = _fast if training and fast() else attend_plainly
    return form(query, key, value, hidden, seed, rate, bias)


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
    # softmax(q kᵀ / √H) v, equation 1; q brings 1 / √H
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
    bias: Tensor | None = None,
) -> Tensor:
    import tensorflow as tf

    if bias is not None and bias.shape[0] != 1:  # of no training step
        return attend_plainly(query, key, value, hidden, seed, rate, bias)

    @with_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor, *bias: Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)
        # a multiplication by 1, so that TensorFlow does product and addition as one operation
        scores = scores if hidden is None else scores * tf.ones((), scores.dtype) + hidden
        scores = scores + bias[0] if bias else scores
        # Not in an island: oneDNN's softmax takes a seventh of XLA's time on a CPU (docs/LOG.md).
        weights = tf.nn.softmax(scores)
        output = tf.matmul(drop(weights, seed, rate) if rate else weights, value)

        # For S = q kᵀ, P = softmax S, U = dropped P and O = U v (FlashAttention, arXiv 2205.14135,
        # appendix B.2): dU = dO vᵀ, dv = Uᵀ dO, dq = dS k, dk = dSᵀ q.
        def gradients(upstream: Tensor) -> tuple[Tensor, ...]:
            to_dropped = tf.matmul(upstream, value, transpose_b=True)
            total = _row_products(upstream, output)
            used, to_scores = _backward(weights, to_dropped, total, seed, rate)
            return (
                tf.matmul(to_scores, key),
                tf.matmul(to_scores, query, transpose_a=True),
                tf.matmul(used, upstream, transpose_a=True),
                *(_summed(to_scores) for _ in bias),
            )

        return output, gradients

    return attend(query, key, value, *(() if bias is None else (bias,)))


@island
def _summed(to_scores: Tensor) -> Tensor:
    """The gradient to a bias that all rows share: (B, N, T, S) → (1, N, T, S)."""
    total = ops.sum(ops.cast(to_scores, wide(to_scores)), axis=0, keepdims=True)
    return ops.cast(total, to_scores.dtype)


@island
def _row_products(upstream: Tensor, output: Tensor) -> Tensor:
    """Σ over the features: what softmax' gradient subtracts, Σ_j w_j · dw_j, without the mask."""
    # Σ_j U_ij dU_ij = Σ_j U_ij (dO_i · v_j) = dO_i · O_i: H numbers a query instead of S.
    products = ops.cast(upstream, wide(output)) * ops.cast(output, wide(output))
    # A product with ones, since XLA on a CPU sums rows one element after the other.
    return ops.matmul(products, ops.ones((products.shape[-1], 1), products.dtype))


@island
def _backward(
    weights: Tensor, to_dropped: Tensor, total: Tensor, seed: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    """Weights as dropout left them, and the gradient to the scores, both (B, N, T, S)."""
    used = dropped_plainly(weights, seed, rate) if rate else weights  # drawn again, never stored
    # dS_ij = P_ij (m_ij dU_ij − dO_i · O_i) for the mask m of 0 and 1 / (1 − rate), and U = m P
    after, upstream, before = (ops.cast(x, wide(weights)) for x in (used, to_dropped, weights))
    return used, ops.cast(after * upstream - before * total, weights.dtype)
