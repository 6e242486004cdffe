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
from roformer_tf.checkpoints.detection import embedding_settings
from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside, parse_json

FILE = "whitening.safetensors"
SMALLEST = 1e-6
"""Variance of a direction, in parts of the largest, below which it is hardly more than rounding,
which whitening would make as large as what the others say."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """What vectors of one pooling go through before they are made one long."""

    mean: np.ndarray
    """(H,) float32."""
    matrix: np.ndarray
    """(H, D) float32: directions of unit variance, those that had the largest first."""
    pooling: Pooling

    def save(self, folder: str | Path) -> None:
        """Write whitening.safetensors into a model's folder."""
        tensors = {"mean": self.mean, "matrix": np.ascontiguousarray(self.matrix)}
        with file_beside(Path(folder) / FILE) as beside:
            save_tensors(tensors, beside, {"pooling": self.pooling})


def load_whitening(
    checkpoint: Checkpoint, source: OpenedSource, pooling: Pooling | None = None
) -> Whitening | None:
    """What a source keeps for the vectors of a pooling, its own unless given; None without it.

    Raises InputError as `parse` does.
    """
    content = source.read(FILE)
    if content is None:
        return None
    asked = pooling or embedding_settings(checkpoint, source).pooling
    return parse(content, f"{source.name}: its {FILE}", checkpoint.config.hidden_size, asked)


def parse(content: bytes, name: str, hidden_size: int, pooling: Pooling) -> Whitening:
    """Read the content of a whitening.safetensors.

    Raises InputError, with its name, for a damaged one, and where it was learnt from vectors of
    another model or of another pooling.
    """
    again = "Remove it, or learn it anew: embed --whiten with a file of texts."
    try:
        tensors = load_tensors(content)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        learnt_from = header["__metadata__"]["pooling"]
        mean, matrix = (tensors[key].astype(np.float32) for key in ("mean", "matrix"))
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InputError(f"{name} is damaged. {again}") from None
    rows, size = (*matrix.shape, 0, 0)[:2]
    if mean.shape != (hidden_size,) or rows != hidden_size or not 0 < size <= hidden_size:
        raise InputError(
            f"{name} is for vectors of {rows:,} numbers, but the model's have {hidden_size:,}. "
            f"{again}"
        )
    if learnt_from != pooling:
        raise InputError(
            f"{name} was learnt from vectors of the pooling {learnt_from}, not {pooling}. Ask for "
            f"--pooling {learnt_from}. {again}"
        )
    return Whitening(mean, matrix, pooling)


def whitening_of(
    blocks: Iterable[np.ndarray], pooling: Pooling, dimensions: int | None = None
) -> Whitening:
    """What whitens vectors like these, given in blocks (N, H) and held in memory one by one.

    They are what the pooling gives, of any length. dimensions: how many directions to keep, those
    of the largest variance; unset, all that there are: one fewer than numbers, where a layer norm
    gave the hidden states. Sums are float64. Raises InputError where there are fewer directions
    than asked for, or no more vectors than numbers in one.
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
    mean = total / max(count, 1)
    variances, directions = np.linalg.eigh(products / max(count, 1) - np.outer(mean, mean))
    variances, directions = variances[::-1], directions[:, ::-1]
    found = int((variances > max(SMALLEST * variances[:1].sum(), 0)).sum())
    needed = dimensions or len(mean)
    if count <= needed or found < (dimensions or 1):
        raise InputError(
            f"{count:,} texts, whose vectors have {found:,} independent directions, are too few to "
            f"whiten {needed:,} by. Give some thousands that differ, or a smaller --dimensions."
        )
    kept = dimensions or found
    matrix = directions[:, :kept] / np.sqrt(variances[:kept])
    return Whitening((shift + mean).astype(np.float32), matrix.astype(np.float32), pooling)
