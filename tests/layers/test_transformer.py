"""What the recorded outputs of whole models cannot show: dropout, initializers, dtypes."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.layers.transformer import RoFormerEmbeddings, RoFormerLayer, activation

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
VISIBLE = np.ones((2, 6, 6), bool)


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def apart(first, second):
    return np.abs(ops.convert_to_numpy(first) - ops.convert_to_numpy(second)).max()


@pytest.mark.parametrize("rate", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_each_dropout_of_a_layer_is_active_in_training_alone(rate):
    x, layer = random(2, 6, 32), RoFormerLayer(CONFIG.replace(**{rate: 0.4}))
    assert apart(layer(x, VISIBLE, training=True), layer(x, VISIBLE, training=False)) > 0.05
    assert apart(layer(x, VISIBLE), layer(x, VISIBLE, training=False)) == 0


def test_hidden_dropout_stands_after_attention_and_after_feed_forward():
    layer = RoFormerLayer(CONFIG.replace(hidden_dropout_prob=0.4))
    assert (layer.attention_drop.rate, layer.output_drop.rate) == (0.4, 0.4)
    x = random(2, 6, 32)
    for drop in (layer.attention_drop, layer.output_drop):
        other = layer.output_drop if drop is layer.attention_drop else layer.attention_drop
        drop.rate, other.rate = 0.4, 0.0
        assert apart(layer(x, VISIBLE, training=True), layer(x, VISIBLE)) > 0.05


def test_without_dropout_training_changes_nothing():
    x, layer = random(2, 6, 32), RoFormerLayer(CONFIG)
    assert apart(layer(x, VISIBLE, training=True), layer(x, VISIBLE)) < 1e-6


@pytest.mark.parametrize("embedding_size", [32, 12])
def test_embeddings_drop_in_training_alone(embedding_size):
    config = CONFIG.replace(embedding_size=embedding_size, hidden_dropout_prob=0.4)
    layer, ids = RoFormerEmbeddings(config), np.arange(12).reshape(2, 6)
    quiet = layer(ids, np.zeros_like(ids))
    assert quiet.shape == (2, 6, 32)
    assert apart(layer(ids, np.zeros_like(ids), training=True), quiet) > 0.05


def test_kernels_start_truncated_normal_and_biases_at_zero():
    keras.utils.set_random_seed(0)
    layer = RoFormerLayer(CONFIG)
    layer.build()
    for weight in layer.weights:
        values = ops.convert_to_numpy(weight)
        if weight.name == "kernel":
            assert 0.37 < values.std() < 0.5  # truncation at two deviations takes a tenth
            assert np.abs(values).max() <= 1.0
        else:
            assert (values == (1 if weight.name == "gamma" else 0)).all()


@pytest.mark.parametrize(
    ("name", "want"), [("gelu", 1.9544997), ("gelu_new", 1.9545977), ("relu", 2.0)]
)
def test_the_activation_is_the_one_that_is_named(name, want):
    y = activation(CONFIG.replace(hidden_act=name))(ops.convert_to_tensor([2.0, -9.0]))
    np.testing.assert_allclose(ops.convert_to_numpy(y), [want, 0.0], atol=2e-6)


def test_a_layer_computes_in_half_precision_and_keeps_its_weights_whole():
    x = random(2, 6, 32)
    layer = RoFormerLayer(CONFIG, dtype="mixed_bfloat16")
    y = layer(x, VISIBLE)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {keras.backend.standardize_dtype(w.dtype) for w in layer.weights} == {"float32"}
    whole = RoFormerLayer(CONFIG)
    whole.build()
    whole.set_weights(layer.get_weights())
    assert apart(ops.cast(y, "float32"), whole(x, VISIBLE)) < 0.1
