"""Training by a loss of a whole batch's vectors, which may be computed in micro-batches.

Vectors of a batch depend on each other only in the loss. So a batch that is larger than memory is
encoded twice (gradient caching, arXiv 2101.06983). The first time gives its vectors, and the loss
the gradient of each. The second time, with the same dropout, carries these to the weights. The
result is the gradient of the whole batch. JAX does that by itself, if it is to recompute a part of
the model.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.inputs import ENCODER_INPUTS
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.losses import classifier_features
from roformer_tf.training.training_model import (
    TrainingModel,
    micro_batches,
    tensorflow_gradients,
    tensorflow_sums,
)


class BatchTraining(TrainingModel):
    """A model whose `fit` minimises a task's loss of a whole batch: its `batch_loss`."""

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
        """Create the classifier's weights; the model has its own."""
        if self.classifier is not None:
            self.classifier.build((None, 3 * self.config.hidden_size))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Call the model, without the inputs that only the loss reads."""
        names = (*ENCODER_INPUTS, *self.model.further_inputs)
        taken = {name: inputs[name] for name in names if name in inputs}
        return self.model(taken, training=training)

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
    side of D texts that several examples share comes with "row_index_1" (B,): the text of each
    example. With several `micro_batches` they are encoded one after the other. A classifier that
    the task trains as well is not saved.
    """

    def __init__(self, model: PretrainedModel, task: Task, micro_batches: int = 1) -> None:
        super().__init__(model, task)
        self.micro_batches = micro_batches

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Encode the sides, each separately."""
        if training and self.micro_batches > 1 and keras.backend.backend() == "jax":
            return self._jax_vectors(inputs)
        return self._vectors(inputs, training)

    def _vectors(self, inputs: Mapping[str, Tensor], training: bool | None) -> Tensor:
        # Each side has its own length: padded together, short texts would cost as much as long.
        sides = []
        for name in sorted(name for name in inputs if name.startswith("side_")):
            vectors = self._encode(inputs[name], training)
            row_index = inputs.get(name.replace("side", "row_index"))
            sides.append(vectors if row_index is None else ops.take(vectors, row_index, axis=0))
        return ops.concatenate(sides, axis=1)

    def _encode(self, token_ids: Tensor, training: bool | None) -> Tensor:
        """(B, T) or (B, K, T) → (B, 1 or K, H)."""
        rows = ops.reshape(token_ids, (-1, ops.shape(token_ids)[-1]))
        vectors = self.model({"token_ids": rows}, training=training)
        count = ops.shape(token_ids)[0]
        return ops.reshape(vectors, (count, -1, self.config.hidden_size))

    def _jax_vectors(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The vectors in training, one micro-batch after the other; gradients encode each again."""
        import jax

        weights = [(variable, variable.value) for variable in self.trainable_variables]
        random = self.non_trainable_variables

        @jax.checkpoint  # keeps only the random states, so both times have the same dropout
        def encode(states: Any, chunk: Any) -> tuple[Any, Any]:
            with keras.StatelessScope([*weights, *zip(random, states, strict=True)]) as scope:
                vectors = self._vectors(chunk, training=True)
            return [scope.get_current_value(variable) for variable in random], vectors

        states, vectors = jax.lax.scan(
            encode,
            [variable.value for variable in random],
            micro_batches(dict(inputs), self.micro_batches),
        )
        for variable, state in zip(random, states, strict=True):
            variable.assign(state)
        return _joined(vectors)

    def train_step(self, *arguments: Any) -> Any:
        """Take a step; on JAX it is Keras' own, in which `call` encodes micro-batches."""
        if self.micro_batches > 1 and keras.backend.backend() == "tensorflow":
            return self._tensorflow_step(*arguments)
        return super().train_step(*arguments)

    def _tensorflow_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        chunks = micro_batches(x, self.micro_batches)
        random_states = [ops.copy(variable) for variable in self.non_trainable_variables]
        # First pass, without gradients: only the vectors are kept.
        vectors = _joined(
            tf.map_fn(
                lambda chunk: self(chunk, training=True),
                chunks,
                parallel_iterations=1,  # otherwise several micro-batches would be in memory
                fn_output_signature=tf.TensorSpec((None, None, self.config.hidden_size), "float32"),
            )
        )
        variables = self.trainable_variables
        values = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss = self.compute_loss(x, y, vectors, weights)
        # Only a classifier has a gradient from the loss itself; of other weights it is 0 here.
        of_vectors, *of_weights = tensorflow_gradients(tape, loss, [vectors, *values])
        of_vectors = micro_batches(of_vectors, self.micro_batches)
        # The same random states give the second pass the dropout of the first.
        for variable, state in zip(self.non_trainable_variables, random_states, strict=True):
            variable.assign(state)

        def gradients_of(number: Any) -> list[Any]:
            chunk = keras.tree.map_structure(lambda array: array[number], chunks)
            with tf.GradientTape() as tape:
                again = self(chunk, training=True)
            return tensorflow_gradients(tape, again, values, of_vectors[number])

        gradients = tensorflow_sums(gradients_of, self.micro_batches, of_weights)
        self.optimizer.apply(gradients, variables)
        self.metrics[0].update_state(loss)
        return self.compute_metrics(x, y, vectors, weights)


def _joined(chunks: Tensor) -> Tensor:
    """(micro-batches, B / micro-batches, …) → (B, …), in the order of the batch."""
    shape = ops.shape(chunks)
    return ops.reshape(ops.moveaxis(chunks, 0, 1), (-1, *shape[2:]))
