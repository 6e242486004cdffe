"""What a RoFormer is stacked from: its embeddings and one post-norm layer (BERT's, rotated).

RoFormerV2 is the same without biases, with norms that have no weights, and new initial weights.

Axes: B batch, T length, E embedding size, H hidden size, F intermediate size.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.kernels.attention import PackedMask
from roformer_tf.kernels.cache import Past
from roformer_tf.kernels.dense import affine, gelu, layer_norm
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.layers.masks import gather_positions
from roformer_tf.layers.positions import added_positions
from roformer_tf.layers.self_attention import RoFormerSelfAttention


class Dense(layers.Dense):
    """Keras' layer by `kernels/dense.py`: (…, D) → (…, units) in the compute dtype."""

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Quantize as Keras does its own layer, whose call then takes the place of this one's."""
        # Keras refuses subclasses, whose call it does not know; `quantize` replaces this one's.
        super().quantize(*arguments, **settings | {"type_check": False})

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Multiply, add, activate."""
        bias = None if self.bias is None else ops.cast(self.bias, inputs.dtype)
        x = affine(inputs, ops.cast(self.kernel, inputs.dtype), bias, training)
        return x if self.activation is None else self.activation(x)


class LayerNorm(layers.LayerNormalization):
    """Keras' layer, in training by `kernels/dense.py`.

    Call: x (…, H) → (…, H) in the compute dtype; at least float32 inside.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Give every vector the mean beta and the deviation gamma."""
        x = ops.cast(inputs, self.compute_dtype)
        return layer_norm(x, self.gamma, self.beta, self.epsilon, training)


class RMSNorm(layers.Layer):
    """x / √(mean of x² + ε) over the features: RoFormerV2's norm, which has no weights.

    Call: x (…, H) → (…, H) in x's dtype; at least float32 inside.
    """

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def call(self, x: Tensor) -> Tensor:
        """Give every vector the mean square 1."""
        y = ops.cast(x, wide(x))  # a sum of H squares in bfloat16 would keep two digits
        scale = ops.rsqrt(ops.mean(ops.square(y), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(y * scale, x.dtype)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the layer again."""
        return super().get_config() | {"epsilon": self.epsilon}


class RoFormerEmbeddings(layers.Layer):
    """Word + segment → norm → dropout, then a projection where E differs from H.

    RoFormerV2 drops before the norm.

    There is no position embedding, for positions enter in the attention alone, unless
    `position_embedding_type` says that they are added.
    Call: token_ids, segment_ids (B, T) int32, places ([B,] T) int32 in their documents, which those
    alone ask for → (B, T, H) in the compute dtype.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        size = config.embedding_size
        self.drops_first = config.is_v2  # so has its released code (bert4keras, RoFormerV2)
        self.word, self.segment = (
            layers.Embedding(
                tokens, size, _initializer(config, size), name=name, dtype=self.dtype_policy
            )
            for name, tokens in (("word", config.vocab_size), ("segment", config.type_vocab_size))
        )
        words = self.word.embeddings_initializer
        self.position = added_positions(config, words, self.dtype_policy)
        self.norm = norm(config, "norm", self.dtype_policy)
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.projection = None
        if size != config.hidden_size:
            self.projection = dense(
                config, size, config.hidden_size, "projection", self.dtype_policy
            )

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        size = self.word.output_dim
        self.word.build()
        self.segment.build()
        if self.position is not None:
            self.position.build((None, None))
        self.norm.build((None, None, size))
        if self.projection is not None:
            self.projection.build((None, None, size))

    def words(self) -> Tensor:
        """The vectors of all words (V, E); of quantized ones what a lookup gives."""
        if self.word.quantization_mode is None:
            return self.word.embeddings
        return self.word(ops.arange(self.word.input_dim))

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        places: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Embed a batch of rows."""
        x = self.word(token_ids) + self.segment(segment_ids)
        x = x if self.position is None else x + self.position(places)
        if self.drops_first:
            x = self.norm(self.drop(x, training=training))
        else:
            x = self.drop(self.norm(x), training=training)
        return x if self.projection is None else self.projection(x)


