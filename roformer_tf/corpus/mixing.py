"""Corpora → one endless order of sequences (rows), with a chosen fraction of each corpus.

An epoch has as many rows as all corpora. Two corpora of 4 and 2 rows, mixed half and half:

    epoch 0    rows 2 0 1 of the first, 1 0 0 of the second, shuffled
    epoch 1    rows 3 1 2 of the first, 1 1 0 of the second, shuffled

So each corpus is repeated, every time in another order. At the end of every epoch, the numbers of
repetitions of its rows differ by at most one.
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
    """The fraction of the training data from each corpus. Default: in proportion to its size."""

    corpus_weights: dict[str, float] = field(default_factory=dict)
    """Name and weight of every corpus, such as `news 3 wiki 1`: three sequences of news
    to one of wiki."""
    corpus_temperature: float = 1.0
    """Above 1, small corpora are repeated: corpora of size n are mixed as n^(1/temperature)."""

    def __post_init__(self) -> None:
        hint = "1 mixes corpora in proportion to their sizes, 3 makes them more even"
        check_numbers(self, "corpus_temperature", at_least=1, hint=hint)
        if self.corpus_weights and self.corpus_temperature != 1:
            raise InputError(
                "give either corpus_weights or a corpus_temperature: "
                f"{_listed(self.corpus_weights)} have weights already, so a temperature of "
                f"{self.corpus_temperature} has no meaning."
            )
        for name, weight in self.corpus_weights.items():
            hint = "or remove its files from --corpus to train without it"
            check_number(f"the weight of the corpus {name!r}", weight, above=0, hint=hint)


def epoch_rows(rows: Mapping[str, int], config: MixingConfig) -> dict[str, int]:
    """Rows of each corpus in an epoch, at least 1, which add up to all rows.

    `rows` of each corpus, 1 or more. Fractions are rounded by the largest remainder method.
    Raises InputError unless the weights name all of these corpora and no others.
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
    """Order the rows of corpora that are stored one after another: position → (row, pass).

    `rows` of each corpus. The pass of a row is the number of earlier repetitions of its corpus. The
    order of an epoch needs 4 bytes of memory for each row, that of mixed corpora 8 bytes. Raises
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

    def row_at(position: int) -> tuple[int, int]:
        epoch, position = divmod(position, total)
        number = int(shuffled(epoch)[position])
        corpus = bisect_right(stops, number)
        begin = stops[corpus] - shares[corpus]
        # The rows of a corpus are one endless sequence, of which each epoch takes a share.
        passed, row = divmod(epoch * shares[corpus] + number - begin, sizes[corpus])
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
    order = np.argsort(whole - quotas, kind="stable")  # the largest remainder first
    whole[order[: total - int(whole.sum())]] += 1
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
    """Names of corpora for a message."""
    return ", ".join(repr(name) if name else "a corpus without a name" for name in names)
