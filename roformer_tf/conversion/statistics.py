"""Figures of arrays that are too large to be copied in float64 whole."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

BLOCK = 1 << 20
"""Elements that are looked at in float64 at a time."""


class Statistics(NamedTuple):
    """What a tensor's values are like."""

    least: float
    largest: float
    mean: float
    deviation: float
    """Standard deviation, of all values."""


def statistics(array: np.ndarray) -> Statistics:
    """Describe an array of any floating dtype, computing in float64; NaN where it holds one."""
    mean = sum(float(block.sum()) for block in _blocks(array)) / array.size
    variance = sum(float(((block - mean) ** 2).sum()) for block in _blocks(array)) / array.size
    return Statistics(float(array.min()), float(array.max()), mean, variance**0.5)


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """The largest absolute difference of two arrays of one shape; ∞ where one holds NaN."""
    pairs = zip(_blocks(first), _blocks(second), strict=True)
    return max((_difference(a, b) for a, b in pairs), default=0.0)


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    differences = np.abs(first - second, where=first != second, out=np.zeros_like(first))
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max())


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The values in float64, a flat part at a time."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield flat[start : start + BLOCK].astype(np.float64)
