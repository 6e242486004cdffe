"""Examples → sequences of token ids and their targets; logits of sequences → logits of examples.

A sequence (row) is `[CLS] tokens [SEP]`, or `[CLS] tokens [SEP] tokens [SEP]` for a pair. Most
examples are one sequence. A ranking is two, (A, B) and (A, C), and a long text may be several
windows:

    max_length 10: 甲乙丙丁戊己庚辛壬癸 → [CLS]甲乙丙丁戊己庚辛[SEP], [CLS]丙丁戊己庚辛壬癸[SEP]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example, LongTexts
from roformer_tf.tokenizers.padding import SPECIALS, Ints, bucket

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# The token ids and segments of a row, (T,) int32 each.
EncodedRow: TypeAlias = tuple[Ints, Ints]
# An array for each row; one array where all have the same shape.
Rows: TypeAlias = Sequence[np.ndarray] | np.ndarray

OVERLAP = 4  # a window shares a quarter of its tokens with the next one
HEAD = 4  # "head-tail" keeps a quarter from the beginning, the best fraction in Sun et al. (2019)


@dataclass(frozen=True, kw_only=True)
class EncodedTexts:
    """Examples as sequences, in the order of the examples."""

    token_ids: list[Ints]
    """For each row (T,) int32."""
    segment_ids: list[Ints]
    """For each row (T,) int32: 1 for the second text and its [SEP]."""
    example: Ints
    """(rows,) int32: the example of each row."""
    lengths: Ints
    """(examples,) int32: tokens of an example's longest row before truncation."""
    first_units: list[Ints] = field(default_factory=list)
    """For tasks of units, for each row (T,) int32: the unit that starts at a token and is
    predicted in this row, or -1. Empty for other tasks."""
    units: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """For tasks of units (examples,) int32: their number."""

    @classmethod
    def of_rows(
        cls, rows: Sequence[Sequence[EncodedRow]], lengths: Sequence[int] | Ints, **more: Any
    ) -> "Self":
        """From the rows of each example, and its `lengths`."""
        flat = [row for of_example in rows for row in of_example]
        rows_each = np.array([len(of_example) for of_example in rows], np.int32)
        return cls(
            token_ids=[ids for ids, _ in flat],
            segment_ids=[segments for _, segments in flat],
            example=np.repeat(np.arange(len(rows), dtype=np.int32), rows_each),
            lengths=np.array(lengths, np.int32),
            **more,
        )

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.lengths)

    def cut(self, limit: int | None) -> Ints:
        """(examples,) int: tokens that are in no row, as `lengths` is above a limit.

        None: there is no limit, as texts are read in windows.
        """
        if limit is None:
            return np.zeros_like(self.lengths)
        return np.maximum(0, self.lengths - limit)

    @property
    def row_weights(self) -> np.ndarray:
        """(rows,) float32: those of an example add up to 1."""
        return (1 / np.bincount(self.example)[self.example]).astype(np.float32)

    @property
    def row_lengths(self) -> Ints:
        """(rows,) int32: tokens of each row."""
        return np.array([len(ids) for ids in self.token_ids], np.int32)


def encode_texts(
    examples: Sequence[Example],
    tokenizer: "RoFormerTokenizer",
    max_length: int,
    long_texts: LongTexts = "head",
) -> EncodedTexts:
    """Rows of at most `max_length` tokens for texts, pairs, or A with each of B, C, ….

    `long_texts`: what happens to a single text that is too long. In a pair the longer text loses
    its last tokens.
    """
    rows, lengths = list[list[EncodedRow]](), list[int]()
    for example in examples:
        first, *rest = map(tokenizer.ids, example.texts)
        if rest:
            rows.append([joined(tokenizer, first, x, max_length) for x in rest])
            # A pair has another [SEP] after its second text.
            lengths.append(len(first) + max(map(len, rest)) + SPECIALS + 1)
        else:
            chunks = _chunks(first, max_length - SPECIALS, long_texts)
            rows.append([joined(tokenizer, chunk) for chunk in chunks])
            lengths.append(len(first) + SPECIALS)
    return EncodedTexts.of_rows(rows, lengths)


