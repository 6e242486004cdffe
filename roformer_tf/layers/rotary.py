"""Rotary position embedding: angles and rotation, pure functions (RoFormer, arXiv 2104.09864).

Feature pair m of a head at position n is turned by the angle n · base^(−2m/H) (section 3.2.2),
so that the product of a query and a key depends on their distance alone. Which two features
form pair m is the style: "interleaved" (2m, 2m + 1) in the paper and the released checkpoints,
"half" (m, m + H/2) in GPT-NeoX and Llama.

`kernels/rotation.py` turns the queries and keys of self-attention in the same pass that splits
them; the tests hold both to one reference.

Axes: B batch, T positions, N heads, H head size (even).
"""

import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor, wide


def angles(
    positions: Tensor, head_size: int, base: float = 10_000.0, dtype: str = "float32"
) -> Tensor:
    """Angle of each position for each pair of features, θ of section 3.2.2.

    positions (..., T) int → (..., T, H/2) float32, in radians, or float64 where that is computed
    in, but never less: bfloat16 cannot tell position 257 from 256.
    """
    # θ_m = base^(−2m/H), made in float64: the position multiplies what rounding left wrong.
    frequencies = base ** (-np.arange(0, head_size, 2, dtype="float64") / head_size)  # (H/2,)
    return ops.cast(positions, dtype)[..., None] * frequencies.astype(dtype)


def rotate(
    x: Tensor, positions: Tensor, base: float = 10_000.0, style: str = "interleaved"
) -> Tensor:
    """Turn every pair of features (a, b) to (a cos θ − b sin θ, b cos θ + a sin θ).

    x (B, T, N, H), positions (T,) or (B, T) int → (B, T, N, H) in x's dtype; products and sum at
    least in float32.
    Raises InputError for an unknown style.

    Equal to `rotate_as_in_the_paper`, but each pair is flipped to (b, a) and the minus stands in
    the table: the paper's strided slices and their gradients cost four times as much on
    TensorFlow without XLA.
    """
    axis = pair_axis(style)
    half = x.shape[-1] // 2
    shape = ops.shape(x)
    pairs = ops.reshape(x, (*shape[:-1], *((half, 2) if axis == -1 else (2, half))))
    dtype = wide(x)
    theta = angles(positions, x.shape[-1], base, dtype)[..., None, :]  # ([B,] T, 1, H/2)
    cos, sin = ops.cos(theta), ops.sin(theta)
    cos, sin = ops.stack([cos, cos], axis), ops.stack([-sin, sin], axis)  # as the pairs lie
    # (a, b) · (cos, cos) + (b, a) · (−sin, sin), equation 34 with the sign moved into the table
    flipped = ops.cast(ops.flip(pairs, axis), dtype)
    turned = ops.cast(pairs, dtype) * cos + flipped * sin
    return ops.cast(ops.reshape(turned, shape), x.dtype)


def pair_axis(style: str) -> int:
    """Which axis tells the two of a pair apart, once H is split in two: (H/2, 2) or (2, H/2)."""
    if style not in ("interleaved", "half"):
        raise InputError(f'rotary_style is {style!r}, but must be "interleaved" or "half".')
    return -1 if style == "interleaved" else -2


def rotate_as_in_the_paper(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Equation 34, word for word: the readable reference that `rotate` is held equal to.

    x (B, T, N, H), positions (T,) int → (B, T, N, H) in x's dtype.
    """
    theta = ops.repeat(angles(positions, x.shape[-1], base), 2, axis=-1)  # (T, H): θ0 θ0 θ1 θ1 …
    dtype, x = x.dtype, ops.cast(x, "float32")
    swapped = ops.reshape(ops.stack([-x[..., 1::2], x[..., ::2]], axis=-1), ops.shape(x))
    turned = x * ops.cos(theta)[:, None, :] + swapped * ops.sin(theta)[:, None, :]
    return ops.cast(turned, dtype)
