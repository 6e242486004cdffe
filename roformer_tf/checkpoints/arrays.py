"""Arrays by name, each read or computed on access: a checkpoint is never in memory as a whole."""

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

DTYPES = {
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("float32"),
}
"""What weights may be written as."""


class LazyArrays(Mapping[str, np.ndarray]):
    """A read-only mapping from names to arrays; shapes and dtypes are known unread.

    Every access reads the array anew and keeps nothing of it.
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

    def of_parts(self, *parts: str) -> "LazyArrays":
        """Those of some parts of a model, such as "encoder", by the first word of their names."""
        names = [name for name in self if name.split("/")[0] in parts]
        return LazyArrays(
            {name: self.shapes[name] for name in names},
            {name: self.dtypes[name] for name in names},
            self._read,
        )

    def renamed(self, names: Mapping[str, str]) -> "LazyArrays":
        """Those of the names, new name → old one."""
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
    """Give each array as a file holds it, with its name there; `dtype` None keeps its own.

    Raises InputError for numbers that are too large for the dtype.
    """
    rows = {row.name: row for row in table(config)}
    for name in arrays:
        tensor = rows[name].to_file(arrays[name], layout, config.rotary_style)
        there = rows[name].name_in(layout)
        yield there, _cast(there, tensor, dtype) if dtype else tensor


def is_finite(array: np.ndarray) -> bool:
    """Whether no number of an array of any dtype is NaN or infinite."""
    # A sum is several times as fast as looking at each number. It may overflow by itself.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(array, dtype="float32")
    return bool(np.isfinite(total) or np.isfinite(array).all())


def _cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    """The tensor in a dtype of `DTYPES`. Raises InputError for numbers too large for it."""
    with np.errstate(over="ignore"):
        cast = tensor.astype(DTYPES[dtype])
    if not is_finite(cast) and is_finite(tensor):
        raise InputError(
            f"{name} has numbers as large as {np.abs(tensor).max():.3g}, which {dtype} cannot "
            "hold. Write bfloat16 or float32."
        )
    return cast


def save_tensors(
    tensors: Mapping[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError where the disk is full, as other writing does."""
    try:
        save_file(dict(tensors), file, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
