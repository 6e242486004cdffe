"""Which form of an operation runs: the plain one, or a fast one for TensorFlow on a CPU.

The plain form is Keras', runs everywhere, and says what is meant; the fast one beside it is held
equal to it in value and gradient. Fast forms are for training: they are compiled for each shape,
and what is exported holds none of them.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from roformer_tf.internals import device_scope

Tensor = Any
"""A tensor of the running backend, a Keras tensor or a NumPy array."""

_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_forms() -> Iterator[None]:
    """Have the plain forms run in whatever is called, or traced, within."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def fast() -> bool:
    """Whether fast forms run: on TensorFlow, where tensors lie on a CPU.

    The device is the one that the enclosing `tf.device` or `keras.device` names; without one it is
    an accelerator, if TensorFlow has any. A `tf.function` decides when it is traced, by the scope
    around the trace. Elsewhere the plain forms run: JAX compiles them as well as they can be, and
    so does XLA on a TensorFlow GPU.
    """
    if keras.backend.backend() != "tensorflow" or _plain.get():
        return False
    import tensorflow as tf

    # Logical devices: a GPU that the process has hidden from itself takes no tensors.
    if all(device.device_type == "CPU" for device in tf.config.list_logical_devices()):
        return True
    return "CPU" in device_scope().upper()


def wide(x: Tensor) -> str:
    """The dtype to compute in what x holds: float32, or float64 where x is of it."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def island(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors with XLA, within a TensorFlow step that is not compiled.

    XLA does a chain of element-wise operations in one pass over memory; matrix products are
    better left to TensorFlow's own kernels on a CPU. Arguments that are no tensors are constants.
    """

    # Made at the first call: TensorFlow is imported only where it runs.
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

        # Tensors, since a function given variables would have to give their gradients apart.
        return differentiable()(*(tf.convert_to_tensor(x) for x in arguments))

    return call
