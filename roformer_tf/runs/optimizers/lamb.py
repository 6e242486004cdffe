"""LAMB, for batches of thousands of rows."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from roformer_tf.runs.optimizers.adamw import EmaAdamW


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
