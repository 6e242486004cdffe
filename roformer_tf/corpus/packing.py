"""Tokens of documents → sequences (rows) of one fixed length: pure functions.

A row holds one or more chunks, each `[CLS] tokens [SEP]`, then padding. A document that is longer
than a row is split at the start of a word. To fill the rows, as few other documents as possible are
split, too.
With length 10, the documents `甲 乙乙 丙` (乙乙 one word of two tokens) and `丁` become one row
of three channels:

    tokens    [CLS] 甲 乙 乙 丙 [SEP] [CLS] 丁 [SEP] 0
    document    1    1  1  1  1   1     2    2   2   0     equal: attend to each other; 0: padding
    word        0    1  2  2  3   0     0    4   0   0     equal: one word; 0: special or padding
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.tokenizers.padding import SPECIALS, check_length

TOKEN, DOCUMENT, WORD = range(3)  # the channels of a row


class Documents(NamedTuple):
    """D documents of T tokens, one after the other."""

    token_ids: npt.NDArray[np.integer]
    """(T,), no special tokens."""
    words: npt.NDArray[np.integer]
    """(T,), 0 or more: the number of each token's word, rising in a document."""
    bounds: npt.NDArray[np.integer]
    """(D + 1,), rising from 0 to T: document i is the tokens from bounds[i] to bounds[i + 1]."""


def pack(
    documents: Documents,
    length: int,
    *,
    cls_id: int,
    sep_id: int,
    fill: float = 0.0,
    dtype: npt.DTypeLike = np.int32,
) -> tuple[npt.NDArray[np.integer], int]:
    """Pack documents into rows: (rows, 3, length) of `dtype`, channels as described above.

    Every token is in exactly one row; documents without tokens are skipped. Documents that fit into
    a row are split only until the fraction `fill` of all positions is used, or nothing more can be
    gained. More documents at a time give fuller rows and fewer splits.
    Returns the rows and how many documents are split. Raises InputError if `length` is less than 3.
    """
    check_length(length)
    bounds = chunk_bounds(documents, length - SPECIALS)
    chunks = list(pairwise(bounds.tolist()))
    members = assign([stop - start + SPECIALS for start, stop in chunks], length)
    rows = [[chunks[i] for i in row] for row in members]
    # In the order of the text: chunks by their start, rows by their first chunk.
    rows = sorted(map(sorted, refill(rows, documents.words, length, fill)))
    starts, stops = np.array(list(chain.from_iterable(rows)), np.intp).reshape(-1, 2).T
    token_ids, words = _framed(documents, starts, stops - starts + SPECIALS, cls_id, sep_id)
    used = np.arange(length) < np.array(list(map(_load, rows)), np.intp)[:, None]  # (rows, length)
    # The document of each chunk, counted from 1. A document with several chunks is split. `right`:
    # empty documents before a chunk begin where it does, and have no chunk themselves.
    owners = np.searchsorted(documents.bounds, starts, side="right")
    split_documents = int(np.sum(np.unique(owners, return_counts=True)[1] > 1))
    return np.stack(_channels(used, token_ids, words, dtype), axis=1), split_documents


def chunk_bounds(documents: Documents, room: int) -> npt.NDArray[np.integer]:
    """Bounds (chunks + 1,) of chunks of at most `room` tokens, as few and as long as possible.

    Documents are split at the start of a word; only a word longer than `room` is split itself.
    """
    bounds = np.unique(documents.bounds)  # without empty documents
    too_long = np.flatnonzero(np.diff(bounds) > room)
    spans = zip(bounds[too_long], bounds[too_long + 1], strict=True)
    cuts = [
        first + cut for first, last in spans for cut in _cuts(documents.words[first:last], room)
    ]
    return np.sort(np.append(bounds, np.array(cuts, bounds.dtype)))


