"""Dropout as all layers here have it."""

from keras import layers

from roformer_tf.kernels.dropout import add_dropped, dropped
from roformer_tf.kernels.forms import Tensor


class Dropout(layers.Dropout):
    """Keras' layer with masks that are a function of its seed: `kernels/dropout.py`.

    Call: x → like x.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Drop elements, in training."""
        if not (training and self.rate):
            return inputs
        return dropped(inputs, self.seed_generator.next(), self.rate)

    def add(self, x: Tensor, y: Tensor, training: bool | None = None) -> Tensor:
        """x + dropped y, in one pass."""
        if not (training and self.rate):
            return x + y
        return add_dropped(x, y, self.seed_generator.next(), self.rate)
