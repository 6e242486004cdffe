"""Texts that mean the same → rows of two of them, in both orders, as RoFormer-Sim is trained.

    {甲乙, 丙} → [CLS]甲乙[SEP]丙[SEP], segments 0 0 0 0 1 1
                 [CLS]丙[SEP]甲乙[SEP], segments 0 0 0 1 1 1

The second text is written by the model; the first one's words are masked in half of the rows. Which
two texts of a group are taken is drawn anew in every epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.apart import NEITHER, Belonging, text_numbers
from roformer_tf.labelled.batches import ENDLESS, LabelledBatch, batches_by_length
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import Ints, bucket, padded
from roformer_tf.tokenizers.tokenizer import SPECIALS, RoFormerTokenizer, check_length

if TYPE_CHECKING:
    import grain

MASKED_ROWS = 0.5
"""Share of the rows whose first text is masked."""
MASKED_WORDS = 0.15
"""Share of the words of such a text that are chosen; of these four fifths become [MASK], a tenth
other tokens, and a tenth stays."""


class _Tokens(NamedTuple):
    ids: Ints
    words: Ints
    """The number of each token's word."""


@dataclass(frozen=True)
class ParaphraseBatches:
    """Groups of texts that mean the same, to be trained on in rows of two.

    A batch of B groups is {"token_ids", "segment_ids", "labels": (2B, T)} int32, where labels are
    the next tokens; targets (2B, 2B), weights (2B,) float32. Rows 2i and 2i + 1 are the same two
    texts. Targets are int8: 1 for the other row of two, 0 for the rest, below 0 for a row itself
    and for what means the same too; or, with a teacher, float32: the cosines of its vectors of the
    rows' first texts. Groups beyond the last one are empty rows that weigh 0.
    """

    groups: list[list[int]]
    """For each group the places of its texts, at least two."""
    texts: list[_Tokens]
    spelled: list[str]
    """The texts, whole, for a teacher to read."""
    tokenizer: RoFormerTokenizer
    teacher: np.ndarray | None = None
    """(texts, H) float32 of length 1."""

    @classmethod
    def of(
        cls, examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
    ) -> "ParaphraseBatches":
        """Tokenize the texts of groups; each is cut to `max_length` tokens, as if it stood alone.

        Raises InputError for a length that holds no token.
        """
        check_length(max_length)
        texts, groups, room = list[_Tokens](), list[list[int]](), max_length - SPECIALS
        spelled = [text for example in examples for text in example.texts]
        for example in examples:
            groups.append([len(texts) + i for i in range(len(example.texts))])
            for text in example.texts:
                ids, words = tokenizer.ids_and_words(text)
                texts.append(_Tokens(np.array(ids[:room], np.int32), np.array(words[:room])))
        return cls(groups, texts, spelled, tokenizer)

    @cached_property
    def numbers(self) -> Ints:
        """(texts,) int64: which text each is, the same for equal ones."""
        return text_numbers(text.ids for text in self.texts)

    @cached_property
    def belonging(self) -> Belonging:
        """What means the same."""
        pairs = [(group[0], other) for group in self.groups for other in group[1:]]
        pairs += [(a, b) for group in self.groups for a in group[1:] for b in group[1:] if a < b]
        return Belonging(self.numbers[np.array(pairs, np.int64).reshape(-1, 2)])

    @cached_property
    def lengths(self) -> Ints:
        """(groups,) int32: tokens of the longest two texts of each, in one row."""
        longest = [sorted(len(self.texts[i].ids) for i in group)[-2:] for group in self.groups]
        return np.array([sum(two) + SPECIALS + 1 for two in longest], np.int32)

    varying: ClassVar[tuple[str, ...]] = ()

    @property
    def tokens_each(self) -> float:
        """Tokens of a group's two rows."""
        return float(2 * self.lengths.mean())

    def fingerprinted(self) -> Iterable[np.ndarray]:
        """Every text, and which are together."""
        yield from (text.ids for text in self.texts)
        yield np.array([len(group) for group in self.groups])

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in which every group stands once."""
        return -(-len(self.groups) // batch_size)

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """Give the endless batches, each a function of the seed and its number.

        Raises InputError if there are no groups.
        """
        if not self.groups:
            raise InputError("there is no example to train on. Give a file with some.")
        steps = self.steps_per_epoch(batch_size)

        @lru_cache(2)
        def order(epoch: int) -> list[Ints]:
            rng = np.random.default_rng([seed, epoch])
            return batches_by_length(self.lengths, batch_size, rng)

        def batch(step: int) -> LabelledBatch:
            epoch, number = divmod(step, steps)
            pairs, rows = list[int](), list[tuple[Ints, Ints]]()
            for group in order(epoch)[number].tolist():
                rng = np.random.default_rng([seed, epoch, group])
                first, second = rng.permutation(self.groups[group])[:2].tolist()
                pairs += [first, second]
                rows += [self._row(first, second, rng), self._row(second, first, rng)]
            return self._batch(pairs, rows, 2 * batch_size)

        import grain  # which takes a second: who answers asks for no batches

        return grain.MapDataset.range(ENDLESS).map(batch)

    def _row(self, first: int, second: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Token ids and segments of two texts."""
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        a, b = self.texts[first], self.texts[second].ids
        source = self._masked(a, rng) if rng.random() < MASKED_ROWS else a.ids
        ids = np.concatenate([[cls], source, [sep], b, [sep]]).astype(np.int32)
        segments = np.repeat([0, 1], [len(source) + 2, len(b) + 1]).astype(np.int32)
        return ids, segments

    def _masked(self, text: _Tokens, rng: np.random.Generator) -> Ints:
        """A text of which whole words are masked, replaced, or only chosen."""
        if not len(text.ids):
            return text.ids
        drawn = rng.random(int(text.words[-1]) + 1)[text.words]
        others = rng.integers(1, self.tokenizer.vocab_size, len(text.ids))
        ids = np.where(drawn < MASKED_WORDS * 0.8, self.tokenizer.mask_id, text.ids)
        replaced = (drawn >= MASKED_WORDS * 0.9) & (drawn < MASKED_WORDS)
        return np.where(replaced, others, ids).astype(np.int32)

    def _batch(self, firsts: list[int], rows: list[tuple[Ints, Ints]], count: int) -> LabelledBatch:
        """So many rows, the last ones empty; `firsts` are the rows' first texts."""
        length = bucket(max(len(ids) for ids, _ in rows))
        ids = padded([ids for ids, _ in rows], (count, length))
        segments = padded([segments for _, segments in rows], (count, length))
        labels = np.zeros_like(ids)
        labels[:, :-1] = ids[:, 1:]
        weights = (np.arange(count) < len(rows)).astype(np.float32)
        inputs = {"token_ids": ids, "segment_ids": segments, "labels": labels}
        return inputs, self._targets(firsts, count), weights

    def _targets(self, firsts: list[int], count: int) -> np.ndarray:
        """What the rows' vectors are to have to do with each other: (count, count)."""
        if self.teacher is not None:
            vectors = self.teacher[firsts]
            cosines = np.zeros((count, count), np.float32)
            cosines[: len(firsts), : len(firsts)] = vectors @ vectors.T
            return cosines
        numbers = np.full(count, -1)
        numbers[: len(firsts)] = self.numbers[firsts]
        wanted = self.belonging.against(numbers, numbers)
        rows = np.arange(len(firsts))
        wanted[rows, rows ^ 1] = 1  # the neighbour
        wanted[rows, rows] = NEITHER
        return wanted
