"""Rotation along several axes: positions such as (row, column) of a patch, pure functions.

The pairs of a head are divided among the axes, a run of pairs for each. Within a run the
wavelengths go from the shortest to the longest, as along one axis. Each pair is rotated by the
position on one axis only. So the product of a query and a key depends on the differences along each
axis and on nothing else: g(m − n, i − j).

Axes: B batch, T tokens, A axes, N heads, H head size (even).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.layers.rotary import Rotation, angles, rotate_pairs


def pairs_by_axis(head_size: int, axes: int) -> list[int]:
    """How many of the H/2 pairs each of A axes has: as many, the first ones one more.

    Raises InputError where one would have none.

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
    """Angle of each pair of features by the position on its axis.

    positions (…, T, A) int → (…, T, H/2) in `dtype`, in radians. Of one axis these are `angles`.
    """
    shares = pairs_by_axis(head_size, positions.shape[-1])
    parts = [
        angles(positions[..., axis], 2 * pairs, base, dtype) for axis, pairs in enumerate(shares)
    ]
    return ops.concatenate(parts, axis=-1)


def rotate_along_axes(x: Tensor, positions: Tensor, rotation: Rotation) -> Tensor:
    """Rotate x (B, T, N, H) by positions (T, A) or (B, T, A) int → like x.

    As `Rotation.rotate` for one axis, with its base, style and fraction of the dimensions.
    """
    features = rotation.features
    if not features:
        return x
    theta = axial_angles(positions, features, rotation.base, wide(x))
    rotated = rotate_pairs(x[..., :features], ops.cos(theta), ops.sin(theta), rotation.style)
    if features == rotation.head_size:
        return rotated
    return ops.concatenate([rotated, x[..., features:]], axis=-1)


_given: ContextVar[Tensor | None] = ContextVar("rotary_positions", default=None)


@contextmanager
def rotary_positions(positions: Tensor | None, rotation: Rotation) -> Iterator[None]:
    """Have `given_positions` give these within: Keras hands a layer's hooks no further argument.

    Raises InputError for what are no positions (T, A) or (B, T, A), and for angles that are scaled
    beyond a trained length, which several axes have none of.
    """
    if positions is not None:
        _check(positions, rotation)
    token = _given.set(positions)
    try:
        yield
    finally:
        _given.reset(token)


def given_positions() -> Tensor | None:
    """The positions of the call that runs, if it was given any."""
    return _given.get()


def _check(positions: Tensor, rotation: Rotation) -> None:
    shape, dtype = tuple(positions.shape), keras.backend.standardize_dtype(positions.dtype)
    if len(shape) not in (2, 3) or "int" not in dtype:
        raise InputError(
            f"rotary_positions are {dtype} of the shape {shape}, but rotation counts along axes: "
            "give whole numbers, (length, axes) or (batch, length, axes)."
        )
    if rotation.features:
        pairs_by_axis(rotation.features, shape[-1])
    if rotation.parameters is not None:
        raise InputError(
            "rotary_positions are rotated as they are: rope_parameters, which stretch one axis "
            "beyond a trained length, do not go with them. Leave one out."
        )
