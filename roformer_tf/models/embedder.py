"""SentenceEmbedder: rows of tokens in, a vector of each row out."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.whitening import Whitening
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.pooling import Pooler, mean_of_tokens


class SentenceEmbedder(keras.Model):
    """An encoder, and what makes one vector of a text out of its hidden states.

    Axes: B rows, T tokens, H hidden size, D what is left of it by `dimensions`. Call: the encoder's
    dict → vectors (B, D) float32 of length 1: their products are cosines. It scores no vocabulary,
    which of a sim model is most of the work.

    pooling: "pooler", the linear one on the first token; "mean" of all tokens; "cls", the first
    token itself. Unset it is the pooler's if there is one, else the mean. whitening: what vectors
    go through before they are cut and made one long. dimensions: the first so many are kept.
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

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        whole = self.encoder.config.hidden_size
        if self.whitening is not None:
            whole = self.whitening.matrix.shape[1]
        return min(whole, self.dimensions or whole)

    def raw(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give what the pooling makes of each row, neither whitened, cut nor made one long.

        (B, H) float32: what losses that look at lengths need, and whitening is learnt from.
        """
        if self.pooling == "mean":
            vectors = mean_of_tokens(self.encoder(inputs, training=training), sequences(inputs))
        else:
            first = self.encoder(inputs, training=training, positions=first_positions(inputs))
            vectors = first[:, 0] if self.pooler is None else self.pooler(first)
        return ops.cast(vectors, "float32")

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give a vector of length 1 for each row."""
        return self.finished(self.raw(inputs, training))

    def finished(self, vectors: Tensor) -> Tensor:
        """Whiten what `raw` gave, cut it, and make it one long: (B, H) → (B, D)."""
        if self.whitening is not None:
            vectors = ops.matmul(vectors - self.whitening.mean, self.whitening.matrix)
        return ops.normalize(vectors[:, : self.size], axis=-1)
