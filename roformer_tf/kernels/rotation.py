"""From one projection to queries, keys and values as products take them, turned by position."""

from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, with_gradient


def split_and_rotate(
    projected: Tensor, cos: Tensor, sin: Tensor, training: bool | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Split into queries, keys and values, and turn the first two.

    projected (B, T, 3, N, 2, H/2): query, key, value; per head first all first features of the
    pairs, then all second ones, which need no strided slices. cos and sin (T, H/2) float32
    → three (B, N, T, H) in projected's dtype, queries divided by √H; float32 inside. The fast
    form is for training.
    """
    if not (training and fast()):
        return split_and_rotate_plainly(projected, cos, sin)
    return _fast(projected, cos, sin)


def split_and_rotate_plainly(
    projected: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The plain form."""
    pairs = ops.transpose(
        ops.cast(projected, "float32"), (2, 4, 0, 3, 1, 5)
    )  # (3, 2, B, N, T, H/2)
    query, key = (_turned(pairs[i, 0], pairs[i, 1], cos, sin) for i in range(2))
    value = ops.concatenate([pairs[2, 0], pairs[2, 1]], -1)
    scale = query.shape[-1] ** -0.5
    query, key, value = (ops.cast(x, projected.dtype) for x in (query * scale, key, value))
    return query, key, value


def _turned(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


@with_gradient
def _fast(projected: Tensor, cos: Tensor, sin: Tensor) -> Any:
    def gradients(*upstream: Tensor) -> tuple[Tensor, None, None]:
        return _merged(*upstream, cos, sin), None, None

    return _split(projected, cos, sin), gradients


_split = island(split_and_rotate_plainly)


@island
def _merged(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn gradients back, and lay them as `projected` lies."""
    half = query.shape[-1] // 2
    wide = [ops.cast(x, "float32") for x in (query * query.shape[-1] ** -0.5, key, value)]
    query, key = (_turned(x[..., :half], x[..., half:], cos, -sin) for x in wide[:2])
    together = [ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, wide[2])]  # (B, T, N, H)
    merged = ops.stack(together, axis=2)
    return ops.cast(ops.reshape(merged, (*ops.shape(merged)[:-1], 2, half)), value.dtype)
