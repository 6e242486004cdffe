"""The self-attention of RoFormer layers: the same numbers as Keras' attention in less time."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.attention import attend
from roformer_tf.kernels.cache import Past
from roformer_tf.kernels.dense import affine
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.kernels.local_attention import attend_locally
from roformer_tf.kernels.rotation import PARTS, split_and_rotate
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.masks import gather_positions, within
from roformer_tf.layers.scaling import log_n


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSelfAttention(RotaryMultiHeadAttention):
    """The self-attention of a RoFormer: one product computes queries, keys and values.

    `kernels/` rotate, attend and drop. Projections that are quantized or have LoRA are called as
    Keras' layers. Options, and names and shapes of the weights, are those of the parent class.

    Call: x (B, T, D) → (B, T, D), in the compute dtype.
    """

    def _build_attention(self, rank: int) -> None:
        # A private method of Keras (`internals.py`). The dropout must draw its seed here: later,
        # the same seed would create another model than before. Keras' own dropout layer remains,
        # unused, because saved training states are numbered and include its random state.
        super()._build_attention(rank)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, seed=self.seed)

    def call(  # type: ignore[override]  # only what the layers of a RoFormer need
        self,
        query: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool | None = None,
        past: Past | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        attention_mask: (B, T, S), or the band of local attention (B, M, C, K).
        positions: (B, P) int. The output is (B, P, D), only for these queries; with a band this
        saves no work.
        past: x are tokens after those in its cache. Their keys, rotated, and values are added to
        the cache; the mask is (B, T, S) for all S slots.
        bias: (1, N, T, S), added to the scores; with a band (1, N, C, K).
        """
        if past is not None:
            return self._continue(query, attention_mask, past, bias)
        if positions is not None:
            positions = within(positions, ops.shape(query)[1])
        mask = None if attention_mask is None else ops.cast(attention_mask, "bool")
        if mask is None or len(mask.shape) != 4:
            return self._attend(query, mask, positions, training, bias)
        attended = self._attend(query, mask, None, training, bias, form=attend_locally)
        return attended if positions is None else gather_positions(attended, positions)

    def _projects_separately(self) -> bool:
        """Whether queries, keys and values cannot be computed by one product.

        A quantized projection is more than its kernel. And rotated values would be in the order of
        `firsts_then_seconds`, which is not that of the output projection.
        """
        projections = (self.query_dense, self.key_dense, self.value_dense)
        return self.rotation.value or not all(map(self._plain, projections))

    def _plain(self, projection: Any) -> bool:
        """Whether a projection consists of a kernel and a bias only."""
        return (
            type(projection) is keras.layers.EinsumDense
            and projection.quantization_mode is None
            and not projection.lora_enabled
        )

    def _attend(
        self,
        x: Tensor,
        visible: Tensor | None,
        positions: Tensor | None,
        training: bool | None,
        bias: Tensor | None,
        form: Callable[..., Tensor] = attend,
    ) -> Tensor:
        """Self-attention by a form of `kernels/`: (B, T, D) → (B, T or P, D)."""
        length = ops.shape(x)[1]
        everywhere = ops.arange(length, dtype="int32")
        if positions is None:
            query, key, value = self._project(x, PARTS, everywhere, training, length)
        else:
            # Queries at the positions only, but all keys and values.
            key, value = self._project(x, ("key", "value"), everywhere, training, length)
            selected = gather_positions(x, positions)
            (query,) = self._project(selected, ("query",), positions, training, length)
            # (B, P, S): the rows of the mask that belong to the selected queries.
            visible = None if visible is None else gather_positions(visible, positions)
            if bias is not None:
                bias = ops.swapaxes(ops.take(bias[0], positions, axis=1), 0, 1)  # (B, N, P, S)
        query = self._sharper(query, length, visible)
        rate = self.dropout if training else 0.0
        seed = self.drop.seed_generator.next() if rate else None
        attended = form(query, key, value, visible, seed, rate, training, bias)
        return self._merge(attended, training)

    def _sharper(self, query: Tensor, keys: Any, visible: Tensor | None) -> Tensor:
        """Queries (B, N, T, H), with `use_logn_attn` scaled by the number of visible keys."""
        if not self.use_logn_attn:
            return query
        batch, _, length, _ = ops.shape(query)
        seen = ops.full((batch, length), keys, "int32")
        if visible is not None:  # (B, T, S), or a band (B, M, C, K) with M · C ≥ T queries
            seen = ops.reshape(ops.sum(ops.cast(visible, "int32"), axis=-1), (batch, -1))
        factor = log_n(seen[:, :length], self.rotation.trained_length)
        return query * ops.cast(factor, query.dtype)[:, None, :, None]

    def _continue(
        self, x: Tensor, visible: Tensor | None, past: Past, bias: Tensor | None = None
    ) -> Tensor:
        """Attention of tokens x (B, T, D) to those in the cache and to themselves: (B, T, D).

        bias (B, N, T, S), for all S slots.
        """
        query, key, value = (self._project_one(x, part, past.positions) for part in PARTS)
        key, value = past.cache.write(key, value, past.slot)  # (B, N, S, H)
        query = self._sharper(query, ops.shape(key)[2], visible)
        return self._merge(attend(query, key, value, visible, bias=bias))

    def _merge(self, attended: Tensor, training: bool | None = None) -> Tensor:
        """The output projection of all heads: (B, N, T, H) → (B, T, D)."""
        if not self._plain(self.output_dense):
            return self.output_dense(ops.transpose(attended, (0, 2, 1, 3)))
        kernel = ops.cast(self.output_dense.kernel, attended.dtype)  # (N, H, D)
        # Flat: on TensorFlow Keras' einsum over N and H is a batched product, whose kernel gradient
        # is summed over the batch.
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

        length: of the sequences, as in `Rotation.rotate`.

        In training one product computes all parts, with their weights concatenated. In inference
        the concatenation would take longer than three products for one text.
        """
        if not training or self._projects_separately():
            return tuple(self._project_one(x, part, positions, length) for part in parts)
        bias = self._concatenated("bias", parts) if self.use_bias else None
        projected = affine(x, self._concatenated("kernel", parts), bias, training)
        # The 2: first and second dimensions of the pairs, as `_concatenated` orders them.
        heads = (len(parts), self.num_heads, 2, self.key_dim // 2)
        projected = ops.reshape(projected, (*ops.shape(x)[:-1], *heads))
        tables = self.rotation.tables(positions, wide(projected), length)  # ([B,] T, H/2)
        return split_and_rotate(projected, *tables, parts, training, self.rotation.parts)

    def _project_one(self, x: Tensor, part: str, positions: Tensor, length: Any = None) -> Tensor:
        """One part of `_project`, with its dimensions in the order of `rotary_style`."""
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
            # q · k / √H: to scale T · H numbers here is less work than T · S scores later.
            y = y * ops.convert_to_tensor(self.key_dim**-0.5, y.dtype)
        return ops.swapaxes(y, 1, 2)

    def _concatenated(self, weight: str, parts: tuple[str, ...]) -> Tensor:
        """Kernels (D, parts · N · H) or biases (parts · N · H) of the projections to the parts.

        In queries and keys the first dimensions of all pairs come before the second ones. The same
        permutation P of both changes no score, (P q) · (P k) = q · k, and pairs can be rotated
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
