"""Rotation along several axes: positions such as (row, column) of a patch, pure functions.

The pairs of a head are divided among the axes, a run of pairs for each. Within a run the
wavelengths go from the shortest to the longest, as along one axis. Each pair is rotated by the
position on one axis only. So the product of a query and a key depends on the differences along each
axis and on nothing else: g(m − n, i − j).

Axes: B batch, T tokens, A axes, N heads, H head size (even).
"""

from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.kernels.rotation import cosines_and_sines
from roformer_tf.layers.rotary import Rotation, angles


def pairs_by_axis(head_size: int, axes: int) -> list[int]:
    """Number of pairs for each of A axes: H/2 divided evenly, the first axes get the rest.

    Raises InputError if an axis would have none.

    >>> pairs_by_axis(16, 3)
    [3, 3, 2]
    """
    pairs = head_size // 2
    if not 1 <= axes <= pairs:
        raise InputError(
            f"the positions have {axes} axes, but a head rotates {head_size} dimensions in {pairs} "
            "pairs, of which each axis needs one. Give larger heads, or fewer axes."
        )
    return [(pairs + axes - 1 - axis) // axes for axis in range(axes)]


def axial_angles(
    positions: Tensor, head_size: int, base: float = 10_000.0, dtype: str = "float32"
) -> Tensor:
    """Angle of each pair of dimensions by the position on its axis.

    positions (…, T, A) int → (…, T, H/2) in `dtype`, in radians. For one axis: `angles`.
    """
    counts = pairs_by_axis(head_size, positions.shape[-1])
    parts = [
        angles(positions[..., axis], 2 * pairs, base, dtype) for axis, pairs in enumerate(counts)
    ]
    return ops.concatenate(parts, axis=-1)


def rotate_along_axes(
    x: Tensor, positions: Tensor | None, rotation: Rotation, length: Any = None
) -> Tensor:
    """Rotate x (B, T, N, H) by positions (T, A) or (B, T, A) int → like x.

    None: positions 0, 1, 2, … along one axis; length: then as in `Rotation.rotate`. Raises
    InputError for positions of another shape, and for scaled angles, because several axes have no
    trained length.
    """
    if positions is None:
        return rotation.rotate(x, ops.arange(ops.shape(x)[1], dtype="int32"), length)
    _check(positions, x.shape[0], x.shape[1], rotation)
    if not rotation.features:
        return x
    theta = axial_angles(positions, rotation.features, rotation.base, wide(x))
    return rotation.rotate_by(x, *cosines_and_sines(theta))


# The rotary positions of the current call, if it has any. Keras passes no further argument to the
# methods of a layer that `call` calls.
current_positions: ContextVar[Tensor | None] = ContextVar("rotary_positions", default=None)


def _check(positions: Tensor, batch: int | None, length: int | None, rotation: Rotation) -> None:
    shape, dtype = tuple(positions.shape), keras.backend.standardize_dtype(positions.dtype)
    if len(shape) not in (2, 3) or "int" not in dtype:
        raise InputError(
            f"rotary_positions are {dtype} of the shape {shape}, but rotation counts along axes: "
            "give whole numbers, (length, axes) or (batch, length, axes)."
        )
    if None not in (length, shape[-2]) and length != shape[-2]:
        raise InputError(f"rotary_positions are of {shape[-2]} tokens, the sequence has {length}.")
    if len(shape) == 3 and None not in (batch, shape[0]) and shape[0] not in (1, batch):
        raise InputError(f"rotary_positions are of {shape[0]} sequences, the batch has {batch}.")
    if rotation.parameters is not None:
        raise InputError(
            "rotary_positions cannot be combined with rope_parameters, which scale one axis beyond "
            "a trained length. Omit one of them."
        )
