"""Encoded examples → batches for `fit`: a grain pipeline with random access to step s.

A batch is (inputs, targets, weights). It depends only on the data, the seed and its index, so there
is no state to save: to resume at step s, slice `batches[s:]`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts, Rows
from roformer_tf.tokenizers.padding import Ints, bucket, padded

if TYPE_CHECKING:
    import grain

# Inputs, targets, weights.
LabelledBatch: TypeAlias = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any], npt.NDArray[Any]]
# The random generator of an item: a function of seed, epoch and the item's index.
Generators: TypeAlias = Callable[[int], np.random.Generator]

_COUNTED = 100  # batches whose tokens are counted
_POOL = 50  # batches among which items are sorted by length: larger pools are less random


class TrainingData:
    """Items (sequences, pairs or groups of texts) in endless batches; base class of all data.

    Every epoch has each item once, in another order. A batch that is not full gets empty items of
    weight 0, so that only few batch shapes are compiled. Subclasses implement `build`.
    """

    @property
    def varying(self) -> tuple[str, ...]:
        """Inputs whose first dimension varies between batches."""
        return ()

    @property
    def lengths(self) -> Ints:
        """(items,) int: tokens of each item. A batch has items of similar length."""
        raise NotImplementedError

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """The batch of these items, filled up to `batch_size` with padding."""
        raise NotImplementedError

    def order(self, batch_size: int, rng: np.random.Generator) -> list[Ints]:
        """The items of all batches of an epoch."""
        return batches_by_length(self.lengths, batch_size, rng)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches of an epoch."""
        return -(-len(self.lengths) // batch_size)

    def tokens_per_step(self, batch_size: int, seed: int) -> int:
        """Mean number of tokens of the first batches."""
        batches = self.batches(batch_size, seed)[: min(_COUNTED, self.steps_per_epoch(batch_size))]
        # Texts are `token_ids`, or a side each; padding is token 0.
        tokens = sum(
            np.count_nonzero(array)
            for inputs, *_ in batches
            for name, array in inputs.items()
            if name == "token_ids" or name.startswith("side_")
        )
        return round(tokens / len(batches))

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """All batches, `steps_per_epoch` for each epoch. Raises InputError if there are no items.

        With `repeat=2` a batch holds its items twice, [x; x], for a loss that compares two passes
        of the model (R-Drop).
        """
        if not len(self.lengths):
            raise InputError("there is no example to train on. Give a file with some.")
        steps = self.steps_per_epoch(batch_size)

        # Seeds are lists of numbers: epochs and items have independent generators.
        @lru_cache(2)  # prefetching needs batches of at most two epochs
        def order(epoch: int) -> list[Ints]:
            return self.order(batch_size, np.random.default_rng([seed, epoch]))

        def batch(step: int) -> LabelledBatch:
            epoch, index = divmod(step, steps)

            def generators(item: int) -> np.random.Generator:
                return np.random.default_rng([seed, epoch, item])

            return _repeated(self.build(order(epoch)[index], batch_size, generators), repeat)

        import grain  # takes a second, and inference does not need it

        # Endless: element s is step s of the training, whatever its epoch.
        return grain.MapDataset.range(sys.maxsize).map(batch)


def _repeated(batch: LabelledBatch, repeat: int) -> LabelledBatch:
    inputs, targets, weights = batch
    inputs = {name: np.concatenate([array] * repeat) for name, array in inputs.items()}
    return inputs, np.concatenate([targets] * repeat), np.concatenate([weights] * repeat)


def first_weights(count: int, batch_size: int) -> npt.NDArray[np.float32]:
    """(batch_size,) float32: 1 for the first `count` items, 0 for the padding."""
    return (np.arange(batch_size) < count).astype(np.float32)


def row_inputs(rows: Iterable[Sequence[Ints]], count: int) -> dict[str, npt.NDArray[Any]]:
    """Token ids and segments of sequences → (count, T) int32: padded, T is a `bucket`."""
    token_ids, segment_ids, *_ = zip(*rows, strict=True)
    shape = (count, bucket(max(map(len, token_ids))))
    return {"token_ids": padded(token_ids, shape), "segment_ids": padded(segment_ids, shape)}


@dataclass(frozen=True)
class RowBatches(TrainingData):
    """Sequences (rows), each with a target, or with a target for each token.

    With B sequences padded to T:

        {"token_ids": (B, T), "segment_ids": (B, T)} int32, targets, weights (B,) float32
        targets: (B, …); if each token has one, (B, T, …), and weights (B, T)
    """

    encoded: EncodedTexts
    targets: Rows
    """From a task's `row_targets`, as the weights."""
    weights: Rows
    labels: int = 0
    """The number of labels if the model itself computes the loss. The targets (B, T) are then an
    input, too, called `labels`: -1 for tokens with weight 0. Targets of that number or more are no
    labels, but marks that a task sets at [CLS] and [SEP]: they are kept."""

    @cached_property
    def lengths(self) -> Ints:
        """(rows,) int32."""
        return self.encoded.row_lengths

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """Pad sequences to a common length, which is a `bucket`, and to `batch_size`."""
        chosen = [(self.encoded.token_ids[row], self.encoded.segment_ids[row]) for row in items]
        inputs = row_inputs(chosen, batch_size)
        length = inputs["token_ids"].shape[1]

        def matrix(arrays: Rows, *shape: int) -> npt.NDArray[Any]:
            return padded([arrays[row] for row in items], (batch_size, *shape))

        # A list has (T, …) of each sequence, an array the same shape for all.
        shape = np.shape(self.targets[0])
        if isinstance(self.targets, list):
            shape = (length, *shape[1:])
        targets = matrix(self.targets, *shape)
        # (T,) if each token has a target
        weights = matrix(self.weights, *[length] * np.ndim(self.weights[0]))
        if self.labels:
            is_label = (weights > 0) | (targets >= self.labels)
            inputs["labels"] = np.where(is_label, targets, -1).astype(np.int32)
        return inputs, targets, weights


def batches_by_length(lengths: Ints, batch_size: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of item indices, in random order, the items of each of similar length.

    Shuffled items are sorted within pools of `_POOL` batches, by their padded length.
    """
    order = rng.permutation(len(lengths))
    pools = np.split(order, range(_POOL * batch_size, len(order), _POOL * batch_size))
    keys = np.array([bucket(length) for length in lengths.tolist()])
    ordered = np.concatenate([pool[np.argsort(keys[pool], kind="stable")] for pool in pools])
    batches = np.split(ordered, range(batch_size, len(ordered), batch_size))
    # The batches are shuffled too, or each pool would begin with its shortest texts. The batch
    # that is not full may therefore be anywhere in the epoch.
    return [batches[number] for number in rng.permutation(len(batches))]
