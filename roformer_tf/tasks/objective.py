"""Second part of a task: which model is trained, and by which loss.

Axes: B sequences, T tokens, C logits, S texts of an example, H features.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.tasks.losses import (
    Tensor,
    VectorConfig,
    mixed,
    sigmoid_distillation,
    sigmoid_divergence,
    sigmoid_losses,
    softmax_distillation,
    softmax_divergence,
    softmax_losses,
)
from roformer_tf.tasks.parts import Examples, Part

if TYPE_CHECKING:
    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
    from roformer_tf.models.pretrained import PretrainedModel


# Fields of `LossConfig` that tasks without labels of single texts do not support.
OF_LABELS = dict.fromkeys(
    ("label_smoothing", "focal", "class_weights", "r_drop", "fgm"),
    "is about labels of single texts, but texts are compared with each other here.",
)


class TrainingObjective(Part):
    """Which model is trained, and by which loss."""

    model_name: ClassVar[str] = "RoFormerForSequenceClassification"
    """The name of the model in `models.heads`."""
    poolings: ClassVar[tuple[str, ...]] = ("cls", "mean")
    """The poolings that the model supports; the first one is the default."""
    trains_new_head: ClassVar[bool] = True
    """Whether the model predicts at random before training; otherwise it is evaluated then, too."""
    reads_head: ClassVar[bool] = False
    """Whether a checkpoint's own head or pooler is trained further."""
    epochs: ClassVar[int] = 3
    """The default number of epochs for a training set of usual size."""
    few_steps: ClassVar[int] = 100
    """The number of steps for which few examples are repeated by default."""
    dropout: ClassVar[float | None] = None
    """The default dropout rate. Default: the checkpoint's."""
    refused_settings: ClassVar[Mapping[str, str]] = {}
    """Fields of `LossConfig` that the task does not support, and why: "is about labels, …"."""
    vector_settings: ClassVar[tuple[str, ...]] = ()
    """Fields of `VectorConfig` that the task supports."""

    def model_class(self) -> "type[PretrainedModel]":
        """The Keras model that computes the logits, built from a config with `num_labels`."""
        # Imported when called: prediction with an ONNX graph must not load Keras.
        from roformer_tf.models import heads

        model: type[PretrainedModel] = getattr(heads, self.model_name)
        return model

    def source_class(self) -> "type[PretrainedModel]":
        """The Keras model whose weights are read from a checkpoint, which may hold more."""
        from roformer_tf.models.encoder import RoFormerEncoder

        return self.model_class() if self.reads_head else RoFormerEncoder

    def choose_pooling(self, checkpoint: "Checkpoint", source: "OpenedSource") -> str:
        """The pooling if the user sets none; `checkpoint` is the one in `source`.

        Raises InputError where the source contradicts itself.
        """
        return self.poolings[0]

    def first_weights(self, train: Examples) -> dict[str, np.ndarray]:
        """Weights of a new model, by name, that are known before any training on the examples."""
        return {}

    # Not abstract: tasks with separately encoded texts have neither.
    losses: ClassVar[Callable[..., Tensor]]
    """Of targets, logits (B, C) or (B, T, C), a `LossConfig` and class weights: (B,) or (B, T).

    Tasks with separately encoded texts have `batch_loss` instead."""
    divergence: ClassVar[Callable[..., Tensor]]
    """KL(p‖q) + KL(q‖p) of the distributions of two logits, in the shape of `losses`, for
    R-Drop."""
    soft_losses: ClassVar[Callable[..., Tensor] | None] = None
    """Of a teacher's logits and the model's: the divergence, in the shape of `losses`. None if the
    task has no teacher."""

    def taught_losses(self, targets: Tensor, logits: Tensor, *settings: Any) -> Tensor:
        """Losses for targets as in `Labelling.with_soft_targets`; settings as in `losses`.

        Here these are the usual targets, a teacher's logits and the weight of the divergence, along
        the last axis.
        """
        last = logits.shape[-1] + 1
        losses = self.losses(targets[..., :-last], logits, *settings)
        assert self.soft_losses is not None
        return mixed(losses, self.soft_losses(targets[..., -last:-1], logits), targets[..., -1])

    def class_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Weights by which a rare label counts for as much as a frequent one: float64 (C,).

        n / (C · count) of each label in targets of any shape. Their mean over all labels in the
        data is 1. A label without examples gets n / C, unused.
        """
        numbers = np.concatenate([np.ravel(target) for target in targets])
        counts = np.bincount(numbers, minlength=self.task.outputs)
        return len(numbers) / (self.task.outputs * np.maximum(counts, 1))

    @property
    def pair_classes(self) -> int:
        """Classes of a classifier of two vectors, which only training needs; 0 for none."""
        return 0

    def batch_loss(self, targets: Tensor, outputs: Any, weights: Tensor, inputs: Any) -> Tensor:
        """The loss of all vectors of a batch, if texts are separately encoded: a scalar float32.

        targets (B, …), outputs (B, S, H) vectors, weights (B,), and the inputs of the batch. With
        `pair_classes`, outputs are the logits of a dense layer over `classifier_features`.
        """
        raise NotImplementedError(f"{type(self).__name__} has a loss for each sequence")

    def with_vector_settings(self, config: VectorConfig, teacher: str | None) -> Any:
        """The task with these settings. Raises InputError if they do not suit it."""
        return self.task


class SoftmaxObjective(TrainingObjective):
    """One of C labels for each sequence or token."""

    losses = staticmethod(softmax_losses)
    divergence = staticmethod(softmax_divergence)
    soft_losses = staticmethod(softmax_distillation)


class SigmoidObjective(TrainingObjective):
    """Yes or no for each of C logits."""

    # Class attributes that are functions need `staticmethod`, or they would be bound to the part.
    losses = staticmethod(sigmoid_losses)
    divergence = staticmethod(sigmoid_divergence)
    soft_losses = staticmethod(sigmoid_distillation)

    def class_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Of each label's 0 and 1 in targets (C,): float64 (C, 2)."""
        ones = np.sum(targets, axis=0)  # (C,)
        counts = np.stack([len(targets) - ones, ones], axis=-1)
        return len(targets) / (2 * np.maximum(counts, 1))
