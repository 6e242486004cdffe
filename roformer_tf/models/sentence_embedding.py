"""Models that compute sentence vectors: hidden states are pooled, then normalized.

Axes: B batch, T tokens, H hidden size.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.head_layers import Pooler, mean_of_tokens
from roformer_tf.models.pretrained import PretrainedModel


def pooled(
    encoder: RoFormerEncoder,
    pooler: Pooler | None,
    pooling: str,
    inputs: Mapping[str, Tensor],
    training: bool | None = None,
) -> Tensor:
    """Pooled hidden states, (B, H) float32, not normalized."""
    if pooling == "mean":
        vectors = mean_of_tokens(encoder(inputs, training=training), sequences(inputs))
    else:
        # Only the first token of the last layer is computed.
        first = encoder(inputs, training=training, positions=first_positions(inputs))
        vectors = first[:, 0] if pooler is None else pooler(first)
    return ops.cast(vectors, "float32")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSentenceEmbedding(PretrainedModel):
    """An encoder and a pooling, as `config.pooling` says.

    "pooler": the output of the linear pooler at the first token, as in the released sim models;
    "mean": the mean of all tokens; "cls": the first token. Call: the encoder's dict → vectors
    (B, H) float32, not normalized.
    """

    def __init__(
        self, config: RoFormerConfig, name: str = "sentence_embedding", **kwargs: Any
    ) -> None:
        super().__init__(config, name=name, **kwargs)
        self.encoder = RoFormerEncoder(config, dtype=self.dtype_policy)
        self.pooler: Pooler | None = None
        if config.pooling == "pooler":
            self.pooler = Pooler(config, name="pooler", dtype=self.dtype_policy)
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """The vectors of a batch."""
        return pooled(self.encoder, self.pooler, self.config.pooling, inputs, training)


class SentenceEmbedder(keras.Model):
    """Vectors of length 1 from the encoder and the pooler of a sim model.

    Call: the encoder's dict → vectors (B, H) float32 of length 1: their products are cosines. It
    does not score the vocabulary, which is most of the work of a sim model.
    """

    def __init__(self, encoder: RoFormerEncoder, pooler: Pooler) -> None:
        super().__init__()
        self.encoder, self.pooler = encoder, pooler
        self.built = True  # both parts have their weights already

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Pool and normalize."""
        return ops.normalize(pooled(self.encoder, self.pooler, "pooler", inputs, training), axis=-1)
