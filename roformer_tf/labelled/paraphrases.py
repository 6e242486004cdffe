"""Texts of equal meaning → sequences of two, in both orders, as in RoFormer-Sim's training.

    {甲乙, 丙} → [CLS]甲乙[SEP]丙[SEP], segments 0 0 0 0 1 1
                 [CLS]丙[SEP]甲乙[SEP], segments 0 0 0 1 1 1

The model generates the second text; in half of the sequences, words of the first are masked. The
two texts of a group are drawn anew in every epoch.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from roformer_tf.labelled.batches import (
    Generators,
    LabelledBatch,
    TrainingData,
    first_weights,
    row_inputs,
)
from roformer_tf.labelled.encoding import joined
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import IGNORED, Positives, text_numbers
from roformer_tf.tokenizers.padding import SPECIALS, Ints
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Fraction of the sequences whose first text is masked.
MASKED_ROWS = 0.5
# Fraction of the words of such a text that are selected. As in BERT, four fifths of them become
# [MASK], a tenth becomes other tokens, and a tenth stays.
MASKED_WORDS = 0.15


class ParaphraseBatches(TrainingData):
    """Groups of texts with the same meaning, in sequences (rows) of two.

    A batch of B groups is {"token_ids", "segment_ids", "labels": (2B, T)} int32, where labels are
    the next tokens; targets (2B, 2B), weights (2B,) float32. Rows 2i and 2i + 1 have the same two
    texts. Targets are int8: 1 for the other row with these texts, 0 for negatives, IGNORED for the
    row itself and for texts with the same meaning. With a teacher they are float32: the cosines of
    its vectors of the rows' first texts.
    """

    def __init__(
        self, examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
    ) -> None:
        self.tokenizer = tokenizer
        # The whole texts, for a teacher, and its vectors of them: (texts, H) float32 of length 1.
        self.spelled = [text for example in examples for text in example.texts]
        self.teacher: np.ndarray | None = None
        tokens = list(map(tokenizer.ids_and_words, self.spelled))
        # Token ids. Each text is cut to `max_length` tokens, as a single text is.
        room = max_length - SPECIALS
        self.texts = [np.array(ids[:room], np.int32) for ids, _ in tokens]
        # The number of each token's word.
        self.words = [np.array(words[:room]) for _, words in tokens]
        # For each group the indices of its texts, at least two.
        ends = np.cumsum([0, *(len(example.texts) for example in examples)]).tolist()
        self.groups = [list(range(*bounds)) for bounds in pairwise(ends)]
        # (texts,) int64: a number for each text, the same for equal ones.
        self.numbers = text_numbers(self.texts)
        # All pairs of texts of a group.
        pairs = [pair for group in self.groups for pair in combinations(group, 2)]
        self.positives = Positives(self.numbers[np.array(pairs, np.int64).reshape(-1, 2)])

    @cached_property
    def lengths(self) -> Ints:
        """(groups,) int32: tokens of the two longest texts of each, in one row."""
        longest = [sorted(len(self.texts[i]) for i in group)[-2:] for group in self.groups]
        return np.array([sum(two) + SPECIALS + 1 for two in longest], np.int32)

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """Two texts of each group, in both orders."""
        firsts, rows = list[int](), list[tuple[Ints, Ints]]()
        for group in items.tolist():
            rng = generators(group)
            first, second = rng.permutation(self.groups[group])[:2].tolist()
            firsts += [first, second]
            rows += [self._row(first, second, rng), self._row(second, first, rng)]
        inputs = row_inputs(rows, 2 * batch_size)
        # Next tokens; the loss counts only those of the second text.
        inputs["labels"] = np.pad(inputs["token_ids"][:, 1:], ((0, 0), (0, 1)))
        weights = first_weights(len(rows), 2 * batch_size)
        return inputs, self._targets(firsts, 2 * batch_size), weights

    def _row(self, first: int, second: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Token ids and segments of two texts."""
        is_masked = rng.random() < MASKED_ROWS
        source = self._masked(first, rng) if is_masked else self.texts[first]
        return joined(self.tokenizer, source.tolist(), self.texts[second].tolist())

    def _masked(self, number: int, rng: np.random.Generator) -> Ints:
        """A text with some whole words masked or replaced."""
        text, words = self.texts[number], self.words[number]
        if not len(text):
            return text
        drawn = rng.random(int(words[-1]) + 1)[words]  # one number for each word
        # From 1, because 0 is padding.
        random_ids = rng.integers(1, self.tokenizer.vocab_size, len(text))
        # Below 0.12 a word is masked, from there to 0.135 it stays, and up to 0.15 it is replaced.
        ids = np.where(drawn < MASKED_WORDS * 0.8, self.tokenizer.mask_id, text)
        replaced = (drawn >= MASKED_WORDS * 0.9) & (drawn < MASKED_WORDS)
        return np.where(replaced, random_ids, ids).astype(np.int32)

    def _targets(self, firsts: list[int], count: int) -> np.ndarray:
        """(count, count): how similar the vectors of two rows should be."""
        if self.teacher is not None:
            vectors = self.teacher[firsts]
            cosines = np.zeros((count, count), np.float32)
            cosines[: len(firsts), : len(firsts)] = vectors @ vectors.T
            return cosines
        numbers = np.full(count, -1)  # padding
        numbers[: len(firsts)] = self.numbers[firsts]
        targets = self.positives.negatives(numbers, numbers)
        rows = np.arange(len(firsts))
        targets[rows, rows ^ 1] = 1  # rows 2i and 2i + 1
        targets[rows, rows] = IGNORED
        return targets
