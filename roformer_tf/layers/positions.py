"""Position encodings other than rotary: added to the embeddings, or a bias of the scores.

`position_embedding_type` chooses: "learned" (BERT, arXiv 1810.04805), "sinusoidal" (Transformer,
arXiv 1706.03762, section 3.5), "t5" (arXiv 1910.10683, section 2.1), or none at all.

Axes: B batch, T queries, S keys, N heads, E features, P positions that a table has, K buckets.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor


def document_positions(sequence_ids: Tensor) -> Tensor:
    """The position of each token in its document: (B, T) int → (B, T) int32, from 0 on.

    A document is a run of equal ids. Rotation and bias depend on distances only and do not need
    this; added encodings would otherwise depend on where a document is in a packed sequence.
    """
    batch, length = ops.shape(sequence_ids)
    before = ops.roll(sequence_ids, 1, axis=1)
    index = ops.broadcast_to(ops.arange(length, dtype="int32"), (batch, length))
    begins = (sequence_ids != before) | (index == 0)
    # All sequences concatenated: each token's document number, and where that document begins.
    document = ops.cumsum(ops.reshape(ops.cast(begins, "int32"), (-1,))) - 1
    start = ops.reshape(ops.where(begins, index, 0), (-1,))
    start = ops.segment_max(start, document, batch * length)
    return index - ops.reshape(ops.take(start, document), (batch, length))


class LearnedPositions(layers.Embedding):
    """BERT's table: a vector for each of P positions.

    Call: positions ([B,] T) int → ([B,] T, E) in the compute dtype. Raises InputError for rows that
    are longer than the table, if their length is known.
    """

    def call(self, inputs: Tensor) -> Tensor:
        """Look the vectors up."""
        length = inputs.shape[-1]
        if isinstance(length, int) and length > self.input_dim:
            raise InputError(
                f"the rows are {length:,} tokens long, but the model has learned "
                f"{self.input_dim:,} positions (max_position_embeddings). Give shorter rows; "
                "rotary positions have no such limit."
            )
        return super().call(inputs)


class SinusoidalPositions(layers.Layer):
    """sin and cos of n · 10000^(−2i/E), neighbours of each other: a table without weights.

    Call: positions ([B,] T) int → ([B,] T, E) in the compute dtype, divided by √E: the Transformer
    multiplies its word embeddings by √E before it adds, which is the same under the
    norm that follows here, and leaves the word embeddings as in all other models.
    """

    def __init__(self, features: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = features

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the vectors."""
        pairs = np.arange(0, self.features, 2, dtype="float64") / self.features
        theta = ops.cast(inputs, "float32")[..., None] * (10_000.0**-pairs).astype("float32")
        table = ops.stack([ops.sin(theta), ops.cos(theta)], axis=-1)
        # with an odd number of features there is no last cosine
        table = ops.reshape(table, (*ops.shape(inputs), -1))[..., : self.features]
        return ops.cast(table / math.sqrt(self.features), self.compute_dtype)


