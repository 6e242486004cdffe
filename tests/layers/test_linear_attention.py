"""Tests of linear attention with rotation against the sum over all pairs in NumPy's float64."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers import linear_attention as module
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.linear_attention import (
    RotaryLinearAttention,
    elu_features,
    favor_features,
    linear_attention,
    orthogonal_features,
)


def array(x):
    return ops.convert_to_numpy(x)


@pytest.fixture
def small_chunks(monkeypatch):
    """Set chunks of 4 tokens, so that short sequences have many."""
    monkeypatch.setattr(module, "CHUNK", 4)


def rotated(x, positions, style="interleaved", base=10_000.0):
    """Multiply each pair of x (B, T, N, M), float64, by its phase at positions ([B,] T)."""
    half = x.shape[-1] // 2
    first = slice(None, None, 2) if style == "interleaved" else slice(None, half)
    second = slice(1, None, 2) if style == "interleaved" else slice(half, None)
    theta = np.asarray(positions)[..., None] * base ** (-np.arange(half) / half)
    numbers = (x[..., first] + 1j * x[..., second]) * np.exp(1j * theta)[..., None, :]
    result = np.empty_like(x)
    result[..., first], result[..., second] = numbers.real, numbers.imag
    return result


def quadratic(q, k, v, tq, tk, ids=None, causal=False):
    """Compute equation 19 pair by pair: (B, T, N, M) … → (B, T, N, V)."""
    visible = np.ones((q.shape[0], q.shape[1], k.shape[1]), bool)
    if ids is not None:
        visible &= (ids[:, :, None] == ids[:, None, :]) & (ids[:, None, :] != 0)
    if causal:
        visible &= np.tri(q.shape[1], dtype=bool)
    above = np.einsum("btnm,bsnm->btsn", tq, tk) * visible[..., None]
    below = (np.einsum("btnm,bsnm->btsn", q, k) * visible[..., None]).sum(2)
    sums = np.einsum("btsn,bsnv->btnv", above, v)
    return sums / np.where(below == 0, 1, below)[..., None]


PACKED = np.array([[1] * 7 + [2] * 2 + [3] * 9 + [0] * 3, [5] * 21])
MIXED = np.array([[2, 1, 2, 0, 1, 7, 7, 2, 0, 1, 1, 2, 7, 2, 2, 1, 1, 1, 0, 2, 1], [0] * 20 + [1]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ids", [None, PACKED, MIXED], ids=["whole", "packed", "mixed"])
def test_linear_attention_equals_the_sum_over_all_pairs(small_chunks, causal, ids):
    rng = np.random.default_rng(0)
    q, k = rng.random((2, 2, 21, 3, 6))
    v = rng.normal(size=(2, 21, 3, 5))
    tq, tk = (rotated(x, np.arange(21)) for x in (q, k))
    want = quadratic(q, k, v, tq, tk, ids, causal)
    arguments = [ops.convert_to_tensor(x.astype("float32")) for x in (q, k, v, tq, tk)]
    got = linear_attention(*arguments, None if ids is None else ops.convert_to_tensor(ids), causal)
    np.testing.assert_allclose(array(got), want, atol=1e-5)


@settings(max_examples=25)
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=30), causal=st.booleans())
def test_arbitrary_sequence_ids_are_masked_correctly(ids, causal):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", 4)
        rng = np.random.default_rng(len(ids))
        ids = np.array([ids])
        q, k, v = rng.random((3, 1, ids.size, 1, 2))
        want = quadratic(q, k, v, q, k, ids, causal)
        arguments = [ops.convert_to_tensor(x.astype("float32")) for x in (q, k, v, q, k)]
        got = linear_attention(*arguments, ops.convert_to_tensor(ids), causal)
        np.testing.assert_allclose(array(got), want, atol=1e-5)


def test_many_chunks_and_fewer_queries_than_keys():
    rng = np.random.default_rng(0)
    q, k, v = rng.random((3, 1, 300, 2, 4))
    q, k, v = (x.astype("float32") for x in (q, k, v))
    got = linear_attention(q, k, v, q, k, causal=True)
    np.testing.assert_allclose(array(got), quadratic(q, k, v, q, k, causal=True), atol=1e-5)
    got = linear_attention(q[:, :7], k, v, q[:, :7], k)
    np.testing.assert_allclose(array(got), quadratic(q[:, :7], k, v, q[:, :7], k), atol=1e-5)


# Tests of the layer


def features(layer, kind, q, k):
    """Compute φ in float64, without the constants that prevent overflow of the exponential."""
    if kind == "elu":
        return (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    directions = array(layer.directions).astype("float64")
    y = (x / x.shape[-1] ** 0.25 for x in (q, k))
    return (np.exp(x @ directions.T - (x**2).sum(-1, keepdims=True) / 2) for x in y)


def layer_of(**options):
    keras.utils.set_random_seed(1)
    layer = RotaryLinearAttention(2, 6, kernel_initializer="random_normal", **options)
    layer.build((None, None, 10), (None, None, 10))
    rng = np.random.default_rng(0)
    layer.set_weights(
        [
            w if v.path.endswith("directions") else rng.normal(size=w.shape) / 2
            for v, w in zip(layer.weights, layer.get_weights(), strict=True)
        ]
    )
    return layer


def reference(layer, x, kind, positions, ids, causal, style="interleaved", base=10_000.0):
    weights = {v.path.split("/", 1)[1]: array(v).astype("float64") for v in layer.weights}
    q, k, v = (
        np.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]
        for name in ("query", "key", "value")
    )
    q, k = features(layer, kind, q, k)
    tq, tk = (rotated(item, positions, style, base) for item in (q, k))
    heads = quadratic(q, k, v, tq, tk, ids, causal)
    output = [weights["attention_output/kernel"], weights["attention_output/bias"]]
    return np.einsum("btnh,nhd->btd", heads, output[0]) + output[1]


@pytest.mark.quick_cases(  # each combination of any three options
    *("elu-whole-False-interleaved", "elu-whole-True-half"),
    *("elu-packed-False-half", "elu-packed-True-interleaved"),
    *("favor-whole-False-half", "favor-whole-True-interleaved"),
    *("favor-packed-False-interleaved", "favor-packed-True-half"),
)
@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ids", [None, PACKED], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", ["elu", "favor"])
def test_the_layer_computes_equation_19(small_chunks, kind, ids, causal, style):
    options = {"num_features": 16} if kind == "favor" else {}
    layer = layer_of(
        feature_map=kind, causal=causal, rotary_style=style, rotary_base=50.0, **options
    )
    x = np.random.default_rng(2).normal(size=(2, 21, 10)).astype("float32")
    positions_along = np.arange(21)
    want = reference(layer, x, kind, positions_along, ids, causal, style, 50.0)
    arguments = {} if ids is None else {"sequence_ids": ops.convert_to_tensor(ids)}
    got = array(layer(ops.convert_to_tensor(x), **arguments))
    bound = 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(got, want, atol=bound)
    moved = positions_along + 40
    again = array(layer(ops.convert_to_tensor(x), rotary_positions=moved[:, None], **arguments))
    np.testing.assert_allclose(again, want, atol=2 * bound)  # the result depends only on distances
    still = array(layer(ops.convert_to_tensor(x), rotary_positions=0 * moved[:, None], **arguments))
    assert np.abs(still - want).max() > 100 * bound


def softmax_attention(q, k, v):
    exp = np.exp(np.einsum("btnh,bsnh->btsn", q, k) / np.sqrt(q.shape[-1]))
    return np.einsum("btsn,bsnv->btnv", exp / exp.sum(2, keepdims=True), v)


def favor_error(count, seeds=range(32)):
    """Return the RMS error of FAVOR+ compared with softmax: the median over several seeds."""
    rng = np.random.default_rng(5)
    q, k, v = (scale * rng.normal(size=(1, 24, 1, 8)) for scale in (0.5, 0.5, 1.0))
    want = softmax_attention(q, k, v)
    tensors = [ops.convert_to_tensor(x.astype("float32")) for x in (q, k, v)]
    gaps = []
    for seed in seeds:
        directions = ops.convert_to_tensor(orthogonal_features(count, 8, seed).astype("float32"))
        mapped = (
            favor_features(tensors[0], directions),
            favor_features(tensors[1], directions, (1, 3)),
        )
        gap = array(linear_attention(*mapped, tensors[2], *mapped)) - want
        gaps.append(np.sqrt(np.mean(gap**2)))
    return np.median(gaps)


@pytest.mark.slow
def test_four_times_the_features_halve_the_error():
    errors = [favor_error(count) for count in (64, 256, 1024)]
    ratios = np.divide(errors[:-1], errors[1:])
    assert ((ratios > 1.6) & (ratios < 2.5)).all(), errors
    assert errors[-1] < 0.08


def test_directions_are_orthogonal_in_blocks_with_normal_lengths():
    directions = orthogonal_features(4000, 8, seed=3)
    assert directions.shape == (4000, 8)
    for block in directions.reshape(-1, 8, 8)[:20]:
        products = block @ block.T
        np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-9)
    assert np.mean(directions**2) == pytest.approx(1, abs=0.03)
    assert np.abs(directions.mean(0)).max() < 0.06
    assert np.abs(np.corrcoef(directions.T) - np.eye(8)).max() < 0.06
    np.testing.assert_array_equal(directions, orthogonal_features(4000, 8, seed=3))
    assert (directions != orthogonal_features(4000, 8, seed=4)).any()
    assert orthogonal_features(13, 8, 0).shape == (13, 8)


def test_a_call_may_be_causal_and_the_seed_determines_directions():
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(1, 9, 10)).astype("float32"))
    usual, causal = layer_of(), layer_of(causal=True)
    np.testing.assert_array_equal(array(usual(x, use_causal_mask=True)), array(causal(x)))
    assert np.abs(array(usual(x)) - array(causal(x))).max() > 1e-3
    layer = layer_of(feature_map="favor", num_features=8, seed=9)
    again = RotaryLinearAttention.from_config(layer.get_config())
    again.build((None, None, 10))
    for item in (layer, again):
        want = orthogonal_features(8, 6, seed=9)
        np.testing.assert_allclose(array(item.directions), want, rtol=1e-6)


def test_large_numbers_stay_finite():
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(1, 9, 10)).astype("float32"))
    layer = layer_of(feature_map="favor")
    for item in (layer, layer_of()):
        assert np.isfinite(array(item(30 * x))).all()
        assert np.isfinite(array(item(-300 * x, sequence_ids=ops.ones((1, 9), "int32")))).all()


def test_elu_features_are_never_negative():
    x = np.array([-30.0, -1.0, 0.0, 2.0], "float32")
    np.testing.assert_allclose(array(elu_features(x)), [np.exp(-30), np.exp(-1), 1, 3], rtol=1e-6)


def test_trainable_weights_have_the_shapes_of_the_quadratic_layer():
    linear = layer_of(feature_map="favor")
    other = RotaryMultiHeadAttention(2, 6)
    other.build((None, None, 10), (None, None, 10))
    shapes = lambda layer: {  # noqa: E731
        v.path.split("/", 1)[1]: v.shape for v in layer.trainable_weights
    }
    assert shapes(linear) == shapes(other)


@pytest.mark.slow
def test_a_saved_model_predicts_the_same_and_trains(tmp_path):
    inputs = keras.Input((None, 10)), keras.Input((None,), dtype="int32")
    keras.utils.set_random_seed(0)
    layer = RotaryLinearAttention(2, 6, feature_map="favor", causal=True, seed=9, num_features=8)
    model = keras.Model(inputs, layer(inputs[0], sequence_ids=inputs[1]))
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(2, 21, 10)).astype("float32"), PACKED.astype("int32")]
    before = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(array(again(x)), before, atol=1e-6)
    model.compile("sgd", "mse")
    model.fit(x, np.zeros_like(before), verbose=0)
    moved = np.abs(array(model(x)) - before)
    assert moved.max() > 0
    assert np.isfinite(moved).all()


@pytest.fixture
def unknown_length():
    """A model of packed sequences of any length."""
    inputs = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    return keras.Model(inputs, RotaryLinearAttention(1, 4)(inputs[0], sequence_ids=inputs[1]))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="it traces a tf.function")
def test_a_function_of_any_length_is_traced_as_by_export(unknown_length):
    import tensorflow as tf

    shapes = tf.TensorSpec((None, None, 4)), tf.TensorSpec((None, None), "int32")
    call = tf.function(lambda *x: unknown_length(x), shapes)
    x = np.random.default_rng(0).normal(size=(2, 21, 4)).astype("float32"), PACKED.astype("int32")
    np.testing.assert_allclose(array(call(*x)), array(unknown_length(x)), atol=1e-6)


@pytest.mark.slow
def test_of_unknown_length_it_is_trained_by_xla(unknown_length):
    x = [np.ones((2, 21, 4), "float32"), PACKED.astype("int32")]
    unknown_length.compile("sgd", "mse", jit_compile=True)
    losses = unknown_length.fit(x, np.zeros((2, 21, 4)), epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[1] < losses[0]


def test_gradients_equal_those_of_the_quadratic_sum(small_chunks, gradient):
    """Compare with finite differences of the float64 sum; x stacks queries, keys and values."""
    rng = np.random.default_rng(0)
    x = rng.random((3, 1, 11, 1, 2)).astype("float32")
    weights = rng.normal(size=(1, 11, 1, 2))
    ids = np.array([[1] * 6 + [2] * 4 + [0]])

    def loss(x):
        actual = linear_attention(
            x[0], x[1], x[2], x[0], x[1], ops.convert_to_tensor(ids), causal=True
        )
        return ops.sum(actual * weights.astype("float32"))

    def exact(x):
        return (quadratic(x[0], x[1], x[2], x[0], x[1], ids, causal=True) * weights).sum()

    wide, step = x.astype("float64"), 1e-6
    want = np.zeros_like(wide)
    for index in np.ndindex(*wide.shape):
        up, down = wide.copy(), wide.copy()
        up[index] += step
        down[index] -= step
        want[index] = (exact(up) - exact(down)) / (2 * step)
    np.testing.assert_allclose(array(gradient(loss, ops.convert_to_tensor(x))), want, atol=1e-4)


@pytest.mark.parametrize("kind", ["elu", "favor"])
def test_keys_that_keras_masks_are_not_attended_to(kind):
    tokens = np.array([[5, 3, 2, 0, 0], [4, 4, 0, 0, 0]])
    embedding, layer = keras.layers.Embedding(8, 10, mask_zero=True), layer_of(feature_map=kind)
    query = np.random.default_rng(2).normal(size=(2, 4, 10)).astype("float32")
    itself, across = array(layer(embedding(tokens))), array(layer(query, embedding(tokens)))
    both = array(layer(embedding(tokens), embedding(tokens)))
    packed = array(layer(embedding(tokens), sequence_ids=np.ones((2, 5), "int32")))
    built = array(keras.Sequential([embedding, layer])(tokens))
    for row, length in enumerate([3, 2]):
        short = ops.copy(embedding(tokens[row : row + 1, :length]))
        for got in (itself, both, packed, built):
            want = array(layer(short))[0]
            np.testing.assert_allclose(got[row, :length], want, rtol=1e-4, atol=1e-5)
        want = array(layer(query[row : row + 1], short))[0]
        np.testing.assert_allclose(across[row], want, rtol=1e-4, atol=1e-5)


def test_keras_applies_it_to_each_of_several_sequences():
    layer, x = layer_of(), np.random.default_rng(4).normal(size=(2, 3, 7, 10)).astype("float32")
    model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.TimeDistributed(layer)])
    want = np.stack([array(layer(x[:, number])) for number in range(3)], axis=1)
    np.testing.assert_allclose(model.predict(x, verbose=0), want, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_has_an_empty_output():
    assert layer_of(causal=True)(np.ones((0, 7, 10), "float32")).shape == (0, 7, 10)


def test_sequence_ids_may_be_a_padding_mask():
    x, real = np.random.default_rng(2).normal(size=(2, 7, 10)).astype("float32"), PACKED[:, 14:] > 0
    want = array(layer_of()(x, sequence_ids=real.astype("int32")))
    np.testing.assert_array_equal(array(layer_of()(x, sequence_ids=real)), want)


@pytest.mark.parametrize(
    "arguments", [{"use_causal_mask": True}, {"sequence_ids": np.ones((2, 7), "int32")}]
)
def test_other_lengths_of_keys_are_refused_where_tokens_are_compared(arguments):
    x = np.ones((2, 7, 10), "float32")
    with pytest.raises(InputError, match="query has 7 tokens, the value 5"):
        layer_of()(x, x[:, :5], **arguments)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((7, 2), "float32"), "whole numbers"),
        (np.zeros((5, 2), "int32"), "of 5 tokens, the sequence has 7"),
    ],
)
def test_bad_rotary_positions_are_refused(positions, message):
    x = np.ones((2, 7, 10), "float32")
    with pytest.raises(InputError, match=message):
        layer_of()(x, rotary_positions=positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "relu"}, "must be one of elu, favor"),
        ({"feature_map": "favor", "num_features": 7}, "even number"),
        ({"num_features": 8}, "omit num_features"),
        ({"dropout": 0.1}, "has no dropout"),
        ({"rotary_value": True}, "has no rotary_value"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError) as refused:
        RotaryLinearAttention(2, 6, **options)
    assert message in str(refused.value)
