"""SentenceEmbedder: rows of tokens in, a vector of each row out."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.heads import Pooler, mean_of_tokens


class SentenceEmbedder(keras.Model):
    """An encoder, and its pooler on the first token or, without one, the mean of all tokens.

    Call: the encoder's dict → vectors (B, H) float32 of length 1: their products are cosines. It
    scores no vocabulary, which of a sim model is most of the work.
    """

    def __init__(
        self,
        encoder: RoFormerEncoder,
        pooler: Pooler | None = None,
        name: str = "sentence_embedder",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.encoder, self.pooler = encoder, pooler
        self.built = True  # both parts have their weights already

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Give a vector for each row."""
        if self.pooler is None:
            vectors = mean_of_tokens(self.encoder(inputs), sequences(inputs))
        else:
            vectors = self.pooler(self.encoder(inputs, positions=first_positions(inputs)))
        return ops.normalize(ops.cast(vectors, "float32"), axis=-1)
