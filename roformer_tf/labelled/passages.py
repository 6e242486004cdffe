"""Texts without labels → pairs that belong together: a sentence and the passage it is taken from.

    今天下雨。路很滑，要小心。 → (要小心。, 今天下雨。), (今天下雨。, 今天下雨。路很滑，要小心。)

A text of one sentence belongs to itself, read a second time with other dropout (SimCSE,
arXiv 2104.08821). Which sentence a text gives, and what of the text is left around it, is drawn
anew in every epoch: a function of the seed, the epoch and the text's number.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.apart import NEITHER, EncodedSides
from roformer_tf.labelled.batches import ENDLESS, LabelledBatch, batches_by_length
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import Ints, bucket, padded
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_length

if TYPE_CHECKING:
    import grain

_CLAUSE = re.compile(r"[^。！？!?；;…\n，,、：:]*[。！？!?；;…\n，,、：:]*")
_ENDS = frozenset("。！？!?；;…\n")
"""Of a sentence; a clause also ends with a comma or a colon."""
FEWEST = 3
"""Tokens of a sentence that can be a question; shorter ones are met everywhere."""
SPAN = (2, 8)
"""Tokens of a short question, at least and at most."""
TAKEN_OUT = 0.5
"""How often the passage lacks the question, so that equal words alone do not tell."""


class View(NamedTuple):
    """What a text is trained on, once: token ids without special ones."""

    question: Ints
    passage: Ints


class _Text(NamedTuple):
    """A text in clauses, in three arrays whatever its length."""

    ids: Ints
    """(tokens,) int32, none of them special."""
    bounds: Ints
    """(clauses + 1,) int32: clause c is the tokens bounds[c] to bounds[c + 1]."""
    sentences: Ints
    """(clauses,) int32, rising from 0: the sentence that a clause is of."""

    def clauses_of(self, sentence: int) -> tuple[int, int]:
        """The clauses [first, last) of a sentence."""
        first, last = np.searchsorted(self.sentences, [sentence, sentence + 1])
        return int(first), int(last)

    def askable(self) -> list[int]:
        """The sentences that are long enough to be asked for."""
        sizes = np.bincount(self.sentences, np.diff(self.bounds))
        return np.flatnonzero(sizes >= FEWEST).tolist()


@dataclass(frozen=True)
class Passages:
    """Texts in their clauses, of which pairs are drawn."""

    texts: list[_Text]
    tokenizer: RoFormerTokenizer
    max_length: int

    @classmethod
    def of(
        cls, examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
    ) -> "Passages":
        """Tokenize texts, each once. Raises InputError for a length that holds no token."""
        check_length(max_length)
        texts = [_in_clauses(example.texts[0], tokenizer) for example in examples]
        return cls(texts, tokenizer, max_length)

    @cached_property
    def lengths(self) -> Ints:
        """(texts,) int32: tokens of each, special ones included."""
        return np.array([2 + len(text.ids) for text in self.texts], np.int32)

    def view(self, number: int, rng: np.random.Generator) -> View:
        """Draw a question of a text, and the passage around it; of one sentence, twice the text.

        The question is a sentence, a clause or a few words of it, each as often as the others.
        """
        text, room = self.texts[number], self.max_length - 2
        askable = text.askable()
        if len(askable) < 2:
            return View(text.ids[:room], text.ids[:room])
        clauses = text.clauses_of(askable[rng.integers(len(askable))])
        first, last = _question(text, *clauses, rng)
        begin, end = _window(text, *clauses, room, rng)
        if rng.random() < TAKEN_OUT and (begin, end) != (first, last):
            passage = np.concatenate([text.ids[begin:first], text.ids[last:end]])
        else:
            passage = text.ids[begin:end]
        return View(text.ids[first:last][:room], passage[:room])

    def judged_view(self, number: int) -> View:
        """The view that a text is judged by: the same every time, whatever stands beside it.

        Of one sentence its two halves: one that is asked for by itself is always found.
        """
        text = self.texts[number]
        if len(text.askable()) > 1:
            rng = np.random.default_rng([len(text.ids), int(text.ids.sum())])
            return self.view(number, rng)
        ids = text.ids[: self.max_length - 2]
        middle = max(1, len(ids) // 2)
        return View(ids[:middle], ids[middle:] if len(ids) > 1 else ids)

    def row(self, ids: Ints) -> Ints:
        """`[CLS] tokens [SEP]`."""
        return np.concatenate([[self.tokenizer.cls_id], ids, [self.tokenizer.sep_id]]).astype("i4")

    def judged(self) -> EncodedSides:
        """The view of each text that it is judged by, in two rows."""
        views = [self.judged_view(number) for number in range(len(self.texts))]
        return EncodedSides.of([[[self.row(x)] for x in view] for view in views], self.lengths)


@dataclass(frozen=True)
class PassageBatches:
    """Texts without labels in batches of pairs: sides and targets as `SideBatches` has them."""

    passages: Passages

    varying: ClassVar[tuple[str, ...]] = ()

    @property
    def tokens_each(self) -> float:
        """Tokens that a text is trained on, about."""
        lengths = np.minimum(self.passages.lengths, self.passages.max_length)
        return float(1.5 * lengths.mean())

    def fingerprinted(self) -> Iterable[np.ndarray]:
        """Every text's token ids."""
        return (text.ids for text in self.passages.texts)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in which every text stands once."""
        return -(-len(self.passages.texts) // batch_size)

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """Give the endless batches, each a function of the seed and its number.

        Raises InputError if there are no texts.
        """
        if not self.passages.texts:
            raise InputError("there is no text to train on. Give a file with some.")
        steps = self.steps_per_epoch(batch_size)

        @lru_cache(2)
        def order(epoch: int) -> list[Ints]:
            rng = np.random.default_rng([seed, epoch])
            return batches_by_length(self.passages.lengths, batch_size, rng)

        def batch(step: int) -> LabelledBatch:
            epoch, number = divmod(step, steps)
            texts = order(epoch)[number].tolist()
            rngs = [np.random.default_rng([seed, epoch, text]) for text in texts]
            views = [self.passages.view(*pair) for pair in zip(texts, rngs, strict=True)]
            return self._batch(texts, views, batch_size)

        import grain  # which takes a second: who answers asks for no batches

        return grain.MapDataset.range(ENDLESS).map(batch)

    def _batch(self, texts: list[int], views: list[View], batch_size: int) -> LabelledBatch:
        """A batch, in which no passage is held against a question that its whole text holds."""
        inputs = {}
        for side in range(2):
            rows = [self.passages.row(view[side]) for view in views]
            length = bucket(max(map(len, rows)))
            inputs[f"side_{side}"] = padded(rows, (batch_size, length))
        targets = np.full((batch_size, batch_size), NEITHER, np.int8)
        wholes = [self.passages.texts[text].ids.tobytes() for text in texts]
        for row, view in enumerate(views):
            question = view.question.tobytes()
            targets[row, : len(texts)] = [NEITHER if question in whole else 0 for whole in wholes]
            targets[row, row] = 1
        weights = (np.arange(batch_size) < len(texts)).astype(np.float32)
        return inputs, targets, weights


def _in_clauses(text: str, tokenizer: RoFormerTokenizer) -> _Text:
    """Tokenize a text clause by clause; there is at least one token."""
    ids, bounds, sentences, sentence = list[int](), [0], list[int](), 0
    for clause in _CLAUSE.findall(text):
        if found := tokenizer.ids(clause):
            ids += found
            bounds.append(len(ids))
            sentences.append(sentence)
        sentence += bool(_ENDS & set(clause))
    if not ids:
        ids, bounds, sentences = [tokenizer.unk_id], [0, 1], [0]
    numbers = np.unique(sentences, return_inverse=True)[1]
    return _Text(np.array(ids, np.int32), np.array(bounds, np.int32), numbers.astype(np.int32))


def _question(text: _Text, first: int, last: int, rng: np.random.Generator) -> tuple[int, int]:
    """Tokens [first, last) to ask for, of a sentence that is the clauses [first, last)."""
    whole = int(text.bounds[first]), int(text.bounds[last])
    kind = rng.integers(3)
    if kind == 1:
        clause = int(rng.integers(first, last))
        begin, end = int(text.bounds[clause]), int(text.bounds[clause + 1])
        return (begin, end) if end - begin >= FEWEST else whole
    if kind == 2:
        size = min(int(rng.integers(SPAN[0], SPAN[1] + 1)), whole[1] - whole[0])
        begin = int(rng.integers(whole[0], whole[1] - size + 1))
        return begin, begin + size
    return whole


def _window(
    text: _Text, first: int, last: int, room: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Tokens [begin, end) of the clauses [first, last), and as many around them as there is room.

    What lies before them and behind them is drawn.
    """
    sizes = np.diff(text.bounds).tolist()
    free = room - sum(sizes[first:last])
    before = rng.random() * free
    while first and sizes[first - 1] <= before:
        first -= 1
        before, free = before - sizes[first], free - sizes[first]
    while last < len(sizes) and sizes[last] <= free:
        free -= sizes[last]
        last += 1
    while first and sizes[first - 1] <= free:
        first -= 1
        free -= sizes[first]
    return int(text.bounds[first]), int(text.bounds[last])
