"""Multi-head attention that knows positions only through rotation."""

from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.rotary import Tensor, rotate


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryMultiHeadAttention(keras.layers.MultiHeadAttention):
    """Attention on rotated queries and keys; masks, dropout and weights as in Keras.

    Axes: B batch, T queries, S keys, N heads, H head size (even), D features.
    Call: query (B, T, D), value (B, S, D) → (B, T, D), in the compute dtype.

    `rotary_style` and `rotary_base` are those of `rotary.rotate`; all other arguments are
    Keras' own. Raises InputError for an odd `key_dim`: features turn in pairs.
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
        super().__init__(num_heads, key_dim, **kwargs)
        self.rotary_style = rotary_style
        self.rotary_base = rotary_base

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
        sequence_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Attend; with `sequence_ids` (B, T) int, only within one document (T = S then).

        Two tokens see each other where their ids are equal and not 0, which is padding. An
        `attention_mask` (B, T, S), true where a query may look, narrows this further.
        """
        if sequence_ids is not None:
            same = same_sequence(sequence_ids)
            if attention_mask is not None:
                same = same & ops.cast(attention_mask, "bool")
            attention_mask = same
        return super().call(query, value, key, attention_mask=attention_mask, **kwargs)

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
        *,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Shapes and dtypes of what `call` gives, on Keras tensors."""
        return super().compute_output_spec(query, value, key, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the layer again."""
        return super().get_config() | {
            "rotary_style": self.rotary_style,
            "rotary_base": self.rotary_base,
        }


def same_sequence(sequence_ids: Tensor) -> Tensor:
    """Which token may look at which: (B, T) int → (B, T, T) bool, query before key."""
    query, key = sequence_ids[:, :, None], sequence_ids[:, None, :]
    return (query == key) & (key != 0)
