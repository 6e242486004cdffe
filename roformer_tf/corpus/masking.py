"""Whole-word masking of a sequence: a function of (seed, epoch, index of the sequence) only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.packing import TOKEN, WORD
from roformer_tf.errors import InputError, check_number
from roformer_tf.tokenizers.padding import SPECIALS

_MASKED, _REPLACED = 1, 2  # codes of a selected word; 3 is kept, 0 is not selected


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens of a sequence are predicted, and what replaces them."""

    mask_rate: float | tuple[float, float] = 0.15
    """Fraction of tokens to predict, above 0 and below 1. Words are predicted whole. Two numbers,
    such as 0.3 0.15: pretraining goes from the first to the second, linearly over its steps."""
    mask_replace_rate: float = 0.8
    """Fraction of the predicted words whose tokens become [MASK]."""
    random_replace_rate: float = 0.1
    """Fraction of the predicted words whose tokens become random ones. The rest is unchanged."""

    def __post_init__(self) -> None:
        for rate in (self.rate(0.0), self.rate(1.0)):
            check_number("mask_rate", rate, above=0, below=1, example="0.15")
        masked, replaced = self.mask_replace_rate, self.random_replace_rate
        if min(masked, replaced) < 0 or masked + replaced > 1:
            raise InputError(
                f"mask_replace_rate {masked} and random_replace_rate {replaced} must be 0 or more "
                "and together at most 1, such as 0.8 and 0.1."
            )

    def rate(self, progress: float) -> float:
        """The fraction of tokens to predict; `progress` of a run: 0 at its start, 1 at its end.

        >>> MaskingConfig((0.3, 0.2)).rate(0.5)
        0.25
        """
        if not isinstance(self.mask_rate, tuple):
            return self.mask_rate
        first, last = self.mask_rate
        return (1 - progress) * first + progress * last  # exact at both ends

    @property
    def highest_rate(self) -> float:
        """The rate for which a batch has slots, so that its shape does not change."""
        return max(self.rate(0.0), self.rate(1.0))


class MaskedRows(NamedTuple):
    """B sequences of length L with P slots for predictions each. Unused slots are zeros."""

    token_ids: npt.NDArray[np.int32]
    """(B, L): the input of the model."""
    positions: npt.NDArray[np.int32]
    """(B, P), rising: indices of the predicted tokens."""
    labels: npt.NDArray[np.int32]
    """(B, P): the original tokens at these positions."""
    weights: npt.NDArray[np.float32]
    """(B, P): 1 for a used slot."""


def predictions_per_row(length: int, mask_rate: float) -> int:
    """The maximum number of predictions in a sequence of this length; at least 1.

    >>> predictions_per_row(512, 0.15)
    76
    """
    return _wanted(length - SPECIALS, mask_rate)


def replacement_ids(vocabulary: Mapping[str, int]) -> npt.NDArray[np.int32]:
    """The ids that may replace a token at random: all except `[CLS]`, `[unused1]` and the like."""
    ids = [i for token, i in vocabulary.items() if not (token[:1] == "[" and token[-1:] == "]")]
    return np.array(sorted(ids), np.int32)


def row_generator(seed: int, epoch: int, row: int) -> np.random.Generator:
    """The random generator of one sequence in one epoch."""
    return np.random.default_rng([seed, epoch, row])


def mask_rows(
    rows: npt.NDArray[np.integer],
    *,
    predictions: int,
    rngs: Sequence[np.random.Generator],
    config: MaskingConfig,
    mask_id: int,
    random_ids: npt.NDArray[np.int32],
    progress: float = 1.0,
) -> MaskedRows:
    """Select whole words at random and mask them; `rows` is (B, 3, L), channels as in `packing`.

    In each sequence words are selected in random order until rate × tokens (rounded, at least 1, at
    most `predictions`) are reached; the rate is `config`'s at this `progress` of the run. A word
    that would exceed this number is skipped, so it is reached exactly unless only longer words
    remain. A word is masked, replaced or kept as a whole; each token of a replaced word is drawn
    separately from `random_ids` (ids,). Each sequence has a generator of its own, so its masks do
    not depend on the other sequences of a batch.
    """
    rate = config.rate(progress)
    drawn = [
        _draw(row[WORD], predictions, rng, config, rate)
        for row, rng in zip(rows, rngs, strict=True)
    ]
    fates = np.stack([fate for fate, _ in drawn])  # (B, L)
    chances = np.stack([chance for _, chance in drawn])  # (B, P)
    row, position = np.nonzero(fates)  # (N,): the selected tokens of all rows, in order
    slot = np.arange(len(row)) - np.searchsorted(row, row)  # (N,): counted in each row from 0

    token_ids = rows[:, TOKEN].astype(np.int32)
    shape = len(rows), predictions
    masked = MaskedRows(
        token_ids, np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    )
    masked.positions[row, slot] = position
    masked.labels[row, slot] = token_ids[row, position]
    masked.weights[row, slot] = 1
    replacements = random_ids[(chances * len(random_ids)).astype(np.intp)]  # (B, P)
    fate = fates[row, position]
    token_ids[row, position] = np.select(
        [fate == _MASKED, fate == _REPLACED],
        [np.int32(mask_id), replacements[row, slot]],
        token_ids[row, position],
    )
    return masked


def _wanted(tokens: int, mask_rate: float) -> int:
    """The number of tokens to predict."""
    return max(1, round(mask_rate * tokens))


def _draw(
    words: npt.NDArray[np.integer],
    predictions: int,
    rng: np.random.Generator,
    config: MaskingConfig,
    rate: float,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """All randomness of a sequence: codes of tokens (L,), and numbers in [0, 1) for slots (P,).

    `words` (L,) numbers the words from 1; 0 is special or padding.
    """
    sizes = np.bincount(words)  # (words + 1,) in tokens
    limit = min(predictions, _wanted(len(words) - int(sizes[0]), rate))
    chosen = _choose_words(sizes.tolist(), limit, rng)
    word_chances, chances = rng.random((2, predictions))
    word_chances = word_chances[: len(chosen)]
    kept_from = config.mask_replace_rate + config.random_replace_rate
    fates = np.zeros(len(sizes), np.int8)  # of words; 0: not selected
    fates[chosen] = (
        _MASKED + (word_chances >= config.mask_replace_rate) + (word_chances >= kept_from)
    )
    return fates[words], chances


def _choose_words(sizes: list[int], limit: int, rng: np.random.Generator) -> list[int]:
    """Select words whose sizes add up to `limit`, or as close to it as the order allows.

    `sizes` by number of the word; number 0 is no word.
    """
    chosen = []
    for word in (1 + rng.permutation(len(sizes) - 1)).tolist():
        if sizes[word] <= limit:
            chosen.append(word)
            limit -= sizes[word]
            if not limit:
                break
    return chosen
