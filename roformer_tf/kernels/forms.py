"""Which implementation of an operation runs: the plain one, or a fast one for TensorFlow on a CPU.

The plain form uses Keras operations, runs everywhere and is the reference. Tests compare the fast
form with it, value and gradient. Fast forms are for training: they are compiled for each shape, and
exported models contain none of them. Only attention has forms for a GPU, on JAX.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np

from roformer_tf.internals import device_scope

Tensor = Any
"""A tensor of the running backend, a Keras tensor or a NumPy array."""

_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_forms() -> Iterator[None]:
    """Use the plain forms in all calls and traces of the block."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def fast() -> bool:
    """Whether the fast forms run: on TensorFlow, if tensors are on a CPU.

    The device is that of the enclosing `tf.device` or `keras.device`; without one it is an
    accelerator, if TensorFlow has any. A `tf.function` decides when it is traced, by the scope
    around the trace. Elsewhere the plain forms run, because XLA compiles them equally well.
    """
    if keras.backend.backend() != "tensorflow" or _plain.get():
        return False
    import tensorflow as tf

    # Logical devices: a GPU that the process has hidden from itself takes no tensors.
    if all(device.device_type == "CPU" for device in tf.config.list_logical_devices()):
        return True
    return "CPU" in device_scope().upper()


def flashes() -> bool:
    """Whether attention may run by a flash kernel: on JAX with a GPU.

    On TPUs, Keras applies the mask of the first sequence to all.
    `keras.config.disable_flash_attention()` turns it off.
    """
    if keras.backend.backend() != "jax" or _plain.get():
        return False
    import jax

    return keras.config.is_flash_attention_enabled() is not False and jax.default_backend() == "gpu"


def spares_logits() -> bool:
    """Whether losses over a vocabulary are computed in chunks if their logits are large: on JAX.

    The product is repeated for the gradients (a few percent of a step), so that memory does not
    grow with the vocabulary. On a CPU JAX is not slower with it; TensorFlow is.
    """
    return keras.backend.backend() == "jax" and not _plain.get()


def wide(x: Tensor) -> str:
    """The dtype for intermediate results: float64 if x is float64, else float32."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def island(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors with XLA, within a TensorFlow step that is not compiled.

    XLA fuses a chain of element-wise operations into one pass over memory. On a CPU, matrix
    products are faster in TensorFlow's own kernels. Other arguments than tensors are constants.
    """

    # Created at the first call, so that other backends do not import TensorFlow.
    @functools.cache
    def compiled() -> Callable[..., Any]:
        import tensorflow as tf

        # Traced as it is: there is no Python branch on a tensor for autograph to rewrite.
        return tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled()(*arguments)

    return call


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a TensorFlow function of tensors, or variables, its own gradient.

    The function returns (value, upstream → a gradient for each argument).
    """

    @functools.cache
    def differentiable() -> Callable[..., Any]:
        import tensorflow as tf

        return tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        import tensorflow as tf

        # Tensors: for variables, the function would have to return gradients separately.
        return differentiable()(*(tf.convert_to_tensor(x) for x in arguments))

    return call


def is_known_integer(x: Any) -> bool:
    """Whether x is an array, or a TensorFlow tensor outside of a graph, of integers."""
    import tensorflow as tf

    known = isinstance(x, np.ndarray) or (tf.is_tensor(x) and hasattr(x, "numpy"))
    return known and "int" in str(x.dtype)


def graph_of(
    function: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Any]:
    """A TensorFlow function traced once, for all sizes of the axes that the inputs have."""
    import tensorflow as tf

    signature = {name: tf.TensorSpec([None] * x.ndim, x.dtype, name) for name, x in inputs.items()}
    # Traced as it is: there is no Python branch on a tensor for autograph to rewrite.
    traced: Callable[[Mapping[str, Any]], Any] = tf.function(
        function, input_signature=[signature], autograph=False
    )
    return traced
