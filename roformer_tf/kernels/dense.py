"""Products with weights, the exact GELU and layer normalization, and their gradients."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient


def affine(
    x: Tensor, kernel: Tensor, bias: Tensor | None = None, training: bool | None = None
) -> Tensor:
    """x · kernel + bias: x (…, D), kernel (D, U), bias (U,) of the same dtype → (…, U).

    The fast forms: in training the gradient of the bias is a product with ones, because
    TensorFlow's BiasAddGrad takes four times as long in bfloat16. In inference TensorFlow fuses the
    product, the bias and a GELU after them, if x is flat, (B · T, D).
    """
    # Flat: one product instead of a batch of B, whose kernel gradient would be summed over B.
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
    """The operations that TensorFlow fuses."""
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
    """x · tableᵀ: x (…, E), table (V, E) of the same dtype → (…, V).

    On TensorFlow an einsum takes 30 times as long in bfloat16, and the gradient of a product with a
    transposed table would transpose the table again.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.einsum("...e,ve->...v", x, table)
    import tensorflow as tf

    flat = tf.matmul(ops.reshape(x, (-1, table.shape[1])), table, transpose_b=True)
    return ops.reshape(flat, (*ops.shape(x)[:-1], table.shape[0]))


def gelu(x: Tensor, training: bool | None = None) -> Tensor:
    """x (…) → (…) in x's dtype; the fast form, in training, is at least float32 inside.

    Its gradient Φ(x) + x φ(x) is computed from x, so that only x is stored.
    """
    return _fast_gelu(x) if training and fast() else gelu_plainly(x)


def gelu_plainly(x: Tensor) -> Tensor:
    """The plain form.

    Written with `erf`: TensorFlow's exact GELU uses Erfc, which ONNX lacks. With this order of the
    factors TensorFlow fuses it with the product and the bias before it (`affine`).
    """
    root, unit, half = (
        ops.convert_to_tensor(value, x.dtype) for value in (math.sqrt(0.5), 1.0, 0.5)
    )
    return (ops.erf(x * root) + unit) * half * x


@with_gradient
def _fast_gelu(x: Tensor) -> Any:
    return _gelu_value(x), lambda upstream: _gelu_gradient(x, upstream)


@island
def _gelu_value(x: Tensor) -> Tensor:
    return ops.cast(gelu_plainly(ops.cast(x, wide(x))), x.dtype)


@island
def _gelu_gradient(x: Tensor, upstream: Tensor) -> Tensor:
    y, upstream = (ops.cast(tensor, wide(x)) for tensor in (x, upstream))
    # d/dx x Φ(x) = Φ(x) + x φ(x), for Φ(x) = ½ (1 + erf(x / √2)) and its derivative φ
    cumulative = 0.5 * (1 + ops.erf(y * math.sqrt(0.5)))
    density = ops.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
    return ops.cast(upstream * (cumulative + y * density), x.dtype)


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, training: bool | None = None
) -> Tensor:
    """x (…, H), gamma and beta (H,) → (…, H) in x's dtype, at least float32 inside.

    The fast form, in training, stores only x.
    """
    gamma, beta = (ops.cast(weight, wide(x)) for weight in (gamma, beta))
    form = _fast_layer_norm if training and fast() else layer_norm_plainly
    return form(x, gamma, beta, epsilon)


def layer_norm_plainly(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """The plain form; Keras' own takes a quarter more time."""
    return ops.cast(_normalised(x, epsilon, mean)[0] * gamma + beta, x.dtype)


def _fast_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    @with_gradient
    def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
        def gradients(upstream: Tensor) -> Any:
            return _to_x(x, upstream, gamma, epsilon), *_to_weights(x, upstream, epsilon)

        return _layer_norm_value(x, gamma, beta, epsilon), gradients

    return norm(x, gamma, beta)


@island
def _layer_norm_value(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return ops.cast(_normalised(x, epsilon)[0] * gamma + beta, x.dtype)


@island
def _to_x(x: Tensor, upstream: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    # For y = γ x̂ + β, x̂ = r (x − mean x), g = γ · upstream: dx = r (g − mean g − x̂ mean(g x̂))
    normalised, rate = _normalised(x, epsilon)
    inner = ops.cast(upstream, wide(x)) * gamma
    along = normalised * _mean_by_product(inner * normalised)
    return ops.cast(rate * (inner - _mean_by_product(inner) - along), x.dtype)


@island
def _to_weights(x: Tensor, upstream: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    upstream = ops.cast(upstream, wide(x))
    # dγ = Σ upstream · x̂ and dβ = Σ upstream, over all vectors
    rows = tuple(range(len(x.shape) - 1))
    return ops.sum(upstream * _normalised(x, epsilon)[0], rows), ops.sum(upstream, rows)


def mean(x: Tensor) -> Tensor:
    """Mean over the last axis, which is kept."""
    if wide(x) == "float64":  # of which Keras computes a mean in float32 on JAX
        return ops.sum(x, axis=-1, keepdims=True) / x.shape[-1]
    return ops.mean(x, axis=-1, keepdims=True)


def _mean_by_product(x: Tensor) -> Tensor:
    """The same as a product with a constant: XLA on a CPU is slow at sums along rows."""
    return ops.matmul(x, ops.full((x.shape[-1], 1), 1 / x.shape[-1], x.dtype))


def _normalised(
    x: Tensor, epsilon: float, mean: Callable[[Tensor], Tensor] = _mean_by_product
) -> tuple[Tensor, Tensor]:
    x = ops.cast(x, wide(x))
    # The variance of the centred x, not E x² − (E x)², which loses digits if the mean is large.
    centred = x - mean(x)
    rate = ops.rsqrt(mean(centred * centred) + epsilon)
    return centred * rate, rate
