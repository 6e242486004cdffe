"""Rows of several lengths → one array, of a length that few others have."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError

Ints: TypeAlias = npt.NDArray[np.integer]

SHORTEST = 16
SPECIALS = 2
"""Number of special tokens of a sequence with one text: [CLS] and [SEP]."""


def check_length(length: int) -> None:
    """Raise InputError if no token fits into a sequence of this length."""
    if length <= SPECIALS:
        raise InputError(
            f"length is {length}, but a row holds at least [CLS], one token and [SEP]. "
            "Give 3 or more, such as 512."
        )


def bucket(length: int) -> int:
    """The length to pad to: 16, 24, 32, 48, 64, 96, 128, …; few, since each is compiled.

    At most a third of a row is padding, except for the shortest.
    """
    power = 1 << (length - 1).bit_length()  # at least the length
    return max(SHORTEST, power * 3 // 4 if length <= power * 3 // 4 else power)


def padded(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Stack arrays from the first row on; what is left of `shape` is 0, padding to the models."""
    stacked = np.zeros(shape, arrays[0].dtype)
    for row, array in enumerate(arrays):
        part: tuple[Any, ...] = (row, *map(slice, array.shape))
        stacked[part] = array
    return stacked
