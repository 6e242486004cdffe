"""What pretraining and fine-tuning compile: a model in a wrapper with its own step, and a loss."""

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
        """Make no weights: the model has its own."""

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

    least_weight = 1e-7
    """Divides where the weights' sum is less, as of a batch without any."""

    def __init__(self, name: str, dtype: Any = "float32") -> None:
        super().__init__(name=name, reduction="sum", dtype=dtype)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        """Divide once, by the weights of the batch."""
        losses = self.call(y_true, y_pred)
        if sample_weight is None:
            return ops.mean(losses)
        weights = ops.cast(sample_weight, losses.dtype)
        return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), self.least_weight)
