"""Examples with several candidates: sequences (rows), and batches of whole examples.

A candidate is scored together with its text, in one of two ways:

pair     one row (text, candidate), whose logit is the score
cloze    candidates fill the gap of the text; those of k tokens share the row with k masks

A cloze's score is relative: from the mean log-probability of a candidate's tokens in the text, that
in a row of masks alone is subtracted. Else frequent words would be likely everywhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.labelled.batches import (
    Generators,
    LabelledBatch,
    TrainingData,
    first_weights,
    row_inputs,
)
from roformer_tf.labelled.encoding import EncodedRow, EncodedTexts, encode_texts, joined, rows_of
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import padded_count, text_numbers
from roformer_tf.tokenizers.padding import SPECIALS, Ints, padded

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# A gap in a text: #idiom#, as in CHID; [MASK]; or at least three underscores.
GAP = re.compile(r"#idiom\d*#|\[MASK\]|_{3,}")
# Target of what fills up a list of candidates.
ABSENT = -1.0


@dataclass(frozen=True, kw_only=True)
class EncodedChoices(EncodedTexts):
    """N examples of C candidates each, which may differ between examples."""

    candidate_rows: list[Ints]
    """For each example (C, R) int32: the rows that a candidate's score is computed from."""
    tokens: list[Ints]
    """For each example (C, P) int32: of a cloze a candidate's tokens, filled up with 0; P is 0 for
    pairs."""
    masks: list[Ints]
    """For each row (k,) int32: positions of the masks of a cloze."""


def encode_choices(
    examples: Sequence[Example], tokenizer: "RoFormerTokenizer", max_length: int
) -> EncodedChoices:
    """A row of at most `max_length` tokens for each pair (text, candidate).

    The longer of both loses its last tokens.
    """
    encoded = encode_texts(examples, tokenizer, max_length)
    rows = rows_of(encoded)  # one for each candidate
    return EncodedChoices(
        **vars(encoded),
        candidate_rows=[np.array(of_example, np.int32)[:, None] for of_example in rows],
        tokens=[np.zeros((len(of_example), 0), np.int32) for of_example in rows],
        masks=[np.zeros(0, np.int32)] * len(encoded.token_ids),
    )


def encode_cloze(
    examples: Sequence[Example], tokenizer: "RoFormerTokenizer", max_length: int
) -> EncodedChoices:
    """Rows of at most `max_length` tokens, with masks in the first gap of the text.

    A long text loses what is farthest from the gap, a long candidate its last tokens; a text
    without a gap has it at its end. Each example has a row for each number of tokens of its
    candidates, and one of as many masks alone.
    """
    rows, masks, lengths = list[list[EncodedRow]](), list[Ints](), list[int]()
    candidate_rows, tokens = list[Ints](), list[Ints]()
    for example in examples:
        text, *candidates = example.texts
        # Only the first gap has masks; any further ones are removed from the text.
        before, *after = GAP.split(text)
        sides = tokenizer.ids(before), tokenizer.ids("".join(after))
        ids = [
            (tokenizer.ids(candidate) or [tokenizer.unk_id])[: max_length - SPECIALS]
            for candidate in candidates
        ]
        rows.append([])
        row_of: dict[int, list[int]] = {}
        for count in sorted({len(some) for some in ids}):
            # Two rows in this order: the masks in the text, and the masks alone.
            row_of[count] = [len(masks), len(masks) + 1]
            room = max_length - SPECIALS - count
            for left, right in (_around_gap(*sides, room), ([], [])):
                gap = [tokenizer.mask_id] * count
                rows[-1].append(joined(tokenizer, [*left, *gap, *right]))
                # 1 for [CLS].
                masks.append(np.arange(1 + len(left), 1 + len(left) + count, dtype=np.int32))
        longest = max(map(len, ids))
        candidate_rows.append(np.array([row_of[len(some)] for some in ids], np.int32))
        tokens.append(padded([np.array(some, np.int32) for some in ids], (len(ids), longest)))
        lengths.append(sum(map(len, sides)) + longest + SPECIALS)
    return EncodedChoices.of_rows(
        rows, lengths, candidate_rows=candidate_rows, tokens=tokens, masks=masks
    )


