"""Self-attention as the layers of a RoFormer have it: the same numbers in less time."""

import inspect
from typing import Any

import keras
from keras import ops

from roformer_tf.internals import set_attention_dropout
from roformer_tf.kernels.attention import PackedMask, attend
from roformer_tf.kernels.cache import Past
from roformer_tf.kernels.dense import affine
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.kernels.local_attention import attend_locally
from roformer_tf.kernels.rotation import PARTS, split_and_rotate
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.masks import both, gather_positions, same_sequence, seen_from, within
from roformer_tf.layers.scaling import log_n

FUSED_OPTIONS = {
    *("dropout", "use_bias", "kernel_initializer", "bias_initializer", "seed"),
    *("rotary_style", "rotary_base", "rotary_share", "rotary_value"),
    *("rope_parameters", "use_logn_attn", "trained_length"),
    *("name", "dtype", "trainable", "frozen"),
}
"""Options that the fused form has, with any value. All others must be left at Keras' default."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSelfAttention(RotaryMultiHeadAttention):
    """`RotaryMultiHeadAttention` with a fused form of the one case that a RoFormer has.

    One product makes queries, keys and values, and `kernels/` rotate, attend and drop. It runs
    where all of this holds:

    - the layer was made with options of `FUSED_OPTIONS` alone;
    - the projections are Keras' own, neither quantized nor with LoRA: then kernel and bias are all
      that they are;
    - the call is x to itself, with no more than `sequence_ids`, `positions` and a mask (B, T, S).

    Everything else goes the parent's way, so an option that Keras adds tomorrow is right first.
    Axes and call are the parent's, and so are names and shapes of the weights.
    """

    def __init__(self, num_heads: int, key_dim: int, **options: Any) -> None:
        super().__init__(num_heads, key_dim, **options)
        parameters = inspect.signature(keras.layers.MultiHeadAttention).parameters
        # What Keras writes for its default, None, into the config of a layer that is built.
        written: dict[str, list[Any]] = {"value_dim": [key_dim], "attention_axes": [(1,), [1]]}
        usual = {name: [x.default, *written.get(name, [])] for name, x in parameters.items()}
        self.fusible = all(
            name in FUSED_OPTIONS or value in usual.get(name, []) for name, value in options.items()
        )

    def _build_attention(self, rank: int) -> None:
        # A hook (`internals.py`), since the order of random draws is in it: made later, one seed
        # would give another model than it always did. Keras' own dropout stays behind with a
        # random state that nothing reads: saved training states are numbered, and count it.
        super()._build_attention(rank)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, seed=self.seed)
        set_attention_dropout(self, self.drop)

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
        past: Past | None = None,
        bias: Tensor | None = None,
        band: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Attend, as the parent does, in the fused form where it can.

        A bias (1, N, T, S) is added to the scores. With a `band` (B, M, C, K), which is all the
        mask then, attention is local, the bias (1, N, C, K), and `positions` save nothing. Both
        only the fused form knows.
        The mask may be a `PackedMask`, for JAX's kernel that takes documents' numbers.
        With `past`, x (B, T, D) are tokens behind those that its cache holds: their keys and values
        are kept there, too, each key rotated, and `attention_mask` is (B, T, S) of all S slots.
        """
        if past is not None:
            return self._continue(query, attention_mask, past, bias)
        # The same object, not equal values: of two tensors nobody could tell without reading both.
        to_itself = value is query and (key is None or key is query)
        unknown = (query_mask, value_mask, key_mask, rotary_positions)  # the masks are of inputs
        special = return_attention_scores or use_causal_mask or bool(others)
        special |= any(x is not None for x in unknown)
        if isinstance(attention_mask, PackedMask):
            if to_itself and not special and sequence_ids is None and self._tells_documents(bias):
                if positions is not None:
                    positions = within(positions, ops.shape(query)[1])
                return self._fused(query, attention_mask, positions, training)
            attention_mask = attention_mask.mask()
        special |= attention_mask is not None and len(attention_mask.shape) != 3
        of_fused = bias is not None or band is not None
        if to_itself and not special and (of_fused or self._fuses()):
            if sequence_ids is not None:
                attention_mask = both(same_sequence(sequence_ids), attention_mask)
            if attention_mask is not None:
                attention_mask = ops.cast(attention_mask, "bool")
            if positions is not None:
                positions = within(positions, ops.shape(query)[1])
            if band is not None:
                return self._local(query, band, positions, training, bias)
            return self._fused(query, attention_mask, positions, training, bias)
        assert not of_fused, "bias and band go with x to itself alone"
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
            sequence_ids=sequence_ids,
            positions=positions,
            rotary_positions=rotary_positions,
            **others,
        )

    def _fuses(self) -> bool:
        """Whether options, projections and class are those that the fused form is written for.

        A quantized projection has a scale beside its kernel, one with LoRA two more matrices, and
        a subclass another rotation: all are seen only where the parent calls them.
        """
        hooks = ("_compute_attention", "_rotate")
        projections = (self.query_dense, self.key_dense, self.value_dense, self.output_dense)
        return (
            self.fusible
            and all(getattr(type(self), x) is getattr(RotaryMultiHeadAttention, x) for x in hooks)
            and all(map(self._plain, projections))
        )

    def _tells_documents(self, bias: Tensor | None) -> bool:
        """Whether nothing needs the mask itself: neither a bias nor a count of what is seen."""
        return bias is None and not self.use_logn_attn and self._fuses()

    def _alone(self) -> bool:
        """Whether queries, keys and values cannot be made by one product.

        A quantized projection is more than its kernel, and rotated values would leave attention in
        the order of `firsts_then_seconds`, which the output projection does not expect.
        """
        projections = (self.query_dense, self.key_dense, self.value_dense)
        return self.rotation.value or not all(map(self._plain, projections))

    def _plain(self, projection: Any) -> bool:
        """Whether kernel and bias are all that a projection is."""
        return (
            type(projection) is keras.layers.EinsumDense
            and projection.quantization_mode is None
            and not projection.lora_enabled
        )

    def _fused(
        self,
        x: Tensor,
        visible: Tensor | PackedMask | None,
        positions: Tensor | None,
        training: bool | None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Self-attention by the forms of `kernels/`: (B, T, D) → (B, T or P, D)."""
        length = ops.shape(x)[1]
        everywhere = ops.arange(length)
        if positions is None:
            query, key, value = self._project(x, PARTS, everywhere, training, length)
        else:
            # Queries there alone, but of all keys and values: each row looks at its whole document.
            key, value = self._project(x, ("key", "value"), everywhere, training, length)
            there = gather_positions(x, positions)
            (query,) = self._project(there, ("query",), positions, training, length)
            visible = None if visible is None else seen_from(visible, positions)
            if bias is not None:
                bias = ops.swapaxes(ops.take(bias[0], positions, axis=1), 0, 1)  # (B, N, P, S)
        query = self._sharper(query, length, visible)
        attended = attend(query, key, value, visible, *self._dropping(training), bias)
        return self._merge(attended, training)

    def _local(
        self,
        x: Tensor,
        band: Tensor,
        positions: Tensor | None,
        training: bool | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The same within a window, block by block: (B, T, D) → (B, T or P, D)."""
        length = ops.shape(x)[1]
        query, key, value = self._project(x, PARTS, ops.arange(length), training, length)
        query = self._sharper(query, length, band)
        attended = attend_locally(query, key, value, band, *self._dropping(training), bias)
        merged = self._merge(attended, training)
        return merged if positions is None else gather_positions(merged, positions)

    def _dropping(self, training: bool | None) -> tuple[Tensor | None, float, bool | None]:
        """Seed and rate of this call's dropout, and whether it is training."""
        rate = self.dropout if training else 0.0
        return self.drop.seed_generator.next() if rate else None, rate, training

    def _sharper(self, query: Tensor, keys: Any, visible: Tensor | PackedMask | None) -> Tensor:
        """Queries (B, N, T, H), scaled, if they are, by how many of S keys a mask or band shows."""
        if not self.use_logn_attn:
            return query
        visible = visible.mask() if isinstance(visible, PackedMask) else visible
        batch, _, length, _ = ops.shape(query)
        seen = ops.full((batch, length), keys, "int32")
        if visible is not None:  # of a band, blocks one behind the other are the row
            seen = ops.reshape(ops.sum(ops.cast(visible, "int32"), axis=-1), (batch, -1))
        factor = log_n(seen[:, :length], self.rotation.trained_length)
        return query * ops.cast(factor, query.dtype)[:, None, :, None]

    def _continue(
        self, x: Tensor, visible: Tensor | None, past: Past, bias: Tensor | None = None
    ) -> Tensor:
        """What tokens x (B, T, D) make of themselves and of all before them: (B, T, D).

        bias (B, N, T, S), of all S slots.
        """
        query, key, value = (self._project_alone(x, part, past.positions) for part in PARTS)
        key, value = past.cache.write(key, value, past.slot)  # (B, N, S, H)
        query = self._sharper(query, ops.shape(key)[2], visible)
        return self._merge(attend(query, key, value, visible, bias=bias))

    def _merge(self, attended: Tensor, training: bool | None = None) -> Tensor:
        """The output's projection of what all heads found: (B, N, T, H) → (B, T, D)."""
        if not self._plain(self.output_dense):
            return self.output_dense(ops.transpose(attended, (0, 2, 1, 3)))
        kernel = ops.cast(self.output_dense.kernel, attended.dtype)  # (N, H, D)
        # Flat: Keras' einsum over N and H becomes a batched product on TensorFlow, whose kernel
        # gradient is summed over the batch afterwards.
        kernel = ops.reshape(kernel, (-1, kernel.shape[-1]))
        attended = ops.transpose(attended, (0, 2, 1, 3))  # (B, T, N, H)
        attended = ops.reshape(attended, (*ops.shape(attended)[:2], kernel.shape[0]))
        bias = ops.cast(self.output_dense.bias, attended.dtype) if self.use_bias else None
        return affine(attended, kernel, bias, training)

    def _project(
        self,
        x: Tensor,
        parts: tuple[str, ...],
        positions: Tensor,
        training: bool | None,
        length: Any,
    ) -> tuple[Tensor, ...]:
        """Queries, keys or values of x (B, T, D), rotated by positions ([B,] T) → (B, N, T, H).

        length: that of the rows, as `Rotation.rotate` has it.

        In training one product makes all parts, for which it puts their weights together. Without
        a gradient that would cost one text more than three products take.
        """
        if not training or self._alone():
            return tuple(self._project_alone(x, part, positions, length) for part in parts)
        bias = self._together("bias", parts) if self.use_bias else None
        projected = affine(x, self._together("kernel", parts), bias, training)
        heads = (len(parts), self.num_heads, 2, self.key_dim // 2)
        projected = ops.reshape(projected, (*ops.shape(x)[:-1], *heads))
        tables = self.rotation.tables(positions, wide(projected), length)  # ([B,] T, H/2)
        return split_and_rotate(projected, *tables, parts, training, self.rotation.parts)

    def _project_alone(self, x: Tensor, part: str, positions: Tensor, length: Any = None) -> Tensor:
        """One part of `_project`, its features in the order that `rotary_style` names."""
        layer = self._projection(part)
        if self._plain(layer):
            kernel = ops.reshape(ops.cast(layer.kernel, x.dtype), (x.shape[-1], -1))
            bias = ops.reshape(ops.cast(layer.bias, x.dtype), (-1,)) if self.use_bias else None
            heads = (self.num_heads, self.key_dim)
            y = ops.reshape(affine(x, kernel, bias), (*ops.shape(x)[:-1], *heads))
        else:
            y = layer(x)
        if part in self.rotation.parts:
            y = self.rotation.rotate(y, positions, length)
        if part == "query":
            # q · k / √H: scaling T · H numbers here is less than T · S scores later.
            y = y * ops.convert_to_tensor(self.key_dim**-0.5, y.dtype)
        return ops.swapaxes(y, 1, 2)

    def _together(self, weight: str, parts: tuple[str, ...]) -> Tensor:
        """Kernels (D, parts · N · H) or biases (parts · N · H) of the projections to the parts.

        Of queries and keys the first features of all pairs come before the second ones. One
        permutation P of both changes no score, (P q) · (P k) = q · k, and lets pairs be rotated
        without strided slices.
        """
        weights = []
        for part in parts:
            x = getattr(self._projection(part), weight)  # (…, N, H)
            x = ops.cast(x, self.compute_dtype)
            if part in self.rotation.parts:
                x = self.rotation.firsts_then_seconds(x)
            weights.append(ops.reshape(x, (*x.shape[:-2], -1)))
        return ops.concatenate(weights, axis=-1)

    def _projection(self, part: str) -> Any:
        return {"query": self.query_dense, "key": self.key_dense, "value": self.value_dense}[part]
