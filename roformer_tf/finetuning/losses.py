"""What fine-tuning minimises: a task's loss, weighted, and R-Drop beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.table import TASKS


@dataclass(frozen=True)
class LossConfig:
    """What the loss does about few, unequal or doubtful examples."""

    label_smoothing: float = 0.0
    """Share of the certainty that is taken from a label and spread evenly, such as 0.1."""
    focal: float = 0.0
    """How much less what is right already counts: the focal loss' exponent, such as 2."""
    class_weights: Literal["none", "balanced"] = "none"
    """"balanced" lets a rare label count for as much as a frequent one, taken all together."""
    r_drop: float = 0.0
    """R-Drop: how much two passes with other dropout are to agree, such as 1; doubles the time."""
    fgm: float = 0.0
    """FGM: length of a step of the word embeddings against the model, which is trained on both
    sides of it, such as 0.5; doubles the time."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            found = f"label_smoothing is {self.label_smoothing}"
            raise InputError(f"{found}, but must be at least 0 and less than 1.")
        for name in ("focal", "r_drop", "fgm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 0.")


@dataclass(frozen=True)
class VectorConfig:
    """What sentence vectors are trained by, for the task that makes them."""

    loss: Literal["auto", "softmax", "cosent", "classifier"] = "auto"
    """For vectors: "softmax" over the cosines of a batch, times 20, where texts belong together;
    "cosent" where pairs have scores; "classifier" for RoFormer-Sim's supervised form, which tells
    the score by [a, b, |a - b|]; "auto" is the first or second, as the data are."""
    hard_negatives: int = 0
    """For vectors: texts that are held against each example, besides those of its batch: the ones
    that the model takes for the nearest, though they do not belong to it."""
    dimensions: tuple[int, ...] = ()
    """For vectors: lengths to which they may be cut afterwards, such as 64 128 256; the whole one
    is always trained too."""
    teacher: str | None = None
    """For paraphrases: a model whose cosines of the texts their vectors are trained to have, as in
    RoFormer-Sim's second stage, in place of the softmax over a batch."""
    pieces: int = 1
    """For vectors: pieces in which a batch is encoded, one after the other and twice: batches
    larger than memory. The gradient is that of the whole batch."""

    def __post_init__(self) -> None:
        if self.hard_negatives < 0:
            raise InputError(f"hard_negatives is {self.hard_negatives}, but must not be negative.")
        if self.pieces < 1:
            raise InputError(f"pieces is {self.pieces}, but must be at least 1.")
        if any(size < 1 for size in self.dimensions):
            shown = " ".join(map(str, self.dimensions))
            raise InputError(f"dimensions are {shown}, but must be numbers of at least 1.")


def check_vector_settings(task: type[Task], config: VectorConfig) -> None:
    """Raise InputError for settings of vectors where the task makes none."""
    usual = VectorConfig()
    given = [
        field.name
        for field in fields(config)
        if getattr(config, field.name) != getattr(usual, field.name)
    ]
    wrong = [name for name in given if name not in task.vector_settings]
    if wrong:
        raise InputError(
            f"{wrong[0]} is about sentence vectors, which the task {task.name} does not make. "
            f"Leave --{wrong[0].replace('_', '-')} out."
        )


def make_loss(task: Task, config: LossConfig, targets: Sequence[np.ndarray]) -> "TaskLoss":
    """The loss of a task; `targets`, which balanced weights are counted in, are `Task.target`s.

    Raises InputError for a setting that the task has no use for.
    """
    check_loss(task, config)
    balanced = config.class_weights == "balanced"
    return TaskLoss(
        task.name,
        label_smoothing=config.label_smoothing,
        focal=config.focal,
        r_drop=config.r_drop,
        class_weights=task.balanced_weights(targets).tolist() if balanced else None,
        crf=task.crf,
    )


def check_loss(task: Task, config: LossConfig) -> None:
    """Raise InputError for a setting that would do nothing, or something else than it says."""
    of_each_label = ("label_smoothing", "focal", "class_weights", "r_drop") if task.crf else ()
    alone = dict.fromkeys(of_each_label, "is about each label by itself, and --crf about all.")
    for name, why in {**task.refused_loss_settings, **alone}.items():
        if getattr(config, name) not in (0, "none"):
            raise InputError(f"{name} {why} Leave it out.")


@keras.saving.register_keras_serializable(package="roformer_tf")
class TaskLoss(keras.losses.Loss):
    """The mean of a task's losses over the weights of the whole batch, float32.

    Axes: B rows, T tokens, C labels. Call: targets, logits, sample_weight → scalar
    Σ weight · loss / Σ weight. Weights (B,), or (B, T) where each token has a loss.

    Class weights multiply losses and do not enter the sum below the line, so that a batch of
    frequent labels alone moves less. With `r_drop` the rows must come twice, (x, x), and

        loss = ½ (CE₁ + CE₂) + r_drop / 4 · (KL(p₁‖p₂) + KL(p₂‖p₁))

    which is half of arXiv 2106.14448's equation 4: that adds the two cross-entropies.

    With `crf` the model itself gives the losses of its tokens in place of logits.
    """

    def __init__(
        self,
        task: str,
        *,
        label_smoothing: float = 0.0,
        focal: float = 0.0,
        r_drop: float = 0.0,
        class_weights: list[Any] | None = None,
        crf: bool = False,
        name: str = "task_loss",
        dtype: Any = "float32",
    ) -> None:
        super().__init__(name=name, reduction="sum", dtype=dtype)
        self.task, self.r_drop = task, r_drop
        self.label_smoothing, self.focal = label_smoothing, focal
        self.class_weights, self.crf = class_weights, crf

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        """Divide once, by the weights of the batch."""
        losses = self.call(y_true, y_pred)
        if sample_weight is None:
            return ops.mean(losses)
        weights = ops.cast(sample_weight, losses.dtype)
        return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1e-7)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each row (B,) or token (B, T)."""
        logits = ops.cast(y_pred, "float32")
        if self.crf:
            return logits
        task = TASKS[self.task]
        losses = task.losses(y_true, logits, self.label_smoothing, self.focal, self.class_weights)
        if not self.r_drop:
            return losses
        half = ops.shape(logits)[0] // 2
        apart = task.divergence(logits[:half], logits[half:])
        return losses + self.r_drop / 4 * ops.concatenate([apart, apart])

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the loss again."""
        names = ("task", "label_smoothing", "focal", "r_drop", "class_weights", "crf", "name")
        return {name: getattr(self, name) for name in names}
