"""One step of pretraining: micro-batches, one clipped gradient, and steps that are skipped."""

import math
import time
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.pretraining.settings import StepConfig
from roformer_tf.training.training_model import (
    TrainingModel,
    WeightedMeanLoss,
    micro_batches,
    tensorflow_gradients,
    tensorflow_sums,
)


@keras.saving.register_keras_serializable(package="roformer_tf")
class MaskedTokenLoss(WeightedMeanLoss):
    """Cross-entropy averaged over the predicted tokens of the whole batch, in nats.

    Call: labels (B, P) int, logits (B, P, V) float32, sample_weight (B, P), 0 for a slot without a
    prediction → scalar Σ weight · cross-entropy / Σ weight. A model whose inputs contain the labels
    gives losses (B, P) instead of logits.
    """

    # `_normalized` has divided the weights, so those of a batch sum to 1, and those of a
    # micro-batch to less: with 1 as the divisor, the losses of micro-batches add up to that of the
    # batch.
    least_weight = 1.0

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Cross-entropy of each slot: (B, P) float32."""
        if len(y_pred.shape) == len(y_true.shape):
            return y_pred
        return ops.sparse_categorical_crossentropy(
            ops.cast(y_true, "int32"), ops.cast(y_pred, "float32"), from_logits=True
        )


# Good steps after which the usual loss is known; it is a mean over about this number of steps.
SETTLED = 100


class PretrainingModel(TrainingModel):
    """A language model, masked or causal, whose `fit` takes the steps of pretraining.

    Inputs contain the labels, so that the model gives losses. A step's loss is summed over the
    predicted tokens and divided once by their number, whatever the number of micro-batches and
    devices. The gradient is clipped by its global norm. If the loss or the norm is not finite, or
    the loss is a spike, weights and optimizer do not change, but the step counts.
    `fit` logs `loss` (mean over the good steps since the metrics' reset), `gradient_norm` (of this
    step, before it is clipped) and `skipped` (steps skipped in a row, up to this one).
    """

    def __init__(self, model: PretrainedModel, config: StepConfig) -> None:
        super().__init__(model, "pretraining")
        self.step_config = config
        # Seconds in which steps waited for their batches.
        self.waited = 0.0
        self.train_function: Callable[..., Any] | None
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Create the state of skipping; the model has its weights."""
        self.usual_loss, self.good_steps, self.skipped = (
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

    def compile(self, optimizer: keras.optimizers.Optimizer, *rest: Any, **settings: Any) -> None:
        """Take the clipping over from the optimizer, since the norm is needed here."""
        self.clip_norm: float = optimizer.global_clipnorm or math.inf
        optimizer.global_clipnorm = None
        super().compile(optimizer, *rest, **settings)

    def forget_usual_loss(self) -> None:
        """Start again to learn which losses are usual, as for sequences of another length."""
        for variable in (self.usual_loss, self.good_steps, self.skipped):
            variable.assign(0.0)

    def make_train_function(self, force: bool = False) -> None:
        """Keras' own, which then also measures the time that it waits for a batch."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        step = self.train_function
        assert step is not None

        def timed(*arguments: Any) -> Any:  # batches alone; on JAX, the state before them
            *state, batches = arguments
            began = time.perf_counter()
            # Keras passes an iterator, from which its step would take the batch. Here it is taken
            # first, and the step gets an iterator over this batch alone.
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

        loss, *gradients = self._tensorflow_gradients(*_normalized(data))
        norm = tf.linalg.global_norm([tf.cast(x, "float32") for x in gradients])
        good, logs = self._check(loss, norm)
        same_dtype = tf.cast(norm, gradients[0].dtype)
        # NaN if the norm is not finite, but such a step is skipped.
        clipped, _ = tf.clip_by_global_norm(gradients, self.clip_norm, use_norm=same_dtype)

        # A branch of the graph: a skipped step must not touch the optimizer's slots.
        def take() -> Any:
            self.optimizer.apply(clipped, self.trainable_variables)
            return tf.constant(True)

        def skip() -> Any:
            self.optimizer.iterations.assign_add(1)
            return tf.constant(False)

        tf.cond(good, take, skip)
        return logs

    def _tensorflow_gradients(self, x: Any, y: Any, weights: Any) -> list[Any]:
        """The batch's loss, then its gradients, with one micro-batch in memory at a time."""
        import tensorflow as tf

        def loss_and_gradients(x: Any, y: Any, weights: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                # Keras gives it in the default float, which can be another.
                loss = ops.cast(self.compute_loss(x, y, self(x, training=True), weights), "float32")
            return [loss, *tensorflow_gradients(tape, loss, self.trainable_variables)]

        count = self.step_config.accumulate
        if count == 1:
            return loss_and_gradients(x, y, weights)
        chunks = micro_batches((x, y, weights), count)

        def of_chunk(number: Any) -> list[Any]:
            return loss_and_gradients(*keras.tree.map_structure(lambda x: x[number], chunks))

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        return tensorflow_sums(of_chunk, count, [tf.constant(0.0), *zeros])

    def _jax_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        weights, random_states, slots, metrics = state
        # `random_states` are all variables that are not trained: seeds of dropout, usual loss …
        loss, gradients, random_states = self._jax_gradients(state, _normalized(data))
        norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(x, "float32"))) for x in gradients))
        remembered = [*self.non_trainable_variables, *self.metrics_variables]
        # JAX' functions are pure. Within the scope, `_check` reads the values of `before`, and what
        # it assigns is kept in the scope.
        before = list(zip(remembered, [*random_states, *metrics], strict=True))
        with keras.StatelessScope(state_mapping=before) as scope:
            good, logs = self._check(loss, norm)
        after = [scope.get_current_value(variable) for variable in remembered]
        scale = ops.minimum(1.0, self.clip_norm / norm)
        clipped = [gradient * ops.cast(scale, gradient.dtype) for gradient in gradients]
        # Computed for a skipped step, too: `chosen` then takes the old values.
        new_weights, new_slots = self.optimizer.stateless_apply(slots, clipped, weights)

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return ops.where(good, new, old)

        # A skipped step counts for the schedule, so the number of iterations is always new.
        counts = [variable is self.optimizer.iterations for variable in self.optimizer.variables]
        return logs, (
            [chosen(*pair) for pair in zip(new_weights, weights, strict=True)],
            after[: len(random_states)],
            [
                new if always else chosen(new, old)
                for always, new, old in zip(counts, new_slots, slots, strict=True)
            ],
            after[len(random_states) :],
        )

    def _jax_gradients(self, state: Any, batch: Any) -> tuple[Any, list[Any], list[Any]]:
        """The batch's loss and gradients, and the new random states of dropout."""
        import jax

        weights, random_states, slots, metrics = state

        def gradients_of(states: list[Any], chunk: Any) -> tuple[Any, list[Any], list[Any]]:
            (loss, aux), gradients = jax.value_and_grad(
                self.compute_loss_and_updates, has_aux=True
            )(weights, states, metrics, *chunk, training=True, optimizer_variables=slots)
            # aux: the loss before scaling, predictions, non-trainable variables, metrics.
            return loss, gradients, aux[2]

        count = self.step_config.accumulate
        if count == 1:
            return gradients_of(random_states, batch)

        # The random states go from one micro-batch to the next: each has its own dropout.
        def add(sums: Any, chunk: Any) -> tuple[Any, None]:
            loss, gradients, states = sums
            more, new, states = gradients_of(states, chunk)
            added = [a + b for a, b in zip(gradients, new, strict=True)]
            return (loss + more, added, states), None

        zeros = [jax.numpy.zeros_like(v) for v in weights]
        start = (jax.numpy.zeros(()), zeros, random_states)
        sums, _ = jax.lax.scan(add, start, micro_batches(batch, count))
        return sums

    def _check(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Whether to take the step, and what `fit` logs; updates the usual loss."""
        usual, count = map(ops.convert_to_tensor, (self.usual_loss, self.good_steps))
        limit = ops.where(count < SETTLED, float("inf"), self.step_config.spike_factor * usual)
        good = ops.isfinite(loss) & ops.isfinite(norm) & (loss <= limit)
        is_good = ops.cast(good, "float32")
        # The loss of a skipped step must not enter a product: NaN · 0 is NaN.
        kept = ops.where(good, loss, 0.0)
        # A mean over all good steps at first, then an exponential one over about SETTLED of them.
        fresh = is_good / ops.minimum(count + 1, float(SETTLED))
        self.usual_loss.assign(usual + fresh * (kept - usual))
        self.good_steps.assign(count + is_good)
        skipped = (1 - is_good) * (ops.convert_to_tensor(self.skipped) + 1)
        self.skipped.assign(skipped)
        # Keras puts the tracker of `loss` first.
        tracker = self.metrics[0]
        tracker.update_state(kept, sample_weight=is_good)
        return good, {"loss": tracker.result(), "gradient_norm": norm, "skipped": skipped}


def _normalized(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, labels and weights of a batch, the weights divided by their sum.

    So the loss is divided once, by the number of predictions of the whole batch. `MaskedTokenLoss`
    divides that of a micro-batch by at least 1, which is more than its weights sum to.
    """
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    weights = ops.cast(weights, "float32")
    return x, y, weights / ops.maximum(ops.sum(weights), 1.0)
