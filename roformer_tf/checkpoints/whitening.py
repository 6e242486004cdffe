"""whitening.safetensors: a linear transformation that whitens sentence vectors. No Keras here.

The vectors of an encoder are in a narrow cone, where all cosines are high. After the transformation
(x - mean) · matrix they have no covariance and the same variance in each direction (Su et al.,
2021, arXiv 2103.15316). Mean and matrix are computed from unlabelled texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, temporary_file

if TYPE_CHECKING:
    from roformer_tf.checkpoints.embedding_config import Pooling
    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource

FILE = "whitening.safetensors"
SMALLEST = 1e-6
"""Smallest variance of a direction that is kept, relative to the largest. Below it there is little
but rounding error, which whitening would make as large as the signal."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """The transformation of the vectors of one pooling, before they are normalized."""

    mean: np.ndarray
    """(H,) float32."""
    matrix: np.ndarray
    """(H, D) float32: directions scaled to unit variance, in order of falling variance."""
    pooling: Pooling

    def save(self, folder: str | Path) -> None:
        """Write whitening.safetensors into a model's folder."""
        tensors = {"mean": self.mean, "matrix": np.ascontiguousarray(self.matrix)}
        with temporary_file(Path(folder) / FILE) as file:
            save_tensors(tensors, file, {"pooling": self.pooling})


def load_whitening(
    checkpoint: Checkpoint, source: OpenedSource, pooling: Pooling
) -> Whitening | None:
    """The whitening of a source, for vectors of a pooling; None without it.

    Raises InputError as `parse` does.
    """
    content = source.read(FILE)
    if content is None:
        return None
    return parse(content, f"{source.name}: its {FILE}", checkpoint.config.hidden_size, pooling)


def parse(content: bytes, name: str, hidden_size: int, pooling: Pooling) -> Whitening:
    """Read the content of a whitening.safetensors.

    Raises InputError, with its name, for a damaged one, and if it was computed from vectors of
    another model or another pooling.
    """
    again = "Remove it, or compute it again: embed --whiten with a file of texts."
    try:
        tensors = load_tensors(content)
        # The library has no function that returns the metadata of bytes: a length of 8 bytes, then
        # the header in JSON.
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        own_pooling = header["__metadata__"]["pooling"]
        mean, matrix = (tensors[key].astype(np.float32) for key in ("mean", "matrix"))
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InputError(f"{name} is damaged. {again}") from None
    # A damaged file can have any number of axes; missing ones count as 0.
    rows, size = (*matrix.shape, 0, 0)[:2]
    if mean.shape != (hidden_size,) or rows != hidden_size or not 0 < size <= hidden_size:
        raise InputError(
            f"{name} is for vectors of {rows:,} numbers, but the model's have {hidden_size:,}. "
            f"{again}"
        )
    if own_pooling != pooling:
        raise InputError(
            f"{name} was computed from vectors of the pooling {own_pooling}, not {pooling}. Give "
            f"--pooling {own_pooling}. {again}"
        )
    return Whitening(mean, matrix, pooling)


def whitening_of(
    blocks: Iterable[np.ndarray], pooling: Pooling, dimensions: int | None = None
) -> Whitening:
    """Compute the whitening of vectors, which come in blocks (N, H), one in memory at a time.

    Vectors are those of the pooling, not normalized. dimensions: number of directions to keep,
    those with the largest variance. Default: all independent ones, which after a layer norm are one
    fewer than the size of a vector. Sums are float64. Raises InputError if there are too few
    vectors or independent directions.
    """
    count, shift, total, products = 0, np.zeros(0), np.zeros(0), np.zeros((0, 0))
    for block in blocks:
        if not count:
            # Sums are relative to the mean of the first block: the mean is far larger than the
            # deviations, and the difference of two large squares would lose their digits.
            shift = block.mean(axis=0, dtype=np.float64)
            total, products = np.zeros_like(shift), np.zeros((len(shift), len(shift)))
        centred = block.astype(np.float64) - shift
        count += len(centred)
        total += centred.sum(axis=0)
        products += centred.T @ centred
    mean = total / max(count, 1)
    variances, directions = np.linalg.eigh(products / max(count, 1) - np.outer(mean, mean))
    variances, directions = variances[::-1], directions[:, ::-1]  # eigh has the smallest first
    independent = int((variances > max(SMALLEST * variances[:1].sum(), 0)).sum())
    needed = dimensions or len(mean)
    if count <= needed or independent < (dimensions or 1):
        raise InputError(
            f"{count:,} texts, whose vectors have {independent:,} independent directions, are too "
            f"few to whiten {needed:,} dimensions. Give some thousands of different texts, or a "
            "smaller --dimensions."
        )
    kept = dimensions or independent
    # Dividing by the standard deviation gives every direction the variance 1.
    matrix = directions[:, :kept] / np.sqrt(variances[:kept])
    return Whitening((shift + mean).astype(np.float32), matrix.astype(np.float32), pooling)
