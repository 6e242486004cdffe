"""Train on batches of vectors with SGD, in one process or several: python … OUT.npz MICRO_BATCHES.

This is a separate script because a process joins the others before anything is computed. The first
process writes the losses and all weights.
"""

import os
import sys

import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.vectors import VectorTraining
from roformer_tf.models.heads import RoFormerForSentenceEmbedding
from roformer_tf.tasks.vectors.scored_pairs import Embedding
from roformer_tf.training.devices import join, to_numpy
from roformer_tf.training.settings import DevicesConfig

ROWS, STEPS = 16, 3


def batch(step, part):
    """A process' part of a batch: queries, documents, and one further text for each query."""
    rng = np.random.default_rng(step)
    shapes = {"side_0": (ROWS, 4), "side_1": (ROWS, 9), "side_2": (ROWS, 1, 7)}
    inputs = {name: rng.integers(5, 40, shape).astype("int32") for name, shape in shapes.items()}
    targets = np.zeros((ROWS, 2 * ROWS), "int8")
    targets[np.arange(ROWS), np.arange(ROWS)] = 1
    targets[3, 9] = targets[12, 1] = -1
    weights = np.ones(ROWS, "float32")
    number, count = part
    own_rows = slice(number * ROWS // count, (number + 1) * ROWS // count)
    return keras.tree.map_structure(lambda array: array[own_rows], (inputs, targets, weights))


class Batches(keras.utils.PyDataset):
    """The batches of a run."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        return batch(step, self.part)


def main():
    out, micro_batches = sys.argv[1], int(sys.argv[2])
    group = join(DevicesConfig(distributed="JAX_NUM_PROCESSES" in os.environ))
    keras.utils.set_random_seed(1)
    config = RoFormerConfig(
        40, 16, 1, 2, 24, pooling="mean", initializer_range=0.3, hidden_dropout_prob=0.0
    ).replace(attention_probs_dropout_prob=0.0)
    model = VectorTraining(RoFormerForSentenceEmbedding(config), Embedding(), micro_batches)
    model.compile(keras.optimizers.SGD(0.3))
    losses = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: losses.append(logs["loss"])
    )
    model.fit(Batches(group.part), epochs=1, shuffle=False, verbose=0, callbacks=[log])
    weights = {name: to_numpy(variable) for name, variable in model.named_variables().items()}
    if group.first:
        np.savez(out, losses=np.array(losses), **weights)


if __name__ == "__main__":
    main()
