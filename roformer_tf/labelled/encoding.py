"""Examples → rows of token ids, and the logits of rows → logits of examples.

A row is `[CLS] tokens [SEP]`, or `[CLS] tokens [SEP] tokens [SEP]` for a pair. Most examples are
one row; a ranking is two, (A, B) and (A, C), and a long text may be several windows of itself:

    max_length 10: 甲乙丙丁戊己庚辛壬癸 → [CLS]甲乙丙丁戊己庚辛[SEP], [CLS]丙丁戊己庚辛壬癸[SEP]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.labelled.task import Example, LongTexts, Task
from roformer_tf.tokenizers.tokenizer import SPECIALS, RoFormerTokenizer, check_length

Ints: TypeAlias = npt.NDArray[np.integer]
Rows: TypeAlias = Sequence[np.ndarray] | np.ndarray
"""An array for each row; one array where all have the same shape."""

OVERLAP = 4  # a window shares this part, a quarter, of its tokens with the next one
HEAD = 4  # what "head-tail" keeps of the beginning: a quarter, as Sun et al. (2019) found best
SHORTEST = 16


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


def encode_examples(
    examples: Sequence[Example], tokenizer: RoFormerTokenizer, task: Task
) -> EncodedTexts:
    """Make rows of at most `task.max_length` tokens.

    One text too long is cut or read in windows, as `task.long_texts` says; of a pair the longer
    text loses its last tokens. A tagging's units are tokenized one by one, so that each has
    tokens of its own; too many of them are always read in windows, and each unit is judged once,
    where it is farthest from a window's edge. Raises InputError for a `max_length` that holds no
    token.
    """
    check_length(task.max_length)
    rows_of = _encoder(tokenizer, task)
    found = [rows_of(example) for example in examples]
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


def row_targets(
    encoded: EncodedTexts, examples: Sequence[Example], task: Task
) -> tuple[Rows, Rows]:
    """What the loss compares each row's logits with, and how much each row weighs.

    Targets: classification, pair (rows,) int32; multilabel (rows, C), regression and ranking
    (rows, 1) float32. Weights (rows,) float32: windows of one example share a weight of 1. For
    tagging both are lists of (T,) for each row, int32 and float32: weight 1 where a unit begins
    that is judged there. Raises InputError for a label that training has not seen.
    """
    targets = [task.target(example) for example in examples]
    if task.name == "tagging":
        placed = [
            _at_units(targets[number], units)
            for number, units in zip(encoded.example, encoded.first_units, strict=True)
        ]
        return placed, [(units >= 0).astype(np.float32) for units in encoded.first_units]
    if task.name == "ranking":
        return np.reshape(targets, (-1, 1)), np.ones(len(encoded.example), np.float32)
    rows_each = np.bincount(encoded.example)[encoded.example]
    return np.stack(targets)[encoded.example], (1 / rows_each).astype(np.float32)


def combine(
    row_logits: Sequence[np.ndarray], encoded: EncodedTexts, task: Task
) -> list[np.ndarray]:
    """Logits of rows, (C,) or for tagging (T, C) → of examples, as `Task.answer` reads them.

    The logits of windows are averaged, those of a ranking's two rows stand side by side, and
    those of a unit are its first token's.
    """
    bounds = np.searchsorted(encoded.example, np.arange(encoded.examples + 1))
    groups = [range(*ends) for ends in pairwise(bounds.tolist())]
    if task.name == "ranking":
        return [np.concatenate([row_logits[row] for row in rows]) for rows in groups]
    if task.name != "tagging":
        return [np.mean([row_logits[row] for row in rows], axis=0) for rows in groups]
    answers = [np.zeros((units, task.outputs), np.float32) for units in encoded.units]
    for answer, rows in zip(answers, groups, strict=True):
        for row in rows:
            judged = encoded.first_units[row] >= 0
            answer[encoded.first_units[row][judged]] = row_logits[row][judged]
    return answers


def bucket(length: int) -> int:
    """The length to pad to: 16, 24, 32, 48, 64, 96, 128, …; few, since each is compiled.

    At most a third of a row is padding, but for the shortest.
    """
    power = 1 << (length - 1).bit_length()  # at least the length
    return max(SHORTEST, power * 3 // 4 if length <= power * 3 // 4 else power)


def pick_max_length(lengths: Ints, limit: int = 1024) -> int:
    """A `max_length` that leaves 99 of 100 texts whole: a bucket, at most `limit`."""
    return min(bucket(int(np.quantile(lengths, 0.99, method="inverted_cdf"))), limit)


def padded(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Stack arrays from the first row on; what is left of `shape` is 0, padding to the models."""
    stacked = np.zeros(shape, arrays[0].dtype)
    for row, array in enumerate(arrays):
        part: tuple[Any, ...] = (row, *map(slice, array.shape))
        stacked[part] = array
    return stacked


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


def _encoder(
    tokenizer: RoFormerTokenizer, task: Task
) -> Callable[[Example], tuple[list[_Row], int]]:
    """What turns an example into its rows and its length before anything is cut."""
    if task.name == "tagging":
        room = task.max_length - SPECIALS

        @cache  # characters come again and again
        def ids_of(unit: str) -> list[int]:
            return tokenizer.ids(unit)[: max(1, room // OVERLAP)] or [tokenizer.unk_id]

        return lambda example: _unit_rows([ids_of(unit) for unit in example.units], tokenizer, room)

    def rows_of(example: Example) -> tuple[list[_Row], int]:
        if len(example.texts) == 1:
            return _text_rows(example.texts[0], tokenizer, task.max_length, task.long_texts)
        first, *others = example.texts
        rows = [_pair_row(first, other, tokenizer, task.max_length) for other in others]
        return [row for row, _ in rows], max(length for _, length in rows)

    return rows_of


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
