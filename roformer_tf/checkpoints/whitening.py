"""whitening.safetensors: what makes the directions of a model's vectors alike. No Keras here.

Vectors of an encoder lie in a narrow cone, where every cosine is high. Less their mean, times a
matrix by which they have no covariance and the same variance in each direction, they fill the space
(Su et al., 2021, arXiv 2103.15316): (x - mean) · matrix. Mean and matrix come from texts alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside

FILE = "whitening.safetensors"
SMALLEST = 1e-8
"""Variance of a direction, in parts of the largest, below which it is rounding and no direction."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """Mean (H,) and matrix (H, D) float32: the directions of the largest variance come first."""

    mean: np.ndarray
    matrix: np.ndarray

    def save(self, folder: str | Path) -> None:
        """Write whitening.safetensors into a model's folder."""
        with file_beside(Path(folder) / FILE) as beside:
            save_tensors({"mean": self.mean, "matrix": self.matrix}, beside)


def load(folder: str | Path, hidden_size: int) -> Whitening | None:
    """Read a model's folder; None where it has none. Raises InputError for a bad one."""
    path = Path(folder) / FILE
    return parse(path.read_bytes(), str(path), hidden_size) if path.is_file() else None


def parse(content: bytes, name: str, hidden_size: int) -> Whitening:
    """Read the content of a whitening.safetensors. Raises InputError, with its name."""
    try:
        tensors = load_tensors(content)
        found = Whitening(tensors["mean"].astype(np.float32), tensors["matrix"].astype(np.float32))
    except (SafetensorError, KeyError):
        raise InputError(
            f"{name} is damaged: remove it, and give --whiten with a file of texts again."
        ) from None
    rows, size = (*found.matrix.shape, 0, 0)[:2]
    if found.mean.shape != (hidden_size,) or rows != hidden_size or not 0 < size <= hidden_size:
        raise InputError(
            f"{name} is of another model: it is for vectors of {rows:,} numbers, and the model's "
            f"have {hidden_size:,}. Remove it, and give --whiten with a file of texts again."
        )
    return found


def whitening_of(blocks: Iterable[np.ndarray], dimensions: int | None = None) -> Whitening:
    """What whitens vectors like these, given in blocks (N, H) and held in memory one by one.

    dimensions: how many directions to keep, those of the largest variance; unset, all. Sums are
    float64. Raises InputError where the vectors span fewer directions than that.
    """
    count, shift, total, products = 0, np.zeros(0), np.zeros(0), np.zeros((0, 0))
    for block in blocks:
        if not count:  # about the first one's mean, since means are far larger than what varies
            shift = block.mean(axis=0, dtype=np.float64)
            total, products = np.zeros_like(shift), np.zeros((len(shift), len(shift)))
        centred = block.astype(np.float64) - shift
        count += len(centred)
        total += centred.sum(axis=0)
        products += centred.T @ centred
    if count < 2:
        raise InputError("whitening is learnt from several texts: give a file of some thousands.")
    mean = total / count
    variances, directions = np.linalg.eigh(products / count - np.outer(mean, mean))
    variances, directions = variances[::-1], directions[:, ::-1]
    found = int((variances > SMALLEST * max(variances[0], 0)).sum())
    wanted = dimensions or len(variances)
    if found < wanted:
        raise InputError(
            f"the {count:,} texts to whiten by have vectors in {found:,} independent directions, "
            f"but {wanted:,} are needed. Give more texts that differ, some thousands, or "
            "--dimensions with a smaller number."
        )
    matrix = directions[:, :wanted] / np.sqrt(variances[:wanted])
    return Whitening((shift + mean).astype(np.float32), matrix.astype(np.float32))
