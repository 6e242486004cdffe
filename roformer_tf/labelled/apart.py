"""Texts that are encoded apart: rows of single texts, and batches of examples with several sides.

A pair is two rows here, never one of both texts. The sides of a batch are padded each by itself:
queries of ten tokens are not made as long as the documents of five hundred that belong to them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import grain
import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import ENDLESS, LabelledBatch, batches_by_length
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import Ints, bucket, padded
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_length

NEITHER = -1
"""In a row of targets: a candidate that is neither the answer nor wrong, and does not count."""


def encode_apart(
    examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
) -> EncodedTexts:
    """Make a row of at most `max_length` tokens of every text, its end cut; all in segment 0.

    The rows of an example follow each other in the order of its texts. Raises InputError for a
    `max_length` that holds no token.
    """
    check_length(max_length)

    @cache  # a document may belong to many queries
    def row_of(text: str) -> tuple[Ints, int]:
        ids = tokenizer.ids(text)
        kept = [tokenizer.cls_id, *ids[: max_length - 2], tokenizer.sep_id]
        return np.array(kept, np.int32), len(ids) + 2

    found = [[row_of(text) for text in example.texts] for example in examples]
    rows = [ids for of_one in found for ids, _ in of_one]
    counts = np.array([len(of_one) for of_one in found], np.int32)
    return EncodedTexts(
        token_ids=rows,
        segment_ids=[np.zeros_like(ids) for ids in rows],
        first_units=[],
        example=np.repeat(np.arange(len(found), dtype=np.int32), counts),
        lengths=np.array([max(length for _, length in one) for one in found], np.int32),
        units=np.zeros(len(found), np.int32),
    )


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

    encoded: EncodedTexts
    """S rows for each example, as `encode_apart` gives them."""
    targets: np.ndarray | None = None
    """(N, …): what the loss compares examples with; None, what belongs together: a row of targets
    (B, C) for the C candidates of the batch, as `Belonging.targets` has them."""
    belonging: Belonging | None = None
    negatives: np.ndarray | None = None
    """(N, K) numbers of rows of `encoded`: texts that are held against each example, as a last side
    (B, K, T)."""

    @cached_property
    def sides(self) -> int:
        """Texts of an example."""
        return len(self.encoded.token_ids) // self.encoded.examples

    @cached_property
    def numbers(self) -> Ints:
        """(rows,) int64: which text each row is."""
        return text_numbers(self.encoded.token_ids)

    @property
    def tokens_each(self) -> float:
        """Tokens that an example is trained on."""
        each = self.encoded.row_lengths.mean()
        more = 0 if self.negatives is None else self.negatives.shape[1]
        return float(each * (self.sides + more))

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

    def batches(self, batch_size: int, seed: int, repeat: int = 1) -> grain.MapDataset:
        """Give the endless batches, as `finetuning_batches` does: a function of seed and number.

        Examples whose texts are of like length, together, come together. Raises InputError if there
        are no examples.
        """
        if not self.encoded.examples:
            raise InputError("there is no example to train on. Give a file with some.")
        steps = self.steps_per_epoch(batch_size)
        lengths = self.encoded.row_lengths.reshape(-1, self.sides).sum(axis=1)

        @lru_cache(2)
        def order(epoch: int) -> list[Ints]:
            return batches_by_length(lengths, batch_size, np.random.default_rng([seed, epoch]))

        def batch(step: int) -> LabelledBatch:
            return self._batch(order(step // steps)[step % steps], batch_size)

        return grain.MapDataset.range(ENDLESS).map(batch)

    def _batch(self, examples: Ints, batch_size: int) -> LabelledBatch:
        """The sides, targets and weights of some examples."""
        rows = examples[:, None] * self.sides + np.arange(self.sides)  # (b, S)
        inputs: dict[str, Any] = {
            f"side_{side}": self._padded(rows[:, side], batch_size) for side in range(self.sides)
        }
        missing = batch_size - len(examples)
        numbers = np.pad(self.numbers[rows], ((0, missing), (0, 0)), constant_values=-1)  # (B, S)
        candidates = [numbers[:, 1:].T.ravel()]
        if self.negatives is not None:
            chosen = self.negatives[examples]  # (b, K)
            flat = self._padded(chosen.ravel(), batch_size * chosen.shape[1])
            inputs[f"side_{self.sides}"] = flat.reshape(batch_size, chosen.shape[1], -1)
            against = np.pad(self.numbers[chosen], ((0, missing), (0, 0)), constant_values=-1)
            candidates.append(against.T.ravel())
        weights = (np.arange(batch_size) < len(examples)).astype(np.float32)
        if self.targets is not None:
            wanted = padded(list(self.targets[examples]), (batch_size, *self.targets.shape[1:]))
            return inputs, wanted, weights
        assert self.belonging is not None
        wanted = self.belonging.targets(numbers[:, 0], np.concatenate(candidates))
        return inputs, wanted, weights

    def _padded(self, rows: Ints, count: int) -> np.ndarray:
        """So many rows, the last ones empty, of a length that is a bucket."""
        found = [self.encoded.token_ids[row] for row in rows]
        return padded(found, (count, bucket(max(map(len, found)))))
