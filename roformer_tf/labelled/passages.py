"""Texts without labels → matching pairs: a sentence, and the passage around it.

    今天下雨。路很滑，要小心。 → (要小心。, 今天下雨。), (今天下雨。, 今天下雨。路很滑，要小心。)

A text of one sentence matches itself under other dropout (SimCSE, arXiv 2104.08821). The sentence
and the size of the passage are drawn anew in every epoch: a function of the seed, the epoch and the
text's index.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from roformer_tf.labelled.batches import Generators, LabelledBatch, TrainingData, first_weights
from roformer_tf.labelled.encoding import joined
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import IGNORED, EncodedSides
from roformer_tf.tokenizers.padding import Ints, bucket, padded

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# A clause and the signs after it. The last match of a text may be empty: it has no tokens.
_CLAUSE = re.compile(r"[^。！？!?；;…\n，,、：:]*[。！？!?；;…\n，,、：:]*")
# Characters that end a sentence; a clause also ends with a comma or a colon.
_ENDS = frozenset("。！？!?；;…\n")
# Minimum tokens of a query: shorter sentences occur in many texts.
MIN_QUERY = 3
# Minimum and maximum tokens of a short query.
SPAN = (2, 8)
# Probability that the query is removed from the passage, so that equal words are not enough.
REMOVED = 0.5


# A query and a passage of a text: token ids without special tokens.
View: TypeAlias = tuple[Ints, Ints]


class _Text:
    """A text in clauses, in three arrays whatever its length; there is at least one token."""

    def __init__(self, text: str, tokenizer: "RoFormerTokenizer") -> None:
        ids, bounds, sentences, sentence = list[int](), [0], list[int](), 0
        for clause in _CLAUSE.findall(text):
            if clause_ids := tokenizer.ids(clause):
                ids += clause_ids
                bounds.append(len(ids))
                sentences.append(sentence)
            sentence += bool(_ENDS & set(clause))
        if not ids:
            ids, bounds, sentences = [tokenizer.unk_id], [0, 1], [0]
        # (tokens,), none of them special.
        self.ids = np.array(ids, np.int32)
        # (clauses + 1,): clause c is the tokens bounds[c] to bounds[c + 1].
        self.bounds = np.array(bounds, np.int32)
        # (clauses,), rising from 0: the sentence of each clause, without gaps of empty sentences.
        self.sentences = np.unique(sentences, return_inverse=True)[1].astype(np.int32)

    def clauses_of(self, sentence: int) -> tuple[int, int]:
        """The clauses [first, last) of a sentence."""
        first, last = np.searchsorted(self.sentences, [sentence, sentence + 1])
        return int(first), int(last)

    def long_sentences(self) -> list[int]:
        """The sentences that are long enough to be queries."""
        sizes = np.bincount(self.sentences, np.diff(self.bounds))
        return np.flatnonzero(sizes >= MIN_QUERY).tolist()


class Passages(TrainingData):
    """Texts without labels in batches of pairs: sides and targets as in `SideBatches`."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: "RoFormerTokenizer", max_length: int
    ) -> None:
        # Each text is tokenized once.
        self.texts = [_Text(example.texts[0], tokenizer) for example in examples]
        self.tokenizer, self.max_length = tokenizer, max_length

    @cached_property
    def lengths(self) -> Ints:
        """(texts,) int32: tokens of each, special ones included."""
        return np.array([2 + len(text.ids) for text in self.texts], np.int32)

    def view(self, number: int, rng: np.random.Generator) -> View:
        """Draw a query and the passage around it; from a single sentence, the text twice.

        The query is a sentence, a clause or a few words of it, with equal probability.
        """
        # Removing the query from its passage would leave nothing of a passage of one sentence.
        text, room = self.texts[number], self.max_length - 2
        sentences = text.long_sentences()
        if len(sentences) < 2:
            return text.ids[:room], text.ids[:room]
        clauses = text.clauses_of(sentences[rng.integers(len(sentences))])
        first, last = _query(text, *clauses, rng)
        begin, end = _window(text, *clauses, room, rng)
        if rng.random() < REMOVED and (begin, end) != (first, last):
            passage = np.concatenate([text.ids[begin:first], text.ids[last:end]])
        else:
            passage = text.ids[begin:end]
        return text.ids[first:last][:room], passage[:room]

    def evaluation_view(self, number: int) -> View:
        """The view of a text for evaluation, a function of its tokens alone.

        A single sentence is cut in two: a query equal to its passage would always rank first.
        """
        text = self.texts[number]
        if len(text.long_sentences()) > 1:
            # Seeded by the text, so every evaluation has the same view.
            rng = np.random.default_rng([len(text.ids), int(text.ids.sum())])
            return self.view(number, rng)
        ids = text.ids[: self.max_length - 2]  # without [CLS] and [SEP]
        middle = max(1, len(ids) // 2)
        return ids[:middle], ids[middle:] if len(ids) > 1 else ids

    def row(self, ids: Ints) -> Ints:
        """`[CLS] tokens [SEP]`."""
        return joined(self.tokenizer, ids.tolist())[0]

    def evaluation_sides(self) -> EncodedSides:
        """The evaluation view of each text, in two rows."""
        views = [self.evaluation_view(number) for number in range(len(self.texts))]
        return EncodedSides.of([[[self.row(x)] for x in view] for view in views], self.lengths)

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """A view of each text. A passage is ignored if its whole text contains the query."""
        views = [self.view(item, generators(item)) for item in items.tolist()]
        inputs = {}
        for side in range(2):
            rows = [self.row(view[side]) for view in views]
            inputs[f"side_{side}"] = padded(rows, (batch_size, bucket(max(map(len, rows)))))
        # As in `Positives.targets`: 1 on the diagonal, IGNORED for padding.
        targets = np.full((batch_size, batch_size), IGNORED, np.int8)
        texts = [self.texts[item].ids.tobytes() for item in items.tolist()]
        for row, (query, _) in enumerate(views):
            # Searching bytes is fast. A match that does not begin at a token is improbable, and
            # costs only one negative.
            sought = query.tobytes()
            targets[row, : len(items)] = [IGNORED if sought in text else 0 for text in texts]
            targets[row, row] = 1
        return inputs, targets, first_weights(len(items), batch_size)


def _query(text: _Text, first: int, last: int, rng: np.random.Generator) -> tuple[int, int]:
    """Tokens [first, last) of a query from the sentence with the clauses [first, last)."""
    whole = int(text.bounds[first]), int(text.bounds[last])
    kind = rng.integers(3)  # 0: the sentence, 1: a clause, 2: a few tokens
    if kind == 1:
        clause = int(rng.integers(first, last))
        begin, end = int(text.bounds[clause]), int(text.bounds[clause + 1])
        return (begin, end) if end - begin >= MIN_QUERY else whole
    if kind == 2:
        size = min(int(rng.integers(SPAN[0], SPAN[1] + 1)), whole[1] - whole[0])
        begin = int(rng.integers(whole[0], whole[1] - size + 1))
        return begin, begin + size
    return whole


def _window(
    text: _Text, first: int, last: int, room: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Tokens [begin, end) of the clauses [first, last) and of the clauses around them.

    They fill the room; a random fraction of it is before the clauses.
    """
    sizes = np.diff(text.bounds).tolist()
    free = room - sum(sizes[first:last])
    before = rng.random() * free
    while first and sizes[first - 1] <= before:
        first -= 1
        before, free = before - sizes[first], free - sizes[first]
    while last < len(sizes) and sizes[last] <= free:  # then after them, and before them again
        free -= sizes[last]
        last += 1
    while first and sizes[first - 1] <= free:
        first -= 1
        free -= sizes[first]
    return int(text.bounds[first]), int(text.bounds[last])
