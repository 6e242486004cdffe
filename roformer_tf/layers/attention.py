"""Multi-head attention that knows positions only through rotation."""

from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.rotary import Tensor, pair_axis, rotate


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryMultiHeadAttention(keras.layers.MultiHeadAttention):
    """Attention on rotated queries and keys; masks, dropout and weights as in Keras.

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
        pair_axis(rotary_style)  # refuses an unknown one
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
    ) -> Any:
        """Attend; with `sequence_ids` (B, T) int, only within one document (T = S then).

        Two tokens see each other where their ids are equal and not 0, which is padding. All
        other masks narrow this further. Keras' own arguments are spelled out because Keras hands
        `training` and the masks of the inputs only to a call that names them.
        """
        if sequence_ids is not None:
            same = same_sequence(sequence_ids)
            if attention_mask is not None:
                same = same & ops.cast(attention_mask, "bool")
            attention_mask = same
        return super().call(
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
        )

    def _compute_attention(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        query = self._rotate(query)  # (B, T, N, H)
        key = self._rotate(key)  # (B, S, N, H)
        return super()._compute_attention(query, key, *args, **kwargs)

    def _rotate(self, x: Tensor) -> Tensor:
        positions = ops.arange(ops.shape(x)[1])
        return rotate(x, positions, self.rotary_base, self.rotary_style)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *args: Any,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Shapes and dtypes of what `call` gives, on Keras tensors."""
        return super().compute_output_spec(query, value, key, *args, **kwargs)

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
    if attention_type == "causal":
        order = ops.arange(ops.shape(sequence_ids)[1])
    elif attention_type == "unilm":
        order = ops.cumsum(segment_ids, axis=1)
    else:
        return visible
    return visible & (order[..., None, :] <= order[..., :, None])


def same_sequence(sequence_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int → (B, T, T) bool, query before key."""
    query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
    return (query == key) & (key != 0)