def assign(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign items to rows, best fit, the largest first; none may exceed the capacity.

    Returns for each row the indices of its items, rising; rows in the order of their first item.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (free space, row), sorted
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        # The row with the least free space that suffices.
        best = bisect_left(spaces, (sizes[item], 0))
        if best < len(spaces):
            space, row = spaces.pop(best)
            rows[row].append(item)
        else:
            space, row = capacity, len(rows)
            rows.append([item])
        if space > sizes[item]:
            insort(spaces, (space - sizes[item], row))
    return sorted(sorted(members) for members in rows)


# Tokens [start, stop) of a document.
Chunk: TypeAlias = tuple[int, int]


def refill(
    rows: list[list[Chunk]], words: npt.NDArray[np.integer], length: int, fill: float
) -> list[list[Chunk]]:
    """Distribute the chunks of the emptiest rows to the next ones, until `fill` is reached.

    Each filled row needs at most one split, and the largest gaps are filled first, so few documents
    are split. They are split at the start of a word: words (T,).
    """
    by_load = deque(sorted(rows, key=_load))
    taker: list[Chunk] | None = None
    done: list[list[Chunk]] = []
    used, count = sum(map(_load, rows)), len(rows)
    # `used`: positions that are not padding; `count`: rows that are left. A step needs a row to
    # distribute and one that takes its chunks, which may be `taker` from the step before.
    while len(by_load) > (taker is None) and used < fill * length * count:
        donated = deque(by_load.popleft())
        while donated and (taker or by_load):
            taker = taker or by_load.popleft()
            start, stop = donated[0]
            room = length - _load(taker) - SPECIALS
            if stop - start <= room:
                taker.append(donated.popleft())
                continue
            # `cut` is `start` if there is no room, or less than the first word needs.
            cut = _word_start(words, start, start + room)
            if cut > start:  # both parts need [CLS] and [SEP]
                taker.append((start, cut))
                donated[0] = (cut, stop)
                used += SPECIALS
            done.append(taker)
            taker = None
        # No row is left that could take the rest: it stays a row. Otherwise a row is saved.
        if donated:
            done.append(list(donated))
        else:
            count -= 1
    return [*done, *([taker] if taker else []), *by_load]


def _load(row: list[Chunk]) -> int:
    """Positions that a row's chunks use."""
    return sum(stop - start + SPECIALS for start, stop in row)


def _word_start(words: npt.NDArray[np.integer], first: int, last: int) -> int:
    """The last start of a word from `first` to `last`; `first` if there is none."""
    while last > first and words[last] == words[last - 1]:
        last -= 1
    return max(first, last)


def _cuts(words: npt.NDArray[np.integer], room: int) -> Iterator[int]:
    """Positions at which a document with these words is split."""
    start = 0
    while (stop := start + room) < len(words):
        # A word longer than the room is cut like any other text.
        # The numbers of words rise, so this is the first token of the word that is cut at `stop`.
        word_start = int(np.searchsorted(words, words[stop]))
        start = word_start if word_start > start else stop
        yield start


def _framed(
    documents: Documents,
    starts: npt.NDArray[np.integer],
    widths: npt.NDArray[np.integer],
    cls_id: int,
    sep_id: int,
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Tokens and words of chunks, each within [CLS] and [SEP], whose word is -1.

    starts (P,): positions of the chunks in the documents; widths (P,): tokens with special ones.
    """
    stops = np.cumsum(widths)
    # A chunk of the tokens 5 and 6 → 4 5 6 7: its neighbours are then replaced by [CLS] and [SEP].
    # At the ends of all documents there is no neighbour, hence `clip`.
    source = np.arange(widths.sum()) + np.repeat(starts - 1 - (stops - widths), widths)
    token_ids, words = (array.take(source, mode="clip") for array in documents[:2])
    for positions, special in ((stops - widths, cls_id), (stops - 1, sep_id)):
        token_ids[positions] = special
        words[positions] = -1
    return token_ids, words


def _channels(
    used: npt.NDArray[np.bool_],
    token_ids: npt.NDArray[np.integer],
    words: npt.NDArray[np.integer],
    dtype: npt.DTypeLike,
) -> list[npt.NDArray[np.integer]]:
    """Write framed tokens and words (U,) to the U used positions; number chunks and words."""
    token = np.zeros(used.shape, dtype)
    token[used] = token_ids
    word = np.full(used.shape, -1, words.dtype)
    word[used] = words
    is_text = word >= 0
    # A chunk begins with [CLS], a position without a word before one with a word.
    begins_chunk = np.zeros_like(used)
    begins_chunk[:, :-1] = is_text[:, 1:] & ~is_text[:, :-1]
    begins_word = np.zeros_like(used)
    begins_word[:, 1:] = is_text[:, 1:] & (word[:, 1:] != word[:, :-1])
    return [
        token,
        np.cumsum(begins_chunk, axis=1, dtype=dtype) * used,
        np.cumsum(begins_word, axis=1, dtype=dtype) * is_text,
    ]
