"""Separately encoded texts: sequences (rows) of single texts, and batches of examples with sides.

A pair is two sequences here, never one with both texts. Each side of a batch has a padded length of
its own: queries of ten tokens are not padded to the documents' five hundred.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.labelled.batches import (
    Generators,
    LabelledBatch,
    TrainingData,
    batches_by_length,
    first_weights,
)
from roformer_tf.labelled.encoding import EncodedTexts, joined, windows
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import SPECIALS, Ints, bucket, padded

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Target of a candidate that is neither a positive nor a negative of an anchor.
IGNORED = -1
_FAR = 1 << 32  # larger than a token id: distinguishes pairs of tokens from single ones


@dataclass(frozen=True, kw_only=True)
class EncodedSides(EncodedTexts):
    """N examples of S texts, each text in rows of its own; a long text may have several."""

    counts: Ints
    """(N, S) int32: the number of rows of each text."""
    numbers: Ints
    """(N, S) int64: a number for each text, the same for equal ones."""

    @classmethod
    def of(cls, texts: Sequence[Sequence[Sequence[Ints]]], lengths: Ints) -> "EncodedSides":
        """From the rows of each text of each example: (T,) int32, with special tokens."""
        flat = [rows for example in texts for rows in example]
        shape = len(texts), len(texts[0]) if texts else 1
        rows = [[(row, np.zeros_like(row)) for text in x for row in text] for x in texts]
        return cls.of_rows(
            rows,
            lengths,
            counts=np.array([len(rows) for rows in flat], np.int32).reshape(shape),
            # Texts are equal if all their rows are: each row begins and ends with a special token.
            numbers=text_numbers(map(np.concatenate, flat)).reshape(shape),
        )

    @property
    def sides(self) -> int:
        """Texts of an example: S."""
        return self.numbers.shape[1]

    @cached_property
    def first_rows(self) -> Ints:
        """(N, S) the first row of each text."""
        return np.cumsum(self.counts).reshape(self.counts.shape) - self.counts

    @cached_property
    def text_of_row(self) -> Ints:
        """(rows,) rising: the index of each row's text: example · S + side."""
        return np.repeat(np.arange(self.counts.size), self.counts.ravel())


def encode_separately(
    examples: Sequence[Example],
    tokenizer: "RoFormerTokenizer",
    max_length: int,
    passages: bool = False,
) -> EncodedSides:
    """Rows of at most `max_length` tokens for every single text, all in segment 0.

    A longer text loses its end; with `passages` all texts except the first are read in overlapping
    windows.
    """
    room = max_length - SPECIALS

    @cache  # a document may match many queries
    def rows_of(text: str, whole: bool) -> tuple[list[Ints], int]:
        ids = tokenizer.ids(text)
        spans = windows(np.arange(len(ids) + 1), room) if whole and len(ids) > room else [(0, room)]
        return [joined(tokenizer, ids[slice(*span)])[0] for span in spans], len(ids) + SPECIALS

    texts = [
        [rows_of(text, passages and side > 0) for side, text in enumerate(example.texts)]
        for example in examples
    ]
    longest = np.array([max(length for _, length in sides) for sides in texts], np.int32)
    return EncodedSides.of([[rows for rows, _ in sides] for sides in texts], longest)


