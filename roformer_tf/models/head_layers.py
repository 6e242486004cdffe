"""The layers of the heads: language model, classifiers, conditional random field, pooler.

Axes: B batch, T tokens, H hidden size, E embedding size, V vocabulary, C labels.
"""

from typing import Any

import keras
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels.crf import sequence_losses
from roformer_tf.kernels.cross_entropy import token_losses
from roformer_tf.kernels.dense import product_with_rows
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.layers.transformer import activation, dense, norm


class MaskedLMHead(layers.Layer):
    """dense → activation → norm → product with the word embeddings, plus a bias (tied decoder).

    RoFormerV2 has only the product, with dropout before it.
    Axes: E embedding size, V vocabulary. Call: hidden (…, H), word embeddings (V, E)
    → logits (…, V) float32.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        policy, size = self.dtype_policy, config.embedding_size
        self.drop: Dropout | None = None
        if config.is_v2:
            if size != config.hidden_size:
                raise InputError(
                    f"embedding_size is {size} and hidden_size {config.hidden_size}, but a "
                    "RoFormerV2 multiplies hidden states by word embeddings. Make them equal."
                )
            self.drop = Dropout(config.hidden_dropout_prob, dtype=policy)
            return
        self.transform_dense = dense(config, config.hidden_size, size, "dense", policy)
        self.activation = activation(config)
        self.transform_norm = norm(config, "norm", policy)

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        self.bias = None
        if self.config.is_v2:
            return
        self.transform_dense.build((None, self.config.hidden_size))
        self.transform_norm.build((None, self.config.embedding_size))
        self.bias = self.add_weight(
            (self.config.vocab_size,), initializer="zeros", name="bias", autocast=False
        )

    def transform(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        """The input of the decoder: hidden (…, H) → (…, E)."""
        if self.drop is not None:
            return self.drop(hidden, training=training)
        return self.transform_norm(self.activation(self.transform_dense(hidden)))

    def call(self, hidden: Tensor, word_embeddings: Tensor, training: bool | None = None) -> Tensor:
        """Score every token of the vocabulary."""
        x = self.transform(hidden, training=training)
        logits = product_with_rows(x, ops.cast(word_embeddings, x.dtype))
        # The sum with the bias, and the softmax of the caller, need float32.
        logits = ops.cast(logits, wide(x))
        if self.bias is not None:
            logits = logits + ops.cast(self.bias, logits.dtype)
        return ops.cast(logits, "float32")

    def token_losses(
        self,
        hidden: Tensor,
        word_embeddings: Tensor,
        labels: Tensor,
        training: bool | None = None,
        chunks: int = 1,
    ) -> Tensor:
        """Cross-entropy of each label, in nats: hidden (B, P, H), labels (B, P) → (B, P) float32.

        With several chunks along P, only the logits of one are in memory; they are computed again
        for the gradients.
        """
        x = self.transform(hidden, training=training)
        # Copies instead of variables: see `recomputed`.
        bias = None if self.bias is None else ops.copy(self.bias)
        return token_losses(x, ops.copy(word_embeddings), bias, labels, chunks)


def head_dense(config: RoFormerConfig, units: int, name: str, dtype: Any) -> layers.Dense:
    """The dense layer of a head, which also has a bias in RoFormerV2."""
    initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    return layers.Dense(units, kernel_initializer=initializer, name=name, dtype=dtype)


class Pooler(layers.Layer):
    """One dense layer on the first token, without activation: hidden (B, T, H) → (B, H) float32."""

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = config.hidden_size
        self.dense = head_dense(config, config.hidden_size, "dense", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        self.dense.build((None, self.hidden_size))

    def call(self, hidden: Tensor) -> Tensor:
        """A vector for each sequence."""
        return ops.cast(self.dense(hidden[:, 0]), "float32")


def mean_of_tokens(hidden: Tensor, sequence_ids: Tensor) -> Tensor:
    """Mean over the tokens that are not padding: (B, T, H), (B, T) int → (B, H).

    Sums are float32 at least.
    """
    weights = ops.cast(sequence_ids != 0, wide(hidden))[..., None]
    # Padding has the weight 0; a sequence of padding only is divided by 1, not by 0.
    total = ops.sum(ops.cast(hidden, weights.dtype) * weights, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(weights, axis=1), 1.0), hidden.dtype)


class ConditionalRandomField(layers.Layer):
    """Transition scores of a linear-chain conditional random field, in float32.

    Weights: `start_transitions` (C,), `transitions` (C, C) from each label to each next one,
    `end_transitions` (C,). Call: logits (B, T, C), labels (B, T) → losses (B, T) of
    `kernels.crf.sequence_losses`.
    """

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.num_labels = num_labels

    def build(self, input_shape: Any = None) -> None:
        """Create the weights, all 0: at first all sequences of labels have the same score."""
        count = self.num_labels
        self.start = self.add_weight((count,), "zeros", name="start_transitions")
        self.transitions = self.add_weight((count, count), "zeros", name="transitions")
        self.end = self.add_weight((count,), "zeros", name="end_transitions")

    def call(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The negative log-likelihood of the labels of each sequence, divided among its tokens."""
        weights = (ops.convert_to_tensor(x) for x in (self.start, self.transitions, self.end))
        return sequence_losses(logits, labels, *weights)


class TextClassifier(layers.Layer):
    """Pool, then drop → dense → activation → drop → out_proj ("cls") or drop → out_proj ("mean").

    Call: hidden (B, T, H), sequence_ids (B, T), 0 for padding → logits (B, C) float32.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.of_first = config.hidden_size, config.pooling == "cls"
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        if self.of_first:
            self.dense = head_dense(config, config.hidden_size, "dense", self.dtype_policy)
            self.activation = activation(config)
        self.out_proj = head_dense(config, config.num_labels, "out_proj", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        if self.of_first:
            self.dense.build((None, self.hidden_size))
        self.out_proj.build((None, self.hidden_size))

    def call(self, hidden: Tensor, sequence_ids: Tensor, training: bool | None = None) -> Tensor:
        """Logits of the labels for each text."""
        if self.of_first:
            x = self.activation(self.dense(self.drop(hidden[:, 0], training=training)))
        else:
            x = mean_of_tokens(hidden, sequence_ids)
        return ops.cast(self.out_proj(self.drop(x, training=training)), "float32")
