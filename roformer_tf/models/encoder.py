"""RoFormerEncoder: tokens → hidden states."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.cache import KeyValueCache, Past
from roformer_tf.kernels.forms import Tensor
from roformer_tf.layers.masks import visible_band, visible_keys
from roformer_tf.layers.positions import document_positions, relative_bias
from roformer_tf.layers.transformer import RoFormerEmbeddings, RoFormerLayer, recomputed
from roformer_tf.models.pretrained import PretrainedModel


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerEncoder(PretrainedModel):
    """A stack of RoFormer layers over embeddings, without a head.

    Call: a dict of int32 (B, T): `token_ids`, optional `segment_ids` (default 0), optional
    `sequence_ids`: 0 for padding, 1, 2, … for the document a token belongs to. Absent, they
    are `token_ids != 0`, the first position always counted. Tokens attend to each other only if
    their `sequence_ids` are equal and not 0, and as `config.attention_type` allows.
    → hidden states (B, T, H) in the compute dtype; those of padding are unspecified. With
    `positions` (B, P) int32, 0 to T − 1, only those, (B, P, H): the last layer computes no others.
    """

    def __init__(self, config: RoFormerConfig, name: str = "encoder", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.embeddings = RoFormerEmbeddings(config, name="embeddings", dtype=self.dtype_policy)
        words = self.embeddings.word.embeddings_initializer
        self.relative_attention_bias = relative_bias(config, words, self.dtype_policy)
        self.layer_stack = [
            RoFormerLayer(config, name=f"layer_{i}", dtype=self.dtype_policy)
            for i in range(config.num_hidden_layers)
        ]
        self.rematerialize = False
        """Whether training keeps only the input of each layer, and computes the rest again for the
        gradients: the same numbers in less memory and more time. Set it before `compile`."""
        # Now and not at the first call: loading and optimizers need all weights, and all shapes are
        # known.
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        self.embeddings.build()
        if self.relative_attention_bias is not None:
            self.relative_attention_bias.build()
        for layer in self.layer_stack:
            layer.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder is its own only part."""
        return {"encoder": self}

    def call(
        self,
        inputs: Mapping[str, Tensor],
        training: bool | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The hidden states of the last layer."""
        return self.hidden_states(inputs, training, positions)[-1]

    def hidden_states(
        self,
        inputs: Mapping[str, Tensor],
        training: bool | None = None,
        positions: Tensor | None = None,
    ) -> list[Tensor]:
        """L + 1 tensors (B, T, H): of the embeddings, then of each layer.

        With positions (B, P), that of the last layer is (B, P, H).
        """
        token_ids = ops.convert_to_tensor(inputs["token_ids"], "int32")
        segment_ids = inputs.get("segment_ids", ops.zeros_like(token_ids))
        segment_ids = ops.convert_to_tensor(segment_ids, "int32")
        # Once for all layers and heads: each layer has one of two masks, global or local.
        views = self._views(sequences(inputs), segment_ids)
        where = ops.arange(ops.shape(token_ids)[1], dtype="int32")
        if "sequence_ids" in inputs and self.embeddings.position is not None:
            where = document_positions(sequences(inputs))  # not those in the packed sequence
        biases = self._biases(token_ids, views)
        states = [self.embeddings(token_ids, segment_ids, where, training=training)]
        for number, layer in enumerate(self.layer_stack):
            local = self.config.is_local(number)
            visible, bias = views[local], biases.get(local)
            # Only the last layer may skip positions: keys and values of all others are needed.
            needed = positions if layer is self.layer_stack[-1] else None
            if self.rematerialize and training:
                states.append(recomputed(layer, states[-1], visible, needed, bias))
            else:
                states.append(layer(states[-1], visible, needed, training=training, bias=bias))
        return states

    def _views(self, sequence_ids: Tensor, segment_ids: Tensor) -> dict[bool, Any]:
        """Masks, by whether the layer is local: a band, or (B, T, T) bool."""
        rows = (self.config.attention_type, sequence_ids, segment_ids)
        return {
            local: visible_band(*rows, self.config.window) if local else visible_keys(*rows)
            for local in {self.config.is_local(i) for i in range(len(self.layer_stack))}
        }

    def _biases(self, token_ids: Tensor, views: Mapping[bool, Tensor]) -> dict[bool, Tensor]:
        """T5's bias for each of the masks, if there is one: one table for all layers."""
        if self.relative_attention_bias is None:
            return {}
        return {
            local: self.relative_attention_bias.of_band(*view.shape[2:])
            if local
            else self.relative_attention_bias(token_ids)
            for local, view in views.items()
        }

    def continued(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        visible: Tensor,
        positions: Tensor,
        slot: Tensor,
        caches: Sequence[KeyValueCache],
    ) -> Tensor:
        """Process T more tokens of every text, after those in the caches of the layers.

        token_ids, segment_ids, positions (B, T) int32; visible (B, T, S) bool: which of all S slots
        each attends to; slot () int32: that of the first → last layer's hidden states (B, T, H).
        """
        known = positions
        if self.config.position_embedding_type == "learned":
            # The table has none for finished texts, which stay in the batch for a while.
            known = ops.minimum(positions, self.config.max_position_embeddings - 1)
        x = self.embeddings(token_ids, segment_ids, known)
        # The tokens of a text have consecutive slots and positions, so the last one's slot and
        # position determine those of all slots, (B, S).
        last = slot + ops.shape(token_ids)[1] - 1
        slots = ops.arange(ops.shape(visible)[2], dtype="int32") - last + positions[:, -1:]
        bias = None
        if self.relative_attention_bias is not None:
            bias = self.relative_attention_bias.between(positions, slots)
        nearby = visible
        if self.config.local_attention:
            distance = ops.abs(positions[:, :, None] - slots[:, None])
            nearby = visible & (distance <= self.config.window)
        for number, (layer, cache) in enumerate(zip(self.layer_stack, caches, strict=True)):
            seen = nearby if self.config.is_local(number) else visible
            x = layer(x, seen, past=Past(cache, slot, positions), bias=bias)
        return x


def first_positions(inputs: Mapping[str, Tensor]) -> Tensor:
    """The positions of the first tokens: zeros (B, 1) int32."""
    return ops.zeros((ops.shape(inputs["token_ids"])[0], 1), "int32")


def sequences(inputs: Mapping[str, Tensor]) -> Tensor:
    """The document of each token, 0 for padding: (B, T) int32.

    By default a sequence is one document and token 0 is padding. As in bert4keras the first
    position is always visible, so that an empty sequence does not result in NaN.
    """
    if "sequence_ids" in inputs:
        return ops.convert_to_tensor(inputs["sequence_ids"], "int32")
    token_ids = ops.convert_to_tensor(inputs["token_ids"], "int32")
    first = ops.arange(ops.shape(token_ids)[1], dtype="int32") == 0
    return ops.cast((token_ids != 0) | first[None, :], "int32")