class RelativeBias(layers.Layer):
    """T5's bias of each head for each bucket of distances, one table for all layers.

    Call: rows (B, T) of anything → (1, N, T, T), to be added to their scores, query before key, in
    the compute dtype. `bidirectional`: whether the two directions have buckets of their own;
    without, all later tokens are in the bucket of distance 0.
    """

    def __init__(
        self,
        heads: int,
        buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads, self.buckets, self.max_distance = heads, buckets, max_distance
        self.bidirectional, self.initializer = bidirectional, initializer

    def build(self, input_shape: Any = None) -> None:
        """Make the table."""
        self.embeddings = self.add_weight(
            (self.buckets, self.heads), self.initializer, name="embeddings"
        )

    def call(self, inputs: Tensor) -> Tensor:
        """The bias between all tokens of a sequence."""
        length = ops.shape(inputs)[1]
        distances = ops.arange(2 * length - 1) - (length - 1)  # key minus query
        x = ops.transpose(self._of(distances))  # (N, 2T − 1)
        # y[t, s] = x[s − t + T − 1] without a lookup, whose gradient would add up T² numbers one by
        # one: rows of 2T, cut into rows of 2T − 1, each begin one further to the left.
        x = ops.pad(x, [(0, 0), (0, 1)])
        x = ops.reshape(ops.tile(x[:, None], (1, length, 1)), (self.heads, -1))
        x = ops.reshape(x[:, : length * (2 * length - 1)], (self.heads, length, -1))
        return x[None, :, :, length - 1 :]

    def of_band(self, rows: int, keys: int) -> Tensor:
        """The bias between a block of C queries and its K keys: (1, N, C, K)."""
        return self.between(ops.arange(rows)[None], ops.arange(-rows, keys - rows)[None])

    def between(self, query: Tensor, key: Tensor) -> Tensor:
        """The bias between tokens at positions (B, T) and (B, S) int: (B, N, T, S)."""
        return ops.transpose(self._of(key[:, None, :] - query[:, :, None]), (0, 3, 1, 2))

    def _of(self, distances: Tensor) -> Tensor:
        """Distances (…) int → the biases (…, N)."""
        bucket = relative_bucket(distances, self.buckets, self.max_distance, self.bidirectional)
        return ops.take(ops.cast(self.embeddings, self.compute_dtype), bucket, axis=0)


def relative_bucket(
    distances: Tensor, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """The bucket of each distance, key minus query: (…) int → (…) int32, 0 to K − 1.

    Half of a direction's buckets hold one distance each, the others up to `max_distance` ever more,
    and the last all that is further.
    """
    bucket = ops.zeros_like(ops.cast(distances, "int32"))
    if bidirectional:
        buckets //= 2
        bucket = ops.where(distances > 0, buckets, bucket)
        away = ops.abs(distances)
    else:
        away = ops.maximum(-distances, 0)
    bounds = _lower_bounds(buckets, max_distance)
    near = ops.sum(ops.cast(away[..., None] >= bounds, "int32"), axis=-1)
    return ops.cast(bucket + near, "int32")


def _lower_bounds(buckets: int, max_distance: int) -> np.ndarray:
    """The least distance of each of a direction's buckets but the first, (K − 1,) int32.

    exact + ⌊log(d / exact) / log(max / exact) · (K − exact)⌋, in integers: where the logarithms'
    ratio is a whole number, floating-point numbers might fall short of it.
    """
    exact = buckets // 2
    wide = buckets - exact
    bounds = list(range(1, exact + 1))
    distance = exact
    for step in range(1, wide):
        # the least d with (d / exact)^wide ≥ (max / exact)^step
        distance = max(distance, int(exact * (max_distance / exact) ** (step / wide)) - 1)
        while distance**wide < max_distance**step * exact ** (wide - step):
            distance += 1
        bounds.append(distance)
    return np.array(bounds, "int32")


def added_positions(config: RoFormerConfig, words: Any, dtype: Any) -> layers.Layer | None:
    """The layer that encodes positions ([B,] T) int for the embeddings, or None.

    words: the initializer of the word embeddings.
    """
    size = config.embedding_size
    if config.position_embedding_type == "learned":
        table = (config.max_position_embeddings, size)
        return LearnedPositions(*table, _beside(words), name="position", dtype=dtype)
    if config.position_embedding_type == "sinusoidal":
        return SinusoidalPositions(size, name="position", dtype=dtype)
    return None


def relative_bias(config: RoFormerConfig, words: Any, dtype: Any) -> RelativeBias | None:
    """The layer that gives a bias of the scores by distance, or None; words: as above."""
    if config.position_embedding_type != "t5":
        return None
    return RelativeBias(
        config.num_attention_heads,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
        config.attention_type != "causal",
        _beside(words),
        name="relative_attention_bias",
        dtype=dtype,
    )


def _beside(words: Any) -> keras.initializers.Initializer:
    """The words' initializer with another seed, not drawn from where all others are.

    So models with other position encodings start with the same weights, apart from this table.
    """
    return keras.initializers.TruncatedNormal(stddev=words.stddev, seed=words.seed + 1)
