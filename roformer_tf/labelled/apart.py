"""Texts that are encoded apart: rows of single texts, and batches of examples with several sides.

A pair is two rows here, never one of both texts. The sides of a batch are padded each by itself:
queries of ten tokens are not made as long as the documents of five hundred that belong to them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import ENDLESS, LabelledBatch, batches_by_length
from roformer_tf.labelled.encoding import EncodedTexts, windows
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import Ints, bucket, padded
from roformer_tf.tokenizers.tokenizer import SPECIALS, RoFormerTokenizer, check_length

if TYPE_CHECKING:
    import grain

EIGHT = 8
NEITHER = -1
"""In a row of targets: a candidate that is neither the answer nor wrong, and does not count."""


@dataclass(frozen=True)
class EncodedSides(EncodedTexts):
    """N examples of S texts each in rows of their own; a long text may be several rows of it."""

    places: Ints
    """(rows,) int32, rising: which text a row is of: example · S + its place in the example."""
    numbers: Ints
    """(N, S) int64: a number for each text, the same for equal ones."""

    @classmethod
    def of(cls, texts: Sequence[Sequence[Sequence[Ints]]], lengths: Ints) -> "EncodedSides":
        """Of each example, of each of its texts, the rows: (T,) int32 with special tokens."""
        flat = [rows for example in texts for rows in example]
        known: dict[bytes, int] = {}
        numbers = [known.setdefault(_identity(rows), len(known)) for rows in flat]
        sides = len(texts[0]) if texts else 1
        counts = np.array([len(rows) for rows in flat], np.int32)
        places = np.repeat(np.arange(len(flat), dtype=np.int32), counts)
        rows = [row for one in flat for row in one]
        return cls(
            token_ids=rows,
            segment_ids=[np.zeros_like(row) for row in rows],
            first_units=[],
            example=places // sides,
            lengths=lengths,
            units=np.zeros(len(texts), np.int32),
            places=places,
            numbers=np.array(numbers, np.int64).reshape(-1, sides),
        )

    @property
    def sides(self) -> int:
        """Texts of an example: S."""
        return self.numbers.shape[1]

    @cached_property
    def first_rows(self) -> Ints:
        """(N, S) the first row of each text."""
        wanted = np.arange(self.numbers.size)
        return np.searchsorted(self.places, wanted).reshape(self.numbers.shape)

    @cached_property
    def counts(self) -> Ints:
        """(N, S) how many rows each text has."""
        found = np.bincount(self.places, minlength=self.numbers.size)
        return found.reshape(self.numbers.shape)


def _identity(rows: Sequence[Ints]) -> bytes:
    """Bytes that equal rows share."""
    return b"|".join(row.tobytes() for row in rows)


def encode_apart(
    examples: Sequence[Example],
    tokenizer: RoFormerTokenizer,
    max_length: int,
    passages: bool = False,
) -> EncodedSides:
    """Make rows of at most `max_length` tokens of every text by itself, all in segment 0.

    The end of a longer text is cut; with `passages` all but the first texts are read in windows
    that overlap. Raises InputError for a `max_length` that holds no token.
    """
    check_length(max_length)
    room = max_length - SPECIALS

    @cache  # a document may belong to many queries
    def rows_of(text: str, whole: bool) -> tuple[list[Ints], int]:
        ids = tokenizer.ids(text)
        spans = windows(np.arange(len(ids) + 1), room) if whole and len(ids) > room else [(0, room)]
        kept = [[tokenizer.cls_id, *ids[slice(*span)], tokenizer.sep_id] for span in spans]
        return [np.array(row, np.int32) for row in kept], len(ids) + SPECIALS

    found = [
        [rows_of(text, passages and side > 0) for side, text in enumerate(example.texts)]
        for example in examples
    ]
    longest = np.array([max(length for _, length in one) for one in found], np.int32)
    return EncodedSides.of([[rows for rows, _ in one] for one in found], longest)


def text_numbers(token_ids: Iterable[Ints]) -> Ints:
    """(rows,) int64: a number for each row, the same for rows of the same tokens."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(ids.tobytes(), len(known)) for ids in token_ids], np.int64)


