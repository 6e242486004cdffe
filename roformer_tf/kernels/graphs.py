"""TensorFlow's graphs of calls that are made outside of any function."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def is_known_integer(x: Any) -> bool:
    """Whether x is an array or a tensor of integers, whose values are there."""
    import tensorflow as tf

    known = isinstance(x, np.ndarray) or (tf.is_tensor(x) and hasattr(x, "numpy"))
    return known and "int" in str(x.dtype)


def graph_of(
    function: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Any]:
    """Trace a function when it is first called: once for all shapes of as many axes."""
    import tensorflow as tf

    signature = {name: tf.TensorSpec([None] * x.ndim, x.dtype, name) for name, x in inputs.items()}
    # Traced as it is: there is no Python branch on a tensor for autograph to rewrite.
    traced: Callable[[Mapping[str, Any]], Any] = tf.function(
        function, input_signature=[signature], autograph=False
    )
    return traced
