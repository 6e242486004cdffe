"""What pretraining and fine-tuning compile: a model in a wrapper with its own step, and a loss.

Also what their steps share: dense gradients, and batches that are split into micro-batches.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.pretrained import PretrainedModel


class TrainingModel(PretrainedModel):
    """A wrapper that trains a model in its own way; it calls, saves and loads as the model does.

    The weights are the model's. A subclass overrides `train_step`, `compute_loss` or the like.
    """

    def __init__(self, model: PretrainedModel, prefix: str) -> None:
        super().__init__(model.config, name=f"{prefix}_{model.name}", dtype=model.dtype_policy)
        self.model = model
        self.tokenizer, self.architecture = model.tokenizer, model.architecture

    def build(self, input_shape: Any = None) -> None:
        """Create no weights: the model has its own."""

    def parts(self) -> dict[str, layers.Layer]:
        """The model's."""
        return self.model.parts()

    def checked(self, inputs: Any) -> dict[str, Any]:
        """The inputs, which the model itself checks."""
        return dict(inputs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Call the model."""
        return self.model(inputs, training=training)


class WeightedMeanLoss(keras.losses.Loss):
    """The mean of the losses that `call` gives over the weights of the whole batch: Σ w · l / Σ w.

    Keras' own reduction divides by the number of losses, however many have the weight 0.
    """

    # A smaller sum of weights is replaced by this, as that of a batch without any.
    least_weight = 1e-7

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name, reduction="sum", dtype="float32")

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return {"name": self.name}

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        """Divide once, by the weights of the batch."""
        losses = self.call(y_true, y_pred)
        if sample_weight is None:
            return ops.mean(losses)
        weights = ops.cast(sample_weight, losses.dtype)
        return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), self.least_weight)


# Parts of training steps


def micro_batches(arrays: Any, count: int) -> Any:
    """(B, …) → (count, B / count, …), for each array of a structure.

    Each micro-batch takes every `count`-th row. So with several devices it has rows of each
    device's share of the batch, and no rows have to be exchanged.
    """

    def split(array: Tensor) -> Tensor:
        # (B / count, count, …): row i is in micro-batch i mod count.
        rows = ops.reshape(array, (-1, count, *ops.shape(array)[1:]))
        return ops.moveaxis(rows, 1, 0)

    return keras.tree.map_structure(split, arrays)


def tensorflow_gradients(
    tape: Any, target: Any, variables: Sequence[Any], weights: Any = None
) -> list[Any]:
    """Gradients of a target by variables, or of Σ weights · target: dense, 0 where it has none."""
    import tensorflow as tf

    gradients = tape.gradient(
        target, variables, output_gradients=weights, unconnected_gradients="zero"
    )
    # That of an embedding table is a list of its rows, which cannot be added or clipped as it is.
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def tensorflow_sums(
    terms: Callable[[Any], Sequence[Any]], count: int, start: Sequence[Any]
) -> list[Any]:
    """start + terms(0) + … + terms(count - 1), tensor by tensor, with one term in memory at a time.

    A loop of the graph: a Python loop would make the graph, and its compilation, `count` times as
    large.
    """
    import tensorflow as tf

    def add(number: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        return number + 1, [a + b for a, b in zip(sums, terms(number), strict=True)]

    _, sums = tf.while_loop(
        lambda number, _: number < count,
        add,
        (tf.constant(0), [tf.convert_to_tensor(x) for x in start]),
        parallel_iterations=1,  # otherwise several terms would be in memory
        maximum_iterations=count,
    )
    return list(sums)
