"""Cross-entropy over a vocabulary: of a small model, most of the time besides matrix products.

Axes: B batch, P predictions of a sequence, M of all sequences, E embedding size, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.dense import product_with_rows
from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient

CHUNK_BYTES = 2**28
"""Maximum size of the logits of a chunk in float32."""


def token_losses(
    x: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, chunks: int = 1
) -> Tensor:
    """Cross-entropy of softmax(x · tableᵀ + bias) at the labels, in nats.

    x (B, P, E), table (V, E) and bias (V,) in any float dtypes, labels (B, P) int → (B, P) float32.
    With several chunks along P, only the logits of one chunk are in memory. They are computed again
    in the backward pass, so that the product takes a third more time. P must be known then.
    """
    size = -(-labels.shape[1] // chunks) if chunks > 1 else 0
    if chunks == 1 or size == labels.shape[1]:
        return _losses(labels, x, table, bias)
    if keras.backend.backend() == "jax":
        return _scanned(x, table, bias, labels, size)
    weights = [table, *([] if bias is None else [bias])]  # `keras.remat` accepts no None
    parts = []
    for start in range(0, labels.shape[1], size):
        chunk = slice(start, start + size)
        # Labels are no argument, because TensorFlow warns of gradients of integers.
        losses_of = keras.remat(functools.partial(_losses, labels[:, chunk]))
        parts.append(losses_of(x[:, chunk], *weights))
    return ops.concatenate(parts, axis=1)


def chunks_that_fit(rows: int, predictions: int, vocab_size: int) -> int:
    """Number of chunks along P with which the logits (B, P, V) take at most CHUNK_BYTES each."""
    size = max(1, CHUNK_BYTES // (4 * rows * vocab_size))  # predictions of a sequence in a chunk
    return -(-predictions // size)


def _losses(labels: Tensor, x: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = product_with_rows(x, ops.cast(table, x.dtype))
    flat = ops.reshape(scores, (-1, table.shape[0]))
    losses = cross_entropy(flat, bias, ops.reshape(labels, (-1,)))
    return ops.reshape(losses, ops.shape(labels))


def _scanned(x: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, size: int) -> Tensor:
    """`token_losses` on JAX, `size` predictions of each sequence at a time."""
    count = -(-labels.shape[1] // size)
    # What fills up the last chunk has the label 0. Its losses are cut off at the end, so that its
    # gradients are 0.
    more = ((0, 0), (0, count * size - labels.shape[1]))
    # (B, P, …) → (count, B, size, …): a chunk has sequences of every device's part of the batch.
    x = ops.reshape(ops.pad(x, (*more, (0, 0))), (-1, count, size, x.shape[-1]))
    padded = ops.reshape(ops.pad(ops.cast(labels, "int32"), more), (-1, count, size))
    bias = ops.zeros(table.shape[:1], wide(x)) if bias is None else ops.cast(bias, wide(x))
    losses = _chunked_losses()(ops.moveaxis(x, 1, 0), table, bias, ops.moveaxis(padded, 1, 0))
    losses = ops.reshape(ops.moveaxis(losses, 0, 1), (-1, count * size))
    return ops.cast(losses[:, : labels.shape[1]], "float32")


@functools.cache
def _chunked_losses() -> Callable[..., Tensor]:
    """x (count, B, size, E), table (V, E), bias (V,), labels (count, B, size) → like the labels.

    The table is cast once, and its gradient is summed over the chunks in float32.
    """
    import jax
    import jax.numpy as jnp

    def logits_of(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return product_with_rows(x, table).astype(bias.dtype) + bias  # rounded as without chunks

    def forward(x: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # Once for all chunks, outside of the loop.
        table = table.astype(x.dtype)

        def step(_: None, chunk: tuple[Tensor, Tensor]) -> Any:
            x, labels = chunk
            logits = logits_of(x, table, bias)
            own = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
            total = jax.nn.logsumexp(logits, axis=-1)
            # Log-sums are kept for the backward pass, which computes the logits again.
            return None, (total - own, total)

        losses, totals = jax.lax.scan(step, None, (x, labels))[1]
        return losses, totals

    @jax.custom_vjp
    def losses(x: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return forward(x, table, bias, labels)[0]

    def with_residuals(*inputs: Tensor) -> Any:
        losses, totals = forward(*inputs)
        return losses, (inputs, totals)

    def backward(residuals: Any, upstream: Tensor) -> Any:
        (x, table, bias, labels), totals = residuals
        narrow = table.astype(x.dtype)

        def step(sums: tuple[Tensor, Tensor], chunk: tuple[Tensor, ...]) -> Any:
            x, labels, total, upstream = chunk
            # ∂ loss / ∂ logits = softmax − 1 at the label
            probabilities = jnp.exp(logits_of(x, narrow, bias) - total[..., None])
            to_logits = probabilities - (labels[..., None] == jnp.arange(table.shape[0]))
            to_logits = to_logits * upstream[..., None]
            rounded = to_logits.astype(x.dtype)
            to_table = jnp.einsum("bpv,bpe->ve", rounded, x, preferred_element_type=bias.dtype)
            to_x = jnp.einsum("bpv,ve->bpe", rounded, narrow)
            return (sums[0] + to_table, sums[1] + to_logits.sum((0, 1))), to_x

        zeros = jnp.zeros(table.shape, bias.dtype), jnp.zeros_like(bias)
        (to_table, to_bias), to_x = jax.lax.scan(step, zeros, (x, labels, totals, upstream))
        return to_x, to_table.astype(table.dtype), to_bias, None

    losses.defvjp(with_residuals, backward)
    return losses


def cross_entropy(scores: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """−log softmax(scores + bias) at the labels, in nats.

    scores (M, V) and bias (V,) in any float dtypes, labels (M,) int → (M,) float32; at least
    float32 inside. The fast form stores the scores and their gradient in the dtype of the scores;
    the plain form stores several float32 copies.
    """
    dtype = wide(scores)
    bias = ops.zeros(scores.shape[-1:], dtype) if bias is None else ops.cast(bias, dtype)
    labels = ops.cast(labels, "int32")
    losses = (_fast if fast() else cross_entropy_plainly)(scores, bias, labels)
    return ops.cast(losses, "float32")


def cross_entropy_plainly(scores: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """The plain form."""
    logits = ops.cast(scores, bias.dtype) + bias
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


@with_gradient
def _fast(scores: Tensor, bias: Tensor, labels: Tensor) -> Any:
    losses, highest, total = _forward(scores, bias, labels)

    def gradients(upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        to_scores = _backward(scores, bias, labels, highest, total, upstream)
        # d bias = Σ over the rows of d scores
        rows = ops.ones((1, ops.shape(scores)[0]), scores.dtype)
        to_bias = ops.matmul(rows, to_scores)[0]  # three times as fast as XLA's sum of columns
        return to_scores, ops.cast(to_bias, bias.dtype), None

    return losses, gradients


@island
def _forward(scores: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, highest logit and log Σ exp(logit − highest): separate, since a sum loses digits."""
    logits = ops.cast(scores, bias.dtype) + bias
    # The highest logit is subtracted first, so that exp does not overflow: its largest value is 1.
    highest = ops.max(logits, axis=-1, keepdims=True)
    total = ops.log(ops.sum(ops.exp(logits - highest), axis=-1, keepdims=True))
    own = ops.cast(ops.take_along_axis(scores, labels[:, None], axis=-1), bias.dtype)
    below_highest = highest - (own + ops.take(bias, labels)[:, None])
    return (total + below_highest)[:, 0], highest, total


@island
def _backward(
    scores: Tensor, bias: Tensor, labels: Tensor, highest: Tensor, total: Tensor, upstream: Tensor
) -> Tensor:
    # ∂ loss / ∂ logits = softmax − 1 at the label
    probabilities = ops.exp(ops.cast(scores, bias.dtype) + bias - highest - total)
    # (M, V) bool: one True in each row, at the label.
    own = ops.arange(scores.shape[-1], dtype="int32") == labels[:, None]
    to_logits = ops.where(own, probabilities - 1, probabilities)
    return ops.cast(to_logits * upstream[:, None], scores.dtype)
