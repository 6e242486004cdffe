"""RoFormerForSentenceEmbedding: an encoder and what makes a vector of its hidden states."""

from collections.abc import Mapping
from typing import Any

import keras

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.pooling import Pooler, mean_of_tokens
from roformer_tf.models.pretrained import PretrainedModel


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSentenceEmbedding(PretrainedModel):
    """An encoder that gives a vector of each row, as `config.pooling` says.

    "pooler": the linear pooler's output at the first token, as the released sim models have it;
    "mean": the mean of all tokens; "cls": the first token. Call: the encoder's dict → vectors
    (B, H) float32, not normalised.
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
        """Make the pooler's weights; the encoder has made its own."""
        if self.pooler is not None:
            self.pooler.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder, and the pooler if there is one."""
        return {"encoder": self.encoder} | ({"pooler": self.pooler} if self.pooler else {})

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give the vectors."""
        return pooled(self.encoder, self.pooler, self.config.pooling, inputs, training)


def pooled(
    encoder: RoFormerEncoder,
    pooler: Pooler | None,
    pooling: str,
    inputs: Mapping[str, Tensor],
    training: bool | None = None,
) -> Tensor:
    """What a pooling makes of each row: (B, H) float32, of any length."""
    if pooling == "mean":
        vectors = mean_of_tokens(encoder(inputs, training=training), sequences(inputs))
    else:
        first = encoder(inputs, training=training, positions=first_positions(inputs))
        vectors = first[:, 0] if pooler is None else pooler(first)
    return keras.ops.cast(vectors, "float32")
