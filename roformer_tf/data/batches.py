"""Rows → batches for `fit`: grain pipelines in which step s can be asked for.

An element is what `keras.Model.fit` unpacks. In pretraining it is what the objective makes of B
rows (`data/objectives.py`); in fine-tuning, with B rows padded to T and C labels:

    {"token_ids": (B, T), "segment_ids": (B, T)} int32, targets, weights (B,) float32
    targets: classification, pair (B,) int32; multilabel (B, C), regression and ranking (B, 1)
    float32; tagging (B, T) int32, and weights (B, T)

It depends on the rows, the seed and its number only, so there is no state to save: to resume at
step s, slice `batches[s:]`. Several processes share a batch: each makes a piece of it, in order.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import grain
import numpy as np
import numpy.typing as npt

from roformer_tf.data.encoding import EncodedTexts, Ints, Rows, bucket, padded
from roformer_tf.data.mixing import MixingConfig, dealt, endless_order
from roformer_tf.data.objectives import Batch, Objective
from roformer_tf.data.shards import PreparedRows
from roformer_tf.errors import InputError

_ENDLESS = sys.maxsize  # steps
_POOL = 50  # batches within which rows of like length come together


def pretraining_batches(
    rows: PreparedRows,
    *,
    batch_size: int,
    seed: int,
    objective: Objective,
    mixing: MixingConfig = MixingConfig(),  # noqa: B008 (frozen)
    start_row: int = 0,
    process: int = 0,
    processes: int = 1,
) -> grain.MapDataset:
    """Give the endless training batches, beginning at any place of the endless order of rows.

    Element s has the rows at the places from `start_row` + s · `batch_size` on; of several
    processes, the i-th gives the i-th of as many equal pieces of it. Rows come in an order of
    their own in every epoch, each exactly once unless corpora are mixed (`endless_order`), and
    one epoch follows another without a gap: a batch may hold rows of two. Masks are drawn afresh
    for a row every time. The order of an epoch takes 4 bytes a row in memory. Raises InputError if
    there are no rows, if `mixing` does not fit their corpora, and if `batch_size` cannot be cut
    into such pieces.
    """
    if not len(rows):
        raise InputError(f"{rows.folder} has no {rows.split} rows. Give a larger corpus.")
    own = _piece(batch_size, process, processes)
    row_at = endless_order(rows.corpora, mixing, seed)

    def batch(step: int) -> Batch:
        begin = start_row + step * batch_size
        numbers, epochs = zip(*(row_at(begin + place) for place in own), strict=True)
        return objective(*_read(rows, numbers, epochs, seed))

    return grain.MapDataset.range(_ENDLESS).map(batch)


def held_out_sample(corpora: Mapping[str, int], most: int) -> dict[str, Ints]:
    """Choose at most so many rows of corpora that lie behind each other: their numbers, by corpus.

    `corpora`: rows of each. A corpus has as large a share of the sample as of all rows, at least
    one row if there is one for each, and is gone through from its first row on in even steps:

        held_out_sample({"news": 97, "wiki": 3}, most=5)   {"news": [0, 24, 48, 72], "wiki": [97]}
    """
    sizes = list(corpora.values())
    shares = sizes if most >= sum(sizes) else dealt(most, sizes)
    firsts = [0, *accumulate(sizes)]
    return {
        name: first + np.arange(share) * size // share
        for name, size, share, first in zip(corpora, sizes, shares, firsts, strict=False)
        if share
    }


def held_out_batches(
    rows: PreparedRows,
    *,
    batch_size: int,
    seed: int,
    objective: Objective,
    numbers: Sequence[int] | None = None,
    process: int = 0,
    processes: int = 1,
) -> grain.MapDataset:
    """Give every row once, or those of these numbers, with the same masks at every evaluation.

    They come in their order. The last batch is filled up with rows of weight 0, so that no other
    shape is ever compiled. Several processes share each batch as in `pretraining_batches`, and have
    as many.
    """
    own = _piece(batch_size, process, processes)
    which = np.arange(len(rows)) if numbers is None else np.asarray(numbers)

    def batch(step: int) -> Batch:
        places = step * batch_size + np.array(own)
        there = which[places % len(which)].tolist()
        inputs, labels, weights = objective(*_read(rows, there, [0] * len(own), seed))
        weights[places >= len(which)] = 0
        return inputs, labels, weights

    return grain.MapDataset.range(-(-len(which) // batch_size)).map(batch)


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


def _piece(batch_size: int, process: int, processes: int) -> range:
    """Places in a batch that are a process's own."""
    assert 0 <= process < processes
    size = -(-batch_size // processes)
    if size * processes != batch_size:
        raise InputError(
            f"a batch of {batch_size} rows cannot be shared by {processes} processes. Give a "
            f"batch size that {processes} divides, such as {size * processes}."
        )
    return range(process * size, (process + 1) * size)


def _read(
    rows: PreparedRows, numbers: Sequence[int], epochs: Sequence[int], seed: int
) -> tuple[npt.NDArray[np.integer], list[tuple[int, int, int]]]:
    """Rows (B, 3, L), and what each draws its chance from in its epoch."""
    draws = [(seed, *which) for which in zip(epochs, numbers, strict=True)]
    return np.stack([rows[number] for number in numbers]), draws


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
