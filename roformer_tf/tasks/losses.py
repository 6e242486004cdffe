"""Losses and divergences of logits in Keras' operations, which are imported when called.

Axes: … rows or tokens, C logits. All take float32 logits, and give one loss for each row or token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roformer_tf.errors import InputError

if TYPE_CHECKING:
    from roformer_tf.kernels.forms import Tensor

FAR_BELOW = -1e30
"""A logit of no probability."""


@dataclass(frozen=True)
class LossConfig:
    """What the loss does about few, unequal or doubtful examples."""

    label_smoothing: float = 0.0
    """Fraction of the certainty that is taken from a label and spread evenly, such as 0.1."""
    focal: float = 0.0
    """Exponent of the focal loss, such as 2: examples that are right already count less."""
    class_weights: Literal["none", "balanced"] = "none"
    """"balanced": a rare label counts for as much as a frequent one, taken all together."""
    r_drop: float = 0.0
    """R-Drop: how much two passes with different dropout must agree, such as 1; doubles the
    time."""
    fgm: float = 0.0
    """FGM: length of an adversarial step of the word embeddings, such as 0.5. The model is trained
    before and after it, which doubles the time."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                f"label_smoothing is {self.label_smoothing}, but must be at least 0 and less than "
                "1."
            )
        for name in ("focal", "r_drop", "fgm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 0.")


PLAIN = LossConfig()


def softmax_losses(
    labels: "Tensor",
    logits: "Tensor",
    config: LossConfig = PLAIN,
    class_weights: Sequence[Any] | None = None,
) -> "Tensor":
    """Cross-entropy of labels (…) int and logits (…, C): (…).

    The focal loss multiplies it by (1 − p)^focal, for p the label's probability
    (arXiv 1708.02002).
    """
    from keras import ops

    classes = logits.shape[-1]
    chosen = ops.one_hot(ops.cast(labels, "int32"), classes)  # (…, C)
    wanted = (1 - config.label_smoothing) * chosen + config.label_smoothing / classes
    losses = -ops.sum(wanted * ops.log_softmax(logits), axis=-1)
    if config.focal:
        # By way of log (1 − p): the gradient of (1 − p)^focal at 0 may be infinite.
        rest = ops.where(chosen > 0, FAR_BELOW, logits)
        log_rest = ops.logsumexp(rest, axis=-1) - ops.logsumexp(logits, axis=-1)
        losses = losses * ops.exp(config.focal * log_rest)
    if class_weights is not None:
        losses = losses * ops.sum(chosen * ops.array(class_weights, "float32"), axis=-1)
    return losses


def sigmoid_losses(
    targets: "Tensor",
    logits: "Tensor",
    config: LossConfig = PLAIN,
    class_weights: Sequence[Any] | None = None,
) -> "Tensor":
    """Cross-entropy of targets 0 and 1 (…, C) and logits (…, C), mean over the C: (…).

    Smoothing moves a target towards ½; `class_weights` (C, 2) are of each label's 0 and 1.
    """
    from keras import ops

    targets = ops.cast(targets, "float32")
    wanted = (1 - config.label_smoothing) * targets + config.label_smoothing / 2
    losses = ops.binary_crossentropy(wanted, logits, from_logits=True)
    if config.focal:
        # log (1 − p) of the target's probability p is the log-sigmoid of the opposite logit.
        losses = losses * ops.exp(config.focal * ops.log_sigmoid((1 - 2 * targets) * logits))
    if class_weights is not None:
        weights = ops.array(class_weights, "float32")
        losses = losses * (weights[:, 0] + (weights[:, 1] - weights[:, 0]) * targets)
    return ops.mean(losses, axis=-1)


def squared_errors(
    targets: "Tensor",
    logits: "Tensor",
    config: LossConfig = PLAIN,
    class_weights: Sequence[Any] | None = None,
) -> "Tensor":
    """Squared distance of targets (…, 1) and logits (…, 1): (…). The rest is about labels."""
    from keras import ops

    return ops.mean(ops.square(ops.cast(targets, "float32") - logits), axis=-1)


def softmax_divergence(logits: "Tensor", other: "Tensor") -> "Tensor":
    """KL(p‖q) + KL(q‖p) of the probabilities of two logits (…, C): (…).

    Both logs' sums over C cancel: Σ (p − q)(log p − log q) = Σ (p − q)(logits − other).
    """
    from keras import ops

    return ops.sum((ops.softmax(logits) - ops.softmax(other)) * (logits - other), axis=-1)


def sigmoid_divergence(logits: "Tensor", other: "Tensor") -> "Tensor":
    """The same of C probabilities of yes or no, averaged over the C as their losses are."""
    from keras import ops

    return ops.mean((ops.sigmoid(logits) - ops.sigmoid(other)) * (logits - other), axis=-1)


def number_divergence(logits: "Tensor", other: "Tensor") -> "Tensor":
    """The same of numbers (…, 1): their squared error is a normal distribution's log-likelihood.

    Its variance is ½, and two of these are 2 · difference² apart.
    """
    from keras import ops

    return 2 * ops.mean(ops.square(logits - other), axis=-1)


def balanced_weights(labels: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """n / (C · count) of each label, float64 (C,); labels int of any shape, from 0 to C − 1.

    Over all labels they average to 1. A label without examples gets n / C, and never needs it.
    """
    numbers = np.concatenate([np.ravel(label) for label in labels])
    counts = np.bincount(numbers, minlength=classes)
    return len(numbers) / (classes * np.maximum(counts, 1))


def balanced_yes_and_no(targets: Sequence[np.ndarray]) -> np.ndarray:
    """The same of the 0 and the 1 of each of C labels, float64 (C, 2); targets (C,) of 0 and 1."""
    ones = np.sum(targets, axis=0)  # (C,)
    counts = np.stack([len(targets) - ones, ones], axis=-1)
    return len(targets) / (2 * np.maximum(counts, 1))
