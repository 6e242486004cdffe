"""AdamW and LAMB with an average of the weights, and AdamW with a learning rate for each weight."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from roformer_tf.internals import index_of
from roformer_tf.kernels.adam import AdamW
from roformer_tf.runs.devices import sync


@keras.saving.register_keras_serializable(package="roformer_tf")
class EmaAdamW(AdamW):
    """AdamW that may keep an exponential moving average of the weights; subclasses move otherwise.

    `ema`: memory of that average, which begins as the weights; at step t (from 0) no more than
    t / (t + 9), so that a short run forgets where it began. 0 makes none.
    Keras' own, `use_ema`, counts every batch that is accumulated as a step, and replaces
    the weights when `fit` ends.
    """

    def __init__(self, learning_rate: Any, *, ema: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.ema = ema
        self.ema_weights: list[keras.Variable] = []

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        return super().get_config() | {"ema": self.ema}

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the slots and the averaged weights."""
        if self.built:
            return
        self.make_slots(variables)
        self.ema_weights = self.add_optimizer_variables(variables if self.ema else [], "ema")
        for average, variable in zip(self.ema_weights, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # JAX would share it, and give it away twice

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Make what is remembered of the gradients."""
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, what is remembered of it, and its average."""
        self.move(gradient, variable, learning_rate)
        if self.ema:
            step = ops.cast(self.iterations, "float32")
            average = self.ema_weights[index_of(self, variable)]
            fresh = ops.cast(1 - ops.minimum(self.ema, step / (step + 9)), average.dtype)
            self.assign_add(average, fresh * ops.subtract(variable, average))

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and what is remembered of its gradients."""
        super().update_step(gradient, variable, learning_rate)


@keras.saving.register_keras_serializable(package="roformer_tf")
class LayerwiseAdamW(EmaAdamW):
    """AdamW with a learning rate, and so a decay, of its own for each weight.

    `scales`: learning rate of each weight as a share of the learning rate, in the order of the
    variables that it is built on.
    """

    def __init__(self, learning_rate: Any, *, scales: Sequence[float], **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.scales = tuple(scales)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        return super().get_config() | {"scales": list(self.scales)}

    def restart(self, variables: Sequence[keras.Variable]) -> None:
        """Forget every step, as if made anew for these weights; a compiled step stays compiled."""
        for slot in self.variables:
            slot.assign(ops.zeros(slot.shape, slot.dtype))
        for average, variable in zip(self.ema_weights, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # JAX would share it, and give it away twice

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight by its own learning rate."""
        scale = self.scales[index_of(self, variable)]
        super().move(gradient, variable, learning_rate * scale)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Shrink weights by their own learning rates; Keras knows one for all."""
        for variable in variables:
            if self._use_weight_decay(variable):
                rate = self.learning_rate * self.scales[index_of(self, variable)]
                self.assign_sub(variable, ops.multiply(variable, rate * self.weight_decay))


@keras.saving.register_keras_serializable(package="roformer_tf")
class Lamb(EmaAdamW):
    """Adam whose step on a matrix is as long, in proportion, as the matrix (arXiv 1904.00962).

    Algorithm 2 with φ(z) = z: x ← x − η · ‖x‖ / ‖r + λx‖ · (r + λx) for Adam's step r, the ratio
    being 1 where either length is 0. Decay stands inside the ratio; Keras' own LAMB has it outside.
    Norms and biases, which do not decay, take Adam's step as it is, as in the authors' code.
    """

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its two moments."""
        first, second, steps = self.update_moments(gradient, variable)
        mean, square = first / (1 - self.beta_1**steps), second / (1 - self.beta_2**steps)
        moved = mean / (ops.sqrt(square) + self.epsilon)
        if self._use_weight_decay(variable):
            value = ops.cast(variable, first.dtype)
            moved = moved + self.weight_decay * value
            # flat: of three axes, such as attention's kernels have, Keras knows no norm
            lengths = [ops.norm(ops.reshape(x, (-1,))) for x in (value, moved)]
            some = (lengths[0] > 0) & (lengths[1] > 0)
            moved = moved * ops.where(some, lengths[0] / ops.where(some, lengths[1], 1.0), 1.0)
        self.assign_sub(variable, ops.cast(learning_rate, first.dtype) * moved)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """It is part of the step."""


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
