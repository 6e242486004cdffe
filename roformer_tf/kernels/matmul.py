"""Matrix products with weights, and their gradients."""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, with_gradient


def affine(
    x: Tensor, kernel: Tensor, bias: Tensor | None = None, training: bool | None = None
) -> Tensor:
    """x · kernel + bias: x (…, D), kernel (D, U), bias (U,) of one dtype → (…, U).

    The fast forms: in training the bias' gradient is summed as a product with ones, since
    TensorFlow's BiasAddGrad takes four times as long in bfloat16; else bias and a GELU that
    follows are joined with the product, if x is flat, (B · T, D).
    """
    # Flat, one product instead of a batch of B, whose kernel gradient is summed over B afterwards.
    flat = x if len(x.shape) == 2 else ops.reshape(x, (-1, kernel.shape[0]))
    if bias is None:
        y = ops.matmul(flat, kernel)
    elif not fast():
        y = ops.add(ops.matmul(flat, kernel), bias)
    elif training:
        y = _fast_affine(flat, kernel, bias)
    else:
        y = _biased(flat, kernel, bias)
    return y if flat is x else ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[-1]))


def _biased(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """The operations that TensorFlow knows how to join."""
    import tensorflow as tf

    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


@with_gradient
def _fast_affine(x: Tensor, kernel: Tensor, bias: Tensor) -> Any:
    import tensorflow as tf

    def gradients(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # For Y = X W + b: dX = dY Wᵀ, dW = Xᵀ dY, db = 1ᵀ dY
        ones = tf.ones((1, tf.shape(x)[0]), upstream.dtype)
        return (
            tf.matmul(upstream, kernel, transpose_b=True),
            tf.matmul(x, upstream, transpose_a=True),
            tf.matmul(ones, upstream)[0],
        )

    return _biased(x, kernel, bias), gradients


def product_with_rows(x: Tensor, table: Tensor) -> Tensor:
    """x · tableᵀ: x (…, E), table (V, E) of one dtype → (…, V).

    As an einsum it takes 30 times as long in bfloat16 on TensorFlow, and as a product with a
    transpose its gradient transposes a table.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.einsum("...e,ve->...v", x, table)
    import tensorflow as tf

    flat = tf.matmul(ops.reshape(x, (-1, table.shape[1])), table, transpose_b=True)
    return ops.reshape(flat, (*ops.shape(x)[:-1], table.shape[0]))
