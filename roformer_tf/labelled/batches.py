"""Encoded examples → batches for `fit`, a grain pipeline in which step s can be asked for.

With B rows padded to T and C labels:

    {"token_ids": (B, T), "segment_ids": (B, T)} int32, targets, weights (B,) float32
    targets: of a row (B, …); where each token has one, (B, T), and weights (B, T)

A batch depends on the rows, the seed and its number only, so there is no state to save: to resume
at step s, slice `batches[s:]`.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts, Rows
from roformer_tf.tokenizers.padding import Ints, bucket, padded

if TYPE_CHECKING:
    import grain

LabelledBatch: TypeAlias = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any], npt.NDArray[Any]]
"""Inputs, targets, weights."""

ENDLESS = sys.maxsize  # steps
_POOL = 50  # batches within which rows of like length come together


class TrainingData(Protocol):
    """Encoded examples with their targets, as a task has them trained on."""

    @property
    def tokens_each(self) -> float:
        """Tokens of what a batch counts: a row, or an example."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Inputs whose number of rows is not the same in every batch."""

    def fingerprinted(self) -> Iterable[np.ndarray]:
        """All that tells one training set from another."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in which everything stands once."""

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """Give the endless batches, each a function of the seed and its number."""


@dataclass(frozen=True)
class RowBatches:
    """Rows with a target each, or one for each of their tokens: see `finetuning_batches`."""

    encoded: EncodedTexts
    targets: Rows
    weights: Rows
    varying: ClassVar[tuple[str, ...]] = ()
    labels: int = 0
    """Where the model itself judges the targets, how many labels there are: `labels_as_input`."""

    @property
    def tokens_each(self) -> float:
        """Tokens of a row."""
        return float(np.mean(self.encoded.row_lengths))

    def fingerprinted(self) -> Iterable[np.ndarray]:
        """Token ids and targets."""
        yield from self.encoded.token_ids
        yield from self.targets

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in which every row stands once."""
        return steps_per_epoch(self.encoded, batch_size)

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """The batches of all epochs, as the task's model takes them."""
        batches = finetuning_batches(
            self.encoded,
            self.targets,
            self.weights,
            batch_size=batch_size,
            seed=seed,
            repeat=repeat,
        )
        if not self.labels:
            return batches
        return batches.map(partial(labels_as_input, outputs=self.labels))


def finetuning_batches(
    encoded: EncodedTexts,
    targets: Rows,
    weights: Rows,
    *,
    batch_size: int,
    seed: int,
    repeat: int = 1,
) -> "grain.MapDataset":
    """Give the endless fine-tuning batches, `steps_per_epoch` of them an epoch.

    `targets` and `weights` as a task's `row_targets` gives them. Every epoch has every row once,
    in an order of its own, with rows of like length side by side: T is a `bucket`. The last batch
    of an epoch is filled up with empty rows of weight 0. With `repeat=2` a batch holds its rows
    twice, [x; x], for a loss that compares the model with itself.
    Raises InputError if there are no rows.
    """
    if not len(encoded.token_ids):
        raise InputError("there is no example to train on. Give a file with some.")
    steps = steps_per_epoch(encoded, batch_size)
    lengths = encoded.row_lengths

    @lru_cache(2)
    def order(epoch: int) -> list[Ints]:
        return batches_by_length(lengths, batch_size, np.random.default_rng([seed, epoch]))

    def batch(step: int) -> LabelledBatch:
        rows = order(step // steps)[step % steps]
        return _padded_batch(encoded, targets, weights, rows, batch_size, repeat)

    import grain  # which takes a second: who answers asks for no batches

    return grain.MapDataset.range(ENDLESS).map(batch)


def labels_as_input(batch: LabelledBatch, outputs: int) -> LabelledBatch:
    """Give a batch its targets (B, T) among the inputs, as `labels`, for a model that judges them.

    Those of tokens that weigh nothing are -1, unless they are `outputs` or more: no label, but what
    a task says of a row.
    """
    inputs, targets, weights = batch
    labels = np.where((weights > 0) | (targets >= outputs), targets, -1).astype(np.int32)
    return {**inputs, "labels": labels}, targets, weights


def steps_per_epoch(encoded: EncodedTexts, batch_size: int) -> int:
    """Batches in which every row stands once."""
    return -(-len(encoded.token_ids) // batch_size)


def batches_by_length(lengths: Ints, batch_size: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of row numbers, in random order, the rows of each of like length.

    Shuffled rows are sorted within pools of `_POOL` batches, by what they would be padded to.
    """
    order = rng.permutation(len(lengths))
    pools = np.split(order, range(_POOL * batch_size, len(order), _POOL * batch_size))
    keys = np.array([bucket(length) for length in lengths.tolist()])
    ordered = np.concatenate([pool[np.argsort(keys[pool], kind="stable")] for pool in pools])
    batches = np.split(ordered, range(batch_size, len(ordered), batch_size))
    return [batches[number] for number in rng.permutation(len(batches))]


def _padded_batch(
    encoded: EncodedTexts, targets: Rows, weights: Rows, rows: Ints, batch_size: int, repeat: int
) -> LabelledBatch:
    """Pad rows to a common length and to `batch_size`, and repeat them all."""
    length = bucket(max(len(encoded.token_ids[row]) for row in rows))

    def padded_rows(arrays: Rows, *shape: int) -> npt.NDArray[Any]:
        matrix = padded([arrays[row] for row in rows], (batch_size, *shape))
        return np.concatenate([matrix] * repeat)

    inputs = {
        "token_ids": padded_rows(encoded.token_ids, length),
        "segment_ids": padded_rows(encoded.segment_ids, length),
    }
    if np.ndim(weights[0]):  # each token has a target
        return inputs, padded_rows(targets, length), padded_rows(weights, length)
    return inputs, padded_rows(targets, *np.shape(targets)[1:]), padded_rows(weights)
