"""The loss of a language model, masked or causal."""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.runs.training_model import WeightedMeanLoss


@keras.saving.register_keras_serializable(package="roformer_tf")
class MaskedTokenLoss(WeightedMeanLoss):
    """Cross-entropy averaged over the predicted tokens of the whole batch, in nats.

    Call: labels (B, P) int, logits (B, P, V) float32 or, as the model gives them where its inputs
    hold the labels, losses (B, P), sample_weight (B, P), 0 for a slot without a prediction
    → scalar Σ weight · cross-entropy / Σ weight.
    """

    least_weight = 1.0

    def __init__(self, name: str = "masked_token_loss", dtype: Any = "float32") -> None:
        super().__init__(name, dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Cross-entropy of each slot: (B, P) float32."""
        if len(y_pred.shape) == len(y_true.shape):
            return y_pred
        return ops.sparse_categorical_crossentropy(
            ops.cast(y_true, "int32"), ops.cast(y_pred, "float32"), from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the loss again."""
        return {"name": self.name}
