"""Attention within a window, block by block: time and memory grow with the length alone.

    block      0     1     2     3
    queries          ██
    keys       ▓▓    ▓▓    ▓▓             with a mask of the keys in the window

A block of queries attends to its own keys and those of the neighbouring blocks. These contain the
whole window, because a block is at least as long as one side of it. The blocks become the batch of
ordinary attention, with all its forms.

Axes: B batch, N heads, T length, H head size, M blocks, C block length, K = 2 C or 3 C keys.
"""

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
    # K = 3 C; by the static shape, because it decides which operations are traced.
    ahead = visible.shape[3] == 3 * visible.shape[2]

    # Heads are in the batch while the sequence is split: (B · N, T, H).
    query, key, value = (ops.reshape(x, (-1, length, size)) for x in (query, key, value))

    def folded(x: Tensor) -> Tensor:  # (B · N, M, C or K, H) → (B · M, N, C or K, H)
        x = ops.reshape(x, (batch, heads, blocks, x.shape[2], size))
        return ops.reshape(ops.swapaxes(x, 1, 2), (-1, heads, x.shape[3], size))

    key, value = (folded(with_neighbours(in_blocks(x, rows), ahead)) for x in (key, value))
    query, visible = folded(in_blocks(query, rows)), ops.reshape(visible, (-1, rows, keys))
    attended = attend(query, key, value, visible, seed, rate, training, bias)  # (B · M, N, C, H)
    attended = ops.swapaxes(ops.reshape(attended, (batch, blocks, heads, rows, size)), 1, 2)
    # The queries that padded the last block are cut off.
    return ops.reshape(attended, (batch, heads, -1, size))[:, :, :length]


def in_blocks(x: Tensor, rows: int) -> Tensor:
    """Split (B, T, …) into blocks (B, M, C, …), the last padded with 0."""
    batch, length, *rest = ops.shape(x)
    blocks = (length + rows - 1) // rows  # -(-a // b) differs: ONNX rounds towards 0
    x = _padded(x, 0, rows)  # more than needed, so that the width is a constant
    return ops.reshape(x[:, : blocks * rows], (batch, blocks, rows, *rest))


def with_neighbours(x: Tensor, ahead: bool) -> Tensor:
    """Blocks (B, M, C, …) → (B, M, K, …): each with the previous one and, if `ahead`, the next.

    The blocks before the first and after the last are zeros.
    """
    blocks = ops.shape(x)[1]
    wider = _padded(x, 1, int(ahead))
    # concatenated along the axis of a block: C → K
    return ops.concatenate([wider[:, i : i + blocks] for i in range(3 if ahead else 2)], axis=2)


def _padded(x: Tensor, before: int, after: int) -> Tensor:
    """x (B, T, …) with zeros before and after its T."""
    return ops.pad(x, [(0, 0), (before, after), *[(0, 0)] * (len(x.shape) - 2)])
