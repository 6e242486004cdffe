"""A fine-tuning training before its first step: a compiled model, and what it minimises."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.finetuning.vectors import BatchTraining, VectorTraining
from roformer_tf.kernels.forms import Tensor
from roformer_tf.labelled.examples import Example
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.devices import choose_jit
from roformer_tf.training.optimizers import make_finetune_optimizer
from roformer_tf.training.training_model import (
    TrainingModel,
    WeightedMeanLoss,
    tensorflow_gradients,
)

if TYPE_CHECKING:
    from roformer_tf.finetuning.settings import FinetuneConfig


@dataclass(frozen=True)
class InitialState:
    """What every training begins with: a checkpoint's encoder and vocabulary."""

    architecture: RoFormerConfig
    # The encoder's, under the checkpoints' names; none from scratch.
    weights: dict[str, np.ndarray]
    tokenizer: RoFormerTokenizer
    # The name of a Keras dtype policy.
    precision: str

    def model(self, task: Task, train: Sequence[Example] = ()) -> PretrainedModel:
        """A model for the task: a new head on the checkpoint's encoder.

        train: examples from which the head may know how frequent labels are.
        """
        architecture = self.architecture.replace(num_labels=task.outputs, crf=task.crf)
        model = task.objective.model_class()(
            task.decoding.described_in(architecture), dtype=self.precision
        )
        variables = model.named_variables()
        # The checkpoint's weights come last: where both have a weight, it is the learned one.
        for name, array in {**task.objective.first_weights(train), **self.weights}.items():
            variables[name].assign(array)
        model.tokenizer = self.tokenizer.replaced(units=task.units)
        return model


def begin_training(
    initial: InitialState,
    task: Task,
    config: "FinetuneConfig",
    train: Sequence[Example],
    batches: int,
) -> tuple[PretrainedModel, PretrainedModel]:
    """For a training of this number of batches: the model, and what is fitted, compiled.

    That is the model itself or a wrapper with the same weights. Class weights are counted in
    `train`.
    """
    # Before the model: its head and the random states of dropout depend on the seed.
    keras.utils.set_random_seed(config.seed)
    # With balanced weights all labels count as if they were equally frequent.
    model = initial.model(task, () if config.loss.balanced else train)
    trained, loss = model, None
    if task.generates or task.compares:  # these compute the loss of a whole batch
        trained = BatchTraining(model, task)
    elif task.separate_texts:
        trained = VectorTraining(model, task, config.vectors.micro_batches)
    else:
        targets = [task.labelling.target(example) for example in train]
        loss = TaskLoss(task, config.loss, targets)
        if config.loss.fgm:
            trained = AdversarialModel(model, config.loss.fgm)
    optimizer = make_finetune_optimizer(config.optimizer, trained, batches)
    trained.compile(optimizer, loss, jit_compile=choose_jit())
    return model, trained


def check_loss(task: Task, config: LossConfig) -> None:
    """Raise InputError for a setting that has no effect, or not the one that its name promises."""
    # A CRF has one loss for all labels of a text: nothing is left to smooth or weight by label.
    names = ("label_smoothing", "focal", "class_weights", "r_drop", "teacher")
    with_crf = dict.fromkeys(names, "treats labels separately; --crf has one loss for all.")
    for name, why in {**task.objective.refused_settings, **(with_crf if task.crf else {})}.items():
        if getattr(config, name) not in (0, "none", None):
            raise InputError(f"--{name} {why} Remove --{name}.".replace("_", "-"))
    if config.teacher and task.objective.soft_losses is None:
        known = ", ".join(name for name, kind in TASKS.items() if kind.objective.soft_losses)
        raise InputError(
            f"the task {task.name} does not learn from a teacher; {known} do. Remove --teacher."
        )


