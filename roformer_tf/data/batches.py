"""Rows → batches for `fit`: grain pipelines in which step s can be asked for.

An element is what `keras.Model.fit` unpacks. In pretraining, with B rows of length L and P
predictions a row:

    {"token_ids": (B, L), "sequence_ids": (B, L), "masked_positions": (B, P)} int32,
    labels (B, P) int32, weights (B, P) float32

In fine-tuning, with B rows padded to T and C labels:

    {"token_ids": (B, T), "segment_ids": (B, T)} int32, targets, weights (B,) float32
    targets: classification, pair (B,) int32; multilabel (B, C), regression and ranking (B, 1)
    float32; tagging (B, T) int32, and weights (B, T)

It depends on the rows, the seed and its number only, so there is no state to save: to resume at
step s, slice `batches[s:]`.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import grain
import numpy as np
import numpy.typing as npt

from roformer_tf.data.encoding import EncodedTexts, Ints, Rows, bucket, padded
from roformer_tf.data.masking import MaskingConfig, mask_rows, predictions_per_row, row_generator
from roformer_tf.data.packing import DOCUMENT
from roformer_tf.data.shards import PreparedRows
from roformer_tf.errors import InputError

_ENDLESS = sys.maxsize  # steps
_POOL = 50  # batches within which rows of like length come together

Batch: TypeAlias = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any], npt.NDArray[Any]]


def pretraining_batches(
    rows: PreparedRows,
    *,
    batch_size: int,
    seed: int,
    mask_id: int,
    random_ids: npt.NDArray[np.int32],
    masking: MaskingConfig,
    start_step: int = 0,
) -> grain.MapDataset:
    """Give the endless training batches: element s is the batch of step `start_step` + s.

    Rows come in an order of their own in every epoch, each exactly once, and one epoch follows
    another without a gap: a batch may hold rows of two. A row's masks are drawn afresh every
    epoch. `random_ids` as in `mask_rows`. The order of an epoch takes 4 bytes a row in memory.
    Raises InputError if there are no rows.
    """
    if not len(rows):
        raise InputError(f"{rows.folder} has no {rows.split} rows. Give a larger corpus.")

    @lru_cache(2)  # a batch may see two epochs
    def order(epoch: int) -> npt.NDArray[np.uint32]:
        numbers = np.arange(len(rows), dtype=np.uint32)
        return np.random.default_rng([seed, epoch]).permutation(numbers)

    def batch(step: int) -> Batch:
        places = range(step * batch_size, (step + 1) * batch_size)
        epochs = [place // len(rows) for place in places]
        numbers = [int(order(place // len(rows))[place % len(rows)]) for place in places]
        return _masked_batch(rows, numbers, epochs, seed, mask_id, random_ids, masking)

    return grain.MapDataset.range(_ENDLESS).map(batch)[start_step:]


def held_out_batches(
    rows: PreparedRows,
    *,
    batch_size: int,
    seed: int,
    mask_id: int,
    random_ids: npt.NDArray[np.int32],
    masking: MaskingConfig,
) -> grain.MapDataset:
    """Give every row once, in order, with the same masks at every evaluation.

    The last batch is filled up with rows of weight 0, so that no other shape is ever compiled.
    """

    def batch(step: int) -> Batch:
        places = np.arange(step * batch_size, (step + 1) * batch_size)
        numbers = (places % len(rows)).tolist()
        epochs = [0] * batch_size
        inputs, labels, weights = _masked_batch(
            rows, numbers, epochs, seed, mask_id, random_ids, masking
        )
        weights[places >= len(rows)] = 0
        return inputs, labels, weights

    return grain.MapDataset.range(-(-len(rows) // batch_size)).map(batch)


def finetuning_batches(
    encoded: EncodedTexts,
    targets: Rows,
    weights: Rows,
    *,
    batch_size: int,
    seed: int,
    repeat: int = 1,
) -> grain.MapDataset:
    """Give the endless fine-tuning batches, `steps_per_epoch` of them an epoch.

    `targets` and `weights` as `row_targets` gives them. Every epoch has every row once, in an
    order of its own, with rows of like length side by side: T is a `bucket`. The last batch of
    an epoch is filled up with empty rows of weight 0. With `repeat=2` a batch holds its rows
    twice, [x; x], for a loss that compares the model with itself.
    Raises InputError if there are no rows.
    """
    if not len(encoded.token_ids):
        raise InputError("there is no example to train on. Give a file with some.")
    steps = steps_per_epoch(encoded, batch_size)
    lengths = encoded.row_lengths

    @lru_cache(2)
    def order(epoch: int) -> list[Ints]:
        return _by_length(lengths, batch_size, np.random.default_rng([seed, epoch]))

    def batch(step: int) -> Batch:
        rows = order(step // steps)[step % steps]
        return _padded_batch(encoded, targets, weights, rows, batch_size, repeat)

    return grain.MapDataset.range(_ENDLESS).map(batch)


def steps_per_epoch(encoded: EncodedTexts, batch_size: int) -> int:
    """Batches in which every row stands once."""
    return -(-len(encoded.token_ids) // batch_size)


def prefetched(batches: grain.MapDataset) -> grain.IterDataset:
    """Have a thread make the next few batches while the model works on one; for `fit`.

    One thread: masking is Python, of which a process runs one piece at a time, and grain's own
    default of 16 threads and 500 batches ahead only takes time and memory from the model.
    """
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))


def _masked_batch(
    rows: PreparedRows,
    numbers: Sequence[int],
    epochs: Sequence[int],
    seed: int,
    mask_id: int,
    random_ids: npt.NDArray[np.int32],
    masking: MaskingConfig,
) -> Batch:
    """Read and mask rows, each as in its epoch."""
    read = np.stack([rows[number] for number in numbers])  # (B, 3, L)
    masked = mask_rows(
        read,
        predictions=predictions_per_row(rows.length, masking.rate),
        rngs=[row_generator(seed, *which) for which in zip(epochs, numbers, strict=True)],
        config=masking,
        mask_id=mask_id,
        random_ids=random_ids,
    )
    inputs = {
        "token_ids": masked.token_ids,
        "sequence_ids": read[:, DOCUMENT].astype(np.int32),
        "masked_positions": masked.positions,
    }
    return inputs, masked.labels, masked.weights


def _by_length(lengths: Ints, batch_size: int, rng: np.random.Generator) -> list[Ints]:
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
) -> Batch:
    """Pad rows to a common length and to `batch_size`, and repeat them all."""
    length = bucket(max(len(encoded.token_ids[row]) for row in rows))

    def padded_rows(arrays: Rows, *shape: int) -> npt.NDArray[Any]:
        matrix = padded([arrays[row] for row in rows], (batch_size, *shape))
        return np.concatenate([matrix] * repeat)

    inputs = {
        "token_ids": padded_rows(encoded.token_ids, length),
        "segment_ids": padded_rows(encoded.segment_ids, length),
    }
    if encoded.first_units:  # each token has a target
        return inputs, padded_rows(targets, length), padded_rows(weights, length)
    return inputs, padded_rows(targets, *np.shape(targets)[1:]), padded_rows(weights)
