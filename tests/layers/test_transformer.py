"""Tests of dropout, initializers and dtypes, which recorded outputs of models do not cover."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.layers.transformer import (
    RMSNorm,
    RoFormerEmbeddings,
    RoFormerLayer,
    activation,
    norm,
)

CONFIG = RoFormerConfig(
    vocab_size=500,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.5,
)
V2 = CONFIG.replace(norm_type="rms_norm", use_bias=False)
EACH_VERSION = pytest.mark.parametrize("config", [CONFIG, V2], ids=["v1", "v2"])
VISIBLE = np.ones((2, 6, 6), bool)


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def max_difference(first, second):
    return np.abs(ops.convert_to_numpy(first) - ops.convert_to_numpy(second)).max()


@EACH_VERSION
@pytest.mark.parametrize("rate", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_each_dropout_of_a_layer_is_active_only_in_training(config, rate):
    x, layer = random(2, 6, 32), RoFormerLayer(config.replace(**{rate: 0.4}))
    assert (
        max_difference(layer(x, VISIBLE, training=True), layer(x, VISIBLE, training=False)) > 0.05
    )
    assert max_difference(layer(x, VISIBLE), layer(x, VISIBLE, training=False)) == 0


def test_attention_dropout_has_the_configured_rate():
    """Uniform attention and one-hot values: the output is the attention weights."""
    rate, size = 0.3, 32
    layer = RoFormerLayer(
        CONFIG.replace(attention_probs_dropout_prob=rate, num_attention_heads=1)
    ).attention
    layer.build((1, size, size), (1, size, size))
    for projection in (layer.query_dense, layer.key_dense):
        projection.kernel.assign(np.zeros(projection.kernel.shape))
    for projection in (layer.value_dense, layer.output_dense):
        projection.kernel.assign(np.eye(size).reshape(projection.kernel.shape))
    x = ops.convert_to_tensor(np.eye(size, dtype="float32")[None])
    weights = size * ops.convert_to_numpy(layer(x, training=True))
    dropped = np.abs(weights) < 1e-6
    assert abs(dropped.mean() - rate) < 0.05
    np.testing.assert_allclose(weights[~dropped], 1 / (1 - rate), rtol=1e-5)


def test_hidden_dropout_follows_attention_and_feed_forward():
    layer = RoFormerLayer(CONFIG.replace(hidden_dropout_prob=0.4))
    assert (layer.attention_drop.rate, layer.output_drop.rate) == (0.4, 0.4)
    x = random(2, 6, 32)
    for drop in (layer.attention_drop, layer.output_drop):
        other = layer.output_drop if drop is layer.attention_drop else layer.attention_drop
        drop.rate, other.rate = 0.4, 0.0
        assert max_difference(layer(x, VISIBLE, training=True), layer(x, VISIBLE)) > 0.05


def test_without_dropout_training_mode_does_not_change_the_output():
    x, layer = random(2, 6, 32), RoFormerLayer(CONFIG)
    # training runs other forms of the same operations: results are equal up to rounding
    assert max_difference(layer(x, VISIBLE, training=True), layer(x, VISIBLE)) < 5e-6


@EACH_VERSION
@pytest.mark.parametrize("embedding_size", [32, 12])
def test_embedding_dropout_is_active_only_in_training(config, embedding_size):
    config = config.replace(embedding_size=embedding_size, hidden_dropout_prob=0.4)
    layer, ids = RoFormerEmbeddings(config), np.arange(12).reshape(2, 6)
    quiet = layer(ids, np.zeros_like(ids))
    assert quiet.shape == (2, 6, 32)
    assert max_difference(layer(ids, np.zeros_like(ids), training=True), quiet) > 0.05


@EACH_VERSION
def test_v2_applies_dropout_before_the_norm_and_v1_after_it(config):
    """Dropped values are 0; after a norm every vector has a mean square of 1."""
    rate = 0.4
    layer = RoFormerEmbeddings(config.replace(hidden_dropout_prob=rate))
    ids = np.arange(400).reshape(20, 20)
    x = ops.convert_to_numpy(layer(ids, np.zeros_like(ids), training=True))
    assert abs((x == 0).mean() - rate) < 0.02
    squares = np.square(x).mean(-1)
    assert (np.abs(squares - 1).max() < 1e-3) == config.is_v2
    assert abs(squares.mean() - (1 if config.is_v2 else 1 / (1 - rate))) < 0.1


def test_a_v2_layer_normalizes_last():
    layer = RoFormerLayer(V2.replace(hidden_dropout_prob=0.4))
    x = ops.convert_to_numpy(layer(random(2, 6, 32), VISIBLE, training=True))
    np.testing.assert_allclose(np.square(x).mean(-1), 1.0, atol=1e-4)


def test_v2_has_only_kernels_and_embeddings():
    embeddings = RoFormerEmbeddings(V2.replace(embedding_size=12), name="embeddings")
    embeddings.build()
    layer = RoFormerLayer(V2)
    layer.build()
    names = [weight.name for weight in embeddings.weights]
    assert names == ["embeddings", "embeddings", "kernel"]
    assert [weight.name for weight in layer.weights] == ["kernel"] * 6


@pytest.mark.parametrize("epsilon", [1e-12, 1e-2])
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 2e-6), ("bfloat16", 8e-3), ("float16", 1e-3)]
)
def test_the_rms_norm_equals_a_float64_reference(dtype, bound, epsilon):
    x = ops.cast(random(3, 5, 32) * np.float32(10) ** np.arange(-2, 3)[:, None], dtype)
    wide = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    want = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + epsilon)
    got = RMSNorm(epsilon, dtype=dtype)(x)
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    got = ops.convert_to_numpy(ops.cast(got, "float32"))
    np.testing.assert_allclose(got, want, rtol=bound, atol=1e-7)


def test_the_rms_norm_has_no_weights_and_does_not_centre():
    layer = norm(V2.replace(layer_norm_eps=1e-6), "norm", "float32")
    constant = ops.convert_to_numpy(layer(np.full((1, 8), 3.0, "float32")))
    np.testing.assert_allclose(constant, 1.0, atol=1e-6)
    assert (ops.convert_to_numpy(layer(np.zeros((1, 8), "float32"))) == 0).all()
    assert layer.weights == []
    again = RMSNorm.from_config(layer.get_config())
    assert (again.epsilon, again.name) == (1e-6, "norm")


def test_float16_squares_do_not_overflow():
    x = np.full((1, 32), 300.0, "float16")  # 300² is too large for float16
    got = ops.convert_to_numpy(RMSNorm(1e-12, dtype="float16")(x))
    np.testing.assert_array_equal(got, np.ones((1, 32)))


@pytest.mark.parametrize("layers", [1, 12])
def test_v2_initialization_depends_on_width_and_depth(layers):
    """A truncated normal with standard deviation (inputs × layers)^-½ after the truncation."""
    keras.utils.set_random_seed(0)
    config = V2.replace(
        hidden_size=64, intermediate_size=256, embedding_size=16, num_hidden_layers=layers
    )
    embeddings, layer = RoFormerEmbeddings(config), RoFormerLayer(config)
    for part in (embeddings, layer):
        part.build()
    inputs = [(embeddings.word.embeddings, 16), (embeddings.projection.kernel, 16)]
    inputs += [(layer.intermediate.kernel, 64), (layer.output_dense.kernel, 256)]
    inputs += [(weight, 64) for weight in layer.attention.weights]
    for weight, features in inputs:
        values, want = ops.convert_to_numpy(weight), (features * layers) ** -0.5
        assert abs(values.std() / want - 1) < 0.06, weight.path
        assert abs(values).max() <= 2 * 1.13684723 * want * (1 + 1e-6)


def test_kernels_are_truncated_normal_and_biases_zero():
    keras.utils.set_random_seed(0)
    layer = RoFormerLayer(CONFIG)
    layer.build()
    for weight in layer.weights:
        values = ops.convert_to_numpy(weight)
        if weight.name == "kernel":
            assert 0.37 < values.std() < 0.5  # truncation at 2 σ reduces it by a tenth
            assert np.abs(values).max() <= 1.0
        else:
            assert (values == (1 if weight.name == "gamma" else 0)).all()


@pytest.mark.parametrize(
    ("name", "want"), [("gelu", 1.9544997), ("gelu_new", 1.9545977), ("relu", 2.0)]
)
def test_activations_have_the_named_function(name, want):
    y = activation(CONFIG.replace(hidden_act=name))(ops.convert_to_tensor([2.0, -9.0]))
    np.testing.assert_allclose(ops.convert_to_numpy(y), [want, 0.0], atol=2e-6)


def test_mixed_precision_keeps_weights_in_float32():
    x = random(2, 6, 32)
    layer = RoFormerLayer(CONFIG, dtype="mixed_bfloat16")
    y = layer(x, VISIBLE)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {keras.backend.standardize_dtype(w.dtype) for w in layer.weights} == {"float32"}
    full_precision = RoFormerLayer(CONFIG)
    full_precision.build()
    full_precision.set_weights(layer.get_weights())
    assert max_difference(ops.cast(y, "float32"), full_precision(x, VISIBLE)) < 0.1
