"""Examples → rows of token ids, targets of rows, and the logits of rows → logits of examples.

A row is `[CLS] tokens [SEP]`, or `[CLS] tokens [SEP] tokens [SEP]` for a pair. Most examples are
one row; a ranking is two, (A, B) and (A, C), and a long text may be several windows of itself:

    max_length 10: 甲乙丙丁戊己庚辛壬癸 → [CLS]甲乙丙丁戊己庚辛[SEP], [CLS]丙丁戊己庚辛壬癸[SEP]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example, LongTexts
from roformer_tf.tokenizers.padding import Ints, bucket
from roformer_tf.tokenizers.tokenizer import SPECIALS, RoFormerTokenizer, check_length

Rows: TypeAlias = Sequence[np.ndarray] | np.ndarray
"""An array for each row; one array where all have the same shape."""

OVERLAP = 4  # a window shares this part, a quarter, of its tokens with the next one
HEAD = 4  # what "head-tail" keeps of the beginning: a quarter, as Sun et al. (2019) found best


@dataclass(frozen=True)
class EncodedTexts:
    """Examples in rows, in the order of the examples."""

    token_ids: list[Ints]
    """For each row (T,) int32."""
    segment_ids: list[Ints]
    """For each row (T,) int32: 1 for the second text and its [SEP]."""
    first_units: list[Ints]
    """For tagging, for each row (T,) int32: the unit that a token begins and that is judged here,
    or -1. Else empty."""
    example: Ints
    """(rows,) int32: which example a row is of."""
    lengths: Ints
    """(examples,) int32: tokens of an example's longest row if nothing were cut, specials too."""
    units: Ints
    """(examples,) int32: units, none but for tagging."""

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.lengths)

    @property
    def row_lengths(self) -> Ints:
        """(rows,) int32: tokens of each row."""
        return np.array([len(ids) for ids in self.token_ids], np.int32)


class _Row(NamedTuple):
    token_ids: Ints
    segment_ids: Ints
    first_units: Ints | None = None


def encode_texts(
    examples: Sequence[Example],
    tokenizer: RoFormerTokenizer,
    max_length: int,
    long_texts: LongTexts = "head",
) -> EncodedTexts:
    """Make rows of at most `max_length` tokens of texts, of pairs, or of A with each of B, C, ….

    One text too long is cut or read in windows, as `long_texts` says; of a pair the longer text
    loses its last tokens. Raises InputError for a `max_length` that holds no token.
    """
    check_length(max_length)

    def rows_of(texts: tuple[str, ...]) -> tuple[list[_Row], int]:
        if len(texts) == 1:
            return _text_rows(texts[0], tokenizer, max_length, long_texts)
        first, *others = texts
        rows = [_pair_row(first, other, tokenizer, max_length) for other in others]
        return [row for row, _ in rows], max(length for _, length in rows)

    return _stacked([rows_of(example.texts) for example in examples], examples)


