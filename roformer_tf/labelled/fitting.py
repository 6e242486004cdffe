"""Which of a long text's passages is meant by the text that it belongs to: the one of its words."""

from collections import Counter
from functools import cache

import numpy as np

from roformer_tf.labelled.apart import EncodedSides
from roformer_tf.tokenizers.padding import Ints

_FAR = 1 << 32
"""By which a pair of tokens is told from a single one."""


def fitting_rows(encoded: EncodedSides) -> Ints:
    """The row of each text (N, S) that shares most with its example's first text.

    What counts are tokens and pairs of neighbouring ones, each the more, the fewer rows have it;
    of equally good ones the first. Texts of one row have that.
    """
    chosen = encoded.first_rows.copy()
    several = np.argwhere(encoded.counts > 1)
    if not len(several):
        return chosen

    @cache
    def grams(row: int) -> frozenset[int]:
        ids = encoded.token_ids[row][1:-1].astype(np.int64)
        return frozenset([*ids.tolist(), *((ids[:-1] + 1) * _FAR + ids[1:]).tolist()])

    first = set(encoded.first_rows[:, 0].tolist())
    held = Counter(
        gram for row in range(len(encoded.token_ids)) if row not in first for gram in grams(row)
    )
    rows = len(encoded.token_ids) - len(first)
    for example, side in several.tolist():
        asked = grams(int(chosen[example, 0]))
        begin = int(chosen[example, side])
        candidates = range(begin, begin + int(encoded.counts[example, side]))
        shared = [
            sum(np.log(1 + rows / held[gram]) for gram in asked & grams(row)) for row in candidates
        ]
        chosen[example, side] = begin + int(np.argmax(shared))
    return chosen