def _around_gap(before: list[int], after: list[int], room: int) -> tuple[list[int], list[int]]:
    """The tokens nearest to a gap, `room` in all: half on each side, more if the other has less."""
    left = min(len(before), max(room // 2, room - len(after)))
    return before[len(before) - left :], after[: room - left]


@dataclass(frozen=True)
class ChoiceBatches(TrainingData):
    """Examples with their candidates; a row that several examples share is computed once.

    A batch of B examples with at most C candidates, D different rows and P masks is

        {"token_ids": (D, T), "segment_ids": (D, T), "row_index": (B, C, R)} int32,
        targets (B, C) float32, ABSENT beyond an example's candidates, weights (B,) float32

    where `row_index` indexes the rows. A cloze also has "masked_positions" (D, P) and "tokens"
    (B, C, P) int32, 0 beyond a candidate's tokens.
    """

    encoded: EncodedChoices
    targets: Sequence[np.ndarray]
    """For each example (C,) float32: how right each candidate is; their sum is 1. With a teacher
    (C, 3): as in `tasks.losses.listwise_softmax`."""

    @property
    def varying(self) -> tuple[str, ...]:
        """Inputs whose number of rows is not the same in every batch."""
        is_cloze = self.encoded.tokens[0].shape[1] > 0
        return ("token_ids", "segment_ids", *(["masked_positions"] if is_cloze else []))

    @cached_property
    def lengths(self) -> Ints:
        """(N,) int: tokens of the longest row of each example."""
        lengths = self.encoded.row_lengths
        return np.array([lengths[rows].max() for rows in self.encoded.candidate_rows], np.int32)

    @cached_property
    def _numbers(self) -> Ints:
        """(rows,) int64: equal rows have equal numbers."""
        pairs = zip(self.encoded.token_ids, self.encoded.segment_ids, strict=True)
        return text_numbers(np.concatenate(pair) for pair in pairs)

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """Pad rows to a common length, and lists of candidates to the longest."""
        encoded, chosen = self.encoded, items.tolist()
        of_items = [encoded.candidate_rows[item] for item in chosen]
        flat = np.concatenate(of_items)  # (candidates of all items, R)
        # `first`: where in `flat` each different row occurs first. `inverse`: for each entry of
        # `flat` the index of its row among the different ones.
        _, first, inverse = np.unique(self._numbers[flat], return_index=True, return_inverse=True)
        rows = flat.ravel()[first].tolist()
        # Versions of NumPy differ in the shape of the inverse.
        numbered = inverse.reshape(flat.shape).astype(np.int32)
        row_index = np.split(numbered, np.cumsum([len(x) for x in of_items])[:-1])
        count, height = max(map(len, of_items)), padded_count(len(rows))
        inputs: dict[str, Any] = {
            **row_inputs([(encoded.token_ids[x], encoded.segment_ids[x]) for x in rows], height),
            "row_index": padded(row_index, (batch_size, count, flat.shape[1])),
        }
        # Tokens of the longest candidate of a cloze; pairs have none.
        if longest := max(encoded.tokens[item].shape[1] for item in chosen):
            masks = [encoded.masks[row] for row in rows]
            inputs["masked_positions"] = padded(masks, (height, longest))
            tokens = [encoded.tokens[item] for item in chosen]
            inputs["tokens"] = padded(tokens, (batch_size, count, longest))
        shape = batch_size, count, *self.targets[0].shape[1:]
        targets = np.full(shape, ABSENT, np.float32)
        for target, item in zip(targets, chosen, strict=False):
            target[: len(self.targets[item])] = self.targets[item]
        return inputs, targets, first_weights(len(items), batch_size)
