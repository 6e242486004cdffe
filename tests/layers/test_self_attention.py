"""Tests that `RoFormerSelfAttention` computes the same as `RotaryMultiHeadAttention`.

Tests that hold for both attention layers are in `test_attention.py`.
"""

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.masks import same_sequence
from roformer_tf.layers.self_attention import RoFormerSelfAttention

B, T, D, N, H = 2, 6, 12, 3, 4
IDS = np.array([[1, 1, 1, 2, 2, 0], [3, 3, 1, 1, 1, 1]], "int32")  # (B, T)


def tensor(*shape):
    return ops.convert_to_tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


def make(kind=RoFormerSelfAttention, **options):
    """Return a layer with random weights, the same for every kind."""
    layer = kind(N, H, **options)
    layer.build((B, T, D), (B, T, D))
    rng = np.random.default_rng(7)
    for weight in layer.trainable_variables:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return layer


def max_difference(first, second):
    return np.abs(ops.convert_to_numpy(first) - ops.convert_to_numpy(second)).max()


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_the_fused_form_equals_the_keras_layer(style, training, use_bias):
    x = tensor(2, 300, D)
    ids = np.repeat([[1] * 200 + [2] * 90 + [0] * 10], 2, axis=0)
    options = {"rotary_style": style, "use_bias": use_bias}
    ours, theirs = make(**options), make(RotaryMultiHeadAttention, **options)
    fused = ours(x, attention_mask=same_sequence(ids), training=training)
    reference = theirs(x, x, sequence_ids=ids, training=training)
    assert max_difference(fused[:, :290], reference[:, :290]) < 5e-6


FORMS = {
    "a share": {"rotary_share": 0.5, "rotary_style": "half"},
    "values": {"rotary_value": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}, "trained_length": 2},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 3.0}, "trained_length": 2},
    "log-n": {"use_logn_attn": True, "trained_length": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_keras_layer_has_every_form_of_the_fused_one(form):
    """`tests/models/test_forms.py` compares the fused form with a float64 reference."""
    x, ids = tensor(B, T, D), np.where(IDS == 0, 9, IDS)
    layers = [
        make(kind, **FORMS[form]) for kind in (RoFormerSelfAttention, RotaryMultiHeadAttention)
    ]
    for arguments in (
        {},
        {"attention_mask": same_sequence(ids)},
        {"positions": np.array([[4, 0, 2], [5, 3, 1]])},
    ):
        fused, reference = layers[0](x, **arguments), layers[1](x, x, **arguments)
        assert max_difference(fused, reference) < 5e-6
    plain = make(RotaryMultiHeadAttention)
    assert max_difference(reference, plain(x, x, **arguments)) > 1e-3


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("positions", [None, [[4, 0, 2], [5, 5, 1]]], ids=["all", "some"])
def test_gradients_equal_those_of_the_keras_layer(style, positions, gradient):
    x, selected = tensor(B, T, D), None if positions is None else np.array(positions, "int32")
    weights = np.random.default_rng(1).normal(size=(B, T if selected is None else 3, D))
    real = IDS if selected is None else np.take_along_axis(IDS, selected, 1)
    weights = (weights * (real != 0)[..., None]).astype("float32")
    gradients = []
    for kind in (RoFormerSelfAttention, RotaryMultiHeadAttention):
        layer = make(kind, rotary_style=style)

        def weighted(x, layer=layer):
            values = () if isinstance(layer, RoFormerSelfAttention) else (x,)
            settings = {"attention_mask": same_sequence(IDS), "positions": selected}
            return layer(x, *values, **settings, training=True) * weights

        gradients.append(gradient(weighted, ops.convert_to_numpy(x)))
    assert np.abs(gradients[0] - gradients[1]).max() <= 1e-5 * np.abs(gradients[1]).max()


def test_lora_disables_the_fused_projection():
    x, layer = tensor(B, T, D), make()
    before = layer(x)
    layer.query_dense.enable_lora(2)
    assert max_difference(layer(x), before) < 5e-6  # LoRA's second matrix is initialized with zeros
    layer.query_dense.lora_kernel_b.assign(np.ones(layer.query_dense.lora_kernel_b.shape))
    assert max_difference(layer(x), before) > 1e-2


def test_the_config_recreates_a_fused_layer():
    layer = make(dropout=0.2, rotary_style="half")
    again = RoFormerSelfAttention.from_config(layer.get_config())
    x = tensor(B, T, D)
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    assert max_difference(again(x), layer(x)) == 0
