"""Token sequences → rows of one fixed length: pure.

A row holds one or more pieces, each `[CLS] tokens [SEP]`, then padding. A document that fits is
one piece; a longer one is cut where a word begins. With length 10, the documents
`甲 乙乙 丙` (乙乙 one word of two tokens) and `丁` become one row of three channels:

    tokens    [CLS] 甲 乙 乙 丙 [SEP] [CLS] 丁 [SEP] 0
    document    1    1  1  1  1   1     2    2   2   0     equal: may see each other; 0: padding
    word        0    1  2  2  3   0     0    4   0   0     equal: one word; 0: special or padding
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError

TOKEN, DOCUMENT, WORD = range(3)  # the channels of a row
SPECIALS = 2  # [CLS] and [SEP] around each piece


class Document(NamedTuple):
    """A document of T tokens, or a piece of one."""

    token_ids: npt.NDArray[np.integer]
    """(T,), no special tokens."""
    words: npt.NDArray[np.integer]
    """(T,), the number of each token's word: equal to the one before, or one more."""


def check_length(length: int) -> None:
    """Raise InputError if no token fits into a row of this length."""
    if length <= SPECIALS:
        raise InputError(
            f"length is {length}, but a row holds at least [CLS], one token and [SEP]. "
            "Give 3 or more, such as 512."
        )


def pack(
    documents: Iterable[Document],
    length: int,
    *,
    cls_id: int,
    sep_id: int,
    dtype: npt.DTypeLike = np.int32,
) -> npt.NDArray[np.integer]:
    """Pack documents into rows: (rows, 3, length) of `dtype`, channels as in the module's head.

    Every token stands in exactly one row; a document without tokens leaves no trace. The pieces
    are held in memory, so give as many documents as fit there; more give fuller rows.
    Raises InputError if `length` is less than 3.
    """
    check_length(length)
    pieces = [piece for document in documents for piece in split(document, length - SPECIALS)]
    assigned = assign([len(piece.token_ids) + SPECIALS for piece in pieces], length)
    rows = np.zeros((len(assigned), 3, length), dtype)
    for row, members in zip(rows, assigned, strict=True):
        _lay_out(row, [pieces[member] for member in members], cls_id, sep_id)
    return rows


def split(document: Document, room: int) -> Iterator[Document]:
    """Cut a document into pieces of at most `room` tokens, as few and as long as can be.

    A cut stands where a word begins; only a word that is longer than `room` is cut itself.
    """
    token_ids, words = document
    start = 0
    while start < len(token_ids):
        stop = start + room
        if stop < len(token_ids):
            word_start = int(np.searchsorted(words, words[stop]))
            stop = word_start if word_start > start else stop
        yield Document(token_ids[start:stop], words[start:stop])
        start = stop


def assign(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign items to rows, best fit, the largest first; none may exceed the capacity.

    Gives for each row the indices of its items, rising; rows in the order of their first item.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (free space, row), sorted
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
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


def _lay_out(
    row: npt.NDArray[np.integer], pieces: Sequence[Document], cls_id: int, sep_id: int
) -> None:
    """Write pieces side by side into a row (3, length) of zeros."""
    start = word = 0
    for number, (token_ids, words) in enumerate(pieces, start=1):
        stop = start + len(token_ids) + SPECIALS
        row[TOKEN, start] = cls_id
        row[TOKEN, start + 1 : stop - 1] = token_ids
        row[TOKEN, stop - 1] = sep_id
        row[DOCUMENT, start:stop] = number
        row[WORD, start + 1 : stop - 1] = words + (word + 1 - words[0])
        start, word = stop, int(row[WORD, stop - 2])
