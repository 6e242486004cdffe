"""Attention masks, and the selection of positions of a sequence.

Axes: B batch, T queries, S keys, N heads, P positions, F features.
"""

from typing import Any

import numpy as np
from keras import ops

from roformer_tf.config import block_length
from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor
from roformer_tf.kernels.local_attention import in_blocks, with_neighbours


def visible_keys(attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Visible keys of each query: (B, T) int twice → (B, T, T) bool, query before key.

    Within its document a token attends to all tokens ("bidirectional" or None), to the previous
    ones and itself ("causal"), or to its own and earlier segments ("unilm"). For "unilm", a segment
    begins at every token whose segment id is not 0: tokens of the source, with id 0, attend to each
    other, and tokens of the target, with id 1, to the previous ones.
    """
    visible = same_sequence(sequence_ids)
    if attention_type not in ("causal", "unilm"):
        return visible
    # Both rules compare ranks: the positions, or the number of segments that have begun.
    positions = ops.arange(ops.shape(sequence_ids)[1], dtype="int32")[None]
    ranks = positions if attention_type == "causal" else ops.cumsum(segment_ids, axis=1)
    return visible & (ranks[:, None, :] <= ranks[:, :, None])


def same_sequence(sequence_ids: Tensor) -> Tensor:
    """The mask of documents only: (B, T) int, 0 for padding → (B, T, T) bool, query before key."""
    sequence_ids = ops.cast(sequence_ids, "int32")  # it may be a padding mask
    query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
    # If the ids are equal, both or none are 0, so that it is enough to compare the key's.
    return (query == key) & (key != 0)


def visible_band(
    attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor, window: int
) -> Tensor:
    """`visible_keys` within a window, in blocks: (B, T) int twice → (B, M, C, K) bool.

    A token attends to tokens at most `window` positions away. Each block of C queries has K keys,
    as in `kernels.local_attention`; in a "causal" model without those of the next block.
    """
    rows, ahead = block_length(window), attention_type != "causal"
    position = ops.zeros_like(sequence_ids) + ops.arange(ops.shape(sequence_ids)[1], dtype="int32")
    order = ops.cumsum(segment_ids, axis=1) if attention_type == "unilm" else position
    facts = (sequence_ids, position, order)
    ids, place, rank = (in_blocks(x, rows)[..., None] for x in facts)  # (B, M, C, 1)
    key_ids, key_place, key_rank = (  # (B, M, 1, K)
        with_neighbours(in_blocks(x, rows), ahead)[..., None, :] for x in facts
    )
    # What pads the last block has the id 0, like padding, and is never visible.
    visible = (ids == key_ids) & (key_ids != 0) & (ops.abs(place - key_place) <= window)
    return visible & (key_rank <= rank) if attention_type in ("causal", "unilm") else visible


def both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The intersection of two bool masks; None allows everything.

    Each is (T, S), (B, T, S) or (B, 1 or N, T, S); the result has the axes of the larger one.
    """
    masks = [ops.cast(x, "bool") for x in (mask, other) if x is not None]
    if any(len(x.shape) == 4 for x in masks):  # the other one needs an axis for the heads
        masks = [x[:, None] if len(x.shape) == 3 else x for x in masks]
    return masks[0] & masks[1] if len(masks) == 2 else next(iter(masks), None)


def check_one_length(query: Tensor, value: Tensor, sequence_ids: Tensor | None = None) -> None:
    """Raise InputError if query (B, T, …), value (B, S, …) and ids (B, T) are known to differ."""
    queries, keys = query.shape[1], value.shape[1]
    if None not in (queries, keys) and queries != keys:
        raise InputError(
            f"the query has {queries} tokens, the value {keys}. sequence_ids, rotary_positions and "
            "causal linear attention are for sequences that attend to themselves. Omit them."
        )
    ids = queries if sequence_ids is None else np.shape(sequence_ids)[-1]
    if None not in (queries, ids) and queries != ids:
        raise InputError(f"sequence_ids are of {ids} tokens, the query has {queries}.")


def within(positions: Tensor, length: Any) -> Tensor:
    """Positions (B, P) as int32, each from 0 to length − 1.

    Raises InputError for other values if they are known. In a traced function, and on devices of
    several processes, they are unknown, and the nearest valid position is used.
    """
    try:
        values = np.asarray(positions)
    except (RuntimeError, TypeError, ValueError):  # TensorFlow, JAX, Keras: unknown values
        values = np.zeros(0, "int32")
    outside = values[(values < 0) | (values >= length)] if isinstance(length, int) else values[:0]
    if outside.size:
        raise InputError(
            f"the positions contain {outside[0]}, but the sequences have {length} tokens. "
            f"Give positions from 0 to {length - 1}; use 0 for unused ones."
        )
    return ops.clip(ops.cast(positions, "int32"), 0, length - 1)


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Pick x (B, T, …) at positions (B, P) int32 → (B, P, …), in one flat lookup.

    A position outside 0 … T − 1 selects the nearest one of the same sequence. So a mask with T = 1,
    which is the same for all queries, can be used, too.
    """
    batch, length, *features = ops.shape(x)
    rows = ops.arange(batch, dtype="int32")[:, None] * length  # sequence b begins at b · T
    flat = ops.reshape(x, (-1, *features))  # (B·T, …)
    picked = ops.take(flat, ops.clip(ops.cast(positions, "int32"), 0, length - 1) + rows, axis=0)
    # With an empty batch, JAX's `take` returns (0, …), without the axis of the positions.
    return ops.reshape(picked, (*ops.shape(positions), *features))
