"""Scaled dot-product attention with dropout on its weights (arXiv 1706.03762, section 3.2.1).

It has a form for every backend, a fast one for training on a CPU with TensorFlow, and two that use
JAX's own kernels on an NVIDIA GPU and never store the matrix of scores.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from roformer_tf.kernels.dropout import drop, dropped_plainly
from roformer_tf.kernels.forms import Tensor, attention_form, fast, island, wide, with_gradient


class PackedMask(NamedTuple):
    """Which tokens see each other: where ids are equal and not 0, and the key's rank no higher.

    ids (B, T) int, 0 for padding; ranks the same or (1, T). Ranks order the tokens of a document,
    such as by their place: then each sees what is up to it. Without ranks all see all.
    """

    ids: Tensor
    ranks: Tensor | None = None

    def mask(self) -> Tensor:
        """The same as one bit for each pair: (B, T, T) bool, query before key."""
        query, key = self.ids[:, :, None], self.ids[:, None, :]
        # Of equal ids one is 0 only if both are: asking the key alone hides padding from everyone.
        same = (query == key) & (key != 0)
        if self.ranks is None:
            return same
        return same & (self.ranks[:, None, :] <= self.ranks[:, :, None])


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
        if bias is None and takes_segments(query, visible, rate):
            return attend_in_segments(query, key, value, visible.ids)
        visible = visible.mask()
    flashes = not rate and query.shape[2] == key.shape[2] and wide(query) == "float32"
    if flashes and bias is None and may_flash(query.shape[2]):
        return attend_by_keras(query, key, value, visible)
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


BLOCK = 128
"""Tokens of a block of JAX's kernel: a longer row must be a multiple of it."""
SMALLEST = 16
"""Fewest tokens and features that a tensor core multiplies."""


def attend_by_keras(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None
) -> Tensor:
    """softmax(query · keyᵀ) · value, as `attend` without dropout.

    query, which brings its scale, key, value (B, N, T, H), visible (B, T, T) bool, query before
    key → (B, N, T, H) in value's dtype; softmax in float32. What a query that sees nothing gets is
    unspecified.

    The flash kernel runs where `may_flash` allows it and Keras finds it possible: 16-bit numbers, a
    head size that is a multiple of 8, Ampere or newer; elsewhere products and softmax, compiled
    by XLA. Its public form has no dropout: long rows are better trained without any on the
    attention's weights.
    """
    attended = ops.dot_product_attention(
        *(ops.swapaxes(x, 1, 2) for x in (query, key, value)),  # (B, T, N, H), at no cost in XLA
        mask=None if visible is None else visible[:, None],  # (B, 1, T, T): no axis of T may be 1
        scale=1.0,
        flash_attention=None if may_flash(query.shape[2]) else False,  # None: where possible
    )
    return ops.swapaxes(attended, 1, 2)


def may_flash(length: int) -> bool:
    """Whether Keras may be left to choose flash attention for rows of this length.

    Only on JAX with a GPU, where `attention_form` is not "plain": on TPUs, Keras gives the first
    row's mask to all rows. And only for even lengths: cuDNN's gradient under a mask has no others,
    which shows too late to fall back.
    """
    return attention_form() != "plain" and length % 2 == 0


def attend_in_segments(query: Tensor, key: Tensor, value: Tensor, ids: Tensor) -> Tensor:
    """softmax(query · keyᵀ) · value among tokens whose ids are equal, by JAX's kernel in Pallas.

    query, which brings its scale, key, value (B, N, T, H), ids (B, T) int32 → (B, N, T, H).
    Padding, of id 0, sees padding. On a processor the kernel is interpreted, which is for tests.
    """
    import jax
    from jax.experimental.pallas.ops.gpu.attention import mha

    rows = (ops.swapaxes(x, 1, 2) for x in (query, key, value))  # (B, T, N, H)
    attended = mha(*rows, ids, sm_scale=1.0, interpret=jax.default_backend() != "gpu")
    return ops.swapaxes(attended, 1, 2)


def takes_segments(query: Tensor, documents: PackedMask, rate: float) -> bool:
    """Whether `attend_in_segments` can do it: 16 bits, whole blocks, no order, no dropout."""
    is_16_bits = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    if not is_16_bits or documents.ranks is not None or rate:
        return False
    length, size = query.shape[2:]
    in_blocks = length % BLOCK == 0 or length in (SMALLEST, 2 * SMALLEST, 4 * SMALLEST)
    return in_blocks and size >= SMALLEST
