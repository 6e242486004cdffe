"""Cross-entropy over a vocabulary, which is most of what a small model computes but products.

Axes: B rows, P predictions of a row, M of all rows, E embedding size, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.dense import product_with_rows
from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient

PIECE_BYTES = 2**28
"""Most that the logits of a piece take in float32."""


def token_losses(
    x: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, pieces: int = 1
) -> Tensor:
    """Cross-entropy of softmax(x · tableᵀ + bias) at the labels, in nats.

    x (B, P, E), table (V, E) and bias (V,) in any float dtypes, labels (B, P) int → (B, P) float32.
    In several pieces along P, logits are there for one piece at a time, forward and backward, where
    they are computed again: memory for a third more time of this product. P must be known then.
    """
    size = -(-labels.shape[1] // pieces) if pieces > 1 else 0
    if pieces == 1 or size == labels.shape[1]:
        return _losses(x, labels, table, bias)
    if keras.backend.backend() == "jax":
        return _scanned(x, table, bias, labels, size)
    losses_of = keras.remat(_losses)
    starts = range(0, labels.shape[1], size)
    weights = [table, *([] if bias is None else [bias])]  # what is rematerialised takes no None
    parts = [losses_of(x[:, i : i + size], labels[:, i : i + size], *weights) for i in starts]
    return ops.concatenate(parts, axis=1)


def pieces_that_fit(rows: int, predictions: int, vocab_size: int) -> int:
    """In how many pieces along P the logits (B, P, V) never take more than PIECE_BYTES at once."""
    most = max(1, PIECE_BYTES // (4 * rows * vocab_size))  # predictions of every row together
    return -(-predictions // most)


def _losses(x: Tensor, labels: Tensor, table: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = product_with_rows(x, ops.cast(table, x.dtype))
    flat = ops.reshape(scores, (-1, table.shape[0]))
    losses = cross_entropy(flat, bias, ops.reshape(labels, (-1,)))
    return ops.reshape(losses, ops.shape(labels))


def _scanned(x: Tensor, table: Tensor, bias: Tensor | None, labels: Tensor, size: int) -> Tensor:
    """`token_losses` on JAX, `size` predictions of every row at a time."""
    count = -(-labels.shape[1] // size)
    more = ((0, 0), (0, count * size - labels.shape[1]))
    # (B, P, …) → (count, B, size, …): every piece has rows of each device's part of the batch.
    x = ops.reshape(ops.pad(x, (*more, (0, 0))), (-1, count, size, x.shape[-1]))
    padded = ops.reshape(ops.pad(ops.cast(labels, "int32"), more), (-1, count, size))
    bias = ops.zeros(table.shape[:1], wide(x)) if bias is None else ops.cast(bias, wide(x))
    losses = _piecewise()(ops.moveaxis(x, 1, 0), table, bias, ops.moveaxis(padded, 1, 0))
    losses = ops.reshape(ops.moveaxis(losses, 0, 1), (-1, count * size))
    return ops.cast(losses[:, : labels.shape[1]], "float32")


@functools.cache
def _piecewise() -> Callable[..., Tensor]:
    """x (count, B, size, E), table (V, E), bias (V,), labels (count, B, size) → as the labels.

    The table is cast once, and its gradient summed over the pieces in float32.
    """
    import jax
    import jax.numpy as jnp

    def logits_of(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return product_with_rows(x, table).astype(bias.dtype) + bias  # rounded as all at once

    def forward(x: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        table = table.astype(x.dtype)

        def step(_: None, given: tuple[Tensor, Tensor]) -> Any:
            logits = logits_of(given[0], table, bias)
            own = jnp.take_along_axis(logits, given[1][..., None], axis=-1)[..., 0]
            total = jax.nn.logsumexp(logits, axis=-1)
            return None, (total - own, total)

        losses, totals = jax.lax.scan(step, None, (x, labels))[1]
        return losses, totals

    @jax.custom_vjp
    def losses(x: Tensor, table: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        return forward(x, table, bias, labels)[0]

    def ahead(*given: Tensor) -> Any:
        found, totals = forward(*given)
        return found, (given, totals)

    def back(kept: Any, upstream: Tensor) -> Any:
        (x, table, bias, labels), totals = kept
        narrow = table.astype(x.dtype)

        def step(sums: tuple[Tensor, Tensor], given: tuple[Tensor, ...]) -> Any:
            x, labels, total, upstream = given
            # ∂ loss / ∂ logits = softmax − one at the label
            shares = jnp.exp(logits_of(x, narrow, bias) - total[..., None])
            shares -= labels[..., None] == jnp.arange(shares.shape[-1])
            slopes = shares * upstream[..., None]
            narrow_slopes = slopes.astype(x.dtype)
            to_table = jnp.einsum(
                "bpv,bpe->ve", narrow_slopes, x, preferred_element_type=bias.dtype
            )
            to_x = jnp.einsum("bpv,ve->bpe", narrow_slopes, narrow)
            return (sums[0] + to_table, sums[1] + slopes.sum((0, 1))), to_x

        zeros = jnp.zeros(table.shape, bias.dtype), jnp.zeros_like(bias)
        (to_table, to_bias), to_x = jax.lax.scan(step, zeros, (x, labels, totals, upstream))
        return to_x, to_table.astype(table.dtype), to_bias, None

    losses.defvjp(ahead, back)
    return losses


def cross_entropy(scores: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """−log softmax(scores + bias) at the labels, in nats.

    scores (M, V) and bias (V,) in any float dtypes, labels (M,) int → (M,) float32, and no less
    inside. The fast form's gradient holds scores as they came and their gradient in the same
    dtype; the plain one several float32 copies.
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
        to_bias = ops.matmul(rows, to_scores)[0]  # a product: XLA sums columns at a third the pace
        return to_scores, ops.cast(to_bias, bias.dtype), None

    return losses, gradients


@island
def _forward(scores: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, highest logit and log Σ exp(logit − highest): one sum of the two would be coarse."""
    logits = ops.cast(scores, bias.dtype) + bias
    # The highest is taken off first, so that no exp overflows and the largest is exp 0 = 1.
    highest = ops.max(logits, axis=-1, keepdims=True)
    total = ops.log(ops.sum(ops.exp(logits - highest), axis=-1, keepdims=True))
    own = ops.cast(ops.take_along_axis(scores, labels[:, None], axis=-1), bias.dtype)
    behind = highest - (own + ops.take(bias, labels)[:, None])
    return (total + behind)[:, 0], highest, total


@island
def _backward(
    scores: Tensor,
    bias: Tensor,
    labels: Tensor,
    highest: Tensor,
    total: Tensor,
    upstream: Tensor,
) -> Tensor:
    # ∂ loss / ∂ logits = softmax − one at the label
    shares = ops.exp(ops.cast(scores, bias.dtype) + bias - highest - total)
    own = ops.arange(scores.shape[-1]) == labels[:, None]
    shares = ops.where(own, shares - 1, shares)
    return ops.cast(shares * upstream[:, None], scores.dtype)
