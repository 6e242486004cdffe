"""What fine-tuning minimises: the loss of each task, R-Drop, and embeddings attacked (FGM)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.labelled.task import Task
from roformer_tf.layers.rotary import Tensor
from roformer_tf.models.pretrained import PretrainedModel


@dataclass(frozen=True)
class ObjectiveConfig:
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


Likelihood = Literal["softmax", "sigmoid", "normal"]
LIKELIHOODS: dict[str, Likelihood] = {
    "classification": "softmax",
    "pair": "softmax",
    "tagging": "softmax",
    "multilabel": "sigmoid",
    "ranking": "sigmoid",
    "regression": "normal",
}
"""How a task reads its logits: one label of C, C times yes or no, or the mean of a number."""


def make_loss(task: Task, config: ObjectiveConfig, targets: Sequence[np.ndarray]) -> "TaskLoss":
    """The loss of a task; `targets`, which balanced weights are counted in, are `Task.target`s.

    Raises InputError for a setting that the task has no use for.
    """
    check_objective(task, config)
    balanced = config.class_weights == "balanced"
    return TaskLoss(
        LIKELIHOODS[task.name],
        label_smoothing=config.label_smoothing,
        focal=config.focal,
        r_drop=config.r_drop,
        class_weights=balanced_weights(task, targets).tolist() if balanced else None,
    )


def balanced_weights(task: Task, targets: Sequence[np.ndarray]) -> np.ndarray:
    """n / (C · count) of each label, float64 (C,); for multilabel of its 0 and its 1, (C, 2).

    Over all targets they average to 1. A label that no target has gets n / C, and never needs it.
    """
    if task.name == "multilabel":
        ones = np.sum(targets, axis=0)  # (C,)
        counts = np.stack([len(targets) - ones, ones], axis=-1)
        return len(targets) / (2 * np.maximum(counts, 1))
    labels = np.concatenate([np.ravel(target) for target in targets])
    counts = np.bincount(labels, minlength=task.outputs)
    return len(labels) / (task.outputs * np.maximum(counts, 1))


@keras.saving.register_keras_serializable(package="roformer_tf")
class TaskLoss(keras.losses.Loss):
    """The mean of a task's losses over the weights of the whole batch, float32.

    Axes: B rows, T tokens, C labels. Call: targets, logits, sample_weight → scalar
    Σ weight · loss / Σ weight.

    | likelihood | targets | logits | weights | loss |
    | --- | --- | --- | --- | --- |
    | softmax | (B,) or (B, T) int | (B, C) or (B, T, C) | as targets | cross-entropy |
    | sigmoid | (B, C) of 0 and 1 | (B, C) | (B,) | cross-entropy, mean over the C |
    | normal | (B, 1) | (B, 1) | (B,) | squared error |

    Class weights multiply losses and do not enter the sum below the line, so that a batch of
    frequent labels alone moves less. With `r_drop` the rows must come twice, (x, x), and

        loss = ½ (CE₁ + CE₂) + r_drop / 4 · (KL(p₁‖p₂) + KL(p₂‖p₁))

    which is half of arXiv 2106.14448's equation 4: that adds the two cross-entropies.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        *,
        label_smoothing: float = 0.0,
        focal: float = 0.0,
        r_drop: float = 0.0,
        class_weights: list[Any] | None = None,
        name: str = "task_loss",
        dtype: Any = "float32",
    ) -> None:
        super().__init__(name=name, reduction="sum", dtype=dtype)
        self.likelihood, self.r_drop = likelihood, r_drop
        self.label_smoothing, self.focal = label_smoothing, focal
        self.class_weights = class_weights

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
        losses = self._without_r_drop(y_true, logits)
        if not self.r_drop:
            return losses
        half = ops.shape(logits)[0] // 2
        apart = divergence(logits[:half], logits[half:], self.likelihood)
        return losses + self.r_drop / 4 * ops.concatenate([apart, apart])

    def _without_r_drop(self, targets: Tensor, logits: Tensor) -> Tensor:
        if self.likelihood == "normal":
            return ops.mean(ops.square(ops.cast(targets, "float32") - logits), axis=-1)
        losses = softmax_losses if self.likelihood == "softmax" else sigmoid_losses
        return losses(targets, logits, self.label_smoothing, self.focal, self.class_weights)

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the loss again."""
        names = ("likelihood", "label_smoothing", "focal", "r_drop", "class_weights", "name")
        return {name: getattr(self, name) for name in names}


def softmax_losses(
    labels: Tensor,
    logits: Tensor,
    smoothing: float = 0.0,
    focal: float = 0.0,
    class_weights: list[Any] | None = None,
) -> Tensor:
    """Cross-entropy of labels (…) int and logits (…, C) float32: (…).

    The focal loss multiplies it by (1 − p)^focal, for p the label's probability
    (arXiv 1708.02002); here by way of log (1 − p), since a root's gradient at 0 is infinite.
    """
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
    targets: Tensor,
    logits: Tensor,
    smoothing: float = 0.0,
    focal: float = 0.0,
    class_weights: list[Any] | None = None,
) -> Tensor:
    """Cross-entropy of targets 0 and 1 (…, C) and logits (…, C) float32, mean over the C: (…).

    Smoothing moves a target towards ½; `class_weights` (C, 2) are of each label's 0 and 1.
    """
    targets = ops.cast(targets, "float32")
    wanted = (1 - smoothing) * targets + smoothing / 2
    losses = ops.binary_crossentropy(wanted, logits, from_logits=True)
    if focal:
        losses = losses * ops.exp(focal * ops.log_sigmoid((1 - 2 * targets) * logits))
    if class_weights is not None:
        weights = ops.array(class_weights, "float32")
        losses = losses * (weights[:, 0] + (weights[:, 1] - weights[:, 0]) * targets)
    return ops.mean(losses, axis=-1)


FAR_BELOW = -1e30
"""A logit of no probability."""


def divergence(logits: Tensor, others: Tensor, likelihood: Likelihood) -> Tensor:
    """KL(p‖q) + KL(q‖p) of what two logits (…, C) float32 mean: (…).

    Both logs' sums over C cancel: Σ (p − q)(log p − log q) = Σ (p − q)(logits − others).
    A number's squared error is the log-likelihood of a normal distribution of variance ½, of
    which two are 2 · difference² apart. Sigmoids are averaged over C, as their losses are.
    """
    apart = logits - others
    if likelihood == "softmax":
        return ops.sum((ops.softmax(logits) - ops.softmax(others)) * apart, axis=-1)
    if likelihood == "sigmoid":
        return ops.mean((ops.sigmoid(logits) - ops.sigmoid(others)) * apart, axis=-1)
    return 2 * ops.mean(ops.square(apart), axis=-1)


def trainable(model: PretrainedModel, config: ObjectiveConfig) -> PretrainedModel:
    """What to compile and fit: the model, or with FGM a wrapper that holds the same weights."""
    return AdversarialModel(model, config.fgm) if config.fgm else model


class AdversarialModel(PretrainedModel):
    """A model that is trained on its batch and again with its word embeddings attacked (FGM).

    The gradient of a step is g(w) + g(w, E + δ), for δ = ε g_E / ‖g_E‖ over the whole table E of
    word embeddings: arXiv 1605.07725's direction, in the way that Chinese practice has it. It
    calls, saves and loads as the model does.
    """

    def __init__(self, model: PretrainedModel, epsilon: float) -> None:
        super().__init__(model.config, name=f"adversarial_{model.name}", dtype=model.dtype_policy)
        self.model, self.epsilon = model, epsilon
        self.tokenizer, self.architecture = model.tokenizer, model.architecture
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make nothing: the model has its weights."""

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The model's."""
        return self.model.parts()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Do what the model does."""
        return self.model(inputs, training=training)

    @property
    def attacked(self) -> int:
        """Place of the word embeddings among the trainable variables."""
        words = self.named_variables()["encoder/embeddings/word/embeddings"]
        return next(i for i, v in enumerate(self.trainable_variables) if v is words)

    def train_step(self, *arguments: Any) -> Any:
        """Take a step; on JAX it is Keras' own, on `compute_loss_and_updates`."""
        if keras.backend.backend() == "tensorflow":
            return self._tensorflow_step(*arguments)
        return super().train_step(*arguments)

    def _tensorflow_step(self, data: Any) -> dict[str, Any]:
        """Keras' step with a second pass, between which the embeddings are moved and put back."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        loss, y_pred, plain = self._tensorflow_gradients(x, y, weights)
        words = self.trainable_variables[self.attacked]
        unharmed = ops.copy(words)
        words.assign(words + attack(plain[self.attacked], self.epsilon))
        _, _, attacked = self._tensorflow_gradients(x, y, weights)
        words.assign(unharmed)  # which subtraction would only nearly do
        both = [a + b for a, b in zip(plain, attacked, strict=True)]
        self.optimizer.apply(both, self.trainable_variables)
        self.metrics[0].update_state(loss)
        return self.compute_metrics(x, y, y_pred, weights)

    def _tensorflow_gradients(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any, list[Any]]:
        """Loss, logits, and a dense gradient of each trainable variable."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        gradients = tape.gradient(loss, self.trainable_variables, unconnected_gradients="zero")
        return loss, y_pred, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def compute_loss_and_updates(
        self, variables: list[Any], *others: Any, training: bool = False, **kwargs: Any
    ) -> Any:
        """JAX: the loss, with the gradient of the attacked loss added to its own.

        The inner gradient's pass is the loss' own, and XLA does it once: two passes in all.
        """
        compute = super().compute_loss_and_updates
        if not training:
            return compute(variables, *others, **kwargs)
        import jax

        place, fixed = self.attacked, jax.lax.stop_gradient(variables)

        def loss_at(variables: list[Any], words: Any) -> tuple[Any, Any]:
            moved = [*variables[:place], words, *variables[place + 1 :]]
            return compute(moved, *others, training=True, **kwargs)

        gradient = jax.grad(lambda words: loss_at(fixed, words)[0])(fixed[place])
        loss, state = loss_at(variables, variables[place])
        attacked, _ = loss_at(variables, variables[place] + attack(gradient, self.epsilon))
        return loss + (attacked - jax.lax.stop_gradient(attacked)), state


def attack(gradient: Any, epsilon: float) -> Any:
    """A step of length ε along a gradient, or none along 0."""
    return epsilon * gradient / ops.maximum(ops.norm(gradient), 1e-12)


def check_objective(task: Task, config: ObjectiveConfig) -> None:
    """Raise InputError for a setting that would do nothing, or something else than it says."""
    if task.name == "regression":
        for name in ("label_smoothing", "focal", "class_weights"):
            if getattr(config, name) not in (0, "none"):
                raise InputError(
                    f"{name} is about labels, but a regression has numbers. Leave it out."
                )
    if task.name == "ranking" and config.class_weights == "balanced":
        raise InputError(
            "class_weights is balanced, but so is every ranking: of each A, B and C one pair is "
            "a 1 and one a 0. Leave it out."
        )
