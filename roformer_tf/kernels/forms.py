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

Tensor = Any
"""A tensor of the running backend."""

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
    """Whether fast forms run; JAX compiles the plain ones as well as they can be."""
    return keras.backend.backend() == "tensorflow" and not _plain.get()


def wide(x: Tensor) -> str:
    """The dtype to compute in what x holds: float32, or float64 where x is of it."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def island(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors with XLA, within a TensorFlow step that is not compiled.

    XLA does a chain of element-wise operations in one pass over memory; matrix products are
    better left to TensorFlow's own kernels on a CPU. Arguments that are no tensors are constants.
    """

    @functools.cache
    def compiled() -> Callable[..., Any]:
        import tensorflow as tf

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

        return differentiable()(*(tf.convert_to_tensor(x) for x in arguments))

    return call
