"""What a RoFormer is stacked from: its embeddings and one post-norm layer (BERT's, rotated).

Axes: B batch, T length, E embedding size, H hidden size, F intermediate size.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.gelu import gelu
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.rotary import Tensor


class RoFormerEmbeddings(layers.Layer):
    """Word + segment → norm → dropout, then a projection where E differs from H.

    There is no position embedding: positions enter in the attention alone.
    Call: token_ids, segment_ids (B, T) int32 → (B, T, H) in the compute dtype.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        size = config.embedding_size
        initializer = _initializer(config)
        self.word = layers.Embedding(
            config.vocab_size, size, initializer, name="word", dtype=self.dtype_policy
        )
        self.segment = layers.Embedding(
            config.type_vocab_size, size, initializer, name="segment", dtype=self.dtype_policy
        )
        self.norm = norm(config, "norm", self.dtype_policy)
        self.drop = layers.Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.projection = None
        if size != config.hidden_size:
            self.projection = dense(config, config.hidden_size, "projection", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        size = self.word.output_dim
        self.word.build()
        self.segment.build()
        self.norm.build((None, None, size))
        if self.projection is not None:
            self.projection.build((None, None, size))

    def call(self, token_ids: Tensor, segment_ids: Tensor, training: bool | None = None) -> Tensor:
        """Embed a batch of rows."""
        x = self.norm(self.word(token_ids) + self.segment(segment_ids))
        x = self.drop(x, training=training)
        return x if self.projection is None else self.projection(x)


class RoFormerLayer(layers.Layer):
    """norm(x + drop(attention(x))), then norm(x + drop(feed_forward(x))).

    Call: x (B, T, H), visible (B, T, T) bool, query before key → (B, T, H).
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.hidden_size, self.intermediate_size = config.hidden_size, config.intermediate_size
        self.attention = RotaryMultiHeadAttention(
            config.num_attention_heads,
            config.head_size,
            dropout=config.attention_probs_dropout_prob,
            rotary_style=config.rotary_style,
            rotary_base=config.rotary_base,
            kernel_initializer=_initializer(config),
            name="attention",
            dtype=policy,
        )
        self.attention_drop = layers.Dropout(config.hidden_dropout_prob, dtype=policy)
        self.attention_norm = norm(config, "attention_norm", policy)
        self.intermediate = dense(
            config, config.intermediate_size, "intermediate", policy, activation(config)
        )
        self.output_dense = dense(config, config.hidden_size, "output", policy)
        self.output_drop = layers.Dropout(config.hidden_dropout_prob, dtype=policy)
        self.output_norm = norm(config, "output_norm", policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        hidden = (None, None, self.hidden_size)
        self.attention.build(hidden, hidden)
        self.attention_norm.build(hidden)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.intermediate_size))
        self.output_norm.build(hidden)

    def call(self, x: Tensor, visible: Tensor, training: bool | None = None) -> Tensor:
        """Let every token look at those it may see, then at itself."""
        attended = self.attention(x, x, attention_mask=visible, training=training)
        x = self.attention_norm(x + self.attention_drop(attended, training=training))
        fed = self.output_dense(self.intermediate(x))
        return self.output_norm(x + self.output_drop(fed, training=training))


def activation(config: RoFormerConfig) -> Callable[[Tensor], Tensor]:
    """The function that `hidden_act` names: "gelu" is the exact one."""
    functions = {
        "gelu": gelu,
        "gelu_new": lambda x: keras.activations.gelu(x, approximate=True),
        "relu": keras.activations.relu,
    }
    return functions[config.hidden_act]


def dense(
    config: RoFormerConfig,
    units: int,
    name: str,
    dtype: Any,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> layers.Dense:
    """A dense layer with BERT's initializer."""
    return layers.Dense(
        units, activation, kernel_initializer=_initializer(config), name=name, dtype=dtype
    )


def norm(config: RoFormerConfig, name: str, dtype: Any) -> layers.LayerNormalization:
    """A layer norm over the features, float32 inside."""
    return layers.LayerNormalization(epsilon=config.layer_norm_eps, name=name, dtype=dtype)


def _initializer(config: RoFormerConfig) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)
