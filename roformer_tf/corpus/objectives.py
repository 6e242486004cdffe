"""Training objectives: predict masked words, or at every position the next token.

An objective turns B sequences (rows) of length L, with P predictions each, into a batch for `fit`:

    MaskedTokens  {"token_ids": (B, L), "sequence_ids": (B, L), "masked_positions": (B, P)} int32,
                  labels (B, P) int32, weights (B, P) float32
    next_tokens   {"token_ids": (B, L), "sequence_ids": (B, L)} int32,
                  labels (B, L) int32, weights (B, L) float32

Labels are the tokens to predict, with weight 1; unused slots have zeros. Masks are a function of
(seed, epoch, index of the sequence) only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.packing import DOCUMENT, TOKEN, WORD
from roformer_tf.errors import InputError, check_number
from roformer_tf.tokenizers.padding import SPECIALS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

Batch: TypeAlias = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any], npt.NDArray[Any]]

ObjectiveName: TypeAlias = Literal["masked", "causal"]


# Whole-word masking


_MASKED, _REPLACED = 1, 2  # codes of a selected word; 3 is kept, 0 is not selected


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens of a sequence are predicted, and what replaces them."""

    mask_rate: Annotated[float | tuple[float, float], "X [X]"] = 0.15
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
        if not (masked >= 0 and replaced >= 0 and masked + replaced <= 1):  # NaN is refused, too
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
        progress = min(progress, 1.0)  # some batches are prefetched beyond the last step
        return (1 - progress) * first + progress * last  # exact at both ends

    @property
    def highest_rate(self) -> float:
        """The rate for which a batch has slots, so that its shape does not change."""
        return max(self.rate(0.0), self.rate(1.0))


def check_masks(objective: ObjectiveName, masking: MaskingConfig) -> None:
    """Raise InputError for settings of masks where no words are masked."""
    if objective == "causal" and masking != MaskingConfig():
        raise InputError(
            "--mask-rate, --mask-replace-rate and --random-replace-rate are settings for masked "
            "words, but --objective causal masks none. Remove them."
        )


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


def _wanted(tokens: int, mask_rate: float) -> int:
    """The number of tokens to predict."""
    return max(1, round(mask_rate * tokens))


