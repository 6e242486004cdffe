"""Texts and token ids in batches: pairs are checked, sequences truncated and padded."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError, check_number

Ints: TypeAlias = npt.NDArray[np.integer]

# Length of the smallest bucket.
SHORTEST = 16
SPECIALS = 2
"""Number of special tokens of a sequence with one text: [CLS] and [SEP]."""


def check_length(length: int) -> None:
    """Raise InputError if no token fits into a sequence of this length."""
    check_number("length", length, at_least=SPECIALS + 1, hint="for [CLS], a token and [SEP]")


def bucket(length: int) -> int:
    """The length to pad to: 16, 24, 32, 48, 64, 96, 128, …

    Models are compiled for each length, so there are few. At most a third of a sequence is padding,
    except in the smallest bucket.
    """
    power = 1 << (length - 1).bit_length()  # at least the length
    return max(SHORTEST, power * 3 // 4 if length <= power * 3 // 4 else power)


def padded(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Stack arrays into the shape; the rest is 0, which models take for padding."""
    stacked = np.zeros(shape, arrays[0].dtype)
    for row, array in enumerate(arrays):
        # Arrays of several axes are padded at the end of each axis.
        target: tuple[Any, ...] = (row, *map(slice, array.shape))
        stacked[target] = array
    return stacked


def truncate(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cut two texts to `room` tokens together, each token from the end of the longer one."""
    keep = max(room // 2, room - len(second))  # an odd room leaves the second one token more
    first = first[:keep]
    return first, second[: room - len(first)]


def look_up(numbers: Sequence[int], table: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """Join the rows of a table: [2, 0, 2] of [(5,), (), (7, 8)] → [7, 8, 5, 7, 8].

    Returns also the sizes of the rows, [2, 1, 2].
    """
    row_sizes = np.fromiter(map(len, table), np.int32, len(table))
    joined = np.fromiter(chain.from_iterable(table), np.int32, row_sizes.sum())
    sizes = row_sizes[numbers]
    # Position i of the output is in the row that starts at `starts` in `joined`; repeating the
    # difference of both starts turns 0, 1, 2, … into indices of `joined`.
    starts = (np.cumsum(row_sizes) - row_sizes)[numbers]
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return joined[shifts + np.arange(len(shifts))], sizes


def as_pairs(texts: Iterable[Any]) -> list[tuple[str, str | None]]:
    """Check a list of texts and pairs: ["一", ("二", "三")] → [("一", None), ("二", "三")].

    Raises InputError for anything but a list, such as a single text, and for an item of another
    kind.
    """
    if isinstance(texts, str | Mapping) or not isinstance(texts, Iterable):
        text = texts[:20] if isinstance(texts, str) else "你好"
        raise InputError(f"a list of texts is needed, not {repr(texts)[:60]}. Give [{text!r}].")
    pairs = [(item, None) if isinstance(item, str) else item for item in texts]
    for number, pair in enumerate(pairs):
        if not _is_pair(pair):
            raise InputError(
                f"text {number} is {repr(pair)[:60]}, but must be a str, or two in a tuple for a "
                "pair of texts. Correct or remove it."
            )
    return cast("list[tuple[str, str | None]]", pairs)


def _is_pair(item: Any) -> bool:
    """Whether it is a text, and another one or None; tables have rows that are arrays."""
    if not isinstance(item, tuple | list | np.ndarray) or len(item) != 2:
        return False
    return isinstance(item[0], str) and (item[1] is None or isinstance(item[1], str))
