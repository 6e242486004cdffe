"""Hidden states of a text → one vector, for what classifies and what gives vectors."""

from typing import Any

import keras
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.forms import Tensor, wide


class Pooler(layers.Layer):
    """One dense layer on the first token, without activation: hidden (B, T, H) → (B, H) float32."""

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = config.hidden_size
        self.dense = head_dense(config, config.hidden_size, "dense", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        self.dense.build((None, self.hidden_size))

    def call(self, hidden: Tensor) -> Tensor:
        """Give a vector for each row."""
        return ops.cast(self.dense(hidden[:, 0]), "float32")


def mean_of_tokens(hidden: Tensor, sequence_ids: Tensor) -> Tensor:
    """Mean over the tokens that are no padding: (B, T, H), (B, T) int → (B, H).

    At least float32 inside.
    """
    weights = ops.cast(sequence_ids != 0, wide(hidden))[..., None]
    total = ops.sum(ops.cast(hidden, weights.dtype) * weights, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(weights, axis=1), 1.0), hidden.dtype)


def head_dense(config: RoFormerConfig, units: int, name: str, dtype: Any) -> layers.Dense:
    """A head's dense layer, which has a bias in RoFormerV2 too."""
    initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    return layers.Dense(units, kernel_initializer=initializer, name=name, dtype=dtype)
