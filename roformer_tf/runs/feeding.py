"""Batches of changing length, as `keras.Model.fit` takes them."""

from typing import Any

import grain
import keras


def fed(batches: grain.IterDataset) -> Any:
    """Give `fit` batches of (inputs, targets, weights) whose lengths differ; B must not.

    Of a grain dataset Keras, on TensorFlow, looks at two batches and takes what they have in
    common for the shape of all: where both are of one length, the first other one ends the run.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    import tensorflow as tf

    def spec(array: Any) -> tf.TensorSpec:
        return tf.TensorSpec((array.shape[0], *[None] * (array.ndim - 1)), array.dtype)

    signature = keras.tree.map_structure(spec, next(iter(batches)))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def prefetched(batches: grain.MapDataset) -> grain.IterDataset:
    """Have a thread make the next few batches while the model works on one; for `fit`.

    One thread: masking is Python, of which a process runs one piece at a time, and grain's own
    default of 16 threads and 500 batches ahead only takes time and memory from the model.
    """
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
