"""Batches of changing length, as `keras.Model.fit` takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    import grain  # not before Keras: it imports jax, which sets TensorFlow's log level


def fed(
    batches: grain.MapDataset | grain.IterDataset,
    varying: Collection[str] = (),
    *,
    static_shapes: bool = False,
) -> Any:
    """Give `fit` batches of (inputs, targets, weights) whose lengths differ; B must not.

    Nor may it of the inputs, but for those whose names are `varying`. With `static_shapes` all
    batches, of whatever `fit` or `predict` takes, are of one shape, which a graph then knows.
    Of a grain dataset Keras, on TensorFlow, looks at two batches and takes what they have in
    common for the shape of all: where both are of one length, the first other one ends the run.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    return _tensorflow_dataset(lambda: iter(batches), varying, static_shapes)


def epochs(batches: grain.MapDataset, steps: int) -> Any:
    """Give `fit` the endless batches in epochs of so many: it needs no `steps_per_epoch`.

    Lengths may differ from batch to batch. Every iteration is the next epoch, so that a dataset
    that was looked into begins with its second.
    """
    if keras.backend.backend() != "tensorflow":
        return _Epochs(batches, steps)
    import tensorflow as tf

    numbers = count()

    def epoch() -> Iterator[Any]:
        begin = next(numbers) * steps
        return iter(prefetched(batches[begin : begin + steps]))

    dataset = _tensorflow_dataset(epoch)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))


class _Epochs(keras.utils.PyDataset):
    """Batches in epochs, for the backends that take arrays of any shape."""

    def __init__(self, batches: grain.MapDataset, steps: int) -> None:
        super().__init__()
        self._batches = batches
        self._steps = steps
        self._epoch = 0

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, number: int) -> Any:
        return self._batches[self._epoch * self._steps + number]

    def on_epoch_end(self) -> None:
        """Go on to the next order of the rows."""
        self._epoch += 1


def _tensorflow_dataset(
    iterate: Callable[[], Iterator[Any]],
    varying: Collection[str] = (),
    static_shapes: bool = False,
) -> Any:
    """A `tf.data.Dataset` of batches.

    Their axes but the first may be of any size, unless shapes are static: those of the first batch.
    It does not tune itself: there is nothing to tune in what Python makes, and on a busy machine
    whoever ends such an iterator may wait many seconds until its tuner wakes up.
    """
    import tensorflow as tf

    def spec(array: Any) -> tf.TensorSpec:
        lengths = array.shape[1:] if static_shapes else [None] * (array.ndim - 1)
        return tf.TensorSpec((array.shape[0], *lengths), array.dtype)

    signature = keras.tree.map_structure(spec, next(iterate()))
    for name in varying:
        found = signature[0][name]
        signature[0][name] = tf.TensorSpec([None] * found.shape.rank, found.dtype)
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(iterate, output_signature=signature)
    return dataset.with_options(options)


def prefetched(batches: grain.MapDataset) -> grain.IterDataset:
    """Have a thread make the next few batches while the model works on one; for `fit`.

    One thread: masking is Python, of which a process runs one piece at a time, and grain's own
    default of 16 threads and 500 batches ahead only takes time and memory from the model.
    """
    import grain

    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
