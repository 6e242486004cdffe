"""Hidden states of a text → one vector of it: pooling, and the models that give vectors.

Axes: B batch, T tokens, H hidden size, D numbers of a vector that is cut.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.whitening import Whitening
from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.pretrained import PretrainedModel


def head_dense(config: RoFormerConfig, units: int, name: str, dtype: Any) -> layers.Dense:
    """A head's dense layer, which has a bias in RoFormerV2 too."""
    initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    return layers.Dense(units, kernel_initializer=initializer, name=name, dtype=dtype)


class Pooler(layers.Layer):
    """One dense layer on the first token, without activation: hidden (B, T, H) → (B, H) float32."""

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = config.hidden_size
        self.dense = head_dense(config, config.hidden_size, "dense", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        self.dense.build((None, self.hidden_size))

    def call(self, hidden: Tensor) -> Tensor:
        """Give a vector for each row."""
        return ops.cast(self.dense(hidden[:, 0]), "float32")


def mean_of_tokens(hidden: Tensor, sequence_ids: Tensor) -> Tensor:
    """Mean over the tokens that are not padding: (B, T, H), (B, T) int → (B, H).

    Sums are float32 at least.
    """
    weights = ops.cast(sequence_ids != 0, wide(hidden))[..., None]
    total = ops.sum(ops.cast(hidden, weights.dtype) * weights, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(weights, axis=1), 1.0), hidden.dtype)


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
        """Make the pooler's weights; the encoder has made its own."""
        if self.pooler is not None:
            self.pooler.build()

    def parts(self) -> dict[str, layers.Layer]:
        """The encoder, and the pooler if there is one."""
        return {"encoder": self.encoder} | ({"pooler": self.pooler} if self.pooler else {})

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give the vectors."""
        return pooled(self.encoder, self.pooler, self.config.pooling, inputs, training)


class SentenceEmbedder(keras.Model):
    """Vectors of length 1 from the parts of another model.

    Call: the encoder's dict → vectors (B, D) float32 of length 1: their products are cosines. It
    does not score the vocabulary, which is most of the work of a sim model.

    pooling: "pooler", the linear one on the first token; "mean" of all tokens; "cls", the first
    token itself. Default: the pooler if there is one, else the mean. whitening: applied before
    vectors are cut and normalized. dimensions: how many numbers are kept, the first ones.
    """

    def __init__(
        self,
        encoder: RoFormerEncoder,
        pooler: Pooler | None = None,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        whitening: Whitening | None = None,
        name: str = "sentence_embedder",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pooling: Pooling = pooling or ("mean" if pooler is None else "pooler")
        assert self.pooling != "pooler" or pooler is not None
        self.encoder = encoder
        self.pooler = pooler if self.pooling == "pooler" else None
        self.dimensions, self.whitening = dimensions, whitening
        self.built = True  # both parts have their weights already

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Pool, whiten, cut, and normalize."""
        vectors = pooled(self.encoder, self.pooler, self.pooling, inputs, training)
        if self.whitening is not None:
            vectors = ops.matmul(vectors - self.whitening.mean, self.whitening.matrix)
        return ops.normalize(vectors[:, : self.dimensions], axis=-1)
