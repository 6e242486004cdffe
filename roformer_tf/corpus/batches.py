"""Rows → batches for `fit`: grain pipelines in which step s can be asked for.

An element is what `keras.Model.fit` unpacks: what the objective makes of B rows
(`corpus/objectives.py`). It depends on the rows, the seed and its number only, so there is no
state to save: to resume at step s, slice `batches[s:]`. Several processes share a batch: each
makes a piece of it, in order.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate

import grain
import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.mixing import MixingConfig, dealt, endless_order
from roformer_tf.corpus.objectives import Batch, Objective
from roformer_tf.corpus.shards import PreparedRows
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


def held_out_sample(corpora: Mapping[str, int], most: int) -> dict[str, npt.NDArray[np.integer]]:
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
