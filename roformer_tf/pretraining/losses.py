"""The loss of a language model, masked or causal."""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor


@keras.saving.register_keras_serializable(package="roformer_tf")
class MaskedTokenLoss(keras.losses.Loss):
    """Cross-entropy averaged over the predicted tokens of the whole batch, in nats.

    Call: labels (B, P) int, logits (B, P, V) float32 or, as the model gives them where its inputs
    hold the labels, losses (B, P), sample_weight (B, P), 0 for a slot without a prediction
    → scalar Σ weight · cross-entropy / Σ weight. Keras' own reduction divides by all B · P slots
    instead.
    """

    def __init__(self, name: str = "masked_token_loss", dtype: Any = "float32") -> None:
        super().__init__(name=name, reduction="sum", dtype=dtype)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        """Divide once, by the number of predictions."""
        losses = self.call(y_true, y_pred)  # (B, P)
        if sample_weight is None:
            return ops.mean(losses)
        weights = ops.cast(sample_weight, losses.dtype)
        return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)

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
