"""The exact GELU, x · Φ(x) with the error function (arXiv 1606.08415)."""

import math
from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient


def gelu(x: Tensor, training: bool | None = None) -> Tensor:
    """x (…) → (…) in x's dtype; the fast form, in training, is at least float32 inside.

    Its gradient Φ(x) + x φ(x) is computed from x again: of all that the plain form stores, only x
    stays.
    """
    return _fast_gelu(x) if training and fast() else gelu_plainly(x)


def gelu_plainly(x: Tensor) -> Tensor:
    """The plain form.

    Written with `erf`: TensorFlow's own exact GELU becomes Erfc, which ONNX lacks. In this order
    of its factors TensorFlow joins it with the product and the bias before it (`affine`).
    """
    root, one, half = (
        ops.convert_to_tensor(value, x.dtype) for value in (math.sqrt(0.5), 1.0, 0.5)
    )
    return (ops.erf(x * root) + one) * half * x


@with_gradient
def _fast_gelu(x: Tensor) -> Any:
    return _value(x), lambda upstream: _gradient(x, upstream)


@island
def _value(x: Tensor) -> Tensor:
    return ops.cast(gelu_plainly(ops.cast(x, wide(x))), x.dtype)


@island
def _gradient(x: Tensor, upstream: Tensor) -> Tensor:
    y, upstream = (ops.cast(one, wide(x)) for one in (x, upstream))
    # d/dx x Φ(x) = Φ(x) + x φ(x), for Φ(x) = ½ (1 + erf(x / √2)) and its derivative φ
    cumulative = 0.5 * (1 + ops.erf(y * math.sqrt(0.5)))
    density = ops.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
    return ops.cast(upstream * (cumulative + y * density), x.dtype)
