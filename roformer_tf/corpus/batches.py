"""Sequences of corpora → batches for `fit`: grain pipelines with random access to step s.

An element is a batch for `keras.Model.fit`, which an objective (`objectives`) builds from B
sequences. It depends only on the data, the seed and its index, so there is no state to save: to
resume at step s, slice `batches[s:]`. Several processes share a batch: each builds a slice of it.

Corpora are mixed into one endless order of sequences (rows), with a chosen fraction of each. An
epoch has as many rows as all corpora. Two corpora of 4 and 2 rows, mixed half and half:

    epoch 0    rows 2 0 1 of the first, 1 0 0 of the second, shuffled
    epoch 1    rows 3 1 2 of the first, 1 1 0 of the second, shuffled

So each corpus is repeated, every time in another order. At the end of every epoch, the numbers of
repetitions of its rows differ by at most one.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.objectives import Batch, Objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError, check_number, check_numbers

if TYPE_CHECKING:
    import grain  # loaded when batches are made: the settings need only `MixingConfig`

_ENDLESS = sys.maxsize  # steps


@dataclass(frozen=True)
class MixingConfig:
    """The fraction of the training data from each corpus. Default: in proportion to its size."""

    corpus_weights: Annotated[dict[str, float], "NAME X"] = field(default_factory=dict)
    """Name and weight of every corpus, such as `news 3 wiki 1`: three sequences of news
    to one of wiki."""
    corpus_temperature: float = 1.0
    """Above 1, small corpora are repeated: corpora of size n are mixed as n^(1/temperature)."""

    def __post_init__(self) -> None:
        hint = "1 mixes corpora in proportion to their sizes, 3 makes them more even"
        check_numbers(self, "corpus_temperature", at_least=1, hint=hint)
        if self.corpus_weights and self.corpus_temperature != 1:
            raise InputError("give either corpus_weights or a corpus_temperature, but not both.")
        for name, weight in self.corpus_weights.items():
            hint = "or remove its files from --corpus to train without it"
            check_number(f"the weight of the corpus {name!r}", weight, above=0, hint=hint)


def epoch_rows(rows: Mapping[str, int], config: MixingConfig) -> dict[str, int]:
    """Rows of each corpus in an epoch, at least 1, which add up to all rows.

    `rows` of each corpus, 1 or more. Fractions are rounded by the largest remainder method.
    Raises InputError unless the weights name all of these corpora and no others.
    """
    if config.corpus_weights:
        if config.corpus_weights.keys() != rows.keys():
            raise InputError(
                f"there are weights for {_listed(config.corpus_weights)}, but rows of "
                f"{_listed(rows)}. Give every corpus a weight; omit those without text. A corpus "
                "gets its name in --corpus, such as in 'news=data/news/*.jsonl'."
            )
        parts = [config.corpus_weights[name] for name in rows]
    elif config.corpus_temperature == 1:
        return dict(rows)
    else:
        parts = [count ** (1 / config.corpus_temperature) for count in rows.values()]
    return dict(zip(rows, dealt(sum(rows.values()), parts), strict=True))


def endless_order(
    rows: Mapping[str, int], config: MixingConfig, seed: int
) -> Callable[[int], tuple[int, int]]:
    """Order the rows of corpora that are stored one after another: position → (row, pass).

    `rows` of each corpus. The pass of a row is the number of earlier repetitions of its corpus. The
    order of an epoch needs 4 bytes of memory for each row, that of mixed corpora at most 16 bytes.
    Raises InputError as `epoch_rows` does.
    """
    sizes, shares = list(rows.values()), list(epoch_rows(rows, config).values())
    # An epoch is the numbers 0 … total - 1, divided among the corpora by their shares. With 4 and 2
    # rows mixed half and half: 0–2 are of the first corpus, 3–5 of the second.
    firsts = [0, *accumulate(sizes)]  # row of each corpus
    stops = list(accumulate(shares))  # in an epoch that is not shuffled yet
    total = sum(sizes)
    mixed = shares != sizes  # else an epoch has every row once, and its own order is enough

    @lru_cache(2)  # a batch may see two epochs
    def shuffled(epoch: int) -> npt.NDArray[np.uint32]:
        return np.random.default_rng([seed, epoch]).permutation(np.arange(total, dtype=np.uint32))

    # An epoch repeats a small corpus often, and all its rows are shuffled: keep all its passes. A
    # share of 5 rows of 2 ends in its fourth pass at the latest, as in 2 | 1 2 1 1 2 | 1.
    @lru_cache(sum(share // size + 2 for share, size in zip(shares, sizes, strict=True)))
    def walk(corpus: int, passed: int) -> npt.NDArray[np.uint32]:
        numbers = np.arange(sizes[corpus], dtype=np.uint32)
        return np.random.default_rng([seed, passed, corpus]).permutation(numbers)

    def row_at(position: int) -> tuple[int, int]:
        epoch, position = divmod(position, total)
        number = int(shuffled(epoch)[position])
        corpus = bisect_right(stops, number)
        begin = stops[corpus] - shares[corpus]
        # The rows of a corpus are one endless sequence, of which each epoch takes a share.
        passed, row = divmod(epoch * shares[corpus] + number - begin, sizes[corpus])
        # Without a mix, shares equal sizes: the pass is the epoch, and `shuffled` is the order.
        if mixed:
            row = int(walk(corpus, passed)[row])
        return firsts[corpus] + row, passed

    return row_at


def dealt(total: int, parts: Sequence[float]) -> list[int]:
    """Divide a total in proportion to the parts; each gets at least 1 if there are enough."""
    scale = max(parts)
    # Scaled first: the sum of large weights may overflow.
    quotas = np.array([part / scale for part in parts])
    quotas *= total / quotas.sum()
    whole = np.floor(quotas).astype(np.int64)
    # Rounding down loses less than 1 for each part, so no part gets more than one unit back.
    order = np.argsort(whole - quotas, kind="stable")  # the largest remainder first
    whole[order[: total - int(whole.sum())]] += 1
    # A part of 0 takes one from the largest: dealt(10, [1000, 1]) is [9, 1].
    while total >= len(parts) and not whole.all():
        whole[whole.argmax()] -= 1
        whole[whole.argmin()] += 1
    return whole.tolist()


def _listed(names: Iterable[str]) -> str:
    """Names of corpora for a message."""
    return ", ".join(repr(name) if name else "a corpus without a name" for name in names)


def pretraining_batches(
    rows: PreparedRows,
    *,
    batch_size: int,
    seed: int,
    objective: Objective,
    mixing: MixingConfig = MixingConfig(),
    start_row: int = 0,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[int], float] = lambda step: 1.0,
) -> grain.MapDataset:
    """The endless training batches, from any position in the endless order of sequences.

    Element s has the sequences from position `start_row` + s · `batch_size` on; with the `part`
    (i, n), the i-th of n processes builds the i-th of equal slices of it. Every epoch has another
    order, with each sequence exactly once unless corpora are mixed (`endless_order`). Epochs follow
    each other without a gap: a batch may have sequences of two. Masks are drawn anew every time.
    `progress`: element s → fraction of the run's steps before it, for the objective. Raises
    InputError if there are no sequences, and if `mixing` does not match their corpora. The
    processes divide the batch.
    """
    import grain

    if not len(rows):
        raise InputError(f"{rows.folder} has no {rows.split} rows. Give a larger corpus.")
    own = _slice_of(batch_size, part)
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
        # `firsts` has one entry more, the end of the last corpus.
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
    part: tuple[int, int] = (0, 1),
) -> grain.MapDataset:
    """Every sequence once, or those of these indices, with the same masks at every evaluation.

    They are in stored order. The last batch is filled up with sequences of weight 0, so only one
    shape is compiled. Several processes share each batch as in `pretraining_batches`.
    """
    import grain

    own = _slice_of(batch_size, part)
    which = np.arange(len(rows)) if numbers is None else np.asarray(numbers)

    def batch(step: int) -> Batch:
        positions = step * batch_size + np.array(own)
        wrapped = which[positions % len(which)].tolist()  # beyond the end: from the first one on
        # Masks are a function of (seed, epoch, row): with epoch 0 they are the same at every step.
        inputs, labels, weights = objective(*_read(rows, wrapped, [0] * len(own), seed))
        weights[positions >= len(which)] = 0
        return inputs, labels, weights

    return grain.MapDataset.range(-(-len(which) // batch_size)).map(batch)


def _slice_of(batch_size: int, part: tuple[int, int]) -> range:
    """The positions in a batch that a process builds: its number, and the number of processes."""
    # The command has checked that the devices, and so the processes, divide a batch.
    process, processes = part
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
