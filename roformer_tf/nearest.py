"""The largest scores, and the vectors with the largest products. NumPy only."""

from collections.abc import Iterable

import numpy as np

BLOCK = 16_384
"""Vectors that are multiplied at a time."""
QUERIES = 256
"""Queries per product: their scores of a block fit into the CPU's caches."""


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest scores (N,), largest first; equal scores keep their order.

    All indices where there are no more than k.
    """
    if k < len(scores):
        # Sorting a few candidates is ten times as fast as sorting all. Those that equal the k-th
        # are all candidates, so that the first of them are kept.
        least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= least)
    else:
        candidates = np.arange(len(scores))
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def nearest(
    queries: np.ndarray, blocks: Iterable[np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and products of the k vectors nearest to each query, by computing all products.

    queries (Q, D); blocks: arrays (…, D) of vectors, numbered across blocks. → (Q, k) int64 and
    (Q, k) float32, or fewer columns where there are fewer vectors.
    """
    indices, scores = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
    first = 0
    for block in blocks:
        columns, products = _nearest_in(queries, block, k)
        indices = np.concatenate([indices, columns + first], axis=1)
        scores = np.concatenate([scores, products], axis=1)
        indices, scores = _best(indices, scores, k)
        first += len(block)
    return indices, scores


def _nearest_in(queries: np.ndarray, block: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    columns = np.arange(len(block))
    parts = []
    for start in range(0, len(queries), QUERIES):
        products = queries[start : start + QUERIES] @ block.T
        parts.append(_best(np.broadcast_to(columns, products.shape), products, k))
    if not parts:
        return np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32)
    indices, scores = zip(*parts, strict=True)
    return np.concatenate(indices), np.concatenate(scores)


def _best(indices: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of each row, with their indices."""
    kept = min(k, scores.shape[1])
    order = np.array([top_k(row, k) for row in scores], np.int64).reshape(len(scores), kept)
    return np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1)


def in_blocks(vectors: np.ndarray, size: int = BLOCK) -> Iterable[np.ndarray]:
    """Split an array (N, D) into arrays of at most `size` vectors, read into memory one by one."""
    return (
        np.ascontiguousarray(vectors[start : start + size])
        for start in range(0, len(vectors), size)
    )


def recall(
    indices: np.ndarray, scores: np.ndarray, exact_indices: np.ndarray, exact_scores: np.ndarray
) -> float:
    """Fraction of the k nearest that an approximate search returned.

    A vector that is as near as the k-th counts, whichever of equals was returned. All (Q, k).
    """
    among = (indices[:, :, None] == exact_indices[:, None, :]).any(axis=2)
    return float((among | (scores >= exact_scores[:, -1:])).mean())
