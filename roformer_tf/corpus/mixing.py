"""Corpora → one endless order of rows, in which each corpus has the share that is asked for.

An epoch has as many rows as there are in all. Of two corpora of 4 and 2 rows, mixed half and half:

    epoch 0    rows 2 0 1 of the first, 1 0 0 of the second, shuffled
    epoch 1    rows 3 1 2 of the first, 1 1 0 of the second, shuffled

So each corpus is walked through again and again, every time in another order, and at the end of
every epoch its rows have been seen equally often, or once more.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError, check_number, check_numbers


@dataclass(frozen=True)
class MixingConfig:
    """How much of what is trained on comes from each corpus. Unset, what it has."""

    corpus_weights: dict[str, float] = field(default_factory=dict)
    """Name and weight of every corpus, such as `news 3 wiki 1`: three rows of news to one of
    wiki."""
    corpus_temperature: float = 1.0
    """Above 1, small corpora come more often: corpora of n rows are mixed as n^(1/temperature)."""

    def __post_init__(self) -> None:
        hint = "where 1 takes corpora as large as they are and 3 makes them more even"
        check_numbers(self, "corpus_temperature", at_least=1, hint=hint)
        if self.corpus_weights and self.corpus_temperature != 1:
            raise InputError(
                "give either corpus_weights or a corpus_temperature: "
                f"{_listed(self.corpus_weights)} say already how much each corpus counts, so a "
                f"temperature of {self.corpus_temperature} is too much."
            )
        for name, weight in self.corpus_weights.items():
            hint = "or leave out its files to train without it"
            check_number(f"the weight of the corpus {name!r}", weight, above=0, hint=hint)


def epoch_rows(rows: Mapping[str, int], config: MixingConfig) -> dict[str, int]:
    """Rows of each corpus in an epoch, at least 1, which add up to all there are.

    `rows` of each corpus, 1 or more. Shares that are no whole rows go up or down to one, the
    largest remainders up. Raises InputError unless the weights name these corpora, all of them.
    """
    if config.corpus_weights:
        _check_names(config.corpus_weights, rows)
        parts = [config.corpus_weights[name] for name in rows]
    elif config.corpus_temperature == 1:
        return dict(rows)
    else:
        parts = [count ** (1 / config.corpus_temperature) for count in rows.values()]
    return dict(zip(rows, dealt(sum(rows.values()), parts), strict=True))


def endless_order(
    rows: Mapping[str, int], config: MixingConfig, seed: int
) -> Callable[[int], tuple[int, int]]:
    """Order the rows of corpora that lie behind each other: place 0, 1, … → (row, pass).

    `rows` of each corpus. A row's pass counts how often its corpus was walked through before. The
    order of an epoch takes 4 bytes a row in memory, those of mixed corpora as much again. Raises
    InputError as `epoch_rows` does.
    """
    sizes, shares = list(rows.values()), list(epoch_rows(rows, config).values())
    firsts = [0, *accumulate(sizes)]  # row of each corpus
    stops = list(accumulate(shares))  # in an epoch that is not shuffled yet
    total = sum(sizes)
    mixed = shares != sizes  # else an epoch has every row once, and its own order is enough

    @lru_cache(2)  # a batch may see two epochs
    def shuffled(epoch: int) -> npt.NDArray[np.uint32]:
        return np.random.default_rng([seed, epoch]).permutation(np.arange(total, dtype=np.uint32))

    @lru_cache(2 * len(sizes))
    def walk(corpus: int, passed: int) -> npt.NDArray[np.uint32]:
        numbers = np.arange(sizes[corpus], dtype=np.uint32)
        return np.random.default_rng([seed, passed, corpus]).permutation(numbers)

    def row_at(place: int) -> tuple[int, int]:
        epoch, place = divmod(place, total)
        number = int(shuffled(epoch)[place])
        corpus = bisect_right(stops, number)
        begin = stops[corpus] - shares[corpus]
        passed, row = divmod(epoch * shares[corpus] + number - begin, sizes[corpus])
        if mixed:
            row = int(walk(corpus, passed)[row])
        return firsts[corpus] + row, passed

    return row_at


def dealt(total: int, parts: Sequence[float]) -> list[int]:
    """Deal a total out in proportion to the parts, no fewer than 1 to each if there are enough."""
    scale = max(parts)
    quotas = np.array([part / scale for part in parts])  # the sum of large weights has no bounds
    quotas *= total / quotas.sum()
    whole = np.floor(quotas).astype(np.int64)
    behind = np.argsort(whole - quotas, kind="stable")  # the largest remainder first
    whole[behind[: total - int(whole.sum())]] += 1
    while total >= len(parts) and not whole.all():
        whole[whole.argmax()] -= 1
        whole[whole.argmin()] += 1
    return whole.tolist()


def _check_names(weights: Mapping[str, float], rows: Mapping[str, int]) -> None:
    """Raise InputError unless there is a weight for each corpus, and no other one."""
    unknown, missing = sorted(weights.keys() - rows.keys()), sorted(rows.keys() - weights.keys())
    if unknown:
        raise InputError(
            f"there are weights for {_listed(unknown)}, but rows of {_listed(rows)}. Name corpora "
            "as --corpus does, in entries such as 'news=data/news/*.jsonl'."
        )
    if missing:
        raise InputError(
            f"there are weights for {_listed(weights)}, but none for {_listed(missing)}. Give "
            "every corpus one; one without a name gets a name by 'NAME=PATTERN' in --corpus."
        )


def _listed(names: Mapping[str, object] | list[str]) -> str:
    """Name corpora in a message."""
    return ", ".join(repr(name) if name else "a corpus without a name" for name in names)
