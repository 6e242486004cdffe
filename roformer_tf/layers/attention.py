"""Multi-head attention with rotary positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.internals import all_layers, set_output_mask
from roformer_tf.kernels.forms import Tensor
from roformer_tf.layers import axes
from roformer_tf.layers.masks import both, check_one_length, gather_positions, same_sequence, within
from roformer_tf.layers.rotary import Rotation
from roformer_tf.layers.scaling import sharpened


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryMultiHeadAttention(keras.layers.MultiHeadAttention):
    """Keras' multi-head attention on rotated queries and keys.

    Axes: B batch, T queries, S keys, N heads, H head size (even), D features.
    Call: query (B, T, D), value (B, S, D) → (B, T, D), in the compute dtype.

    `rotary_style` and `rotary_base` are those of `rotary.rotate`; `rotary_share` is the fraction
    of a head's dimensions that are rotated, the first ones. With `rotary_value` values are, too.
    `rope_parameters`, with transformers' keys, scale the angles beyond `trained_length`, and
    `use_logn_attn` scales the scores (`scaling.log_n`). `frozen` names projections that are not
    trained, such as "query"; a saved layer keeps them. All other arguments are Keras' own.
    Raises InputError for an odd `key_dim` (dimensions are rotated in pairs), for an unknown style
    or scaling, and for inputs of another rank.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        rotary_style: str = "interleaved",
        rotary_base: float = 10_000.0,
        rotary_share: float = 1.0,
        rotary_value: bool = False,
        rope_parameters: Mapping[str, Any] | None = None,
        use_logn_attn: bool = False,
        trained_length: int = 0,
        frozen: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if key_dim % 2:
            raise InputError(
                f"key_dim is {key_dim}, but dimensions are rotated in pairs. Give an even number."
            )
        if rotary_value and kwargs.get("value_dim") not in (None, key_dim):
            raise InputError(
                f"value_dim is {kwargs['value_dim']}, but rotated values have key_dim dimensions, "
                f"{key_dim}. Omit value_dim or rotary_value."
            )
        # It raises InputError before Keras creates anything.
        rotation_options = (rotary_style, rotary_base, rotary_share, rotary_value)
        rotation = Rotation(key_dim, *rotation_options, rope_parameters, trained_length)
        if use_logn_attn and trained_length < 2:
            raise InputError(
                f"use_logn_attn scales scores beyond a trained_length, which is {trained_length}. "
                "Give the maximum length in training."
            )
        super().__init__(num_heads, key_dim, **kwargs)
        self.rotation = rotation
        self.rotary_style, self.rotary_base = rotary_style, rotary_base
        self.use_logn_attn = use_logn_attn
        self.frozen = (frozen,) if isinstance(frozen, str) else tuple(frozen)

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        """Create the projections. Default value: the query."""
        if len(query_shape) != 3:
            raise InputError(
                f"the query has the shape {tuple(query_shape)}, but rotary positions count along "
                "one axis. Give (batch, length, features)."
            )
        super().build(query_shape, value_shape or query_shape, key_shape)
        for projection in self._projections():
            if projection.name in self.frozen:
                projection.trainable = False

    def _projections(self) -> list[Any]:
        """The layers inside that have weights; none before `build`."""
        return [layer for layer in all_layers(self) if layer is not self and layer.weights]

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
        rotary_positions: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Attend, with further arguments in addition to Keras'.

        sequence_ids: (B, T) int, with T = S. Tokens attend to each other only if their ids are
        equal and not 0, which is padding. All other masks apply, too.
        positions: (B, P) int, 0 to T − 1. The output is (B, P, D), only for these queries;
        attention scores are returned for all. Raises InputError for a known value outside the
        sequence; in a traced function the nearest valid position is used.
        rotary_positions: (T, A) or (B, T, A) int, with T = S: positions along A axes, see
        `axes.axial_angles`. Default: 0, 1, 2, … along one axis.
        options: arguments of later versions of Keras.
        """
        # Keras' own arguments are listed because Keras passes `training` and the masks of the
        # inputs only to a `call` whose signature has them.
        if sequence_ids is not None or rotary_positions is not None:
            check_one_length(query, value, sequence_ids)
        if sequence_ids is not None:
            attention_mask = both(same_sequence(sequence_ids), attention_mask)
        input_mask = query_mask
        if positions is not None:
            positions = within(positions, ops.shape(query)[1])
        if attention_mask is not None and len(attention_mask.shape) == 4:
            # Keras would broadcast the batch of the inputs' masks over the heads of this one.
            if query_mask is not None:
                attention_mask = both(attention_mask, query_mask[:, :, None])
                query = ops.copy(query)  # a tensor without a Keras mask
            for mask in (value_mask, key_mask):
                if mask is not None:
                    attention_mask = both(attention_mask, mask[:, None, :])
            query_mask = value_mask = key_mask = None
        token = axes.current_positions.set(rotary_positions)
        try:
            output = super().call(
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
                **options,
            )
        finally:
            axes.current_positions.reset(token)
        if positions is None:
            return output
        output, *scores = output if return_attention_scores else (output,)
        output = gather_positions(output, positions)
        if input_mask is not None:  # else later layers would get that of all T positions
            set_output_mask(keras, output, ops.take_along_axis(input_mask, positions, axis=1))
        return (output, *scores) if scores else output

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # A private method of Keras (`internals.py`), called after the projections and before the
        # scores. Values are not rotated (RoFormer, section 3.2.2), except with `rotary_value`.
        length = ops.shape(key)[1]
        query = self._rotate(query, length)  # (B, T, N, H)
        key = self._rotate(key, length)  # (B, S, N, H)
        value = self._rotate(value, length) if self.rotation.value else value  # (B, S, N, V)
        if self.use_logn_attn:
            query = sharpened(query, attention_mask, length, self.rotation.trained_length)
        return super()._compute_attention(query, key, value, attention_mask, *args, **kwargs)

    def _rotate(self, x: Tensor, length: Any) -> Tensor:
        return axes.rotate_along_axes(x, axes.current_positions.get(), self.rotation, length)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *args: Any,
        sequence_ids: Tensor | None = None,
        positions: Tensor | None = None,
        rotary_positions: Tensor | None = None,
        mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Shapes and dtypes of the result of `call`, for Keras tensors."""
        value = query if value is None else value
        spec = super().compute_output_spec(query, value, key, *args, **kwargs)
        if positions is None:
            return spec
        output, *scores = spec if isinstance(spec, tuple) else (spec,)
        output = keras.KerasTensor((*positions.shape, *output.shape[2:]), output.dtype)
        query_mask = kwargs.get("query_mask")
        if query_mask is not None:
            set_output_mask(keras, output, ops.take_along_axis(query_mask, positions, axis=1))
        return (output, *scores) if scores else output

    def get_config(self) -> dict[str, Any]:
        """All arguments, to create the layer again."""
        frozen = [x.name for x in self._projections() if self.trainable and not x.trainable]
        return super().get_config() | {
            "frozen": frozen if self.built else list(self.frozen),
            "rotary_style": self.rotation.style,
            "rotary_base": self.rotation.base,
            "rotary_share": self.rotation.share,
            "rotary_value": self.rotation.value,
            "rope_parameters": self.rotation.parameters,
            "use_logn_attn": self.use_logn_attn,
            "trained_length": self.rotation.trained_length,
        }
