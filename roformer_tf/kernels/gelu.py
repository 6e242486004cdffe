"""The exact GELU, x · Φ(x) with the error function (arXiv 1606.08415)."""

import math
from typing import Any

from keras import ops


def gelu(x: Any) -> Any:
    """x (…) → (…) in x's dtype.

    Written with `erf`: TensorFlow's own exact GELU becomes Erfc, which ONNX lacks.
    """
    half = ops.cast(0.5, x.dtype)
    return half * x * (1 + ops.erf(x * ops.cast(math.sqrt(0.5), x.dtype)))