def _draw(
    words: npt.NDArray[np.integer],
    rng: np.random.Generator,
    config: MaskingConfig,
    rate: float,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """All randomness of a sequence: codes of tokens (L,), and numbers in [0, 1) for slots.

    `words` (L,) numbers the words from 1; 0 is special or padding.
    """
    sizes = np.bincount(words)  # (words + 1,) in tokens
    # At most one for each slot, since two tokens of a sequence or more are special.
    limit = _wanted(len(words) - int(sizes[0]), rate)
    chosen = _choose_words(sizes.tolist(), limit, rng)
    # The slots of this rate, not of the highest one: held-out masks are those of the last rate.
    # So many words are chosen at most; `chances` does not depend on them.
    word_chances, chances = rng.random((2, predictions_per_row(len(words), rate)))
    word_chances = word_chances[: len(chosen)]
    kept_from = config.mask_replace_rate + config.random_replace_rate
    # With the rates 0.8 and 0.1: a chance below 0.8 gives 1 (masked), below 0.9 gives 2 (replaced),
    # from 0.9 on 3 (kept). Word 0, special tokens and padding, is never chosen.
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


# Objectives


@dataclass(frozen=True)
class MaskedTokens:
    """Masked language modelling: whole words are masked, and predicted from both directions."""

    mask_id: int
    random_ids: npt.NDArray[np.int32]
    """(ids,): the ids that may replace a token."""
    masking: MaskingConfig = MaskingConfig()

    def __call__(
        self,
        rows: npt.NDArray[np.integer],
        draws: Sequence[tuple[int, int, int]],
        progress: float = 1.0,
    ) -> Batch:
        """Rows (B, 3, L), channels as in `packing`, and (seed, epoch, row) of each → a batch.

        In each sequence words are selected in random order until rate × tokens (rounded, at least
        1) are reached. A word that would exceed this number is skipped, so it is reached exactly
        unless only longer words remain. A word is masked, replaced or kept as a whole; each token
        of a replaced word is drawn separately. The masks of a row are new in every epoch, and do
        not depend on the other rows. `progress` of the run, from 0 to 1: the mask rate may depend
        on it.
        """
        predictions = predictions_per_row(rows.shape[-1], self.masking.highest_rate)
        rate = self.masking.rate(progress)
        drawn = [
            _draw(row[WORD], np.random.default_rng(draw), self.masking, rate)
            for row, draw in zip(rows, draws, strict=True)
        ]
        fates = np.stack([fate for fate, _ in drawn])  # (B, L)
        chances = np.stack([chance for _, chance in drawn])  # (B, slots of the rate)
        row, position = np.nonzero(fates)  # (N,): the selected tokens of all rows, in order
        # row 0 0 0 2 2 → the first index of each value 0 0 0 3 3 → slots 0 1 2 0 1
        slot = np.arange(len(row)) - np.searchsorted(row, row)  # (N,): counted in each row from 0

        token_ids = rows[:, TOKEN].astype(np.int32)
        positions, labels = np.zeros((2, len(rows), predictions), np.int32)
        weights = np.zeros((len(rows), predictions), np.float32)
        positions[row, slot], labels[row, slot] = position, token_ids[row, position]
        weights[row, slot] = 1
        replacements = self.random_ids[(chances * len(self.random_ids)).astype(np.intp)]
        fate = fates[row, position]
        token_ids[row, position] = np.select(
            [fate == _MASKED, fate == _REPLACED],
            [np.int32(self.mask_id), replacements[row, slot]],
            token_ids[row, position],
        )
        inputs = {
            "token_ids": token_ids,
            "sequence_ids": rows[:, DOCUMENT].astype(np.int32),
            "masked_positions": positions,
        }
        return inputs, labels, weights


def next_tokens(
    rows: npt.NDArray[np.integer], draws: Sequence[tuple[int, int, int]], progress: float = 1.0
) -> Batch:
    """Causal language modelling: every token after [CLS] is predicted from those before it.

    The last one is [SEP], where generation stops. With two documents in a row:

        tokens    [CLS] 甲 乙 [SEP] [CLS] 丁 [SEP] 0
        document    1    1  1   1     2    2   2   0
        labels     甲   乙 [SEP] 0    丁 [SEP]  0   0
        weights     1    1  1   0     1    1   0   0

    `draws` and `progress` are not needed.
    """
    tokens, documents = (rows[:, channel].astype(np.int32) for channel in (TOKEN, DOCUMENT))
    # A position is predicted from if the next one is of the same document, and no padding.
    continues = np.zeros(documents.shape, bool)
    continues[:, :-1] = (documents[:, :-1] == documents[:, 1:]) & (documents[:, 1:] != 0)
    # `roll` moves the first token to the last column, where `continues` is False.
    labels = np.where(continues, np.roll(tokens, -1, axis=1), np.int32(0))
    inputs = {"token_ids": tokens, "sequence_ids": documents}
    return inputs, labels, continues.astype(np.float32)


# Sequences (B, 3, L), (seed, epoch, row) of each, and the progress of the run → a batch.
Objective: TypeAlias = Callable[..., Batch]


def rows_of_next_tokens(rows: int, length: int, parts: int) -> int:
    """How many sequences have about as many next tokens as `rows` of this length have masked ones.

    All logits of a batch are in memory, in float32. The result is a multiple of `parts`, as `rows`
    is.
    """
    # 64 sequences of 512 tokens have 64 · 76 = 4,864 masked ones, and 9 sequences 4,608 in all.
    masked = rows * predictions_per_row(length, MaskingConfig().highest_rate)
    return max(1, masked // (length * parts)) * parts


def make_objective(
    name: ObjectiveName, tokenizer: RoFormerTokenizer, masking: MaskingConfig
) -> Objective:
    """The objective of that name, for a vocabulary."""
    if name == "causal":
        return next_tokens
    return MaskedTokens(tokenizer.mask_id, replacement_ids(tokenizer.vocabulary), masking)


def predicted_ids(name: ObjectiveName, tokenizer: RoFormerTokenizer) -> npt.NDArray[np.int32]:
    """The ids that a model predicts; the bias of a new model is initialized with their frequencies.

    [UNK] is among them, and for causal language models [SEP].
    """
    ends = [tokenizer.sep_id] if name == "causal" else []
    known = replacement_ids(tokenizer.vocabulary)
    return np.array([*known, tokenizer.unk_id, *ends], np.int32)