class RoFormerLayer(layers.Layer):
    """norm(x + drop(attention(x))), then norm(x + drop(feed_forward(x))).

    Call: x (B, T, H), visible (B, T, T) bool, query before key → (B, T, H); given positions (B, P)
    int, only there → (B, P, H), for the work that this takes. Where visible is a band (B, M, C, K),
    the layer looks at what is near alone. A bias (1, N, T, T), or (1, N, C, K), is added to the
    scores. With `past`, x are tokens behind those that it holds, visible is (B, T, S) of all its
    slots, and bias (B, N, T, S).
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
        """Make all weights; shapes come from the config alone."""
        hidden = (None, None, self.hidden_size)
        self.attention.build(hidden, hidden)
        self.attention_norm.build(hidden)
        self.intermediate.build(hidden)
        self.output_dense.build((None, None, self.intermediate_size))
        self.output_norm.build(hidden)

    def call(
        self,
        x: Tensor,
        visible: Tensor | PackedMask,
        positions: Tensor | None = None,
        training: bool | None = None,
        past: Past | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Let every token look at those it may see, then at itself."""
        local = not isinstance(visible, PackedMask) and len(visible.shape) == 4
        attended = self.attention(
            *(x, x),
            attention_mask=None if local else visible,
            band=visible if local else None,
            positions=positions,
            training=training,
            past=past,
            bias=bias,
        )
        x = x if positions is None else gather_positions(x, positions)
        # Post-norm, as BERT has it: the norm is of the sum (arXiv 1810.04805, released code).
        x = self.attention_norm(self.attention_drop.add(x, attended, training))
        flat = ops.reshape(x, (-1, self.hidden_size))  # TensorFlow joins product, bias and GELU
        fed = self.output_dense(self.activation(self.intermediate(flat), training))
        fed = ops.reshape(fed, ops.shape(x))
        return self.output_norm(self.output_drop.add(x, fed, training))


def recomputed(
    layer: RoFormerLayer,
    x: Tensor,
    visible: Tensor | PackedMask,
    positions: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """What the layer gives in training, but the backward pass computes its inside anew.

    Kept are x (B, T, H) and what comes out: memory for about a third more time. Weights and
    dropout's seeds go in as values, so that both passes drop the same: a layer given whole to
    `keras.remat` fails on TensorFlow and on JAX.
    """
    # Copies: TensorFlow would count a variable's gradient twice, and read its seed too late.
    weights = [ops.copy(variable) for variable in layer.trainable_variables]
    before = [ops.copy(variable) for variable in layer.non_trainable_variables]

    biases = () if bias is None else (bias,)  # a value, too: it has a gradient

    def call(x: Tensor, *values: Tensor) -> Any:
        given = {"bias": values[0]} if biases else {}
        weights, rows = list(values[len(biases) :]), (x, visible, positions)
        return layer.stateless_call(weights, before, *rows, training=True, **given)

    y, after = keras.remat(call)(x, *biases, *weights)
    for variable, value in zip(layer.non_trainable_variables, after, strict=True):
        variable.assign(value)
    return y


def activation(config: RoFormerConfig) -> Callable[..., Tensor]:
    """The function that `hidden_act` names, of x and of whether it is training.

    "gelu" is the exact one.
    """
    functions = {
        "gelu": gelu,
        "gelu_new": lambda x, training=None: keras.activations.gelu(x, approximate=True),
        "relu": lambda x, training=None: keras.activations.relu(x),
    }
    return functions[config.hidden_act]


def dense(
    config: RoFormerConfig,
    features: int,
    units: int,
    name: str,
    dtype: Any,
    activation: Callable[..., Tensor] | None = None,
) -> Dense:
    """A dense layer (…, features) → (…, units) with the architecture's initializer and biases."""
    return Dense(
        units,
        activation,
        use_bias=config.use_bias,
        kernel_initializer=_initializer(config, features),
        name=name,
        dtype=dtype,
    )


def norm(config: RoFormerConfig, name: str, dtype: Any) -> layers.Layer:
    """The architecture's norm over the features, float32 inside."""
    if config.norm_type == "rms_norm":
        return RMSNorm(config.layer_norm_eps, name=name, dtype=dtype)
    return LayerNorm(epsilon=config.layer_norm_eps, name=name, dtype=dtype)


def _initializer(config: RoFormerConfig, features: int) -> keras.initializers.Initializer:
    """BERT's truncated normal; RoFormerV2 scales it by a weight's features and the depth.

    Its published code gives 1.13684723 / √(features · layers); 1.13684723 is one over the
    standard deviation of a normal cut off at two.
    """
    if not config.is_v2:
        return keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    deviation = 1.13684723 / math.sqrt(features * config.num_hidden_layers)
    return keras.initializers.TruncatedNormal(stddev=deviation)