@dataclass(frozen=True)
class Belonging:
    """Which texts belong together, so that none is held against one that it belongs to.

    `sides` (N, 2) int64: the numbers of a text and of one that belongs to it, as `text_numbers`.
    """

    sides: Ints

    @cached_property
    def of(self) -> dict[int, set[int]]:
        """By a text's number those of all that belong to it, in both directions, and its own."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for a, b in self.sides.tolist():
            found[a] |= {a, b}
            found[b] |= {a, b}
        return found

    def targets(self, anchors: Ints, candidates: Ints) -> np.ndarray:
        """What each candidate is to each anchor: (B, C) int8.

        1 for the one of an anchor's own place, 0 for others; NEITHER for what else belongs to the
        anchor, and for a candidate below 0, which is none. anchors (B,), candidates (C,) are
        numbers of texts; the first B candidates are the answers.
        """
        wanted = self.against(anchors, candidates)
        answers = np.arange(len(anchors))
        wanted[answers, answers] = np.where(anchors < 0, NEITHER, 1)
        return wanted

    def against(self, anchors: Ints, candidates: Ints) -> np.ndarray:
        """Which candidates are held against each anchor: (B, C) int8, 0 for these, else NEITHER."""
        wanted = np.zeros((len(anchors), len(candidates)), np.int8)
        for row, anchor in enumerate(anchors.tolist()):
            known = self.of.get(anchor, set())
            wanted[row, [c in known for c in candidates.tolist()]] = NEITHER
        wanted[:, candidates < 0] = NEITHER
        wanted[anchors < 0] = NEITHER
        return wanted


@dataclass(frozen=True)
class SideBatches:
    """Examples of S texts each, to be trained on in batches whose sides are encoded apart.

    A batch of B examples is

        {"side_0": (B, T0), "side_1": (B, T1), …} int32, targets (B, …), weights (B,) float32

    where side_i holds the i-th text of each example, padded to a length of its own. An example
    beyond the last one of an epoch is an empty row on all sides, and weighs 0.
    """

    encoded: EncodedSides
    targets: np.ndarray | None = None
    """(N, …): what the loss compares examples with; None, what belongs together: a row of targets
    (B, C) for the C candidates of the batch, as `Belonging.targets` has them."""
    belonging: Belonging | None = None
    rows: Ints | None = None
    """(N, S): the row of each text that is trained on, where some have several; None, the first."""
    negatives: Ints | None = None
    """(N, K) rows that are held against each example, as a last side (B, K, T)."""
    shared: bool = False
    """Whether examples of one second text come together, and it is encoded once for all of a batch:
    side_1 is (D, T1), and place_1 (B,) int32 says which of its rows is an example's."""

    @cached_property
    def chosen(self) -> Ints:
        """(N, S) the row of each text."""
        return self.encoded.first_rows if self.rows is None else self.rows

    @property
    def repeats(self) -> float:
        """How many examples have the same second text, as a mean."""
        return len(self.chosen) / len(np.unique(self.seconds))

    @cached_property
    def seconds(self) -> Ints:
        """(N,) a number for each example's row of the second text, the same for equal ones."""
        return text_numbers([self.encoded.token_ids[row] for row in self.chosen[:, 1].tolist()])

    @property
    def varying(self) -> tuple[str, ...]:
        """Inputs whose number of rows is not the same in every batch."""
        return ("side_1",) if self.shared else ()

    @property
    def tokens_each(self) -> float:
        """Tokens that an example is trained on."""
        sides = self.encoded.row_lengths[self.chosen].mean(axis=0)
        if self.shared:
            sides[1] /= self.repeats
        more = 0 if self.negatives is None else self.negatives.shape[1]
        return float(sides.sum() + more * sides.mean())

    def fingerprinted(self) -> Iterable[np.ndarray]:
        """All that tells one training set from another."""
        yield from self.encoded.token_ids
        if self.targets is not None:
            yield self.targets
        if self.negatives is not None:
            yield self.negatives

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in which every example stands once."""
        return -(-self.encoded.examples // batch_size)

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> "grain.MapDataset":
        """Give the endless batches, as `finetuning_batches` does: a function of seed and number.

        Examples whose texts are of like length, together, come together. Raises InputError if there
        are no examples.
        """
        if not self.encoded.examples:
            raise InputError("there is no example to train on. Give a file with some.")
        steps = self.steps_per_epoch(batch_size)
        lengths = self.encoded.row_lengths[self.chosen].sum(axis=1)

        @lru_cache(2)
        def order(epoch: int) -> list[Ints]:
            rng = np.random.default_rng([seed, epoch])
            if self.shared:
                return self._grouped(batch_size, rng)
            return batches_by_length(lengths, batch_size, rng)

        def batch(step: int) -> LabelledBatch:
            return self._batch(order(step // steps)[step % steps], batch_size)

        import grain  # which takes a second: who answers asks for no batches

        return grain.MapDataset.range(ENDLESS).map(batch)

    def _batch(self, examples: Ints, batch_size: int) -> LabelledBatch:
        """The sides, targets and weights of some examples."""
        rows, sides = self.chosen[examples], self.encoded.sides  # (b, S)
        inputs: dict[str, Any] = {
            f"side_{side}": self._padded(rows[:, side], batch_size)
            for side in range(sides)
            if not (self.shared and side == 1)
        }
        if self.shared:
            _, first, place = np.unique(
                self.seconds[examples], return_index=True, return_inverse=True
            )
            # In eights: of the first batch dimension, too, there should be few that are compiled.
            inputs["side_1"] = self._padded(rows[first, 1], -(-len(first) // EIGHT) * EIGHT)
            inputs["place_1"] = padded([place], (1, batch_size))[0].astype(np.int32)
        missing = batch_size - len(examples)
        texts = self.encoded.numbers
        numbers = np.pad(texts[examples], ((0, missing), (0, 0)), constant_values=-1)  # (B, S)
        candidates = [numbers[:, 1:].T.ravel()]
        if self.negatives is not None:
            chosen = self.negatives[examples]  # (b, K)
            flat = self._padded(chosen.ravel(), batch_size * chosen.shape[1])
            inputs[f"side_{sides}"] = flat.reshape(batch_size, chosen.shape[1], -1)
            of = texts.ravel()[self.encoded.places[chosen]]
            against = np.pad(of, ((0, missing), (0, 0)), constant_values=-1)
            candidates.append(against.T.ravel())
        weights = (np.arange(batch_size) < len(examples)).astype(np.float32)
        if self.targets is not None:
            wanted = padded(list(self.targets[examples]), (batch_size, *self.targets.shape[1:]))
            return inputs, wanted, weights
        assert self.belonging is not None
        wanted = self.belonging.targets(numbers[:, 0], np.concatenate(candidates))
        return inputs, wanted, weights

    def _grouped(self, batch_size: int, rng: np.random.Generator) -> list[Ints]:
        """Batches of examples, in random order, those of one second text side by side."""
        order = rng.permutation(self.encoded.examples)
        _, first, groups = np.unique(self.seconds[order], return_index=True, return_inverse=True)
        lengths = self.encoded.row_lengths[self.chosen[order[first], 1]]
        size = max(1, round(batch_size / self.repeats))
        found = [one for some in batches_by_length(lengths, size, rng) for one in some.tolist()]
        ranks = np.empty(len(found), np.int64)
        ranks[found] = np.arange(len(found))
        ordered = order[np.argsort(ranks[groups], kind="stable")]
        batches = np.split(ordered, range(batch_size, len(ordered), batch_size))
        return [batches[number] for number in rng.permutation(len(batches))]

    def _padded(self, rows: Ints, count: int) -> np.ndarray:
        """So many rows, the last ones empty, of a length that is a bucket."""
        found = [self.encoded.token_ids[row] for row in rows]
        return padded(found, (count, bucket(max(map(len, found)))))
