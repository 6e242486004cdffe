"""Attention that keeps no matrix of scores: kernels that JAX brings, on an NVIDIA GPU."""

import keras
from keras import ops

from roformer_tf.kernels.documents import PackedMask
from roformer_tf.kernels.forms import Tensor, attention_form

BLOCK = 128
"""Tokens of a block of JAX's kernel: a longer row must be a multiple of it."""
SMALLEST = 16
"""Fewest tokens and features that a tensor core multiplies."""


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """softmax(query · keyᵀ) · value, as `kernels.attention.attend` without dropout.

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
