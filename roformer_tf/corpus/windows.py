"""Long texts → windows of several lengths in which the same tokens are predicted: pure functions.

To measure the value of a longer context, only the length may differ. So each text is masked once,
and then read in windows of every length. Windows are adjacent. The last one of a text begins
earlier, so it is full, too; only tokens that no earlier window has are evaluated in it:

    text      甲 乙 丙 丁 戊 己 庚        7 tokens
    windows   [甲 乙 丙] [丁 戊 己] [戊 己 庚]   of 3; in the last, 庚 alone is evaluated
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.packing import Documents

# The word number of tokens that are no text, such as the [SEP] between two documents.
NO_WORD = 0


class WordedText(NamedTuple):
    """A text of T tokens without the special ones around it."""

    token_ids: npt.NDArray[np.integer]
    """(T,)"""
    words: npt.NDArray[np.integer]
    """(T,), from 1 on the number of each token's word in the text; 0 for a [SEP] within."""


class Window(NamedTuple):
    """The tokens of a text from `start` to `stop`."""

    start: int
    stop: int
    fresh: int
    """The first token that no earlier window has: evaluation begins with it."""


def windows(size: int, room: int) -> Iterator[Window]:
    """Cut a text of `size` tokens into windows of `room` tokens; each token is evaluated once.

    >>> [tuple(window) for window in windows(7, 3)]
    [(0, 3, 0), (3, 6, 3), (4, 7, 6)]
    >>> [tuple(window) for window in windows(2, 3)]
    [(0, 2, 0)]
    """
    for first in range(0, size, room):
        # The last window is moved to the left until it is full, or begins with the text.
        stop = min(first + room, size)
        yield Window(max(0, stop - room), stop, first)


def long_texts(
    documents: Iterable[Documents], least: int, sep_id: int, *, joined: bool = True
) -> Iterator[WordedText]:
    """Documents of at least `least` tokens; shorter ones are joined until they are as long.

    [SEP] separates joined documents. A rest that is too short is skipped; without `joined`, all
    short documents are.
    """
    waiting: list[WordedText] = []  # short documents to be joined
    for several in documents:
        for start, stop in zip(several.bounds[:-1], several.bounds[1:], strict=True):
            text = _text(several, int(start), int(stop))
            if len(text.token_ids) >= least:
                yield text
            elif joined and len(text.token_ids):
                waiting.append(text)
                if sum(len(short.token_ids) + 1 for short in waiting) > least:
                    yield _join(waiting, sep_id)
                    waiting = []


def _text(documents: Documents, start: int, stop: int) -> WordedText:
    """One of several documents, its words counted from 1."""
    words = documents.words[start:stop]
    return WordedText(documents.token_ids[start:stop], words - words[:1] + 1)


def _join(texts: list[WordedText], sep_id: int) -> WordedText:
    """The texts one after another, separated by [SEP], with rising word numbers."""
    ids: list[npt.NDArray[np.integer]] = []
    words: list[npt.NDArray[np.integer]] = []
    last = 0
    for text in texts:
        # Words of all texts have different numbers, so masking keeps them whole.
        ids += [text.token_ids, np.array([sep_id])]
        words += [text.words + last, np.array([NO_WORD])]
        last += int(text.words[-1])
    return WordedText(np.concatenate(ids[:-1]), np.concatenate(words[:-1]))
