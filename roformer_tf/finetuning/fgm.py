"""FGM: a model is trained on its batches, and again with its word embeddings attacked."""

from typing import Any

import keras
from keras import ops

from roformer_tf.models.pretrained import PretrainedModel


def trainable(model: PretrainedModel, fgm: float) -> PretrainedModel:
    """What to compile and fit: the model, or with FGM a wrapper that holds the same weights."""
    return AdversarialModel(model, fgm) if fgm else model


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

    def checked(self, inputs: Any) -> dict[str, Any]:
        """The inputs, which the model itself checks."""
        return dict(inputs)

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
