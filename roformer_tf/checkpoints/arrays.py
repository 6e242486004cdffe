"""Arrays by name, each read or computed on access: a checkpoint is never in memory as a whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

DTYPES = {
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("float32"),
}
"""The dtypes in which weights can be written."""


class LazyArrays(Mapping[str, np.ndarray]):
    """A read-only mapping from names to arrays, whose shapes and dtypes are known without reading.

    Every access reads the array again; nothing is cached.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, np.dtype],
        read: Callable[[str], np.ndarray],
    ) -> None:
        self.shapes = dict(shapes)
        """Name → shape, for every name."""
        self.dtypes = dict(dtypes)
        """Name → dtype, for every name."""
        self._read = read

    def of_parts(self, *parts: str) -> LazyArrays:
        """The arrays of some parts of a model, such as "encoder": the first word of a name."""
        return self.renamed({name: name for name in self if name.split("/")[0] in parts})

    def renamed(self, names: Mapping[str, str]) -> LazyArrays:
        """The arrays in `names` (new name → old name), under their new names."""
        return LazyArrays(
            {new: self.shapes[old] for new, old in names.items()},
            {new: self.dtypes[old] for new, old in names.items()},
            lambda new: self._read(names[new]),
        )

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # Mapping's own would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def tensors_of_file(
    arrays: Mapping[str, np.ndarray], config: RoFormerConfig, layout: str, dtype: str | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name in the file and the tensor for each array.

    With `dtype` None the tensors keep the dtype of the arrays. Raises InputError for numbers that
    are too large for the dtype.
    """
    rows = {row.name: row for row in table(config)}
    for name in arrays:
        tensor = rows[name].to_file(arrays[name], layout, config.rotary_style)
        name_in_file = rows[name].name_in(layout)
        yield name_in_file, _cast(name_in_file, tensor, dtype) if dtype else tensor


def is_finite(array: np.ndarray) -> bool:
    """Whether an array of any dtype contains neither NaN nor infinity."""
    # A sum is several times as fast as a check of each number. It can overflow even if all numbers
    # are finite, so each is checked if the sum is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(array, dtype="float32")
    return bool(np.isfinite(total) or np.isfinite(array).all())


def statistics(array: np.ndarray) -> tuple[float, float, float, float]:
    """Minimum, maximum, mean and standard deviation in float64; NaN if the array contains NaN."""
    values = array.astype(np.float64)
    return float(values.min()), float(values.max()), float(values.mean()), float(values.std())


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """The largest absolute difference of two arrays of the same shape; ∞ if one contains NaN."""
    differences = np.abs(np.subtract(first, second, dtype=np.float64))
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max())


def _cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    """Cast to a dtype of `DTYPES`. Raises InputError for numbers too large, or not finite."""
    with np.errstate(over="ignore"):
        cast = tensor.astype(DTYPES[dtype])
    if not is_finite(cast):
        large = f"as large as {np.abs(tensor).max():.3g}, too large for {dtype}. Write float32."
        problem = large if is_finite(tensor) else "that are not finite: its training has diverged."
        raise InputError(f"{name} has numbers {problem}")
    return cast


def save_tensors(
    tensors: Mapping[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, atomically. Raises OSError if the disk is full, as others do."""
    try:
        # Not by the library alone, whose files only the user can read.
        with temporary_file(file) as temporary:
            save_file(dict(tensors), temporary, metadata)
    except SafetensorError as error:
        # The library has no errno, but its message quotes the operating system's number.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
