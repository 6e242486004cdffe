"""Attention within a window, block by block: time and memory grow with the length alone.

    block      0     1     2     3
    queries          ██
    keys       ▓▓    ▓▓    ▓▓             with a mask of the keys in the window

A block of queries attends to its own keys and those of the neighbouring blocks. These contain the
whole window, because a block is at least as long as one side of it. The blocks become the batch of
ordinary attention, with all its forms.

Axes: B batch, N heads, T length, H head size, M blocks, C block length, K = 2 C or 3 C keys.
"""

from typing import Any

from keras import ops

from roformer_tf.kernels.attention import attend
from roformer_tf.kernels.forms import Tensor


def attend_locally(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    seed: Tensor | None = None,
    rate: float = 0.0,
    training: bool | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`attend` of query, key and value (B, N, T, H), by blocks: (B, N, T, H).

    visible (B, M, C, K) bool: the keys of its own and the neighbouring blocks to which each query
    attends. Neighbours are the previous block (K = 2 C) or both (K = 3 C): see
    `masks.visible_band`. bias (1, N, C, K), the same for all blocks.
    """
    batch, heads, length, size = ops.shape(query)
    blocks, rows, keys = ops.shape(visible)[1:]
    ahead = visible.shape[3] == 3 * visible.shape[2]

    def folded(x: Tensor) -> Tensor:  # (B, N, M, C or K, H) → (B · M, N, C or K, H)
        return ops.reshape(ops.swapaxes(x, 1, 2), (-1, heads, x.shape[3], size))

    key, value = (folded(with_neighbours(in_blocks(x, rows, 2), 2, ahead)) for x in (key, value))
    query, visible = folded(in_blocks(query, rows, 2)), ops.reshape(visible, (-1, rows, keys))
    attended = attend(query, key, value, visible, seed, rate, training, bias)  # (B · M, N, C, H)
    attended = ops.swapaxes(ops.reshape(attended, (batch, blocks, heads, rows, size)), 1, 2)
    return ops.reshape(attended, (batch, heads, -1, size))[:, :, :length]


def in_blocks(x: Tensor, rows: int, axis: int) -> Tensor:
    """Split an axis (…, T, …) into blocks (…, M, C, …), the last padded with 0."""
    shape = list(ops.shape(x))
    blocks = (shape[axis] + rows - 1) // rows  # -(-a // b) differs: ONNX rounds towards 0
    x = _padded(x, axis, 0, rows)  # more than needed, so that the width is a constant
    needed = (*_all(axis), slice(blocks * rows))
    x = x[needed]
    return ops.reshape(x, (*shape[:axis], blocks, rows, *shape[axis + 1 :]))


def with_neighbours(x: Tensor, axis: int, ahead: bool) -> Tensor:
    """Blocks (…, M, C, …) → (…, M, K, …): each with the previous one and, if `ahead`, the next.

    The blocks before the first and after the last are zeros.
    """
    blocks = ops.shape(x)[axis]
    wider = _padded(x, axis, 1, int(ahead))
    shifted = [(*_all(axis), slice(i, i + blocks)) for i in range(3 if ahead else 2)]
    # concatenated along the axis of a block: C → K
    return ops.concatenate([wider[index] for index in shifted], axis + 1)


def _all(axes: int) -> tuple[slice, ...]:
    """An index that selects everything of this number of axes."""
    return (slice(None),) * axes


def _padded(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    widths: list[Any] = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return ops.pad(x, widths)
