"""Held-out evaluation of a language model, on masked tokens or on every next one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grain
import keras
import numpy as np
from keras import ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.training.devices import on_every_device
from roformer_tf.training.fitting import fed

# Inputs that are about the predicted tokens, and that a model does not read.
ABOUT_TOKENS = ("labels", "weights", "document_lengths")


class TokenMetrics(keras.Model):
    """Metrics of a language model at each masked position; of a causal one at all, P = T.

    Call: the model's inputs, with `labels` and other arrays of `ABOUT_TOKENS` (B, P) → a dict of
    (B, P): `log_likelihood` float32 of the true token in nats, `likeliest` int32, the predicted
    token, and these arrays again. Unlike logits, these fit into memory for a whole corpus.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="token_metrics")
        self.model = model

    def call(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Measure one batch."""
        features = {key: x for key, x in inputs.items() if key not in ABOUT_TOKENS}
        labels = ops.cast(inputs["labels"], "int32")
        logits = self.model(features, training=False)  # (B, P, V)
        loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        likeliest = ops.cast(ops.argmax(logits, axis=-1), "int32")
        metrics = {key: x for key, x in inputs.items() if key in ABOUT_TOKENS}
        metrics |= {"log_likelihood": -loss, "likeliest": likeliest, "labels": labels}
        return {name: on_every_device(array) for name, array in metrics.items()}


@dataclass(frozen=True)
class LanguageModelMetrics:
    """Metrics of a model on the held-out sequences."""

    # Mean cross-entropy of a predicted token, in nats.
    loss: float
    # Fraction of the tokens that have the highest score.
    accuracy: float
    # Predicted tokens counted.
    predictions: int
    # Their name in messages.
    predicted: str = "masked tokens"
    # The loss of those in documents of so many tokens at most, and of more than half as many: of
    # 64, 128, 256 and so on. Of a document over several rows, its part in the row is what counts.
    loss_by_length: Mapping[int, float] = field(default_factory=dict)
    # `loss` and `accuracy` of each corpus by its name, where there are several.
    by_corpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def perplexity(self) -> float:
        """Exponential of the loss: as if so many tokens were equally likely."""
        return float(np.exp(self.loss))

    def line(self) -> dict[str, Any]:
        """The figures as a line of `evaluations.jsonl` has them."""
        by_corpus = {"held_out_by_corpus": self.by_corpus} if self.by_corpus else {}
        return {
            "held_out_loss": self.loss,
            "held_out_perplexity": self.perplexity,
            "held_out_accuracy": self.accuracy,
            "held_out_loss_by_length": {str(most): x for most, x in self.loss_by_length.items()},
        } | by_corpus

    def __str__(self) -> str:
        return (
            f"held-out loss {self.loss:.3f} (perplexity {self.perplexity:,.1f}), "
            f"accuracy {self.accuracy:.1%} of {self.predictions:,} {self.predicted}"
        )


def evaluate(
    model: TokenMetrics, batches: grain.MapDataset, corpora: Mapping[str, int] | None = None
) -> LanguageModelMetrics:
    """Evaluate every batch of `held_out_batches`; the sums are float64, divided once.

    At least one token must be predicted (see `predicts`). `corpora`: number of sequences of each
    corpus, in their order. If there are several, each also has its own metrics, except one in which
    nothing is predicted.
    """
    outputs = token_metrics(model, batches)
    weights = outputs["weights"].astype("float64")
    # (rows, P), as the others. Rows after the last corpus fill the last batch, with weight 0.
    losses = -outputs["log_likelihood"] * weights
    hits = (outputs["likeliest"] == outputs["labels"]) * weights
    most = length_bucket(outputs["document_lengths"])

    def mean(sums: np.ndarray, part: Any = ...) -> float:  # an index; by default all
        return float(sums[part].sum() / weights[part].sum())

    sizes = corpora or {}
    ends = pairwise(np.cumsum([0, *sizes.values()]).tolist())
    rows_of = {name: slice(*span) for name, span in zip(sizes, ends, strict=True)}
    return LanguageModelMetrics(
        loss=mean(losses),
        accuracy=mean(hits),
        predictions=int(weights.sum()),
        loss_by_length={
            int(tokens): mean(losses, most == tokens) for tokens in np.unique(most[weights > 0])
        },
        predicted="tokens" if model.model.config.attention_type == "causal" else "masked tokens",
        by_corpus={
            name: {"loss": mean(losses, rows), "accuracy": mean(hits, rows)}
            for name, rows in rows_of.items()
            if len(rows_of) > 1 and weights[rows].any()
        },
    )


def predicts(batches: grain.MapDataset) -> bool:
    """Whether any token of the batches is predicted: none is if all words are too long to mask."""
    return any(batches[number][2].any() for number in range(len(batches)))


# Shorter documents are not separated: few tokens are in them.
LEAST_BUCKET = 64


def length_bucket(lengths: np.ndarray) -> np.ndarray:
    """Each length rounded up to a power of two, at least 64: 1 → 64, 65 → 128, 128 → 128."""
    exponents = np.ceil(np.log2(np.maximum(lengths, LEAST_BUCKET)))
    return np.asarray(2**exponents, "int64")


def document_lengths(sequence_ids: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    """Length, in its sequence, of the document at each position: (B, L), (B, P) → (B, P) int32.

    Without positions: at every position, (B, L).
    """
    # A row 1 1 1 2 2 0 has the counts 1 3 2 of its numbers, and becomes 3 3 3 2 2 1.
    counts = np.stack([np.bincount(row)[row] for row in sequence_ids]).astype("int32")
    return counts if positions is None else np.take_along_axis(counts, positions, axis=1)


def token_metrics(model: TokenMetrics, batches: grain.MapDataset) -> dict[str, np.ndarray]:
    """The arrays of `TokenMetrics` for all rows of the batches, (rows, P) each."""
    rows = fed(batches.map(_with_labels), static_shapes=True)
    return dict(model.predict(rows, steps=len(batches), verbose=0))


def _with_labels(batch: tuple[dict[str, Any], Any, Any]) -> dict[str, Any]:
    inputs, labels, weights = batch
    lengths = document_lengths(inputs["sequence_ids"], inputs.get("masked_positions"))
    return inputs | {"labels": labels, "weights": weights, "document_lengths": lengths}
