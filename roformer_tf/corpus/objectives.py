"""Training objectives: predict masked words, or at every position the next token.

An objective turns B sequences (rows) of length L, with P predictions each, into a batch for `fit`:

    MaskedTokens  {"token_ids": (B, L), "sequence_ids": (B, L), "masked_positions": (B, P)} int32,
                  labels (B, P) int32, weights (B, P) float32
    NextTokens    {"token_ids": (B, L), "sequence_ids": (B, L)} int32,
                  labels (B, L) int32, weights (B, L) float32

Labels are the tokens to predict, with weight 1; unused slots have zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.masking import (
    MaskingConfig,
    mask_rows,
    predictions_per_row,
    replacement_ids,
    row_generator,
)
from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

Batch: TypeAlias = tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any], npt.NDArray[Any]]

ObjectiveName: TypeAlias = Literal["masked", "causal"]


@dataclass(frozen=True)
class MaskedTokens:
    """Masked language modelling: whole words are masked, and predicted from both directions."""

    mask_id: int
    random_ids: npt.NDArray[np.int32]
    """(ids,): the ids that may replace a token."""
    masking: MaskingConfig = MaskingConfig()  # noqa: RUF009 (frozen)

    def __call__(
        self,
        rows: npt.NDArray[np.integer],
        draws: Sequence[tuple[int, int, int]],
        progress: float = 1.0,
    ) -> Batch:
        """Rows (B, 3, L), channels as in `packing`, and (seed, epoch, row) of each → a batch.

        The masks of a row are new in every epoch, and do not depend on the other rows. `progress`
        of the run, from 0 to 1: the mask rate may depend on it.
        """
        masked = mask_rows(
            rows,
            predictions=predictions_per_row(rows.shape[-1], self.masking.highest_rate),
            rngs=[row_generator(*draw) for draw in draws],
            config=self.masking,
            mask_id=self.mask_id,
            random_ids=self.random_ids,
            progress=progress,
        )
        inputs = {
            "token_ids": masked.token_ids,
            "sequence_ids": rows[:, DOCUMENT].astype(np.int32),
            "masked_positions": masked.positions,
        }
        return inputs, masked.labels, masked.weights

    def rows_to_evaluate(self, rows: int, length: int, parts: int) -> int:
        """Batch size of evaluation, if training has `rows` of this length in a batch.

        As in training, because only masked tokens have logits.
        """
        return rows


@dataclass(frozen=True)
class NextTokens:
    """Causal language modelling: every token after [CLS] is predicted from those before it.

    The last one is [SEP], where generation stops. With two documents in a row:

        tokens    [CLS] 甲 乙 [SEP] [CLS] 丁 [SEP] 0
        document    1    1  1   1     2    2   2   0
        labels     甲   乙 [SEP] 0    丁 [SEP]  0   0
        weights     1    1  1   0     1    1   0   0
    """

    def __call__(
        self,
        rows: npt.NDArray[np.integer],
        draws: Sequence[tuple[int, int, int]],
        progress: float = 1.0,
    ) -> Batch:
        """The label of each position is the next token of its document.

        `draws` and `progress` are not needed.
        """
        tokens, documents = (rows[:, channel].astype(np.int32) for channel in (TOKEN, DOCUMENT))
        # A position is predicted from if the next one is of the same document, and no padding.
        continues = np.zeros(documents.shape, bool)
        continues[:, :-1] = (documents[:, :-1] == documents[:, 1:]) & (documents[:, 1:] != 0)
        labels = np.where(continues, np.roll(tokens, -1, axis=1), np.int32(0))
        inputs = {"token_ids": tokens, "sequence_ids": documents}
        return inputs, labels, continues.astype(np.float32)

    def rows_to_evaluate(self, rows: int, length: int, parts: int) -> int:
        """Fewer than in training: about as many predictions as `rows` with masks have.

        All logits of a batch are in memory, in float32. The result is a multiple of `parts`, as
        `rows` is.
        """
        masked = rows * predictions_per_row(length, MaskingConfig().highest_rate)
        return max(1, masked // (length * parts)) * parts


Objective: TypeAlias = MaskedTokens | NextTokens


def make_objective(
    name: ObjectiveName, tokenizer: RoFormerTokenizer, masking: MaskingConfig
) -> Objective:
    """The objective of that name, for a vocabulary."""
    if name == "causal":
        return NextTokens()
    return MaskedTokens(tokenizer.mask_id, replacement_ids(tokenizer.vocabulary), masking)


def predicted_ids(name: ObjectiveName, tokenizer: RoFormerTokenizer) -> npt.NDArray[np.int32]:
    """The ids that a model predicts; the bias of a new model is initialized with their frequencies.

    For causal language models these include [SEP] and [UNK].
    """
    ids = replacement_ids(tokenizer.vocabulary)
    if name == "causal":
        ids = np.append(ids, np.array([tokenizer.sep_id, tokenizer.unk_id], np.int32))
    return ids
