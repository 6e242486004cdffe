"""Multi-head attention that knows positions only through rotation."""

from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor
from roformer_tf.layers.rotary import pair_axis, rotate


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryMultiHeadAttention(keras.layers.MultiHeadAttention):
    """Attention on rotated queries and keys; everything else is Keras' own code.

    Axes: B batch, T queries, S keys, N heads, H head size (even), D features.
    Call: query (B, T, D), value (B, S, D) → (B, T, D), in the compute dtype.

    `rotary_style` and `rotary_base` are those of `rotary.rotate`; all other arguments are
    Keras' own. Raises InputError for an odd `key_dim`, for features turn in pairs, for an unknown
    style, and for inputs that are no rows of vectors.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        rotary_style: str = "interleaved",
        rotary_base: float = 10_000.0,
        **kwargs: Any,
    ) -> None:
        if key_dim % 2:
            raise InputError(
                f"key_dim is {key_dim}, but rotation turns features in pairs. Give an even number."
            )
        pair_axis(rotary_style)  # refuses an unknown one, before Keras makes anything
        super().__init__(num_heads, key_dim, **kwargs)
        self.rotary_style = rotary_style
        self.rotary_base = rotary_base

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Make the projections."""
        if len(query_shape) != 3:
            raise InputError(
                f"the query has the shape {tuple(query_shape)}, but rotary positions count along "
                "the one axis of a row. Give (batch, length, features)."
            )
        super().build(query_shape, value_shape, key_shape)

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        sequence_ids: Tensor | None = None,
        positions: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Attend; with `sequence_ids` (B, T) int, only within one document (T = S then).

        Two tokens see each other where their ids are equal and not 0, which is padding. All
        other masks narrow this further. With `positions` (B, P) int, 0 to T − 1, the output is
        (B, P, D), that of the queries there; scores, where asked for, stay whole. `others` are
        what a later Keras may take.
        Raises InputError for a position outside the row whose value is known; where a function is
        traced, the nearest in the row is taken.
        """
        # Keras' own arguments are spelled out because Keras hands `training` and the masks of the
        # inputs only to a call that names them.
        if sequence_ids is not None:
            attention_mask = both(same_sequence(sequence_ids), attention_mask)
        if positions is not None:
            positions = within(positions, ops.shape(query)[1])
        if attention_mask is not None and len(attention_mask.shape) == 4:
            # Keras would broadcast the batch of the inputs' masks over the heads of this one.
            if query_mask is not None:
                attention_mask = both(attention_mask, query_mask[:, :, None])
                query = ops.copy(query)  # a tensor that carries no mask of its own
            for mask in (value_mask, key_mask):
                if mask is not None:
                    attention_mask = both(attention_mask, mask[:, None, :])
            query_mask = value_mask = key_mask = None
        answer = super().call(
            query,
            value,
            key,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
            **others,
        )
        if positions is None:
            return answer
        if return_attention_scores:
            return gather_positions(answer[0], positions), answer[1]
        return gather_positions(answer, positions)

    def _compute_attention(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        # The one hook, whose private name `internals.py` watches: after the projections, before
        # the scores, and never the values (RoFormer, section 3.2.2).
        query = self._rotate(query)  # (B, T, N, H)
        key = self._rotate(key)  # (B, S, N, H)
        return super()._compute_attention(query, key, *args, **kwargs)

    def _rotate(self, x: Tensor) -> Tensor:
        return rotate(x, ops.arange(ops.shape(x)[1]), self.rotary_base, self.rotary_style)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *args: Any,
        sequence_ids: Tensor | None = None,
        positions: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Shapes and dtypes of what `call` gives, on Keras tensors."""
        spec = super().compute_output_spec(query, value, key, *args, **kwargs)
        if positions is None:
            return spec
        output, *scores = spec if isinstance(spec, tuple) else (spec,)
        output = keras.KerasTensor((*positions.shape, output.shape[-1]), output.dtype)
        return (output, *scores) if scores else output

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the layer again."""
        return super().get_config() | {
            "rotary_style": self.rotary_style,
            "rotary_base": self.rotary_base,
        }


def visible_keys(attention_type: str | None, sequence_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int twice → (B, T, T) bool, query before key.

    Within its document a token sees everything ("bidirectional", or unset), what stands up to it
    ("causal"), or all of its own and of earlier segments ("unilm"), where a segment begins at
    every token whose segment id is not 0: source zeros see each other, target ones look back.
    """
    visible = same_sequence(sequence_ids)
    # Both rules are one comparison of ranks: its place in the row, or how many segments began.
    if attention_type == "causal":
        order = ops.arange(ops.shape(sequence_ids)[1])
    elif attention_type == "unilm":
        order = ops.cumsum(segment_ids, axis=1)
    else:
        return visible
    return visible & (order[..., None, :] <= order[..., :, None])


def same_sequence(sequence_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int → (B, T, T) bool, query before key."""
    # Of equal ids one is 0 only if both are: asking the key alone hides padding from everyone.
    query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
    return (query == key) & (key != 0)


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