def encode_units(
    examples: Sequence[Example],
    tokenizer: "RoFormerTokenizer",
    max_length: int,
    overlapping: bool = False,
) -> EncodedTexts:
    """Rows of at most `max_length` tokens for examples whose units have a label each.

    Each unit is tokenized separately, so it has tokens of its own. Long examples are always read in
    windows, and each unit is predicted in the window whose edges are farthest from it; with
    `overlapping` in every window that has it.
    """
    room = max_length - SPECIALS

    @cache  # characters repeat often
    def ids_of(unit: str) -> list[int]:
        # A unit must fit into the overlap of two windows, and needs at least one token.
        return tokenizer.ids(unit)[: max(1, room // OVERLAP)] or [tokenizer.unk_id]

    rows, first_units, lengths = list[list[EncodedRow]](), list[Ints](), list[int]()
    for example in examples:
        ids_each = [ids_of(unit) for unit in example.units]
        bounds = np.cumsum([0, *map(len, ids_each)])
        ids = [number for unit in ids_each for number in unit]
        spans = windows(bounds, room)
        rows.append([joined(tokenizer, ids[bounds[a] : bounds[b]]) for a, b in spans])
        first_units += _first_units(bounds, spans, overlapping)
        lengths.append(len(ids) + SPECIALS)
    units = np.array([len(example.units) for example in examples], np.int32)
    return EncodedTexts.of_rows(rows, lengths, first_units=first_units, units=units)


def mean_of_rows(row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
    """Logits of rows (C,) → of examples (C,), averaged over an example's windows."""
    return [np.mean([row_logits[row] for row in rows], axis=0) for rows in rows_of(encoded)]


def rows_side_by_side(row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
    """Logits of rows (C,) → of examples (rows of the example · C,)."""
    return [np.concatenate([row_logits[row] for row in rows]) for rows in rows_of(encoded)]


def rows_of(encoded: EncodedTexts) -> list[range]:
    """Indices of the rows of each example."""
    # `example` never falls, so the rows of an example follow each other.
    bounds = np.searchsorted(encoded.example, np.arange(encoded.examples + 1))
    return [range(*ends) for ends in pairwise(bounds.tolist())]


def in_no_window(
    encoded: EncodedTexts, characters: Sequence[Ints], spans: Sequence[np.ndarray]
) -> dict[str, int]:
    """Count the spans that no window of their text holds whole; {} if there are none.

    characters: for each row (n, 2) int32, the first character of each token of the text and the one
    after its last. spans: of each example (P, 2) int32, likewise.
    → {"number": 3, "of": 120, "longest": 130, "enough": 522}: how many, of all; characters of the
    longest; a `max_length` with windows for all of them, if no character has several tokens.
    """
    # For each row the characters [first, last) of the text that it holds.
    bounds = [(int(x[0, 0]), int(x[-1, 1])) if len(x) else (0, 0) for x in characters]
    lost = [
        (end - start, int(encoded.lengths[number]))
        for number, rows in enumerate(rows_of(encoded))
        for start, end in spans[number].tolist()
        if not any(bounds[row][0] <= start and end <= bounds[row][1] for row in rows)
    ]
    if not lost:
        return {}
    longest, whole = map(max, zip(*lost, strict=True))
    # What is as long as the overlap of two windows is in one of both, wherever it is.
    rest = max(len(ids) - len(x) for ids, x in zip(encoded.token_ids, characters, strict=True))
    enough = min(OVERLAP * longest + rest, whole)
    return {"number": len(lost), "of": sum(map(len, spans)), "longest": longest, "enough": enough}


def pick_max_length(lengths: Ints, limit: int = 1024) -> int:
    """A `max_length` that truncates at most 1 % of the texts: a bucket, at most `limit`."""
    return min(bucket(int(np.quantile(lengths, 0.99, method="inverted_cdf"))), limit)


def windows(bounds: Ints, room: int) -> list[tuple[int, int]]:
    """Spans [first, last) of units that cover all of them, of at most `room` tokens each.

    bounds (units + 1,) rising: unit u is the tokens bounds[u] to bounds[u + 1]. Neighbours share
    about a quarter of their tokens, and the last span is as long as the rest. A unit must fit into
    that quarter, or be a single token.
    """
    spans, first = [], 0
    end = len(bounds) - 1
    # While the longest span from `first` does not reach the end: the next one begins a quarter
    # before its end.
    while (last := int(np.searchsorted(bounds, bounds[first] + room, "right")) - 1) < end:
        spans.append((first, last))
        first = max(first + 1, int(np.searchsorted(bounds, bounds[last] - room // OVERLAP)))
    # The last span is measured from the end, so it may overlap more than the others: for single
    # tokens, 10 of them and room for 8 give (0, 8) and (2, 10).
    return [*spans, (int(np.searchsorted(bounds, bounds[end] - room)), end)]


def predicting_windows(bounds: Ints, spans: Sequence[tuple[int, int]]) -> Ints:
    """(units,) int: the span in which a unit is farthest from the nearer edge, in tokens."""
    best = np.zeros(len(bounds) - 1, np.int32)
    farthest = np.full(len(best), -1)
    for number, (first, last) in enumerate(spans):
        from_edge = np.minimum(
            bounds[first:last] - bounds[first], bounds[last] - bounds[first + 1 : last + 1]
        )
        # Of equal distances the earlier span wins.
        better = np.flatnonzero(from_edge > farthest[first:last])
        farthest[first + better] = from_edge[better]
        best[first + better] = number
    return best


def _chunks(ids: list[int], room: int, long_texts: LongTexts) -> list[list[int]]:
    """The chunks of a text, of at most `room` tokens each, that the model reads."""
    if len(ids) <= room:
        return [ids]
    if long_texts == "windows":
        return [ids[first:last] for first, last in windows(np.arange(len(ids) + 1), room)]
    if long_texts == "head-tail":
        head = room // HEAD
        return [ids[:head] + ids[head - room :]]
    return [ids[:room]]


def joined(
    tokenizer: "RoFormerTokenizer",
    first: list[int],
    second: list[int] | None = None,
    max_length: int | None = None,
) -> EncodedRow:
    """One row, of a text or two."""
    ids, segments = tokenizer.join(first, second, max_length)
    return np.array(ids, np.int32), np.array(segments, np.int32)


def _first_units(bounds: Ints, spans: Sequence[tuple[int, int]], overlapping: bool) -> list[Ints]:
    """For each window of a text, `EncodedTexts.first_units`; bounds, spans: as of `windows`."""
    window_of = predicting_windows(bounds, spans)
    first_units = []
    for number, (first, last) in enumerate(spans):
        chosen = (window_of[first:last] == number) | overlapping
        units_here = np.flatnonzero(chosen) + first
        of_row = np.full(bounds[last] - bounds[first] + SPECIALS, -1, np.int32)
        # Units of other windows keep -1: they are context here.
        of_row[1 + bounds[units_here] - bounds[first]] = units_here  # 1 for [CLS]
        first_units.append(of_row)
    return first_units
