"""AdamW and LAMB with an average of the weights, and AdamW with a learning rate for each weight."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from roformer_tf.internals import index_of
from roformer_tf.kernels.adam import AdamW
from roformer_tf.training.devices import sync


@keras.saving.register_keras_serializable(package="roformer_tf")
class EmaAdamW(AdamW):
    """AdamW with an optional exponential moving average of the weights, the base of all here.

    `ema` is the decay of the average, which starts at the weights. At step t (from 0) the decay is
    at most t / (t + 9), so that a short run forgets its initial weights. 0: no average.

    Keras' own `use_ema` counts every accumulated batch as a step, and overwrites the weights when
    `fit` ends.
    """

    def __init__(self, learning_rate: Any, *, ema: float = 0.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.ema = ema
        self.ema_weights: list[keras.Variable] = []

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return super().get_config() | {"ema": self.ema}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the slots and the averaged weights."""
        if self.built:
            return
        self.make_slots(variables)
        self.ema_weights = self.add_optimizer_variables(variables if self.ema else [], "ema")
        for average, variable in zip(self.ema_weights, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # a copy: JAX would donate the shared buffer twice

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Create the slots for the moments of the gradients."""
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, its slots and its average."""
        self.move(gradient, variable, learning_rate)
        if self.ema:
            step = ops.cast(self.iterations, "float32")
            average = self.ema_weights[index_of(self, variable)]
            fresh = ops.cast(1 - ops.minimum(self.ema, step / (step + 9)), average.dtype)
            self.assign_add(average, fresh * ops.subtract(variable, average))

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its slots."""
        super().update_step(gradient, variable, learning_rate)


@keras.saving.register_keras_serializable(package="roformer_tf")
class LayerwiseAdamW(EmaAdamW):
    """AdamW with a learning rate, and so a weight decay, of its own for each weight.

    `scales`: factor on the learning rate for each weight, in the order of the variables that the
    optimizer is built with.
    """

    def __init__(self, learning_rate: Any, *, scales: Sequence[float], **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.scales = tuple(scales)

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return super().get_config() | {"scales": list(self.scales)}

    def restart(self, variables: Sequence[keras.Variable]) -> None:
        """Reset to a new optimizer for these weights; a compiled step stays compiled."""
        for slot in self.variables:
            slot.assign(ops.zeros(slot.shape, slot.dtype))
        for average, variable in zip(self.ema_weights, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # a copy: JAX would donate the shared buffer twice

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight with its own learning rate."""
        scale = self.scales[index_of(self, variable)]
        super().move(gradient, variable, learning_rate * scale)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Decay weights by their own learning rates; Keras has one for all."""
        for variable in variables:
            if self._use_weight_decay(variable):
                rate = self.learning_rate * self.scales[index_of(self, variable)]
                self.assign_sub(variable, ops.multiply(variable, rate * self.weight_decay))


@keras.saving.register_keras_serializable(package="roformer_tf")
class Lamb(EmaAdamW):
    """LAMB: Adam with steps proportional to the norm of each matrix (arXiv 1904.00962).

    Algorithm 2 with φ(z) = z: x ← x − η · ‖x‖ / ‖r + λx‖ · (r + λx) for Adam's step r. The ratio is
    1 if either norm is 0. The decay is inside the ratio; in Keras' own LAMB it is outside. Norms
    and biases do not decay and take Adam's step, as in the authors' code.
    """

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its two moments."""
        first, second, steps = self.update_moments(gradient, variable)
        mean, square = first / (1 - self.beta_1**steps), second / (1 - self.beta_2**steps)
        moved = mean / (ops.sqrt(square) + self.epsilon)
        if self._use_weight_decay(variable):
            value = ops.cast(variable, first.dtype)
            moved = moved + self.weight_decay * value
            # flat: Keras has no norm over three axes, which attention's kernels have
            lengths = [ops.norm(ops.reshape(x, (-1,))) for x in (value, moved)]
            some = (lengths[0] > 0) & (lengths[1] > 0)
            moved = moved * ops.where(some, lengths[0] / ops.where(some, lengths[1], 1.0), 1.0)
        self.assign_sub(variable, ops.cast(learning_rate, first.dtype) * moved)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing: `move` includes the decay."""


@contextmanager
def ema_weights(model: keras.Model) -> Iterator[None]:
    """Use the averaged weights of a compiled model within the block, if its optimizer has any.

    It works with `accumulate` and without, on both backends, inside and outside of `fit`.
    """
    swap_ema_weights(model)
    try:
        yield
    finally:
        swap_ema_weights(model)


def swap_ema_weights(model: keras.Model) -> None:
    """Exchange a compiled model's weights with their averages."""
    sync(model)
    averages = getattr(model.optimizer, "ema_weights", [])
    for weight, average in zip(model.trainable_variables, averages, strict=False):  # all, or none
        value = ops.copy(weight)
        weight.assign(average)
        average.assign(value)
