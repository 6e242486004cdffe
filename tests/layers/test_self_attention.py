"""The fused form of RoFormer's own attention: when it runs, and that it gives what Keras' way does.

What both attention layers have in common is in `test_attention.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.attention import PackedMask
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.self_attention import FUSED_OPTIONS, RoFormerSelfAttention

B, T, D, N, H = 2, 6, 12, 3, 4
IDS = np.array([[1, 1, 1, 2, 2, 0], [3, 3, 1, 1, 1, 1]], "int32")  # (B, T)


@pytest.fixture
def fused(monkeypatch):
    """One entry for each call that goes the fused way from here on."""
    taken = []
    method = RoFormerSelfAttention._fused

    def watched(self, *arguments):
        taken.append(self)
        return method(self, *arguments)

    monkeypatch.setattr(RoFormerSelfAttention, "_fused", watched)
    return taken


def tensor(*shape):
    return ops.convert_to_tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


def make(kind=RoFormerSelfAttention, **options):
    """A layer with weights of every sign; of one seed for all."""
    layer = kind(N, H, **options)
    layer.build((B, T, D), (B, T, D))
    rng = np.random.default_rng(7)
    for weight in layer.trainable_variables:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return layer


def apart(first, second):
    return np.abs(ops.convert_to_numpy(first) - ops.convert_to_numpy(second)).max()


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_the_fused_form_equals_keras_way(style, training, use_bias, fused):
    x = tensor(2, 300, D)
    ids = np.repeat([[1] * 200 + [2] * 90 + [0] * 10], 2, axis=0)
    options = {"rotary_style": style, "use_bias": use_bias}
    ours, theirs = make(**options), make(RotaryMultiHeadAttention, **options)
    quick, whole = (layer(x, x, sequence_ids=ids, training=training) for layer in (ours, theirs))
    assert apart(quick[:, :290], whole[:, :290]) < 5e-6
    assert fused == [ours]


FORMS = {
    "a share": {"rotary_share": 0.5, "rotary_style": "half"},
    "values": {"rotary_value": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}, "trained_length": 2},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 3.0}, "trained_length": 2},
    "log-n": {"use_logn_attn": True, "trained_length": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_keras_way_has_every_form_that_the_fused_one_has(form, fused):
    """The fused one is held to float64 by `tests/models/test_forms.py`."""
    x, ids = tensor(B, T, D), np.where(IDS == 0, 9, IDS)
    layers = [
        make(kind, **FORMS[form]) for kind in (RoFormerSelfAttention, RotaryMultiHeadAttention)
    ]
    for given in ({}, {"sequence_ids": ids}, {"positions": np.array([[4, 0, 2], [5, 3, 1]])}):
        quick, whole = (layer(x, x, **given) for layer in layers)
        assert apart(quick, whole) < 5e-6
    assert len(fused) == 3
    plain = make(RotaryMultiHeadAttention)
    assert apart(whole, plain(x, x, **given)) > 1e-3


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("positions", [None, [[4, 0, 2], [5, 5, 1]]], ids=["all", "some"])
def test_its_gradients_are_those_of_keras_way(style, positions, gradient, fused):
    x, at = tensor(B, T, D), None if positions is None else np.array(positions, "int32")
    weights = np.random.default_rng(1).normal(size=(B, T if at is None else 3, D))
    real = IDS if at is None else np.take_along_axis(IDS, at, 1)
    weights = (weights * (real != 0)[..., None]).astype("float32")
    slopes = []
    for kind in (RoFormerSelfAttention, RotaryMultiHeadAttention):
        layer = make(kind, rotary_style=style)

        def weighted(x, layer=layer):
            return layer(x, x, sequence_ids=IDS, positions=at, training=True) * weights

        slopes.append(gradient(weighted, ops.convert_to_numpy(x)))
    assert len(fused) >= 1
    assert np.abs(slopes[0] - slopes[1]).max() <= 1e-5 * np.abs(slopes[1]).max()


def test_a_roformer_takes_it_for_every_layer_and_every_kind_of_row(fused):
    from roformer_tf import RoFormerConfig, RoFormerEncoder

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    for attention_type in ("bidirectional", "causal", "unilm"):
        config = RoFormerConfig(
            vocab_size=9, num_hidden_layers=3, attention_type=attention_type, **sizes
        )
        encoder = RoFormerEncoder(config)
        for training in (True, False):
            fused.clear()
            encoder({"token_ids": np.array([[2, 5, 3, 0]], "int32")}, training=training)
            assert fused == [layer.attention for layer in encoder.layer_stack]


def test_with_lora_the_projections_answer_themselves(fused):
    x, layer = tensor(B, T, D), make()
    before = layer(x, x)
    layer.query_dense.enable_lora(2)
    assert apart(layer(x, x), before) < 5e-6  # its second matrix begins as zeros
    layer.query_dense.lora_kernel_b.assign(np.ones(layer.query_dense.lora_kernel_b.shape))
    assert apart(layer(x, x), before) > 1e-2
    assert len(fused) == 1


@pytest.mark.parametrize("lora", [False, True])
def test_told_by_documents_it_answers_as_under_their_mask(lora, fused):
    layer, x = make(), tensor(B, T, D)
    if lora:  # more than a kernel, which the fused form would leave out
        layer.query_dense.enable_lora(2)
        layer.query_dense.lora_kernel_b.assign(np.ones(layer.query_dense.lora_kernel_b.shape))
    documents = PackedMask(ops.convert_to_tensor(IDS))
    want = layer(x, x, attention_mask=documents.mask())
    told = layer(x, x, attention_mask=documents)
    assert apart(told, want) < 1e-6
    assert fused == ([] if lora else [layer, layer])


OTHER_OPTIONS = {  # what the fused form does not know
    "value_dim": 6,
    "output_shape": 5,
    "kernel_regularizer": "l2",
    "activity_regularizer": "l2",
    "kernel_constraint": "non_neg",
    "autocast": False,
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_an_option_that_it_does_not_list_goes_keras_way(name, fused):
    # with dropout, since JAX's own attention has no value_dim
    options = {name: OTHER_OPTIONS[name], "dropout": 0.1}
    x = tensor(B, T, D)
    got = make(**options)(x, x, sequence_ids=IDS)
    want = make(RotaryMultiHeadAttention, **options)(x, x, sequence_ids=IDS)
    assert apart(got, want) == 0
    assert fused == []


@pytest.mark.parametrize("options", [{"sliding_window": 2}, {"use_gate": True}], ids=str)
def test_so_does_one_that_came_later(options, fused):
    try:
        layer, theirs = make(**options), make(RotaryMultiHeadAttention, **options)
    except (TypeError, ValueError):
        pytest.skip(f"Keras {keras.__version__} does not have it")
    x = tensor(B, T, D)
    assert apart(layer(x, x), theirs(x, x)) == 0
    assert apart(layer(x, x), make()(x, x)) > 1e-3  # it does something
    assert fused == [fused[0]]  # the last layer alone


def test_an_option_of_tomorrow_goes_keras_way_and_its_default_does_not(fused, monkeypatch):
    theirs = keras.layers.MultiHeadAttention.__init__

    def tomorrow(self, num_heads, key_dim, value_dim=None, dropout=0.0, warmth=1.0, **options):
        theirs(self, num_heads, key_dim, value_dim=value_dim, dropout=dropout, **options)

    monkeypatch.setattr(keras.layers.MultiHeadAttention, "__init__", tomorrow)
    x = tensor(B, T, D)
    assert "warmth" not in FUSED_OPTIONS
    make(warmth=2.0)(x, x)
    assert fused == []
    make(warmth=1.0)(x, x)
    assert len(fused) == 1


def test_made_again_from_its_config_it_is_still_fused(fused):
    layer = make(dropout=0.2, rotary_style="half")
    again = RoFormerSelfAttention.from_config(layer.get_config())
    x = tensor(B, T, D)
    again(x, x)
    assert fused == [again]


def test_both_ways_drop_by_the_same_layer():
    layer = make(dropout=0.5)
    x = tensor(B, T, D)
    layer.drop.seed_generator.state.assign([3, 4])
    quick = layer(x, x, training=True)
    layer.drop.seed_generator.state.assign([3, 4])
    whole, _ = layer(x, x, training=True, return_attention_scores=True)
    assert apart(quick, whole) < 5e-6