class TaskLoss(WeightedMeanLoss):
    """The mean of a task's losses over the weights of the whole batch, float32.

    Axes: B sequences, T tokens, C labels. Call: targets, logits, sample_weight → scalar
    Σ weight · loss / Σ weight. Weights (B,), or (B, T) where each token has a loss.

    Class weights multiply losses and are not part of the denominator. So a batch with frequent
    labels only gives a smaller gradient. With `r_drop` the sequences must come twice, (x, x), and

        loss = ½ (CE₁ + CE₂) + r_drop / 4 · (KL(p₁‖p₂) + KL(p₂‖p₁))

    which is half of equation 4 in arXiv 2106.14448: that adds the two cross-entropies.

    With a conditional random field the model returns the losses of its tokens instead of logits.
    With a teacher, targets also hold what it predicts and a weight w: see
    `TrainingObjective.taught_losses`. Then

        loss = (1 − w) · the task's loss + w · T² · KL(teacher‖model) at the temperature T

    or, for spans, the loss of the teacher's spans in place of the divergence.
    """

    def __init__(self, task: Task, config: LossConfig, targets: Sequence[np.ndarray] = ()) -> None:
        """targets: one for each training example; balanced class weights are counted in them."""
        super().__init__("task_loss")
        self.task, self.config = task, config
        self.class_weights = task.objective.class_weights(targets) if config.balanced else None

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each sequence (B,) or token (B, T)."""
        logits = ops.cast(y_pred, "float32")
        if self.task.crf:
            return logits
        objective = self.task.objective
        compute = objective.taught_losses if self.config.teacher else objective.losses
        losses = compute(y_true, logits, self.config, self.class_weights)
        if not self.config.r_drop:
            return losses
        # (B/2, …) each: the second half has the same sequences under another dropout.
        half = ops.shape(logits)[0] // 2
        divergence = objective.divergence(logits[:half], logits[half:])
        return losses + self.config.r_drop / 4 * ops.concatenate([divergence, divergence])


class AdversarialModel(TrainingModel):
    """A model that is trained on its batch and again with its word embeddings attacked (FGM).

    The gradient of a step is g(w) + g(w, E + δ), for δ = ε g_E / ‖g_E‖ over the whole table E of
    word embeddings: arXiv 1605.07725's direction, as it is usual for Chinese BERT models.
    """

    def __init__(self, model: PretrainedModel, epsilon: float) -> None:
        super().__init__(model, "adversarial")
        self.epsilon = epsilon
        self.build()

    @property
    def attacked(self) -> int:
        """Index of the word embeddings among the trainable variables."""
        words = self.named_variables()["encoder/embeddings/word/embeddings"]
        return next(i for i, v in enumerate(self.trainable_variables) if v is words)

    def train_step(self, *arguments: Any) -> Any:
        """Take a step; on JAX it is Keras' own, on `compute_loss_and_updates`."""
        if keras.backend.backend() == "tensorflow":
            return self._tensorflow_step(*arguments)
        return super().train_step(*arguments)

    def _tensorflow_step(self, data: Any) -> dict[str, Any]:
        """Keras' step, and a second pass with moved embeddings, which are then restored."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        loss, y_pred, plain = self._tensorflow_pass(x, y, weights)
        words = self.trainable_variables[self.attacked]
        original = ops.copy(words)
        words.assign(words + attack(plain[self.attacked], self.epsilon))
        _, _, attacked = self._tensorflow_pass(x, y, weights)
        words.assign(original)  # exactly, which a subtraction would not
        both = [a + b for a, b in zip(plain, attacked, strict=True)]
        self.optimizer.apply(both, self.trainable_variables)
        self.metrics[0].update_state(loss)
        return self.compute_metrics(x, y, y_pred, weights)

    def _tensorflow_pass(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any, list[Any]]:
        """Loss, logits, and the gradient of each trainable variable."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        return loss, y_pred, tensorflow_gradients(tape, loss, self.trainable_variables)

    def compute_loss_and_updates(
        self, variables: list[Any], *states: Any, training: bool = False, **kwargs: Any
    ) -> Any:
        """JAX: the loss, with the gradient of the attacked loss added to its own.

        The inner gradient needs the same forward pass as the loss. XLA computes it once, so a step
        has two passes in all.
        """
        compute = super().compute_loss_and_updates
        if not training:
            return compute(variables, *states, **kwargs)
        import jax

        # The attack is a constant of the loss: `stop_gradient` saves its second derivatives.
        index, fixed = self.attacked, jax.lax.stop_gradient(variables)

        def loss_at(variables: list[Any], words: Any) -> tuple[Any, Any]:
            moved = [*variables[:index], words, *variables[index + 1 :]]
            return compute(moved, *states, training=True, **kwargs)

        gradient = jax.grad(lambda words: loss_at(fixed, words)[0])(fixed[index])
        loss, state = loss_at(variables, variables[index])
        attacked, _ = loss_at(variables, variables[index] + attack(gradient, self.epsilon))
        # The value is the plain loss, the gradient that of both.
        return loss + (attacked - jax.lax.stop_gradient(attacked)), state


def attack(gradient: Any, epsilon: float) -> Any:
    """A step of length ε along a gradient, or none along 0."""
    return epsilon * gradient / ops.maximum(ops.norm(gradient), 1e-12)
