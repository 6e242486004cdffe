"""Losses and divergences of logits in Keras' operations, which are imported when called.

Smoothing takes a share of the certainty from a label, and the focal loss lets count less what is
right already: see `finetuning.losses.LossConfig`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from roformer_tf.kernels.forms import Tensor

FAR_BELOW = -1e30
"""A logit of no probability."""


def softmax_losses(
    labels: "Tensor",
    logits: "Tensor",
    smoothing: float = 0.0,
    focal: float = 0.0,
    class_weights: list[Any] | None = None,
) -> "Tensor":
    """Cross-entropy of labels (…) int and logits (…, C) float32: (…).

    The focal loss multiplies it by (1 − p)^focal, for p the label's probability
    (arXiv 1708.02002); here by way of log (1 − p), since a root's gradient at 0 is infinite.
    """
    from keras import ops

    classes = logits.shape[-1]
    chosen = ops.one_hot(ops.cast(labels, "int32"), classes)  # (…, C)
    wanted = (1 - smoothing) * chosen + smoothing / classes
    losses = -ops.sum(wanted * ops.log_softmax(logits), axis=-1)
    if focal:
        others = ops.where(chosen > 0, FAR_BELOW, logits)
        log_rest = ops.logsumexp(others, axis=-1) - ops.logsumexp(logits, axis=-1)
        losses = losses * ops.exp(focal * log_rest)
    if class_weights is not None:
        losses = losses * ops.sum(chosen * ops.array(class_weights, "float32"), axis=-1)
    return losses


def sigmoid_losses(
    targets: "Tensor",
    logits: "Tensor",
    smoothing: float = 0.0,
    focal: float = 0.0,
    class_weights: list[Any] | None = None,
) -> "Tensor":
    """Cross-entropy of targets 0 and 1 (…, C) and logits (…, C) float32, mean over the C: (…).

    Smoothing moves a target towards ½; `class_weights` (C, 2) are of each label's 0 and 1.
    """
    from keras import ops

    targets = ops.cast(targets, "float32")
    wanted = (1 - smoothing) * targets + smoothing / 2
    losses = ops.binary_crossentropy(wanted, logits, from_logits=True)
    if focal:
        losses = losses * ops.exp(focal * ops.log_sigmoid((1 - 2 * targets) * logits))
    if class_weights is not None:
        weights = ops.array(class_weights, "float32")
        losses = losses * (weights[:, 0] + (weights[:, 1] - weights[:, 0]) * targets)
    return ops.mean(losses, axis=-1)


def squared_errors(targets: "Tensor", logits: "Tensor") -> "Tensor":
    """Squared distance of targets (…, 1) and logits (…, 1) float32: (…)."""
    from keras import ops

    return ops.mean(ops.square(ops.cast(targets, "float32") - logits), axis=-1)


def softmax_divergence(logits: "Tensor", others: "Tensor") -> "Tensor":
    """KL(p‖q) + KL(q‖p) of the probabilities that two logits (…, C) float32 mean: (…).

    Both logs' sums over C cancel: Σ (p − q)(log p − log q) = Σ (p − q)(logits − others).
    """
    from keras import ops

    return ops.sum((ops.softmax(logits) - ops.softmax(others)) * (logits - others), axis=-1)


def sigmoid_divergence(logits: "Tensor", others: "Tensor") -> "Tensor":
    """The same of C probabilities of yes or no, averaged over the C as their losses are."""
    from keras import ops

    return ops.mean((ops.sigmoid(logits) - ops.sigmoid(others)) * (logits - others), axis=-1)


def number_divergence(logits: "Tensor", others: "Tensor") -> "Tensor":
    """The same of numbers (…, 1): their squared error is a normal distribution's log-likelihood.

    Its variance is ½, and two of these are 2 · difference² apart.
    """
    from keras import ops

    return 2 * ops.mean(ops.square(logits - others), axis=-1)


def balanced_weights(labels: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """n / (C · count) of each label, float64 (C,); labels int of any shape, from 0 to C − 1.

    Over all labels they average to 1. A label that none is gets n / C, and never needs it.
    """
    found = np.concatenate([np.ravel(label) for label in labels])
    counts = np.bincount(found, minlength=classes)
    return len(found) / (classes * np.maximum(counts, 1))


def balanced_yes_and_no(targets: Sequence[np.ndarray]) -> np.ndarray:
    """The same of the 0 and the 1 of each of C labels, float64 (C, 2); targets (C,) of 0 and 1."""
    ones = np.sum(targets, axis=0)  # (C,)
    counts = np.stack([len(targets) - ones, ones], axis=-1)
    return len(targets) / (2 * np.maximum(counts, 1))
