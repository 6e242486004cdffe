"""Training by a loss of a whole batch's vectors, which may be computed in micro-batches.

A batch's vectors depend on each other in the loss alone. So a batch larger than memory is computed
twice (gradient caching, arXiv 2101.06983): once in pieces for its vectors, of which the loss gives
gradients, and once more, piece by piece and with the same dropout, to carry these to the weights.
The gradient is that of the whole batch.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import classifier_features
from roformer_tf.training.training_model import TrainingModel


class BatchTraining(TrainingModel):
    """A model whose `fit` minimises a task's loss of a whole batch: `Objective.batch_loss`."""

    def __init__(self, model: PretrainedModel, task: Task) -> None:
        super().__init__(model, "batches")
        self.task = task
        self.classifier: layers.Dense | None = None
        if classes := task.objective.pair_classes:
            self.classifier = layers.Dense(
                classes, use_bias=False, name="pair_classifier", dtype="float32"
            )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make the classifier's weights; the model has its own."""
        if self.classifier is not None:
            self.classifier.build((None, 3 * self.config.hidden_size))

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        """The task's loss of the whole batch, a scalar."""
        weights = ops.cast(sample_weight, "float32")
        if self.classifier is not None:
            y_pred = self.classifier(classifier_features(y_pred))
        return self.task.objective.batch_loss(y, y_pred, weights, x)


class VectorTraining(BatchTraining):
    """A model of vectors whose `fit` takes batches of examples with several sides.

    Axes: B examples, S texts of an example, H features. Call: {"side_0": (B, T0), "side_1":
    (B, T1), …} token ids, a last side of K texts an example as (B, K, T) → vectors (B, S, H). A
    side of D texts that several examples share comes with "place_1" (B,): the text of each example.
    With `pieces` above 1 so many parts of a batch are encoded one after the other. A classifier
    that the task trains as well is not saved.
    """

    def __init__(self, model: PretrainedModel, task: Task, pieces: int = 1) -> None:
        super().__init__(model, task)
        self.pieces = pieces

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Encode the sides, each by itself."""
        sides = []
        for name in sorted(name for name in inputs if name.startswith("side_")):
            vectors = self._encode(inputs[name], training)
            place = inputs.get(name.replace("side", "place"))
            sides.append(vectors if place is None else ops.take(vectors, place, axis=0))
        return ops.concatenate(sides, axis=1)

    def _encode(self, token_ids: Tensor, training: bool | None) -> Tensor:
        """(B, T) or (B, K, T) → (B, 1 or K, H)."""
        rows = ops.reshape(token_ids, (-1, ops.shape(token_ids)[-1]))
        vectors = self.model({"token_ids": rows}, training=training)
        count = ops.shape(token_ids)[0]
        return ops.reshape(vectors, (count, -1, self.config.hidden_size))

    def train_step(self, *arguments: Any) -> Any:
        """Take a step: of (data,) on TensorFlow, of (state, data) on JAX."""
        if self.pieces == 1:
            return super().train_step(*arguments)
        if keras.backend.backend() == "tensorflow":
            return self._tensorflow_step(*arguments)
        return self._jax_step(*arguments)

    def _tensorflow_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        pieces = keras.tree.map_structure(self._in_pieces, x)
        random_states = [ops.copy(variable) for variable in self.non_trainable_variables]
        found = tf.map_fn(
            lambda piece: self(piece, training=True),
            pieces,
            parallel_iterations=1,  # else several pieces would be in memory
            fn_output_signature=tf.TensorSpec((None, None, self.config.hidden_size), "float32"),
        )
        variables = self.trainable_variables
        weights_of = [variable.value for variable in variables]  # perhaps none is in the loss
        vectors = _whole(found)
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss = self.compute_loss(x, y, vectors, weights)
        slopes, *above = tape.gradient(loss, [vectors, *weights_of], unconnected_gradients="zero")
        slopes = self._in_pieces(slopes)
        # The same random states give the second pass the dropout of the first.
        for variable, state in zip(self.non_trainable_variables, random_states, strict=True):
            variable.assign(state)

        def add(number: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
            piece = keras.tree.map_structure(lambda array: array[number], pieces)
            with tf.GradientTape() as tape:
                again = self(piece, training=True)
            gradients = tape.gradient(
                again,
                weights_of,
                output_gradients=slopes[number],
                unconnected_gradients="zero",
            )
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            return number + 1, [a + b for a, b in zip(sums, dense, strict=True)]

        _, gradients = tf.while_loop(
            lambda number, _: number < self.pieces,
            add,
            (tf.constant(0), [tf.convert_to_tensor(gradient) for gradient in above]),
            parallel_iterations=1,
            maximum_iterations=self.pieces,
        )
        self.optimizer.apply(gradients, variables)
        self.metrics[0].update_state(loss)
        return self.compute_metrics(x, y, vectors, weights)

    def _jax_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        import jax

        weights, others, slots, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        pieces = keras.tree.map_structure(self._in_pieces, x)

        def encode(others: Any, piece: Any) -> tuple[Any, Any]:
            vectors, others = self.stateless_call(weights, others, piece, training=True)
            return others, vectors

        after, found = jax.lax.scan(encode, others, pieces)
        vectors = _whole(found)

        def loss_of(weights: Any, vectors: Any) -> Any:
            loss, _ = self.stateless_compute_loss(
                weights,
                others,
                metrics,
                x=x,
                y=y,
                y_pred=vectors,
                sample_weight=sample_weight,
                training=True,
            )
            return loss

        loss, (above, slopes) = jax.value_and_grad(loss_of, argnums=(0, 1))(weights, vectors)

        def add(carried: Any, piece: Any) -> tuple[Any, None]:
            sums, others = carried  # from the random states of the first pass on: its dropout again
            rows, slope = piece
            outputs, pull, others = jax.vjp(
                lambda weights: self.stateless_call(weights, others, rows, training=True),
                weights,
                has_aux=True,
            )
            (gradients,) = pull(slope.astype(outputs.dtype))
            return ([a + b for a, b in zip(sums, gradients, strict=True)], others), None

        (gradients, _), _ = jax.lax.scan(add, (above, others), (pieces, self._in_pieces(slopes)))
        new_weights, new_slots = self.optimizer.stateless_apply(slots, gradients, weights)
        mapping = list(zip(self.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            tracker = self.metrics[0]
            tracker.update_state(loss)
            logs = {tracker.name: tracker.result()}
        counted = [
            old if (new := scope.get_current_value(variable)) is None else new
            for variable, old in mapping
        ]
        return logs, (new_weights, after, new_slots, counted)

    def _in_pieces(self, array: Tensor) -> Tensor:
        """(B, …) → (pieces, B / pieces, …): each has rows of every device's part of the batch."""
        shape = ops.shape(array)
        return ops.moveaxis(ops.reshape(array, (-1, self.pieces, *shape[1:])), 1, 0)


def _whole(pieces: Tensor) -> Tensor:
    """(pieces, B / pieces, …) → (B, …), in the order of the batch."""
    shape = ops.shape(pieces)
    return ops.reshape(ops.moveaxis(pieces, 0, 1), (-1, *shape[2:]))


def check_pieces(batch_size: int, pieces: int) -> None:
    """Raise InputError unless all pieces have the same size."""
    if batch_size % pieces:
        raise InputError(
            f"a batch of {batch_size} cannot be divided into {pieces} pieces of one size. Give a "
            f"--batch-size that is a multiple of {pieces}, or other --pieces."
        )
