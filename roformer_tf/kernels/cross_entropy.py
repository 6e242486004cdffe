"""Cross-entropy over a vocabulary, which is most of what a small model computes but products."""

from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient


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
