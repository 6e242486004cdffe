"""Sequences → batches for `fit`: grain pipelines with random access to step s.

An element is a batch for `keras.Model.fit`, which an objective (`objectives`) builds from B
sequences. It depends only on the data, the seed and its index, so there is no state to save: to
resume at step s, slice `batches[s:]`. Several processes share a batch: each builds a slice of it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import grain
import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.mixing import MixingConfig, dealt, endless_order
from roformer_tf.corpus.objectives import Batch, Objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError

_ENDLESS = sys.maxsize  # steps


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
    progress: Callable[[int], float] = lambda step: 1.0,
) -> grain.MapDataset:
    """The endless training batches, from any position in the endless order of sequences.

    Element s has the sequences from position `start_row` + s · `batch_size` on; the i-th of several
    processes builds the i-th of equal slices of it. Every epoch has another order, with each
    sequence exactly once unless corpora are mixed (`endless_order`). Epochs follow each other
    without a gap: a batch may have sequences of two. Masks are drawn anew every time. `progress`:
    element s → fraction of the run's steps before it, for the objective. Raises InputError if there
    are no sequences, and if `mixing` does not match their corpora. The processes divide the batch.
    """
    if not len(rows):
        raise InputError(f"{rows.folder} has no {rows.split} rows. Give a larger corpus.")
    own = _slice_of(batch_size, process, processes)
    row_at = endless_order(rows.corpora, mixing, seed)

    def batch(step: int) -> Batch:
        begin = start_row + step * batch_size
        numbers, epochs = zip(*(row_at(begin + index) for index in own), strict=True)
        return objective(*_read(rows, numbers, epochs, seed), progress(step))

    return grain.MapDataset.range(_ENDLESS).map(batch)


def held_out_sample(corpora: Mapping[str, int], most: int) -> dict[str, npt.NDArray[np.integer]]:
    """At most `most` sequences of corpora that are stored one after another: indices, by corpus.

    `corpora`: sequences of each. A corpus has the same fraction of the sample as of the whole, and
    at least one sequence if possible. It is sampled in even steps from its first sequence:

        held_out_sample({"news": 97, "wiki": 3}, most=5)   {"news": [0, 24, 48, 72], "wiki": [97]}
    """
    # Even steps instead of random ones: the sample does not depend on a seed.
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
    """Every sequence once, or those of these indices, with the same masks at every evaluation.

    They are in stored order. The last batch is filled up with sequences of weight 0, so only one
    shape is compiled. Several processes share each batch as in `pretraining_batches`.
    """
    own = _slice_of(batch_size, process, processes)
    which = np.arange(len(rows)) if numbers is None else np.asarray(numbers)

    def batch(step: int) -> Batch:
        positions = step * batch_size + np.array(own)
        wrapped = which[positions % len(which)].tolist()  # beyond the end: from the first one on
        inputs, labels, weights = objective(*_read(rows, wrapped, [0] * len(own), seed))
        weights[positions >= len(which)] = 0
        return inputs, labels, weights

    return grain.MapDataset.range(-(-len(which) // batch_size)).map(batch)


def _slice_of(batch_size: int, process: int, processes: int) -> range:
    """The positions in a batch that a process builds."""
    # The command has checked that the devices, and so the processes, divide a batch.
    size, rest = divmod(batch_size, processes)
    assert 0 <= process < processes
    assert not rest
    return range(process * size, (process + 1) * size)


def _read(
    rows: PreparedRows, numbers: Sequence[int], epochs: Sequence[int], seed: int
) -> tuple[npt.NDArray[np.integer], list[tuple[int, int, int]]]:
    """Sequences (B, 3, L), and what the masks of each depend on: (seed, epoch, row)."""
    draws = [(seed, *which) for which in zip(epochs, numbers, strict=True)]
    return np.stack([rows[number] for number in numbers]), draws
