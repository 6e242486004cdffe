"""Batches of varying length in the forms that `keras.Model.fit` accepts."""

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
    """Batches of (inputs, targets, weights) for `fit`. Lengths may differ, the batch size not.

    Only inputs named in `varying` may differ in the batch size, too. With `static_shapes` all
    batches have one shape, which is then known in the graph.

    Why not the grain dataset itself: on TensorFlow, Keras infers the shape from two batches. If
    both have one length, the first batch of another length ends the run.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    return _tensorflow_dataset(lambda: iter(batches), varying, static_shapes)


def epochs(batches: grain.MapDataset, steps: int) -> Any:
    """Endless batches in epochs of `steps`, so that `fit` needs no `steps_per_epoch`.

    Lengths may differ from batch to batch. Every iteration is the next epoch: a dataset that was
    iterated once before starts with the second.
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
    """Batches in epochs, for backends that accept arrays of any shape."""

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
        """Continue with the next epoch's batches."""
        self._epoch += 1


def _tensorflow_dataset(
    iterate: Callable[[], Iterator[Any]], varying: Collection[str] = (), static_shapes: bool = False
) -> Any:
    """A `tf.data.Dataset` of batches.

    All axes except the first may have any size, unless shapes are static: those of the first batch.
    Autotuning is off. It has nothing to tune in a Python generator, and closing the iterator may
    wait for the tuner for many seconds on a busy machine.
    """
    import tensorflow as tf

    def spec(array: Any) -> tf.TensorSpec:
        lengths = array.shape[1:] if static_shapes else [None] * (array.ndim - 1)
        return tf.TensorSpec((array.shape[0], *lengths), array.dtype)

    # The first batch is made only for its shapes and dtypes; training iterates from the start.
    signature = keras.tree.map_structure(spec, next(iterate()))
    for name in varying:
        spec_of_input = signature[0][name]
        unknown = [None] * spec_of_input.shape.rank
        signature[0][name] = tf.TensorSpec(unknown, spec_of_input.dtype)
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(iterate, output_signature=signature)
    return dataset.with_options(options)


def prefetched(batches: grain.MapDataset) -> grain.IterDataset:
    """Batches for `fit` that a thread prepares while the model trains.

    One thread, because masking is Python code and holds the interpreter's lock. grain's default of
    16 threads and 500 batches only takes CPU time and memory from the model.
    """
    import grain

    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))
