"""Which token may look at which, and the places of a row that are asked for.

Axes: B batch, T queries, S keys, N heads, P positions, F features.
"""

from typing import Any

import numpy as np
from keras import ops

from roformer_tf.config import block_length
from roformer_tf.errors import InputError
from roformer_tf.kernels.attention import PackedMask
from roformer_tf.kernels.forms import Tensor
from roformer_tf.kernels.local_attention import in_blocks, with_neighbours


def visible_keys(attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int twice → (B, T, T) bool, query before key."""
    return visible_documents(attention_type, sequence_ids, segment_ids).mask()


def visible_documents(
    attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor
) -> PackedMask:
    """Which token may look at which, without a bit for each pair: (B, T) int twice.

    Within its document a token sees everything ("bidirectional", or unset), what stands up to it
    ("causal"), or all of its own and of earlier segments ("unilm"), where a segment begins at
    every token whose segment id is not 0: source zeros see each other, target ones look back.
    """
    # Both rules are one comparison of ranks: its place in the row, or how many segments began.
    ranks = None
    if attention_type == "causal":
        ranks = ops.arange(ops.shape(sequence_ids)[1])[None]
    elif attention_type == "unilm":
        ranks = ops.cumsum(segment_ids, axis=1)
    return PackedMask(sequence_ids, ranks)


def same_sequence(sequence_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int → (B, T, T) bool, query before key."""
    return PackedMask(sequence_ids).mask()


def visible_band(
    attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor, window: int
) -> Tensor:
    """What `visible_keys` allows within a window, in blocks: (B, T) int twice → (B, M, C, K) bool.

    A token sees those at most `window` away from it. Blocks of C queries see the K keys that
    `kernels.local_attention` lays beside them; without those ahead in a "causal" model.
    """
    rows, ahead = block_length(window), attention_type != "causal"
    place = ops.broadcast_to(ops.arange(ops.shape(sequence_ids)[1]), ops.shape(sequence_ids))
    order = ops.cumsum(segment_ids, axis=1) if attention_type == "unilm" else place
    query = [in_blocks(x, rows, 1)[..., None] for x in (sequence_ids, place, order)]
    key = [with_neighbours(in_blocks(x, rows, 1), 1, ahead) for x in (sequence_ids, place, order)]
    (ids, here, rank), (key_ids, there, key_rank) = query, [x[..., None, :] for x in key]
    # Of what fills blocks up the ids are 0, as padding's are: nobody sees it.
    visible = (ids == key_ids) & (key_ids != 0) & (ops.abs(here - there) <= window)
    return visible & (key_rank <= rank) if attention_type in ("causal", "unilm") else visible


def both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Where both masks allow it, bool; None allows everything.

    Each is (T, S), (B, T, S) or (B, 1 or N, T, S), and what they give has the axes of the larger.
    """
    masks = [ops.cast(x, "bool") for x in (mask, other) if x is not None]
    if any(len(x.shape) == 4 for x in masks):  # what is for all heads has no axis for them
        masks = [x[:, None] if len(x.shape) == 3 else x for x in masks]
    return masks[0] & masks[1] if len(masks) == 2 else next(iter(masks), None)


def within(positions: Tensor, length: Any) -> Tensor:
    """Positions (B, P) → int32, each of 0 … length − 1.

    Raises InputError for another one where the values are known. They are not where a function is
    traced, nor where they lie on devices of several processes: there the nearest is taken.
    """
    try:
        values = np.asarray(positions)
    except (RuntimeError, TypeError, ValueError):  # as TensorFlow, JAX and Keras say it
        values = np.zeros(0, "int32")
    outside = values[(values < 0) | (values >= length)] if isinstance(length, int) else values[:0]
    if outside.size:
        raise InputError(
            f"the positions hold {outside[0]}, but the rows are {length} long. "
            f"Give positions from 0 to {length - 1}; unused places may hold 0."
        )
    return ops.clip(ops.cast(positions, "int32"), 0, length - 1)


def seen_from(visible: Tensor | PackedMask, positions: Tensor) -> Tensor:
    """What the queries at positions (B, P) int32 alone see: (B, P, S) bool."""
    if isinstance(visible, PackedMask):
        visible = visible.mask()
    return gather_positions(visible, positions)


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Pick x (B, T, F) at positions (B, P) int32 → (B, P, F), in one flat lookup.

    Of a position outside 0 … T − 1 the nearest, never another row's: so a mask whose T is 1, one
    for all queries, gives the same everywhere.
    """
    batch, length, features = ops.shape(x)
    rows = ops.arange(batch, dtype="int32")[:, None] * length
    # Row b begins at b · T of all positions laid end to end.
    flat = ops.reshape(x, (-1, features))  # (B·T, F)
    return ops.take(flat, ops.clip(ops.cast(positions, "int32"), 0, length - 1) + rows, axis=0)
