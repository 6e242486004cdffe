"""Long texts → rows of several lengths that judge the very same tokens: pure.

What a longer context is worth shows only where everything else stays: so each text is masked
once, and then read in windows of every length. Windows stand side by side; the last one of a text
begins earlier, so that it is full too, and judges what no window before it has judged:

    text      甲 乙 丙 丁 戊 己 庚        7 tokens
    windows   [甲 乙 丙] [丁 戊 己] [戊 己 庚]   of 3; the last judges 庚 alone
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.packing import Documents

NO_WORD = 0
"""The word of what is no text, such as the [SEP] between two documents."""


class WordedText(NamedTuple):
    """A text of T tokens without the special ones around it."""

    token_ids: npt.NDArray[np.integer]
    """(T,)"""
    words: npt.NDArray[np.integer]
    """(T,), from 1 on the number of each token's word in the text; 0 for a [SEP] within."""


class Window(NamedTuple):
    """The tokens of a text from `start` to `stop`, of which those from `judged` on count."""

    start: int
    stop: int
    judged: int


def windows(size: int, room: int) -> Iterator[Window]:
    """Cut a text of so many tokens into windows of `room` tokens; each token is judged once.

    >>> [tuple(window) for window in windows(7, 3)]
    [(0, 3, 0), (3, 6, 3), (4, 7, 6)]
    >>> [tuple(window) for window in windows(2, 3)]
    [(0, 2, 0)]
    """
    for judged in range(0, size, room):
        stop = min(judged + room, size)
        yield Window(max(0, stop - room), stop, judged)


def long_texts(
    documents: Iterable[Documents], least: int, sep_id: int, *, joined: bool = True
) -> Iterator[WordedText]:
    """Give each document of at least `least` tokens, and the others joined until they are so long.

    Between two that are joined stands [SEP]. What is left in the end, too short, is left out, and
    so is all that is short where nothing is to be `joined`.
    """
    waiting: list[WordedText] = []
    for several in documents:
        for start, stop in zip(several.bounds[:-1], several.bounds[1:], strict=True):
            text = _text(several, int(start), int(stop))
            if len(text.token_ids) >= least:
                yield text
            elif joined and len(text.token_ids):
                waiting.append(text)
                if sum(len(one.token_ids) + 1 for one in waiting) > least:
                    yield _join(waiting, sep_id)
                    waiting = []


def _text(documents: Documents, start: int, stop: int) -> WordedText:
    """One of several documents, its words counted from 1."""
    words = documents.words[start:stop]
    return WordedText(documents.token_ids[start:stop], words - words[:1] + 1)


def _join(texts: list[WordedText], sep_id: int) -> WordedText:
    """The texts one behind the other, [SEP] between them, words counted on."""
    ids: list[npt.NDArray[np.integer]] = []
    words: list[npt.NDArray[np.integer]] = []
    last = 0
    for text in texts:
        ids += [text.token_ids, np.array([sep_id])]
        words += [text.words + last, np.array([NO_WORD])]
        last += int(text.words[-1])
    return WordedText(np.concatenate(ids[:-1]), np.concatenate(words[:-1]))
