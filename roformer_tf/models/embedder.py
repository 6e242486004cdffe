"""SentenceEmbedder: rows of tokens in, a vector of each row out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from keras import ops

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.sources import Checkpoint
from roformer_tf.checkpoints.whitening import Whitening
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.pooling import Pooler
from roformer_tf.models.sentence_embedding import RoFormerForSentenceEmbedding, pooled


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
    def whole_size(self) -> int:
        """Numbers of a vector that is not cut."""
        if self.whitening is not None:
            return self.whitening.matrix.shape[1]
        return self.encoder.config.hidden_size

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.dimensions or self.whole_size

    def raw(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give what the pooling makes of each row, neither whitened, cut nor made one long.

        (B, H) float32: what losses that look at lengths need, and whitening is learnt from.
        """
        return pooled(self.encoder, self.pooler, self.pooling, inputs, training)

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Give a vector of length 1 for each row."""
        return self.finished(self.raw(inputs, training))

    def finished(self, vectors: Tensor) -> Tensor:
        """Whiten what `raw` gave, cut it, and make it one long: (B, H) → (B, D)."""
        if self.whitening is not None:
            vectors = ops.matmul(vectors - self.whitening.mean, self.whitening.matrix)
        return ops.normalize(vectors[:, : self.size], axis=-1)


class RawEmbedder(keras.Model):
    """What the pooling of an embedder gives, and no more: the encoder's dict → (B, H) float32."""

    def __init__(self, embedder: SentenceEmbedder, name: str = "raw_embedder") -> None:
        super().__init__(name=name)
        self.embedder = embedder
        self.built = True

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Give what whitening is learnt from."""
        return self.embedder.raw(inputs)


def load_embedder(
    checkpoint: Checkpoint,
    source: Path,
    pooling: Pooling,
    attention_type: str,
    dimensions: int | None = None,
    whitening: Whitening | None = None,
    dtype: Any = None,
) -> SentenceEmbedder:
    """Make an embedder of a checkpoint's encoder and, where it is needed, its pooler.

    `source` is where the checkpoint lies, for messages. Raises InputError as `from_pretrained`.
    """
    config = checkpoint.config.replace(attention_type=attention_type, pooling=pooling)
    held = ("encoder", "pooler") if pooling == "pooler" else ("encoder",)
    arrays = checkpoint.arrays.of_parts(*held)
    model = RoFormerForSentenceEmbedding.from_arrays(config, arrays, source, dtype)
    return SentenceEmbedder(model.encoder, model.pooler, pooling, dimensions, whitening)
