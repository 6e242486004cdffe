"""Held-out evaluation of a language model, on masked tokens or on every next one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grain
import keras
import numpy as np
from keras import ops

from roformer_tf.layers.rotary import Tensor
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.training.processes import on_every_device


class MaskedTokenScores(keras.Model):
    """How a language model does at each masked position; a causal one, P = T, at each at all.

    Call: the model's dict with `labels` and `weights` (B, P) beside → a dict of (B, P):
    `log_likelihood` float32 of the true token in nats, `likeliest` int32, the token that the
    model would put there, and `labels` and `weights` again. Small enough to keep for a corpus.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="masked_token_scores")
        self.model = model

    def call(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Score one batch."""
        features = {key: x for key, x in inputs.items() if key not in ("labels", "weights")}
        labels = ops.cast(inputs["labels"], "int32")
        logits = self.model(features, training=False)  # (B, P, V)
        loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        scores = {
            "log_likelihood": -loss,
            "likeliest": ops.cast(ops.argmax(logits, axis=-1), "int32"),
            "labels": labels,
            "weights": inputs["weights"],
        }
        return {name: on_every_device(array) for name, array in scores.items()}


@dataclass(frozen=True)
class MaskedLMScores:
    """What the held-out rows say of a model."""

    loss: float
    """Mean cross-entropy of a predicted token, in nats."""
    accuracy: float
    """Share of the predicted tokens that are the likeliest."""
    predictions: int
    """Predicted tokens counted."""
    predicted: str = "masked tokens"
    """What they are, in words."""

    @property
    def perplexity(self) -> float:
        """Exponential of the loss: as if so many tokens were equally likely."""
        return float(np.exp(self.loss))

    def line(self) -> dict[str, float]:
        """The figures as a line of `evaluations.jsonl` has them."""
        return {
            "held_out_loss": self.loss,
            "held_out_perplexity": self.perplexity,
            "held_out_accuracy": self.accuracy,
        }

    def __str__(self) -> str:
        return (
            f"held-out loss {self.loss:.3f} (perplexity {self.perplexity:,.1f}), "
            f"accuracy {self.accuracy:.1%} of {self.predictions:,} {self.predicted}"
        )


def evaluate(scores: MaskedTokenScores, batches: grain.MapDataset) -> MaskedLMScores:
    """Score every batch of `held_out_batches`; the sums are float64, divided once."""
    outputs = score_tokens(scores, batches)
    weights = outputs["weights"].astype("float64")
    count = weights.sum()
    return MaskedLMScores(
        loss=float(-(outputs["log_likelihood"] * weights).sum() / count),
        accuracy=float(((outputs["likeliest"] == outputs["labels"]) * weights).sum() / count),
        predictions=int(count),
        predicted="tokens" if isinstance(scores.model, RoFormerForCausalLM) else "masked tokens",
    )


def score_tokens(scores: MaskedTokenScores, batches: grain.MapDataset) -> dict[str, np.ndarray]:
    """The arrays of `MaskedTokenScores` for all rows of the batches, (rows, P) each."""
    return dict(scores.predict(batches.map(_with_labels), steps=len(batches), verbose=0))


def _with_labels(batch: tuple[dict[str, Any], Any, Any]) -> dict[str, Any]:
    inputs, labels, weights = batch
    return inputs | {"labels": labels, "weights": weights}
