"""One step of pretraining: a batch in pieces, one clipped gradient, skipped where it is bad."""

import math
import time
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.pretraining.settings import StepConfig
from roformer_tf.training.training_model import TrainingModel, WeightedMeanLoss

# The loss


@keras.saving.register_keras_serializable(package="roformer_tf")
class MaskedTokenLoss(WeightedMeanLoss):
    """Cross-entropy averaged over the predicted tokens of the whole batch, in nats.

    Call: labels (B, P) int, logits (B, P, V) float32 or, as the model gives them where its inputs
    hold the labels, losses (B, P), sample_weight (B, P), 0 for a slot without a prediction
    → scalar Σ weight · cross-entropy / Σ weight.
    """

    least_weight = 1.0

    def __init__(self, name: str = "masked_token_loss", dtype: Any = "float32") -> None:
        super().__init__(name, dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Cross-entropy of each slot: (B, P) float32."""
        if len(y_pred.shape) == len(y_true.shape):
            return y_pred
        return ops.sparse_categorical_crossentropy(
            ops.cast(y_true, "int32"), ops.cast(y_pred, "float32"), from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the loss again."""
        return {"name": self.name}


SETTLED = 100
"""Good steps after which the usual loss is known; it is a mean over about as many."""


class PretrainingModel(TrainingModel):
    """A language model, masked or causal, whose `fit` takes the steps of pretraining.

    Inputs hold the labels, so that the model gives losses. A step's loss is summed over the tokens
    that the batch predicts and divided once by their number, however many pieces and devices the
    batch is spread over; the gradient is clipped by its global norm. Where the loss or the norm is
    not finite, or the loss is a spike, weights and optimizer stay as they are, but the step counts.
    `fit` logs `loss` (mean over the good steps since the metrics' reset), `gradient_norm` (of this
    step, before it is clipped) and `skipped` (steps skipped in a row, up to this one).
    """

    def __init__(self, model: PretrainedModel, config: StepConfig) -> None:
        super().__init__(model, "pretraining")
        self.step_config = config
        self.waited = 0.0
        """Seconds that steps have waited for their batches."""
        self.train_function: Callable[..., Any] | None
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make what is remembered of the steps; the model has its weights."""
        usual, count, row = (
            self.add_weight(
                (),
                initializer="zeros",
                dtype="float32",  # bfloat16 would count no further than 256
                trainable=False,
                autocast=False,
                name=name,
            )
            for name in ("usual_loss", "good_steps", "skipped")
        )
        self.usual_loss, self.good_steps, self.skipped = usual, count, row

    def compile(self, optimizer: keras.optimizers.Optimizer, *others: Any, **settings: Any) -> None:
        """Take the clipping over from the optimizer, since the norm is needed here."""
        self.clip_norm: float = optimizer.global_clipnorm or math.inf
        optimizer.global_clipnorm = None
        super().compile(optimizer, *others, **settings)

    def forget_usual_loss(self) -> None:
        """Learn anew which losses are usual, as when rows of another length begin."""
        for variable in (self.usual_loss, self.good_steps, self.skipped):
            variable.assign(0.0)

    def make_train_function(self, force: bool = False) -> None:
        """Make Keras' own, which then also takes the time that it waits for a batch."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        step = self.train_function
        assert step is not None

        def timed(*arguments: Any) -> Any:  # batches alone; on JAX, the state before them
            *state, batches = arguments
            began = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - began
            return step(*state, iter((batch,)))

        self.train_function = timed

    def train_step(self, *arguments: Any) -> Any:
        """Take a step: of (data,) on TensorFlow, of (state, data) on JAX."""
        if keras.backend.backend() == "tensorflow":
            return self._tensorflow_step(*arguments)
        return self._jax_step(*arguments)

    def _tensorflow_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        loss, gradients = self._tensorflow_gradients(*_normalized(data))
        norm = tf.linalg.global_norm([tf.cast(x, "float32") for x in gradients])
        good, logs = self._judged(loss, norm)
        alike = tf.cast(norm, gradients[0].dtype)
        clipped, _ = tf.clip_by_global_norm(gradients, self.clip_norm, use_norm=alike)

        def take() -> Any:
            self.optimizer.apply(clipped, self.trainable_variables)
            return tf.constant(True)

        def skip() -> Any:
            self.optimizer.iterations.assign_add(1)
            return tf.constant(False)

        tf.cond(good, take, skip)
        return logs

    def _tensorflow_gradients(self, x: Any, y: Any, weights: Any) -> tuple[Any, list[Any]]:
        """The batch's loss and gradients; of several pieces only one is in memory at a time."""
        import tensorflow as tf

        def gradients_of(x: Any, y: Any, weights: Any) -> tuple[Any, list[Any]]:
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True), weights)
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
            return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]  # dense ones

        count = self.step_config.accumulate
        if count == 1:
            return gradients_of(x, y, weights)
        pieces = keras.tree.map_structure(lambda array: _pieces(array, count), (x, y, weights))

        def add(number: Any, loss: Any, sums: list[Any]) -> tuple[Any, Any, list[Any]]:
            piece = keras.tree.map_structure(lambda array: array[number], pieces)
            more, gradients = gradients_of(*piece)
            return number + 1, loss + more, [a + b for a, b in zip(sums, gradients, strict=True)]

        nothing = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        start = (tf.constant(0), tf.constant(0.0), nothing)
        _, loss, gradients = tf.while_loop(
            lambda number, *_: number < count,
            add,
            start,
            parallel_iterations=1,  # else pieces would share the memory again
            maximum_iterations=count,
        )
        return loss, gradients

    def _jax_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        weights, others, slots, metrics = state
        loss, gradients, others = self._jax_gradients(state, _normalized(data))
        norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(x, "float32"))) for x in gradients))
        remembered = [*self.non_trainable_variables, *self.metrics_variables]
        mapping = list(zip(remembered, [*others, *metrics], strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            good, logs = self._judged(loss, norm)
        counted = [
            value if new is None else new
            for new, (_, value) in zip(
                map(scope.get_current_value, remembered), mapping, strict=True
            )
        ]
        scale = ops.minimum(1.0, self.clip_norm / norm)
        clipped = [gradient * ops.cast(scale, gradient.dtype) for gradient in gradients]
        new_weights, new_slots = self.optimizer.stateless_apply(slots, clipped, weights)
        stepped = [variable is self.optimizer.iterations for variable in self.optimizer.variables]

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return ops.where(good, new, old)

        return logs, (
            [chosen(*pair) for pair in zip(new_weights, weights, strict=True)],
            counted[: len(others)],
            [
                new if always else chosen(new, old)
                for always, new, old in zip(stepped, new_slots, slots, strict=True)
            ],
            counted[len(others) :],
        )

    def _jax_gradients(self, state: Any, batch: Any) -> tuple[Any, list[Any], list[Any]]:
        """The batch's loss and gradients, and what dropout's random states have become."""
        import jax

        weights, others, slots, metrics = state

        def gradients_of(others: list[Any], piece: Any) -> tuple[Any, list[Any], list[Any]]:
            (loss, seen), gradients = jax.value_and_grad(
                self.compute_loss_and_updates, has_aux=True
            )(weights, others, metrics, *piece, training=True, optimizer_variables=slots)
            return loss, gradients, seen[2]

        count = self.step_config.accumulate
        if count == 1:
            return gradients_of(others, batch)

        def add(sums: Any, piece: Any) -> tuple[Any, None]:
            loss, gradients, others = sums
            more, new, others = gradients_of(others, piece)
            added = [a + b for a, b in zip(gradients, new, strict=True)]
            return (loss + more, added, others), None

        pieces = jax.tree.map(lambda array: _pieces(array, count), batch)
        start = (jax.numpy.zeros(()), [jax.numpy.zeros_like(v) for v in weights], others)
        sums, _ = jax.lax.scan(add, start, pieces)
        return sums

    def _judged(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Whether to take the step; remember it, and give what `fit` logs."""
        usual, count = (
            ops.convert_to_tensor(self.usual_loss),
            ops.convert_to_tensor(self.good_steps),
        )
        limit = ops.where(count < SETTLED, float("inf"), self.step_config.spike_factor * usual)
        good = ops.isfinite(loss) & ops.isfinite(norm) & (loss <= limit)
        one = ops.cast(good, "float32")
        kept = ops.where(good, loss, 0.0)
        fresh = one / ops.minimum(count + 1, float(SETTLED))
        self.usual_loss.assign(usual + fresh * (kept - usual))
        self.good_steps.assign(count + one)
        skipped = (1 - one) * (ops.convert_to_tensor(self.skipped) + 1)
        self.skipped.assign(skipped)
        tracker = self.metrics[0]
        tracker.update_state(kept, sample_weight=one)
        return good, {"loss": tracker.result(), "gradient_norm": norm, "skipped": skipped}


def _normalized(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, labels and weights of a batch, the weights divided by their sum.

    So the loss is divided once, by what the whole batch predicts: `MaskedTokenLoss` divides the
    pieces' by no less than 1, which is no sum of theirs.
    """
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    weights = ops.cast(weights, "float32")
    return x, y, weights / ops.maximum(ops.sum(weights), 1.0)


def _pieces(array: Tensor, count: int) -> Tensor:
    """(B, …) → (count, B / count, …): every piece has rows of each device's part of the batch."""
    return ops.moveaxis(ops.reshape(array, (-1, count, *array.shape[1:])), 1, 0)
