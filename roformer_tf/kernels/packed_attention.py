"""Attention document by document: cuDNN's kernel for packed rows, on JAX with an NVIDIA GPU.

cuDNN is told where each document begins and how long it is, and computes no score of two documents.
JAX has that kernel under a private name alone (`internals.py`), so that it runs only where it is
asked for: `forms.attention_by("packed")`.

Axes: B rows, N heads, T positions, H head size, M documents of a row at most.
"""

from keras import ops

from roformer_tf.internals import packed_dot_product_attention
from roformer_tf.kernels import block_attention
from roformer_tf.kernels.documents import PackedMask
from roformer_tf.kernels.forms import Tensor

SHORTEST = 8
"""Tokens of a row for each document that it may hold: cuDNN does a round for each, used or not."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: PackedMask,
    seed: Tensor | None = None,
    rate: float = 0.0,
) -> Tensor:
    """As `block_attention.attend`, which does what cuDNN cannot.

    That is dropout, since JAX gives cuDNN a seed that is the same at every step; queries at some
    positions alone; rows read in one direction; and batches with more than T / 8 documents in a
    row, or with one that lies in several pieces, which are seen only when the values are known.
    """
    import jax

    whole = query.shape[2] == key.shape[2] and documents.query_ranks is None
    if rate or not whole:
        return block_attention.attend(query, key, value, documents, seed, rate)
    ids = documents.key_ids
    most = max(2, ids.shape[1] // SHORTEST)  # JAX takes a single one for rows that are not packed
    return jax.lax.cond(
        fits(ids, most),
        lambda query, key, value: _packed(query, key, value, ids, most),
        lambda query, key, value: block_attention.attend(query, key, value, documents),
        *(query, key, value),
    )


def _packed(query: Tensor, key: Tensor, value: Tensor, ids: Tensor, most: int) -> Tensor:
    real = (ids != 0)[:, None, :, None]
    # cuDNN leaves unwritten what is padding, here and in the gradients: what is chosen from before
    # and behind has zeros there, and 0 for a gradient.
    query, key, value = (ops.where(real, x, ops.zeros((), x.dtype)) for x in (query, key, value))
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))  # (B, T, N, H)
    lengths, offsets = lengths_and_offsets(ids, most)
    attended = packed_dot_product_attention(query, key, value, lengths, offsets)
    return ops.where(real, ops.swapaxes(attended, 1, 2), ops.zeros((), value.dtype))


def pieces(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where a piece of a document begins, (B, T) bool, and which of the row's each token is of.

    The second (B, T) int32, from 0; of padding, those of the piece before.
    """
    before = ops.concatenate([ops.zeros_like(ids[:, :1]), ids[:, :-1]], axis=1)
    begins = (ids != before) & (ids != 0)
    return begins, ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1


def fits(ids: Tensor, most: int) -> Tensor:
    """Whether each row has at most so many documents, each in one piece: (B, T) int → () bool."""
    begins, number = pieces(ids)
    same = (ids[:, :, None] == ids[:, None, :]) & (ids != 0)[:, None, :]
    parted = same & (number[:, :, None] != number[:, None, :])
    return ops.all(ops.sum(ops.cast(begins, "int32"), axis=1) <= most) & ~ops.any(parted)


def lengths_and_offsets(ids: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Lengths (B, M) and first positions (B, M + 1) of the documents, −1 behind the last one.

    [[1, 1, 1, 2, 2, 0]] → [[3, 2, −1]], [[0, 3, −1, −1]] for M = 3.
    """
    begins, number = pieces(ids)
    slots = ops.arange(most + 1, dtype="int32")[None, None, :]
    own = (number[:, :, None] == slots) & (ids != 0)[:, :, None]  # (B, T, M + 1)
    lengths = ops.sum(ops.cast(own, "int32"), axis=1)
    places = ops.arange(ids.shape[1], dtype="int32")[None, :, None]
    offsets = ops.sum(ops.where(own & begins[:, :, None], places, 0), axis=1)
    used = lengths > 0
    offsets = ops.where(used, offsets, -1)
    return ops.where(used, lengths, -1)[:, :most], offsets
