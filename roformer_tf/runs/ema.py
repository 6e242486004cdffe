"""Exponential moving averages of the weights, which are often better than the last weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras import ops

from roformer_tf.runs.callbacks import sync


@contextmanager
def ema_weights(model: keras.Model) -> Iterator[None]:
    """Give a compiled model its averaged weights for a while, where its optimizer keeps any.

    With `accumulate` or without, on both backends, in `fit` (after a step) or outside.
    """
    swap_ema_weights(model)
    try:
        yield
    finally:
        swap_ema_weights(model)


def swap_ema_weights(model: keras.Model) -> None:
    """Put a compiled model's averaged weights in the place of its weights, and these in theirs."""
    sync(model)
    averages = getattr(model.optimizer, "ema_weights", [])
    for one, other in zip(model.trainable_variables, averages, strict=False):  # all, or none
        value = ops.copy(one)
        one.assign(other)
        other.assign(value)
