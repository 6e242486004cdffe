"""Averages of the weights over the steps, which are often better than the last weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from roformer_tf.internals import index_of
from roformer_tf.kernels.adam import AdamW
from roformer_tf.runs.callbacks import sync


@keras.saving.register_keras_serializable(package="roformer_tf")
class AveragingAdamW(AdamW):
    """AdamW that may average the weights; subclasses move them otherwise.

    `ema`: memory of the averages, which begin as the weights; at step t (from 0) no more than
    t / (t + 9), so that a short run forgets where it began. 0 makes none.
    Keras' own averages, `use_ema`, count every batch that is accumulated as a step, and replace
    the weights when `fit` ends.
    """

    def __init__(self, learning_rate: Any, *, ema: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.ema = ema
        self.averages: list[keras.Variable] = []

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        return super().get_config() | {"ema": self.ema}

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the slots and the averages."""
        if self.built:
            return
        self.make_slots(variables)
        self.averages = self.add_optimizer_variables(variables if self.ema else [], "average")
        for average, variable in zip(self.averages, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # JAX would share it, and give it away twice

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Make what is remembered of the gradients."""
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, what is remembered of it, and its average."""
        self.move(gradient, variable, learning_rate)
        if self.ema:
            step = ops.cast(self.iterations, "float32")
            average = self.averages[index_of(self, variable)]
            fresh = ops.cast(1 - ops.minimum(self.ema, step / (step + 9)), average.dtype)
            self.assign_add(average, fresh * ops.subtract(variable, average))

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and what is remembered of its gradients."""
        super().update_step(gradient, variable, learning_rate)


@contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Give a compiled model its averaged weights for a while, where its optimizer keeps any.

    With `accumulate` or without, on both backends, in `fit` (after a step) or outside.
    """
    exchange_averages(model)
    try:
        yield
    finally:
        exchange_averages(model)


def exchange_averages(model: keras.Model) -> None:
    """Put a compiled model's averages in the place of its weights, and these in theirs."""
    sync(model)
    averages = getattr(model.optimizer, "averages", [])
    for one, other in zip(model.trainable_variables, averages, strict=False):  # all, or none
        value = ops.copy(one)
        one.assign(other)
        other.assign(value)
