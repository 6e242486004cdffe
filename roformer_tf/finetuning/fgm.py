"""FGM: a model is trained on its batches, and again with its word embeddings attacked."""

from typing import Any

import keras
from keras import ops

from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.training.training_model import TrainingModel, tensorflow_gradients


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
