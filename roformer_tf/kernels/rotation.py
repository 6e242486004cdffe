"""Splits one projection into queries, keys and values and rotates them by position."""

from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient

PARTS = ("query", "key", "value")
ROTATED = ("query", "key")
"""Rotary attention rotates queries and keys, not the values (RoFormer, section 3.2.2)."""


def cosines_and_sines(theta: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of angles, in their dtype. On JAX, Keras' functions would round float64."""
    if keras.backend.backend() != "jax" or keras.backend.is_keras_tensor(theta):
        return ops.cos(theta), ops.sin(theta)
    import jax.numpy as jnp

    return jnp.cos(theta), jnp.sin(theta)


def split_and_rotate(
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    parts: tuple[str, ...] = PARTS,
    training: bool | None = None,
    rotated: tuple[str, ...] = ROTATED,
) -> tuple[Tensor, ...]:
    """Split into the `parts`, of queries, keys and values, and rotate those named in `rotated`.

    projected (B, T, parts, N, 2, H/2): for each head first the first dimensions of all pairs, then
    the second ones, so that no strided slices are needed. cos and sin (T, H/2) or (B, T, H/2) → for
    each part (B, N, T, H) in projected's dtype, queries divided by √H; at least float32 inside. The
    fast form is for training.
    """
    cos, sin = (ops.cast(table, wide(projected)) for table in (cos, sin))
    form = _fast if training and fast() else split_and_rotate_plainly
    return form(projected, cos, sin, parts, rotated)


def split_and_rotate_plainly(
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    parts: tuple[str, ...] = PARTS,
    rotated: tuple[str, ...] = ROTATED,
) -> tuple[Tensor, ...]:
    """The plain form."""
    pairs = ops.cast(projected, wide(projected))
    pairs = ops.transpose(pairs, (2, 4, 0, 3, 1, 5))  # (parts, 2, B, N, T, H/2)
    split = []
    for i, part in enumerate(parts):
        first, second = pairs[i, 0], pairs[i, 1]
        if part in rotated:
            x = _rotated(first, second, cos, sin)
        else:
            x = ops.concatenate([first, second], -1)
        # The factor 1 / √H of the scores, applied to T · H numbers of a head instead of T · S.
        x = x * x.shape[-1] ** -0.5 if part == "query" else x
        split.append(ops.cast(x, projected.dtype))
    return tuple(split)


def _rotated(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (B, N, T, H/2) twice, cos and sin ([B,] T, H/2) → (B, N, T, H)."""
    cos, sin = cos[..., None, :, :], sin[..., None, :, :]
    # (a + i b) · exp(i θ), section 3.2.1 of the paper, for all pairs of a head at once
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _fast(
    projected: Tensor, cos: Tensor, sin: Tensor, parts: tuple[str, ...], rotated: tuple[str, ...]
) -> Any:
    @with_gradient
    def split(projected: Tensor, cos: Tensor, sin: Tensor) -> Any:
        # Rotations are orthogonal (with a scaled table, multiples of an orthogonal matrix), so the
        # gradient is rotated by −θ. The tables have no gradient.
        def gradients(*upstream: Tensor) -> tuple[Tensor, None, None]:
            return _merged(upstream, cos, sin, parts, rotated), None, None

        return _split(projected, cos, sin, parts, rotated), gradients

    return split(projected, cos, sin)


_split = island(split_and_rotate_plainly)


@island
def _merged(
    upstream: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    parts: tuple[str, ...],
    rotated: tuple[str, ...],
) -> Tensor:
    """Rotate gradients back, and stack them in the layout of `projected`."""
    half = upstream[0].shape[-1] // 2
    together = []
    for part, x in zip(parts, upstream, strict=True):
        x = ops.cast(x * x.shape[-1] ** -0.5 if part == "query" else x, wide(x))
        if part in rotated:
            x = _rotated(x[..., :half], x[..., half:], cos, -sin)
        together.append(ops.transpose(x, (0, 2, 1, 3)))  # (B, T, N, H)
    merged = ops.stack(together, axis=2)
    return ops.cast(ops.reshape(merged, (*ops.shape(merged)[:-1], 2, half)), upstream[0].dtype)
