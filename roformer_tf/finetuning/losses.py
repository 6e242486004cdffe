"""What fine-tuning minimises: a task's loss, weighted, and R-Drop in addition."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.finetuning.settings import VectorConfig
from roformer_tf.kernels.forms import Tensor
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.training_model import WeightedMeanLoss


def check_vector_settings(task: type[Task], config: VectorConfig) -> None:
    """Raise InputError for settings of vectors where the task makes none."""
    usual = VectorConfig()
    given = [
        field.name
        for field in fields(config)
        if getattr(config, field.name) != getattr(usual, field.name)
    ]
    wrong = [name for name in given if name not in task.objective.vector_settings]
    if wrong:
        raise InputError(
            f"{wrong[0]} is about sentence vectors, which the task {task.name} does not make. "
            f"Leave --{wrong[0].replace('_', '-')} out."
        )


def make_loss(task: Task, config: LossConfig, targets: Sequence[np.ndarray]) -> "TaskLoss":
    """The loss of a task. Balanced weights are counted in `targets`, one for each example.

    Raises InputError for a setting that the task has no use for.
    """
    check_loss(task, config)
    balanced = config.class_weights == "balanced"
    return TaskLoss(
        task.name,
        label_smoothing=config.label_smoothing,
        focal=config.focal,
        r_drop=config.r_drop,
        class_weights=task.objective.class_weights(targets).tolist() if balanced else None,
        crf=task.crf,
    )


def check_loss(task: Task, config: LossConfig) -> None:
    """Raise InputError for a setting that has no effect, or not the one that its name promises."""
    of_each_label = ("label_smoothing", "focal", "class_weights", "r_drop") if task.crf else ()
    alone = dict.fromkeys(of_each_label, "is about each label by itself, and --crf about all.")
    for name, why in {**task.objective.refused_settings, **alone}.items():
        if getattr(config, name) not in (0, "none"):
            raise InputError(f"{name} {why} Leave it out.")


@keras.saving.register_keras_serializable(package="roformer_tf")
class TaskLoss(WeightedMeanLoss):
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
        super().__init__(name, dtype)
        self.task, self.crf, self.class_weights = task, crf, class_weights
        self.settings = LossConfig(label_smoothing=label_smoothing, focal=focal, r_drop=r_drop)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each row (B,) or token (B, T)."""
        logits = ops.cast(y_pred, "float32")
        if self.crf:
            return logits
        objective = TASKS[self.task].objective
        losses = objective.losses(y_true, logits, self.settings, self.class_weights)
        if not self.settings.r_drop:
            return losses
        half = ops.shape(logits)[0] // 2
        divergence = objective.divergence(logits[:half], logits[half:])
        return losses + self.settings.r_drop / 4 * ops.concatenate([divergence, divergence])

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the loss again."""
        return {
            "task": self.task,
            "label_smoothing": self.settings.label_smoothing,
            "focal": self.settings.focal,
            "r_drop": self.settings.r_drop,
            "class_weights": self.class_weights,
            "crf": self.crf,
            "name": self.name,
        }
