"""The embeddings and the post-norm layer of RoFormer: BERT's, with rotary positions.

RoFormerV2 has no biases, norms without weights, and another initialization.

Axes: B batch, T length, E embedding size, H hidden size, F intermediate size.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.cache import Past
from roformer_tf.kernels.dense import affine, gelu, layer_norm, mean
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.layers.masks import gather_positions
from roformer_tf.layers.positions import added_positions
from roformer_tf.layers.self_attention import RoFormerSelfAttention


class Dense(layers.Dense):
    """Keras' layer with `kernels/dense.py`: (…, D) → (…, units) in the compute dtype."""

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Quantize like Keras' layer. The quantized call replaces the one of this class."""
        # Keras refuses subclasses by default, because their call could do something else.
        super().quantize(*arguments, **settings | {"type_check": False})

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Multiply, add, activate."""
        bias = None if self.bias is None else ops.cast(self.bias, inputs.dtype)
        x = affine(inputs, ops.cast(self.kernel, inputs.dtype), bias, training)
        return x if self.activation is None else self.activation(x)


class LayerNorm(layers.LayerNormalization):
    """Keras' layer, in training with `kernels/dense.py`.

    Call: x (…, H) → (…, H) in the compute dtype; at least float32 inside.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Normalize every vector to the mean beta and the standard deviation gamma."""
        x = ops.cast(inputs, self.compute_dtype)
        return layer_norm(x, self.gamma, self.beta, self.epsilon, training)


class RMSNorm(layers.Layer):
    """x / √(mean of x² + ε) over the last axis: RoFormerV2's norm, which has no weights.

    Call: x (…, H) → (…, H) in x's dtype; at least float32 inside.
    """

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def call(self, x: Tensor) -> Tensor:
        """Normalize every vector to the mean square 1."""
        y = ops.cast(x, wide(x))  # in bfloat16 a sum of H squares would have two digits
        scale = ops.rsqrt(mean(ops.square(y)) + self.epsilon)
        return ops.cast(y * scale, x.dtype)

    def get_config(self) -> dict[str, Any]:
        """All arguments, to create the layer again."""
        return super().get_config() | {"epsilon": self.epsilon}


class RoFormerEmbeddings(layers.Layer):
    """Word + segment → norm → dropout, then a projection if E differs from H.

    RoFormerV2 drops before the norm. Positions are added only for some types of
    `position_embedding_type`; rotary positions enter in the attention.
    Call: token_ids, segment_ids (B, T) int32, positions ([B,] T) int32 in their documents, which
    only those types use → (B, T, H) in the compute dtype.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy, size = self.dtype_policy, config.embedding_size
        self.drops_first = config.is_v2  # as in its released code (bert4keras, RoFormerV2)
        self.word, self.segment = (
            layers.Embedding(tokens, size, _initializer(config, size), name=name, dtype=policy)
            for name, tokens in (("word", config.vocab_size), ("segment", config.type_vocab_size))
        )
        words = self.word.embeddings_initializer
        self.position = added_positions(config, words, policy)
        self.norm = norm(config, "norm", policy)
        self.drop = Dropout(config.hidden_dropout_prob, dtype=policy)
        self.projection = None
        if size != config.hidden_size:
            self.projection = dense(config, size, config.hidden_size, "projection", policy)

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        size = self.word.output_dim
        self.word.build()
        self.segment.build()
        if self.position is not None:
            self.position.build((None, None))
        self.norm.build((None, None, size))
        if self.projection is not None:
            self.projection.build((None, None, size))

    def words(self) -> Tensor:
        """The vectors of all words (V, E); quantized ones are converted by a look-up."""
        if self.word.quantization_mode is None:
            return self.word.embeddings
        # A quantized table has integers and scales; the look-up of all ids combines them.
        return self.word(ops.arange(self.word.input_dim, dtype="int32"))

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embed a batch of sequences."""
        x = self.word(token_ids) + self.segment(segment_ids)
        x = x if self.position is None else x + self.position(positions)
        if self.drops_first:
            x = self.norm(self.drop(x, training=training))
        else:
            x = self.drop(self.norm(x), training=training)
        return x if self.projection is None else self.projection(x)


class RoFormerLayer(layers.Layer):
    """norm(x + drop(attention(x))), then norm(x + drop(feed_forward(x))).

    Call: x (B, T, H), visible (B, T, T) bool, query before key → (B, T, H). With positions (B, P)
    int, only the outputs there are computed → (B, P, H). If visible is a band (B, M, C, K),
    attention is local. A bias (1, N, T, T), or (1, N, C, K), is added to the scores. With `past`, x
    are tokens after those in its cache, visible is (B, T, S) for all slots, and bias (B, N, T, S).
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.hidden_size, self.intermediate_size = config.hidden_size, config.intermediate_size
        self.attention = RoFormerSelfAttention(
            config.num_attention_heads,
            config.head_size,
            dropout=config.attention_probs_dropout_prob,
            rotary_style=config.rotary_style,
            rotary_base=config.rotary_base,
            rotary_share=config.rotated_fraction,
            rotary_value=config.rotary_value,
            rope_parameters=config.rope_parameters,
            use_logn_attn=config.use_logn_attn,
            trained_length=config.trained_length or config.max_position_embeddings,
            use_bias=config.use_bias,
            kernel_initializer=_initializer(config, config.hidden_size),
            name="attention",
            dtype=policy,
        )
        self.attention_drop = Dropout(config.hidden_dropout_prob, dtype=policy)
        self.attention_norm = norm(config, "attention_norm", policy)
        hidden, inner = config.hidden_size, config.intermediate_size
        self.intermediate = dense(config, hidden, inner, "intermediate", policy)
        self.activation = activation(config)
        self.output_dense = dense(config, inner, hidden, "output", policy)
        self.output_drop = Dropout(config.hidden_dropout_prob, dtype=policy)
        self.output_norm = norm(config, "output_norm", policy)

    def build(self, input_shape: Any = None) -> None:
        """Create all weights; the shapes depend only on the config."""
        hidden = (None, None, self.hidden_size)
        self.attention.build(hidden, hidden)
        self.attention_norm.build(hidden)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.intermediate_size))
        self.output_norm.build(hidden)

    def call(
        self,
        x: Tensor,
        visible: Tensor,
        positions: Tensor | None = None,
        training: bool | None = None,
        past: Past | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Self-attention, then the feed-forward network."""
        attended = self.attention(
            x, attention_mask=visible, positions=positions, training=training, past=past, bias=bias
        )
        x = x if positions is None else gather_positions(x, positions)
        # Post-norm, as in BERT: the norm is applied to the sum (arXiv 1810.04805, released code).
        x = self.attention_norm(self.attention_drop.add(x, attended, training))
        flat = ops.reshape(x, (-1, self.hidden_size))  # TensorFlow fuses product, bias and GELU
        fed = self.output_dense(self.activation(self.intermediate(flat), training))
        fed = ops.reshape(fed, ops.shape(x))
        return self.output_norm(self.output_drop.add(x, fed, training))


def recomputed(
    layer: RoFormerLayer,
    x: Tensor,
    visible: Tensor,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The layer's output in training; the backward pass computes its intermediate results again.

    Only x (B, T, H) and the output are stored, at the cost of about a third more time. Weights and
    the seeds of dropout are passed as values, so that both passes have the same dropout masks:
    `keras.remat` of the layer itself fails on TensorFlow and on JAX.
    """
    # Copies: TensorFlow would count a variable's gradient twice, and read its seed too late.
    weights = [ops.copy(variable) for variable in layer.trainable_variables]
    before = [ops.copy(variable) for variable in layer.non_trainable_variables]

    biases = () if bias is None else (bias,)  # also passed as a value, because it has a gradient

    def call(x: Tensor, *values: Tensor) -> Any:
        # `values` are the bias, if any, then the weights, in the order of the call below.
        options = {"bias": values[0]} if biases else {}
        weights, inputs = list(values[len(biases) :]), (x, visible, positions)
        return layer.stateless_call(weights, before, *inputs, training=True, **options)

    y, after = keras.remat(call)(x, *biases, *weights)
    # The seeds of dropout advance, so that the next step draws other masks.
    for variable, value in zip(layer.non_trainable_variables, after, strict=True):
        variable.assign(value)
    return y


def activation(config: RoFormerConfig) -> Callable[..., Tensor]:
    """The activation `hidden_act` of the config, a function of x and `training`."""
    functions = {
        "gelu": gelu,
        "gelu_new": lambda x, training=None: keras.activations.gelu(x, approximate=True),
        "relu": lambda x, training=None: keras.activations.relu(x),
    }
    return functions[config.hidden_act]


def dense(config: RoFormerConfig, features: int, units: int, name: str, dtype: Any) -> Dense:
    """A dense layer (…, features) → (…, units) with the architecture's initializer and biases."""
    return Dense(
        units,
        use_bias=config.use_bias,
        kernel_initializer=_initializer(config, features),
        name=name,
        dtype=dtype,
    )


def norm(config: RoFormerConfig, name: str, dtype: Any) -> layers.Layer:
    """The norm of the architecture, float32 inside."""
    if config.norm_type == "rms_norm":
        return RMSNorm(config.layer_norm_eps, name=name, dtype=dtype)
    return LayerNorm(epsilon=config.layer_norm_eps, name=name, dtype=dtype)


def _initializer(config: RoFormerConfig, features: int) -> keras.initializers.Initializer:
    """BERT's truncated normal. RoFormerV2 scales it by the size of the input and the depth.

    Its published code has 1.13684723 / √(features · layers): 1.13684723 is the inverse of the
    standard deviation of a normal distribution truncated at two.
    """
    if not config.is_v2:
        return keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    deviation = 1.13684723 / math.sqrt(features * config.num_hidden_layers)
    return keras.initializers.TruncatedNormal(stddev=deviation)