def text_numbers(token_ids: Iterable[Ints]) -> Ints:
    """(rows,) int64: a number for each row, the same for rows of the same tokens."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(ids.tobytes(), len(known)) for ids in token_ids], np.int64)


def padded_count(rows: int) -> int:
    """The number to pad rows to where it varies, a multiple of 8: few batch shapes are compiled."""
    return -(-rows // 8) * 8


def fitting_rows(encoded: EncodedSides) -> Ints:
    """(N, S): the row of each text; of several, the most similar to the example's first text.

    Similarity: common tokens and pairs of neighbouring tokens, weighted by inverse document
    frequency. Among equals the first row is selected.
    """
    chosen = encoded.first_rows.copy()
    several = np.argwhere(encoded.counts > 1)
    if not len(several):
        return chosen

    def grams(ids: Ints) -> Ints:
        ids = ids[1:-1].astype(np.int64)
        # The pair (a, b) is the number (a + 1) · 2³² + b, which is larger than any token.
        return np.unique(np.concatenate([ids, (ids[:-1] + 1) * _FAR + ids[1:]]))

    of_rows = list(map(grams, encoded.token_ids))
    # Rows of first texts are queries: they do not count as documents.
    first = set(encoded.first_rows[:, 0].tolist())
    documents = [x for row, x in enumerate(of_rows) if row not in first]
    known, frequencies = np.unique(np.concatenate(documents), return_counts=True)
    rarity = np.log(1 + len(documents) / frequencies)
    for example, side in several.tolist():
        query, begin = of_rows[chosen[example, 0]], int(chosen[example, side])
        candidates = of_rows[begin : begin + int(encoded.counts[example, side])]
        common = [np.intersect1d(query, x, assume_unique=True) for x in candidates]
        similarities = [rarity[np.searchsorted(known, x)].sum() for x in common]
        chosen[example, side] = begin + int(np.argmax(similarities))
    return chosen


class Positives:
    """Which texts match, so that none becomes a negative of a text that it matches.

    pairs (N, 2) int64: the numbers of two texts that match, as `text_numbers` returns them.
    """

    def __init__(self, pairs: Ints) -> None:
        # For each text's number those of all texts that match it, and its own.
        self.of: defaultdict[int, set[int]] = defaultdict(set)
        for a, b in pairs.tolist():
            self.of[a] |= {a, b}
            self.of[b] |= {a, b}

    def targets(self, anchors: Ints, candidates: Ints) -> np.ndarray:
        """(B, C) int8: 1 for each anchor's own positive, 0 for negatives, else IGNORED.

        anchors (B,), candidates (C,): numbers of texts, -1 for padding. The first B candidates are
        the anchors' positives. Other texts that match an anchor are ignored.
        """
        targets = self.negatives(anchors, candidates)
        own = np.arange(len(anchors))
        targets[own, own] = np.where(anchors < 0, IGNORED, 1)
        return targets

    def negatives(self, anchors: Ints, candidates: Ints) -> np.ndarray:
        """(B, C) int8: 0 for the negatives of each anchor, IGNORED for the rest."""
        targets = np.zeros((len(anchors), len(candidates)), np.int8)
        for row, anchor in enumerate(anchors.tolist()):
            matches = self.of.get(anchor, set())
            targets[row, [c in matches for c in candidates.tolist()]] = IGNORED
        targets[:, candidates < 0] = IGNORED
        targets[anchors < 0] = IGNORED
        return targets


@dataclass(frozen=True)
class SideBatches(TrainingData):
    """Examples of S texts each, in batches whose sides are encoded separately.

    A batch of B examples is

        {"side_0": (B, T0), "side_1": (B, T1), …} int32, targets (B, …), weights (B,) float32

    where side_i holds the i-th text of each example, padded to a length of its own.
    """

    encoded: EncodedSides
    targets: np.ndarray | None = None
    """(N, …) scores or classes of the examples. Default: targets (B, C) for the C candidates of a
    batch, from the positives."""
    positives: Positives | None = None
    negatives: Ints | None = None
    """(N, K) rows of hard negatives of each example, as a last side (B, K, T)."""
    shared: bool = False
    """Whether examples with the same second text share a batch, in which it is encoded once:
    side_1 is (D, T1), and row_index_1 (B,) int32 is the index of each example's row in it."""

    @cached_property
    def chosen(self) -> Ints:
        """(N, S) the row of each text. Of several, the one most similar to the query is trained."""
        return fitting_rows(self.encoded)

    @cached_property
    def lengths(self) -> Ints:
        """(N,) int: tokens of all texts of an example."""
        return self.encoded.row_lengths[self.chosen].sum(axis=1)

    @property
    def repeats(self) -> float:
        """The mean number of examples with the same second text."""
        return len(self.chosen) / len(np.unique(self.seconds))

    @cached_property
    def seconds(self) -> Ints:
        """(N,) a number for each example's row of the second text, the same for equal rows."""
        return text_numbers([self.encoded.token_ids[row] for row in self.chosen[:, 1].tolist()])

    @property
    def varying(self) -> tuple[str, ...]:
        """Inputs whose number of rows is not the same in every batch."""
        return ("side_1",) if self.shared else ()

    def order(self, batch_size: int, rng: np.random.Generator) -> list[Ints]:
        """Batches of examples of similar length; if `shared`, with the same second texts."""
        if not self.shared:
            return super().order(batch_size, rng)
        # Groups of examples with the same second text stay together: they are sorted by length in
        # pools, and cut into batches.
        order = rng.permutation(self.encoded.examples)
        _, first, groups = np.unique(self.seconds[order], return_index=True, return_inverse=True)
        lengths = self.encoded.row_lengths[self.chosen[order[first], 1]]
        size = max(1, round(batch_size / self.repeats))
        # Groups, not examples, in batches of about as many groups as fill a batch of examples.
        by_length = np.concatenate(batches_by_length(lengths, size, rng))
        ranks = np.empty(len(by_length), np.int64)
        ranks[by_length] = np.arange(len(by_length))
        # All examples of a group have the rank of the group, so they stay next to each other.
        ordered = order[np.argsort(ranks[groups], kind="stable")]
        batches = np.split(ordered, range(batch_size, len(ordered), batch_size))
        return [batches[number] for number in rng.permutation(len(batches))]

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """The sides, targets and weights of these examples."""
        rows = self.chosen[items]  # (b, S)
        inputs: dict[str, Any] = {}
        for side in range(self.encoded.sides):
            if self.shared and side == 1:
                _, first, row_index = np.unique(
                    self.seconds[items], return_index=True, return_inverse=True
                )
                inputs["side_1"] = self._padded(rows[first, 1], padded_count(len(first)))
                # Padding has the index 0, a row of the batch; its weight is 0.
                inputs["row_index_1"] = padded([row_index], (1, batch_size))[0].astype(np.int32)
            else:
                inputs[f"side_{side}"] = self._padded(rows[:, side], batch_size)
        if self.negatives is not None:
            hard = self.negatives[items]  # (b, K)
            flat = self._padded(hard.ravel(), batch_size * hard.shape[1])
            name = f"side_{self.encoded.sides}"
            inputs[name] = flat.reshape(batch_size, hard.shape[1], -1)
        if self.targets is not None:
            shape = (batch_size, *self.targets.shape[1:])
            targets = padded(list(self.targets[items]), shape)
        else:
            targets = self._candidate_targets(items, batch_size)
        return inputs, targets, first_weights(len(items), batch_size)

    def _candidate_targets(self, items: Ints, batch_size: int) -> np.ndarray:
        """(B, C) targets for all second and third texts of the batch, and its hard negatives."""
        assert self.positives is not None
        padding = ((0, batch_size - len(items)), (0, 0))
        numbers = np.pad(self.encoded.numbers[items], padding, constant_values=-1)  # (B, S)
        # All second texts, then all third ones: so candidate i is the positive of example i.
        candidates = [numbers[:, 1:].T.ravel()]
        if self.negatives is not None:
            texts = self.encoded.text_of_row[self.negatives[items]]
            hard = self.encoded.numbers.ravel()[texts]
            candidates.append(np.pad(hard, padding, constant_values=-1).T.ravel())
        return self.positives.targets(numbers[:, 0], np.concatenate(candidates))

    def _padded(self, rows: Ints, count: int) -> np.ndarray:
        """(count, T): some rows, then empty ones; T is a bucket."""
        token_ids = [self.encoded.token_ids[row] for row in rows]
        return padded(token_ids, (count, bucket(max(map(len, token_ids)))))
