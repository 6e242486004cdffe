"""What fine-tuning minimises: a task's loss, weighted, and R-Drop in addition."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.training_model import WeightedMeanLoss

# Fields of `LossConfig` that change how a loss is computed.
SETTINGS = ("label_smoothing", "focal", "r_drop")


def make_loss(task: Task, config: LossConfig, targets: Sequence[np.ndarray]) -> "TaskLoss":
    """The loss of a task. Balanced weights are counted in `targets`, one for each example."""
    balanced = config.class_weights == "balanced"
    return TaskLoss(
        task.name,
        **{name: getattr(config, name) for name in SETTINGS},
        class_weights=task.objective.class_weights(targets).tolist() if balanced else None,
        crf=task.crf,
        taught=config.teacher is not None,
    )


def check_loss(task: Task, config: LossConfig) -> None:
    """Raise InputError for a setting that has no effect, or not the one that its name promises."""
    # A CRF has one loss for all labels of a text: nothing is left to smooth or weight by label.
    names = ("label_smoothing", "focal", "class_weights", "r_drop", "teacher")
    of_each_label = names if task.crf else ()
    with_crf = dict.fromkeys(of_each_label, "treats labels separately; --crf has one loss for all.")
    for name, why in {**task.objective.refused_settings, **with_crf}.items():
        if getattr(config, name) not in (0, "none", None):
            raise InputError(f"{name} {why} Remove --{name.replace('_', '-')}.")
    if config.teacher and task.objective.soft_losses is None:
        known = ", ".join(name for name, kind in TASKS.items() if kind.objective.soft_losses)
        raise InputError(
            f"the task {task.name} does not learn from a teacher; {known} do. Remove --teacher."
        )


@keras.saving.register_keras_serializable(package="roformer_tf")
class TaskLoss(WeightedMeanLoss):
    """The mean of a task's losses over the weights of the whole batch, float32.

    Axes: B sequences, T tokens, C labels. Call: targets, logits, sample_weight → scalar
    Σ weight · loss / Σ weight. Weights (B,), or (B, T) where each token has a loss.

    Class weights multiply losses and are not part of the denominator. So a batch with frequent
    labels only gives a smaller gradient. With `r_drop` the sequences must come twice, (x, x), and

        loss = ½ (CE₁ + CE₂) + r_drop / 4 · (KL(p₁‖p₂) + KL(p₂‖p₁))

    which is half of equation 4 in arXiv 2106.14448: that adds the two cross-entropies.

    With `crf` the model returns the losses of its tokens instead of logits. With `taught` targets
    also hold what a teacher predicts and a weight w: see `TrainingObjective.taught_losses`. Then

        loss = (1 − w) · the task's loss + w · T² · KL(teacher‖model) at the temperature T

    or, for spans, the loss of the teacher's spans in place of the divergence.
    """

    def __init__(
        self,
        task: str,
        *,
        class_weights: list[Any] | None = None,
        crf: bool = False,
        taught: bool = False,
        name: str = "task_loss",
        dtype: Any = "float32",
        **settings: float,
    ) -> None:
        """settings: those of `SETTINGS` that differ from their defaults."""
        super().__init__(name, dtype)
        self.task, self.crf, self.class_weights = task, crf, class_weights
        self.taught = taught
        self.settings = LossConfig(**settings)  # type: ignore[arg-type]

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each sequence (B,) or token (B, T)."""
        logits = ops.cast(y_pred, "float32")
        if self.crf:
            return logits
        objective = TASKS[self.task].objective
        compute = objective.taught_losses if self.taught else objective.losses
        losses = compute(y_true, logits, self.settings, self.class_weights)
        if not self.settings.r_drop:
            return losses
        # (B/2, …) each: the second half has the same sequences under another dropout.
        half = ops.shape(logits)[0] // 2
        divergence = objective.divergence(logits[:half], logits[half:])
        return losses + self.settings.r_drop / 4 * ops.concatenate([divergence, divergence])

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return {
            "task": self.task,
            **{name: getattr(self.settings, name) for name in SETTINGS},
            "class_weights": self.class_weights,
            "crf": self.crf,
            "taught": self.taught,
            "name": self.name,
        }
