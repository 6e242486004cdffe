"""Rotary position embedding: angles and rotation, pure functions (RoFormer, arXiv 2104.09864).

Feature pair m of a head at position n is turned by the angle n · base^(−2m/H) (section 3.2.2),
so that the product of a query and a key depends on their distance alone. Which two features
form pair m is the style: "interleaved" (2m, 2m + 1) in the paper and the released checkpoints,
"half" (m, m + H/2) in GPT-NeoX and Llama.

Only the first part of a head may turn, as in GPT-J and GPT-NeoX, and the values may turn as well:
`Rotation` says so. `kernels/rotation.py` turns the queries and keys of self-attention in the same
pass that splits them; the tests hold both to one reference.

Axes: B batch, T positions, N heads, H head size (even).
"""

from dataclasses import dataclass

import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor, wide


@dataclass(frozen=True)
class Rotation:
    """How the heads of an attention turn: all but the positions.

    Raises InputError for an odd head, an unknown style, and a share that gives no whole pairs.
    """

    head_size: int
    style: str = "interleaved"
    base: float = 10_000.0
    share: float = 1.0
    """Of each head's features, the first ones: from 0, which turns nothing, to 1."""
    value: bool = False
    """Whether values turn, too."""

    def __post_init__(self) -> None:
        pair_axis(self.style)
        turned_features(self.head_size, self.share)

    @property
    def features(self) -> int:
        """How many features of a head turn."""
        return turned_features(self.head_size, self.share)

    @property
    def parts(self) -> tuple[str, ...]:
        """What turns: "query", "key", "value"."""
        if not self.features:
            return ()
        return ("query", "key", "value") if self.value else ("query", "key")

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn x (B, T, N, H) by positions (T,) or (B, T) int: like x, as `rotate` does it."""
        if not self.features:
            return x
        turned = rotate(x[..., : self.features], positions, self.base, self.style)
        if self.features == self.head_size:
            return turned
        return ops.concatenate([turned, x[..., self.features :]], axis=-1)

    def tables(self, positions: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
        """cos and sin ([B,] T, H/2) of all pairs, for heads in `firsts_then_seconds` order.

        What does not turn is turned by 0.
        """
        theta = angles(positions, self.features, self.base, dtype)
        still = (self.head_size - self.features) // 2
        theta = ops.pad(theta, [(0, 0)] * (len(theta.shape) - 1) + [(0, still)]) if still else theta
        return ops.cos(theta), ops.sin(theta)

    def firsts_then_seconds(self, x: Tensor) -> Tensor:
        """Features (…, H) in another order: the first of every pair, then the second of every one.

        What does not turn makes pairs as it lies, in halves.
        """
        turned, shape = x[..., : self.features], x.shape
        if self.style == "interleaved":
            pairs = ops.reshape(turned, (*shape[:-1], self.features // 2, 2))
            turned = ops.reshape(ops.swapaxes(pairs, -1, -2), turned.shape)
        if self.features == self.head_size:
            return turned
        halves = [ops.reshape(y, (*shape[:-1], 2, -1)) for y in (turned, x[..., self.features :])]
        return ops.reshape(ops.concatenate(halves, axis=-1), shape)


def turned_features(head_size: int, share: float) -> int:
    """How many of H features a share is, in whole pairs. Raises InputError where it is none."""
    features = int(head_size * share + 1e-6) if 0 <= share <= 1 else -1
    if features < 0 or features % 2 or (share and not features):
        raise InputError(
            f"rotary_share is {share:g} of heads of {head_size} features, which turn in pairs. "
            "Give a share from 0, which turns nothing, to 1 that is an even number of them."
        )
    return features


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