def encode_units(
    examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
) -> EncodedTexts:
    """Make rows of at most `max_length` tokens of examples whose units have a label each.

    Units are tokenized one by one, so that each has tokens of its own; too many of them are always
    read in windows, and each unit is judged once, where it is farthest from a window's edge.
    Raises InputError for a `max_length` that holds no token.
    """
    check_length(max_length)
    room = max_length - SPECIALS

    @cache  # characters come again and again
    def ids_of(unit: str) -> list[int]:
        return tokenizer.ids(unit)[: max(1, room // OVERLAP)] or [tokenizer.unk_id]

    found = [
        _unit_rows([ids_of(unit) for unit in example.units], tokenizer, room)
        for example in examples
    ]
    return _stacked(found, examples)


def _stacked(found: Sequence[tuple[list[_Row], int]], examples: Sequence[Example]) -> EncodedTexts:
    """The rows of all examples, each with its length before anything was cut."""
    rows = [row for rows, _ in found for row in rows]
    numbers = np.arange(len(found), dtype=np.int32)
    rows_each = np.array([len(rows) for rows, _ in found], np.int32)
    return EncodedTexts(
        token_ids=[row.token_ids for row in rows],
        segment_ids=[row.segment_ids for row in rows],
        first_units=[row.first_units for row in rows if row.first_units is not None],
        example=np.repeat(numbers, rows_each),
        lengths=np.array([length for _, length in found], np.int32),
        units=np.array([len(example.units) for example in examples], np.int32),
    )


def window_targets(encoded: EncodedTexts, targets: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
    """Targets of examples → of their rows, and how much each row weighs.

    Targets (rows, …); weights (rows,) float32: windows of one example share a weight of 1.
    """
    rows_each = np.bincount(encoded.example)[encoded.example]
    return np.stack(targets)[encoded.example], (1 / rows_each).astype(np.float32)


def unit_targets(encoded: EncodedTexts, targets: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
    """Targets of units, (units,) of each example → of the tokens of rows, and their weights.

    Both are lists of (T,) for each row, weights float32: 1 where a unit begins that is judged
    there.
    """
    placed = [
        _at_units(targets[number], units)
        for number, units in zip(encoded.example, encoded.first_units, strict=True)
    ]
    return placed, [(units >= 0).astype(np.float32) for units in encoded.first_units]


def mean_of_rows(row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
    """Logits of rows (C,) → of examples (C,), averaged over an example's windows."""
    return [np.mean([row_logits[row] for row in rows], axis=0) for rows in _rows_of(encoded)]


def rows_side_by_side(row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
    """Logits of rows (C,) → of examples (rows of the example · C,)."""
    return [np.concatenate([row_logits[row] for row in rows]) for rows in _rows_of(encoded)]


def first_tokens(
    row_logits: Sequence[np.ndarray], encoded: EncodedTexts, outputs: int
) -> list[np.ndarray]:
    """Logits of tokens, (T, C) of each row → of units, (units, C) of each example.

    Those of a unit are its first token's, in the row that judges it. C is `outputs`.
    """
    answers = [np.zeros((units, outputs), np.float32) for units in encoded.units]
    for answer, rows in zip(answers, _rows_of(encoded), strict=True):
        for row in rows:
            judged = encoded.first_units[row] >= 0
            answer[encoded.first_units[row][judged]] = row_logits[row][judged]
    return answers


def _rows_of(encoded: EncodedTexts) -> list[range]:
    """Numbers of the rows of each example."""
    bounds = np.searchsorted(encoded.example, np.arange(encoded.examples + 1))
    return [range(*ends) for ends in pairwise(bounds.tolist())]


def pick_max_length(lengths: Ints, limit: int = 1024) -> int:
    """A `max_length` that leaves 99 of 100 texts whole: a bucket, at most `limit`."""
    return min(bucket(int(np.quantile(lengths, 0.99, method="inverted_cdf"))), limit)


def windows(bounds: Ints, room: int) -> list[tuple[int, int]]:
    """Spans [first, last) of units that cover all of them, of at most `room` tokens each.

    bounds (units + 1,) rising: unit u is the tokens bounds[u] to bounds[u + 1]. Neighbours share
    about a quarter of their tokens, and the last span is as long as the others. A unit must fit
    into that quarter, or be a single token.
    """
    spans, first = [], 0
    end = len(bounds) - 1
    while (last := int(np.searchsorted(bounds, bounds[first] + room, "right")) - 1) < end:
        spans.append((first, last))
        first = max(first + 1, int(np.searchsorted(bounds, bounds[last] - room // OVERLAP)))
    return [*spans, (int(np.searchsorted(bounds, bounds[end] - room)), end)]


def judging_windows(bounds: Ints, spans: Sequence[tuple[int, int]]) -> Ints:
    """(units,) int: the span in which a unit is farthest from the span's nearer edge, in tokens."""
    judge = np.zeros(len(bounds) - 1, np.int32)
    if len(spans) == 1:
        return judge
    farthest = np.full(len(judge), -1)
    for number, (first, last) in enumerate(spans):
        from_edge = np.minimum(
            bounds[first:last] - bounds[first], bounds[last] - bounds[first + 1 : last + 1]
        )
        better = np.flatnonzero(from_edge > farthest[first:last])
        farthest[first + better] = from_edge[better]
        judge[first + better] = number
    return judge


def _text_rows(
    text: str, tokenizer: RoFormerTokenizer, max_length: int, long_texts: LongTexts
) -> tuple[list[_Row], int]:
    """Rows of one text, and its length before it is cut."""
    ids = tokenizer.ids(text)
    pieces = _pieces(ids, max_length - SPECIALS, long_texts)
    return [_row(piece, tokenizer) for piece in pieces], len(ids) + SPECIALS


def _pieces(ids: list[int], room: int, long_texts: LongTexts) -> list[list[int]]:
    """What is read of a text: pieces of at most `room` tokens."""
    if len(ids) <= room:
        return [ids]
    if long_texts == "windows":
        return [ids[first:last] for first, last in windows(np.arange(len(ids) + 1), room)]
    if long_texts == "head-tail":
        head = room // HEAD
        return [ids[:head] + ids[head - room :]]
    return [ids[:room]]


def _pair_row(
    first: str, second: str, tokenizer: RoFormerTokenizer, max_length: int
) -> tuple[_Row, int]:
    """The row of two texts, and its length before it is cut."""
    parts = tokenizer.ids(first), tokenizer.ids(second)
    ids, segments = tokenizer.join(*parts, max_length)
    length = sum(map(len, parts)) + SPECIALS + 1
    return _Row(np.array(ids, np.int32), np.array(segments, np.int32)), length


def _unit_rows(
    units: list[list[int]], tokenizer: RoFormerTokenizer, room: int
) -> tuple[list[_Row], int]:
    """Rows of units, given by their token ids, and the length of all in one row."""
    ids = [number for unit in units for number in unit]
    bounds = np.cumsum([0, *map(len, units)])
    spans = windows(bounds, room)
    judges = judging_windows(bounds, spans)
    rows = []
    for number, (first, last) in enumerate(spans):
        row = _row(ids[bounds[first] : bounds[last]], tokenizer)
        judged = np.flatnonzero(judges[first:last] == number) + first
        first_units = np.full(len(row.token_ids), -1, np.int32)
        first_units[1 + bounds[judged] - bounds[first]] = judged  # 1: [CLS]
        rows.append(row._replace(first_units=first_units))
    return rows, len(ids) + SPECIALS


def _row(ids: list[int], tokenizer: RoFormerTokenizer) -> _Row:
    """`[CLS] tokens [SEP]`, all in segment 0."""
    token_ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
    return _Row(token_ids, np.zeros_like(token_ids))


def _at_units(target: np.ndarray, first_units: Ints) -> np.ndarray:
    """Targets of units (units,) → of a row's tokens (T,), 0 where nothing is judged."""
    placed = np.zeros(len(first_units), target.dtype)
    judged = first_units >= 0
    placed[judged] = target[first_units[judged]]
    return placed
