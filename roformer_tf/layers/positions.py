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
from roformer_tf.kernels.forms import Tensor


def document_positions(sequence_ids: Tensor) -> Tensor:
    """The position of each token in its document, from 0: (B, T) int → (B, T) int32.

    A document is a run of equal ids. Encodings that are added need these positions, because the
    position of a document in a packed sequence must not matter. Rotation and bias depend on
    distances only.
    """
    batch, length = ops.shape(sequence_ids)
    before = ops.roll(sequence_ids, 1, axis=1)
    index = ops.broadcast_to(ops.arange(length, dtype="int32"), (batch, length))
    # The roll brings the last id to index 0, where a document begins in any case.
    begins = (sequence_ids != before) | (index == 0)
    # All sequences concatenated: each token's document number, and where that document begins.
    document = ops.cumsum(ops.reshape(ops.cast(begins, "int32"), (-1,))) - 1
    start = ops.reshape(ops.where(begins, index, 0), (-1,))
    start = ops.segment_max(start, document, batch * length)
    return index - ops.reshape(ops.take(start, document), (batch, length))


class SinusoidalPositions(layers.Layer):
    """sin and cos of n · 10000^(−2i/E), interleaved: a table without weights.

    Call: positions ([B,] T) int → ([B,] T, E) in the compute dtype, divided by √E. The Transformer
    multiplies its word embeddings by √E instead, which is the same before the norm that follows.
    So the word embeddings are those of all other models.
    """

    def __init__(self, features: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = features

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the vectors."""
        pairs = np.arange(0, self.features, 2, dtype="float64") / self.features
        theta = ops.cast(inputs, "float32")[..., None] * (10_000.0**-pairs).astype("float32")
        table = ops.stack([ops.sin(theta), ops.cos(theta)], axis=-1)
        # If E is odd, the last cosine is dropped.
        table = ops.reshape(table, (*ops.shape(inputs), -1))[..., : self.features]
        return ops.cast(table / math.sqrt(self.features), self.compute_dtype)


class RelativeBias(layers.Layer):
    """T5's bias of each head for each bucket of distances, one table for all layers.

    Call: a tensor (B, T) → (1, N, T, T) in the compute dtype, to be added to the scores, query
    before key. Unless the model is causal, each direction has its own buckets; in a causal model
    all later tokens are in the bucket of distance 0.
    """

    def __init__(self, config: RoFormerConfig, initializer: Any = "zeros", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config, self.initializer = config, initializer

    def build(self, input_shape: Any = None) -> None:
        """Create the table."""
        shape = (self.config.relative_attention_num_buckets, self.config.num_attention_heads)
        self.embeddings = self.add_weight(shape, self.initializer, name="embeddings")

    def call(self, inputs: Tensor) -> Tensor:
        """The bias between all tokens of a sequence."""
        length = ops.shape(inputs)[1]
        # By distance, key minus query: (N, 2T − 1).
        x = ops.transpose(self._of(ops.arange(1 - length, length, dtype="int32")))
        # y[t, s] = x[s − t + T − 1] without a look-up, whose gradient would add T² numbers one by
        # one. T copies of a row of 2T numbers are cut into rows of 2T − 1, so that each row starts
        # one number later.
        x = ops.pad(x, [(0, 0), (0, 1)])
        heads = self.config.num_attention_heads
        x = ops.reshape(ops.tile(x[:, None], (1, length, 1)), (heads, -1))
        x = ops.reshape(x[:, : length * (2 * length - 1)], (heads, length, -1))
        # Column j of row t has x[j − t], so that column s + T − 1 has the distance s − t.
        return x[None, :, :, length - 1 :]

    def of_band(self, rows: int, keys: int) -> Tensor:
        """The bias between a block of C queries and its K keys: (1, N, C, K)."""
        # The keys of a block begin C tokens before its first query: with the previous block.
        key = ops.arange(-rows, keys - rows, dtype="int32")[None]
        return self.between(key[:, rows : 2 * rows], key)

    def between(self, query: Tensor, key: Tensor) -> Tensor:
        """The bias between tokens at positions (B, T) and (B, S) int: (B, N, T, S)."""
        return ops.transpose(self._of(key[:, None, :] - query[:, :, None]), (0, 3, 1, 2))

    def _of(self, distances: Tensor) -> Tensor:
        """Biases of distances: (…) int → (…, N)."""
        config = self.config
        bucket = relative_bucket(
            distances,
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
            config.attention_type != "causal",
        )
        return ops.take(ops.cast(self.embeddings, self.compute_dtype), bucket, axis=0)


def relative_bucket(
    distances: Tensor, buckets: int, max_distance: int, bidirectional: bool
) -> Tensor:
    """The bucket of each distance, key minus query: (…) int → (…) int32, 0 to K − 1.

    Half of the buckets of a direction have one distance each. The others have logarithmically
    growing ranges up to `max_distance`, and the last one has all larger distances.
    """
    bucket = ops.zeros_like(ops.cast(distances, "int32"))
    if bidirectional:
        buckets //= 2
        # Keys after the query have the upper half of the buckets.
        bucket = ops.where(distances > 0, buckets, bucket)
        away = ops.abs(distances)
    else:
        away = ops.maximum(-distances, 0)
    bounds = _lower_bounds(buckets, max_distance)
    # The number of bounds that a distance reaches is its bucket.
    near = ops.sum(ops.cast(away[..., None] >= bounds, "int32"), axis=-1)
    return ops.cast(bucket + near, "int32")


def _lower_bounds(buckets: int, max_distance: int) -> np.ndarray:
    """The smallest distance of each bucket of a direction except the first, (K − 1,) int32.

    exact + ⌊log(d / exact) / log(max / exact) · (K − exact)⌋, computed in integers: if the ratio of
    the logarithms is a whole number, floating-point numbers could be rounded below it.
    """
    exact = buckets // 2
    wide = buckets - exact
    bounds = list(range(1, exact + 1))
    distance = exact
    for step in range(1, wide):
        # the smallest d with (d / exact)^wide ≥ (max / exact)^step
        distance = max(distance, int(exact * (max_distance / exact) ** (step / wide)) - 1)
        while distance**wide < max_distance**step * exact ** (wide - step):
            distance += 1
        bounds.append(distance)
    return np.array(bounds, "int32")


def added_positions(config: RoFormerConfig, words: Any, dtype: Any) -> layers.Layer | None:
    """The layer whose encoding of positions ([B,] T) int is added to the embeddings, or None.

    words: the initializer of the word embeddings.
    """
    size = config.embedding_size
    if config.position_embedding_type == "learned":
        table = (config.max_position_embeddings, size)
        return layers.Embedding(*table, _next_seed(words), name="position", dtype=dtype)
    if config.position_embedding_type == "sinusoidal":
        return SinusoidalPositions(size, name="position", dtype=dtype)
    return None


def relative_bias(config: RoFormerConfig, words: Any, dtype: Any) -> RelativeBias | None:
    """The layer that computes a bias of the scores by distance, or None; words: as above."""
    if config.position_embedding_type != "t5":
        return None
    return RelativeBias(config, _next_seed(words), name="relative_attention_bias", dtype=dtype)


def _next_seed(words: Any) -> keras.initializers.Initializer:
    """The initializer of the word embeddings, with the next seed.

    It draws no seed from Keras, so that models with other position encodings start with the same
    weights, except for this table.
    """
    return keras.initializers.TruncatedNormal(stddev=words.stddev, seed=words.seed + 1)
