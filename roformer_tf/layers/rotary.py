"""Rotary position embedding: angles and rotation, pure functions (RoFormer, arXiv 2104.09864).

Pair m of a head at position n is rotated by the angle n · base^(−2m/H) (section 3.2.2), so that the
product of a query and a key depends only on their distance. The style determines which two
dimensions form pair m: "interleaved" (2m, 2m + 1) in the paper and the released checkpoints,
"half" (m, m + H/2) in GPT-NeoX and Llama.

`Rotation` has the options: only the first dimensions of a head (GPT-J, GPT-NeoX), and the values as
well. `kernels/rotation.py` rotates the queries and keys of self-attention in the same pass that
splits them; tests compare both with one reference.

Axes: B batch, T positions, N heads, H head size (even).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras import ops

from roformer_tf.config import check_rope_parameters, rotated_features
from roformer_tf.errors import check_choice, check_number
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.kernels.rotation import cosines_and_sines
from roformer_tf.layers.scaling import frequencies


@dataclass(frozen=True)
class Rotation:
    """How the heads of an attention layer are rotated, apart from the positions.

    Raises InputError for an odd head size, an unknown style, a base that is not above 0, and a
    fraction without whole pairs.
    """

    head_size: int
    style: str = "interleaved"
    base: float = 10_000.0
    share: float = 1.0
    """Fraction of each head's dimensions, the first ones: from 0 (no rotation) to 1."""
    value: bool = False
    """Whether values are rotated, too; outputs then depend on more than distances."""
    parameters: Mapping[str, Any] | None = None
    """Scaling of the angles beyond the trained length: transformers' `rope_parameters`."""
    trained_length: int = 0
    """Sequence length in training, if it is not in `parameters`."""

    def __post_init__(self) -> None:
        pair_axis(self.style)
        check_number("rotary_base", self.base, above=0)
        check_rope_parameters(self.parameters)
        frequencies(self.features, self.base, self.parameters, self.trained_length)

    @property
    def features(self) -> int:
        """Number of rotated dimensions of a head."""
        return rotated_features(self.head_size, self.share)

    @property
    def parts(self) -> tuple[str, ...]:
        """The rotated projections, of "query", "key" and "value"."""
        if not self.features:
            return ()
        return ("query", "key", "value") if self.value else ("query", "key")

    def rotate(self, x: Tensor, positions: Tensor, length: Any = None) -> Tensor:
        """Rotate x (B, T, N, H) by positions (T,) or (B, T) int → like x; see `rotate`.

        length: of the sequence, which dynamic scaling depends on.
        """
        if not self.features:
            return x
        return self.rotate_by(x, *self._tables(positions, wide(x), length))

    def rotate_by(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first dimensions of x by cosines and sines ([B,] T, R/2); copy the others."""
        rotated = rotate_pairs(x[..., : self.features], cos, sin, self.style)
        if self.features == self.head_size:
            return rotated
        return ops.concatenate([rotated, x[..., self.features :]], axis=-1)

    def tables(self, positions: Tensor, dtype: str, length: Any = None) -> tuple[Tensor, Tensor]:
        """cos and sin ([B,] T, H/2) of all pairs, for heads in `firsts_then_seconds` order.

        Dimensions without rotation get the angle 0. length: as in `Rotation.rotate`.
        """
        cos, sin = self._tables(positions, dtype, length)
        if unrotated := (self.head_size - self.features) // 2:
            padding = [(0, 0)] * (len(cos.shape) - 1) + [(0, unrotated)]
            # cos 0 = 1 and sin 0 = 0: these pairs remain as they are.
            cos, sin = ops.pad(cos, padding, constant_values=1), ops.pad(sin, padding)
        return cos, sin

    def _tables(self, positions: Tensor, dtype: str, length: Any) -> tuple[Tensor, Tensor]:
        """cos and sin ([B,] T, R/2) of the pairs that are rotated."""
        speed, factor = frequencies(
            self.features, self.base, self.parameters, self.trained_length, length
        )
        theta = ops.cast(positions, dtype)[..., None] * ops.cast(speed, dtype)
        cos, sin = cosines_and_sines(theta)
        return (cos, sin) if factor == 1 else (cos * factor, sin * factor)

    def firsts_then_seconds(self, x: Tensor) -> Tensor:
        """Reorder dimensions (…, H): the first of every pair, then the second of every pair.

        Dimensions without rotation form pairs of their first and second half.
        """
        rotated, shape = x[..., : self.features], x.shape
        if self.style == "interleaved":
            pairs = ops.reshape(rotated, (*shape[:-1], self.features // 2, 2))
            rotated = ops.reshape(ops.swapaxes(pairs, -1, -2), rotated.shape)
        if self.features == self.head_size:
            return rotated
        # (…, 2, R/2) and (…, 2, (H − R)/2), joined to (…, 2, H/2): rotated pairs come first in each
        # half.
        halves = [ops.reshape(y, (*shape[:-1], 2, -1)) for y in (rotated, x[..., self.features :])]
        return ops.reshape(ops.concatenate(halves, axis=-1), shape)


def angles(
    positions: Tensor, head_size: int, base: float = 10_000.0, dtype: str = "float32"
) -> Tensor:
    """Angle of each position for each pair of dimensions, θ of section 3.2.2.

    positions (..., T) int → (..., T, H/2) in radians, float32 or float64, whatever the compute
    dtype: bfloat16 cannot distinguish position 257 from 256.
    """
    speed, _ = frequencies(head_size, base)
    return ops.cast(positions, dtype)[..., None] * speed.astype(dtype)


def rotate(
    x: Tensor, positions: Tensor, base: float = 10_000.0, style: str = "interleaved"
) -> Tensor:
    """Rotate every pair of dimensions (a, b) to (a cos θ − b sin θ, b cos θ + a sin θ).

    x (B, T, N, H), positions (T,) or (B, T) int → (B, T, N, H) in x's dtype, computed at least in
    float32. Raises InputError for an unknown style.
    """
    return Rotation(x.shape[-1], style, base).rotate(x, positions)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, style: str = "interleaved") -> Tensor:
    """Rotate x (B, T, N, H) by the cosines and sines ([B,] T, H/2) of its pairs' angles → like x.

    Equal to `rotate_as_in_the_paper`, but each pair is flipped to (b, a), and the minus sign is in
    the table. The paper's strided slices and their gradients take four times as long on TensorFlow
    without XLA.
    """
    axis = pair_axis(style)
    half = x.shape[-1] // 2
    shape = ops.shape(x)
    pairs = ops.reshape(x, (*shape[:-1], *((half, 2) if axis == -1 else (2, half))))
    dtype = wide(x)
    cos, sin = cos[..., None, :], sin[..., None, :]  # ([B,] T, 1, H/2)
    cos, sin = ops.stack([cos, cos], axis), ops.stack([-sin, sin], axis)  # the layout of `pairs`
    # (a, b) · (cos, cos) + (b, a) · (−sin, sin), equation 34 with the sign moved into the table
    flipped = ops.cast(ops.flip(pairs, axis), dtype)
    rotated = ops.cast(pairs, dtype) * cos + flipped * sin
    return ops.cast(ops.reshape(rotated, shape), x.dtype)


def pair_axis(style: str) -> int:
    """The axis of the two dimensions of a pair when H is split into (H/2, 2) or (2, H/2)."""
    check_choice("rotary_style", style, ("interleaved", "half"))
    return -1 if style == "interleaved" else -2


def rotate_as_in_the_paper(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Equation 34 as in the paper: the readable reference for `rotate`.

    x (B, T, N, H), positions (T,) int → (B, T, N, H) in x's dtype.
    """
    theta = ops.repeat(angles(positions, x.shape[-1], base), 2, axis=-1)  # (T, H): θ0 θ0 θ1 θ1 …
    dtype, x = x.dtype, ops.cast(x, "float32")
    swapped = ops.reshape(ops.stack([-x[..., 1::2], x[..., ::2]], axis=-1), ops.shape(x))
    rotated = x * ops.cos(theta)[:, None, :] + swapped * ops.sin(theta)[:, None, :]
    return ops.cast(rotated, dtype)
