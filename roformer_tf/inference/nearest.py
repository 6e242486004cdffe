"""The nearest of many vectors, and what several searches found in one order. No Keras here."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

BLOCK = 16_384
"""Vectors that are multiplied at a time."""
QUERIES = 256
"""Queries of one product: their scores of a block fit into the processor's caches."""
FUSION = 60
"""The constant of reciprocal rank fusion (Cormack et al., 2009): how little first places count."""
NONE = -1
"""The place of no document, where fewer are found than were asked for."""


class Found(NamedTuple):
    """The best documents of several queries, the best first."""

    places: np.ndarray
    """(queries, top) int64: numbers of documents; `NONE` where there are fewer."""
    scores: np.ndarray
    """(queries, top) float32; -inf where there is none."""

    @classmethod
    def joined(cls, parts: Sequence["Found"], top: int) -> "Found":
        """Those of several groups of queries, one below the other."""
        if not parts:
            return cls(np.zeros((0, top), np.int64), np.zeros((0, top), np.float32))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def among(self, places: np.ndarray) -> "Found":
        """What was found among some documents alone, by the numbers of these, (documents,)."""
        return Found(np.where(self.places == NONE, NONE, places[self.places]), self.scores)


def best_of(scores: np.ndarray, top: int, first: int = 0) -> Found:
    """The best of scores (queries, documents): as many as `top`, equal ones in their order.

    `first` is the number of the first document.
    """
    queries, documents = scores.shape
    count = min(top, documents)
    if count < documents:
        # Those that are sure to be among the best: a tie at the border is broken below by the order
        border = np.partition(scores, documents - count, axis=1)[:, documents - count]
        chosen = [_at_least(row, least, count) for row, least in zip(scores, border, strict=True)]
        places = np.stack(chosen) if chosen else np.zeros((0, count), np.int64)
    else:
        places = np.broadcast_to(np.arange(documents), (queries, documents))
    found = np.take_along_axis(scores, places, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1) + first
    found = np.take_along_axis(found, order, axis=1)
    missing = ((0, 0), (0, top - count))
    return Found(
        np.pad(places.astype(np.int64), missing, constant_values=NONE),
        np.pad(found.astype(np.float32), missing, constant_values=-np.inf),
    )


def _at_least(scores: np.ndarray, least: float, count: int) -> np.ndarray:
    """Places of the `count` best, rising; of those that are equal to the least the first ones."""
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def exact(queries: np.ndarray, vectors: np.ndarray, top: int) -> Found:
    """The largest products of each query with each vector, all of them computed.

    queries (Q, D), vectors (N, D) float32, which may be mapped from a file: a block is read for all
    queries at once. A document gets into a query's best only if it scores above its worst.
    """
    best = [
        Found(
            np.full((len(part), top), NONE, np.int64),
            np.full((len(part), top), -np.inf, np.float32),
        )
        for part in _parts(queries)
    ]
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK])
        best = [
            _improved(one, part @ block.T, start)
            for one, part in zip(best, _parts(queries), strict=True)
        ]
    return Found.joined(best, top)


def _parts(queries: np.ndarray) -> list[np.ndarray]:
    return [queries[i : i + QUERIES] for i in range(0, len(queries), QUERIES)]


def _improved(best: Found, scores: np.ndarray, start: int) -> Found:
    """The best so far and those of a block, merged: a query at a time, for most gain nothing."""
    top = best.places.shape[1]
    above = scores > best.scores[:, -1:]
    counts = above.sum(axis=1)
    for query in np.flatnonzero(counts):
        places = np.flatnonzero(above[query])
        found = scores[query, places]
        if len(places) > top:
            kept = best_of(found[None], top).places[0]
            places, found = places[kept], found[kept]
        all_scores = np.concatenate([best.scores[query], found])
        all_places = np.concatenate([best.places[query], places + start])
        order = np.argsort(-all_scores, kind="stable")[:top]
        best.scores[query], best.places[query] = all_scores[order], all_places[order]
    return best


def recall(found: Found, wanted: Found) -> float:
    """The share of what is nearest that was found; what scores as much counts as it."""
    nearest = (found.places[:, :, None] == wanted.places[:, None, :]).any(axis=2)
    return float((nearest | (found.scores >= wanted.scores[:, -1:])).mean())


def fused(lists: Iterable[Found], top: int, constant: float = FUSION) -> Found:
    """Reciprocal rank fusion: a document scores Σ 1 / (constant + its rank) over the lists.

    Scores of different kinds need no common scale for that. Of equal ones the first found is first.
    """
    sources = list(lists)
    rows = []
    for query in range(len(sources[0].places)):
        total: dict[int, float] = {}
        for source in sources:
            for rank, place in enumerate(source.places[query].tolist(), 1):
                if place != NONE:
                    total[place] = total.get(place, 0.0) + 1 / (constant + rank)
        rows.append(_sorted(total, top))
    return Found.joined(rows, top)


def _sorted(total: dict[int, float], top: int) -> Found:
    """The best of what each document scores, in one row."""
    found = sorted(total.items(), key=lambda item: -item[1])[:top]
    missing = top - len(found)
    places = [place for place, _ in found] + [NONE] * missing
    scores = [score for _, score in found] + [-np.inf] * missing
    return Found(np.array([places], np.int64), np.array([scores], np.float32))
