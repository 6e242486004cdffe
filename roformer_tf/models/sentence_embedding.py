"""Models that compute sentence vectors: hidden states are pooled, then normalized.

Axes: B batch, T tokens, H hidden size, D size of a cut vector.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.checkpoints.embedding_config import Pooling
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

    def build(self, input_shape: Any = None) -> None:
        """Create the weights of the pooler; the encoder has created its own."""
        if self.pooler is not None:
            self.pooler.build()

    def parts(self) -> dict[str, layers.Layer]:
        """The encoder, and the pooler if there is one."""
        return {"encoder": self.encoder} | ({"pooler": self.pooler} if self.pooler else {})

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """The vectors of a batch."""
        return pooled(self.encoder, self.pooler, self.config.pooling, inputs, training)


class SentenceEmbedder(keras.Model):
    """Vectors of length 1 from the parts of another model.

    Call: the encoder's dict → vectors (B, D) float32 of length 1: their products are cosines. It
    does not score the vocabulary, which is most of the work of a sim model.

    pooling: "pooler", the linear one on the first token; "mean" of all tokens; "cls", the first
    token itself. Default: the pooler if there is one, else the mean. dimensions: how many numbers
    are kept, the first ones.
    """

    def __init__(
        self,
        encoder: RoFormerEncoder,
        pooler: Pooler | None = None,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        name: str = "sentence_embedder",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pooling: Pooling = pooling or ("mean" if pooler is None else "pooler")
        assert self.pooling != "pooler" or pooler is not None
        self.encoder = encoder
        self.pooler = pooler if self.pooling == "pooler" else None
        self.dimensions = dimensions
        self.built = True  # both parts have their weights already

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Pool, cut, and normalize."""
        vectors = pooled(self.encoder, self.pooler, self.pooling, inputs, training)
        return ops.normalize(vectors[:, : self.dimensions], axis=-1)
