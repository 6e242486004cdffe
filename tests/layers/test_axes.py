"""Tests of rotation along several axes against complex numbers, and of attention with it."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.axes import axial_angles, pairs_by_axis, rotate_along_axes
from roformer_tf.layers.rotary import Rotation, angles


def array(x):
    return ops.convert_to_numpy(x)


def by_complex_phases(x, positions, base, style):
    """Multiply each pair of x (B, T, N, H), float64, by its phase at positions (B, T, A)."""
    pairs = x.shape[-1] // 2
    sizes = [len(part) for part in np.array_split(range(pairs), positions.shape[-1])]
    first = slice(None, None, 2) if style == "interleaved" else slice(None, pairs)
    second = slice(1, None, 2) if style == "interleaved" else slice(pairs, None)
    numbers = x[..., first] + 1j * x[..., second]
    pair = 0
    for axis, size in enumerate(sizes):
        for index in range(size):
            theta = positions[..., axis] * base ** (-index / size)
            numbers[..., pair] *= np.exp(1j * theta)[..., None]
            pair += 1
    rotated = np.empty_like(x)
    rotated[..., first], rotated[..., second] = numbers.real, numbers.imag
    return rotated


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(("axes", "head", "base"), [(1, 6, 1e4), (2, 8, 100.0), (3, 16, 1e4)])
def test_each_pair_is_rotated_by_one_axis(axes, head, base, style):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 3, head)).astype("float32")
    positions = rng.integers(-9, 300, (2, 5, axes)).astype("int32")
    want = by_complex_phases(x.astype("float64"), positions, base, style)
    got = rotate_along_axes(x, positions, Rotation(head, style, base))
    np.testing.assert_allclose(array(got), want, atol=5e-5)
    shared = rotate_along_axes(x, positions[0], Rotation(head, style, base))  # shared by the batch
    np.testing.assert_allclose(array(shared)[0], want[0], atol=5e-5)


def test_one_axis_gives_the_usual_angles():
    positions = np.arange(700, dtype="int32")
    np.testing.assert_array_equal(
        array(axial_angles(positions[:, None], 12)), array(angles(positions, 12))
    )


def test_only_the_rotated_fraction_is_divided_among_axes():
    x = np.random.default_rng(1).normal(size=(1, 4, 2, 16)).astype("float32")
    positions = np.array([[0, 0], [3, 1], [2, 9], [7, 7]], "int32")
    got = array(rotate_along_axes(x, positions, Rotation(16, share=0.5)))
    np.testing.assert_array_equal(got[..., 8:], x[..., 8:])
    want = array(rotate_along_axes(x[..., :8], positions, Rotation(8)))
    np.testing.assert_array_equal(got[..., :8], want)
    np.testing.assert_array_equal(rotate_along_axes(x, positions, Rotation(16, share=0.0)), x)


def scores(query, key, at, other, style):
    """Return the dot product of a query at one position and a key at another, both (A,)."""
    rotated = [
        array(
            rotate_along_axes(x[None, None, None], np.array([index], "int32"), Rotation(8, style))
        )
        for x, index in ((query, at), (key, other))
    ]
    return float((rotated[0].astype("float64") * rotated[1]).sum())


axis_positions = st.tuples(*[st.integers(-40, 40)] * 2)


@settings(max_examples=30)
@given(
    at=axis_positions,
    other=axis_positions,
    offset=axis_positions,
    style=st.sampled_from(["interleaved", "half"]),
)
def test_shifting_both_positions_does_not_change_scores(at, other, offset, style):
    query, key = np.random.default_rng(3).normal(size=(2, 8)).astype("float32")
    query, key = (x / np.linalg.norm(x) for x in (query, key))
    before = scores(query, key, at, other, style)
    after = scores(query, key, np.add(at, offset), np.add(other, offset), style)
    assert abs(before - after) <= 1e-5


def test_a_score_distinguishes_the_axes():
    query, key = np.random.default_rng(3).normal(size=(2, 8)).astype("float32")
    along, across = (scores(query, key, at, (0, 0), "half") for at in ((3, 0), (0, 3)))
    swapped = scores(query, key, (5, 2), (1, 1), "half"), scores(query, key, (2, 5), (1, 1), "half")
    assert abs(along - across) > 0.1
    assert abs(swapped[0] - swapped[1]) > 0.1


def attention(kind, **options):
    keras.utils.set_random_seed(0)
    return kind(2, 8, **options)


def reference(layer, x, positions, style, base=10_000.0):
    """Compute attention of x (B, T, D) at positions (B, T, A) in float64 from the weights."""
    weights = {v.path.split("/", 1)[1]: array(v).astype("float64") for v in layer.weights}
    parts = {
        name: np.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]
        for name in ("query", "key", "value")
    }
    query, key = (by_complex_phases(parts[x], positions, base, style) for x in ("query", "key"))
    exp = np.exp(np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(8))
    heads = np.einsum("bnts,bsnh->btnh", exp / exp.sum(-1, keepdims=True), parts["value"])
    output = [weights["attention_output/kernel"], weights["attention_output/bias"]]
    return np.einsum("btnh,nhd->btd", heads, output[0]) + output[1]


@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_attention_uses_positions_per_axis(style):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 10)).astype("float32")
    positions = rng.integers(0, 40, (2, 6, 2)).astype("int32")
    layer = attention(RotaryMultiHeadAttention, rotary_style=style)
    tensor = ops.convert_to_tensor(x)
    plain = array(layer(tensor, tensor))
    got = array(layer(tensor, tensor, rotary_positions=positions))
    np.testing.assert_allclose(got, reference(layer, x, positions, style), atol=2e-5)
    assert np.abs(got - plain).max() > 0.01
    one_axis = np.broadcast_to(np.arange(6, dtype="int32")[:, None], (2, 6, 1))
    for shared in (one_axis, one_axis[0]):
        again = array(layer(tensor, tensor, rotary_positions=shared))
        np.testing.assert_allclose(again, plain, atol=2e-6)
    np.testing.assert_array_equal(array(layer(tensor, tensor)), plain)  # no state is kept


def test_positions_per_axis_are_an_input_of_a_keras_model(tmp_path):
    inputs = keras.Input((6, 10)), keras.Input((6, 2), dtype="int32")
    layer = attention(RotaryMultiHeadAttention)
    model = keras.Model(inputs, layer(inputs[0], inputs[0], rotary_positions=inputs[1]))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 10)).astype("float32")
    positions = rng.integers(0, 40, (2, 6, 2)).astype("int32")
    want = reference(layer, x, positions, "interleaved")
    np.testing.assert_allclose(model.predict([x, positions], verbose=0), want, atol=2e-5)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict([x, positions], verbose=0), want, atol=2e-5)


@pytest.mark.parametrize(
    ("positions", "options", "message"),
    [
        (np.zeros((6,), "int32"), {}, "(length, axes)"),
        (np.zeros((6, 2), "float32"), {}, "whole numbers"),
        (np.zeros((6, 5), "int32"), {}, "5 axes"),
        (np.zeros((5, 2), "int32"), {}, "of 5 tokens, the sequence has 6"),
        (np.zeros((1, 7, 2), "int32"), {}, "of 7 tokens, the sequence has 6"),
        (np.zeros((2, 6, 2), "int32"), {}, "of 2 sequences, the batch has 3"),
        (
            np.zeros((6, 2), "int32"),
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_parameters",
        ),
    ],
)
def test_bad_positions_are_refused(positions, options, message):
    layer = attention(RotaryMultiHeadAttention, **options)
    x = ops.ones((3, 6, 10))
    with pytest.raises(InputError) as refused:
        layer(x, x, rotary_positions=positions)
    assert message in str(refused.value)


def test_pairs_are_divided_evenly():
    assert pairs_by_axis(64, 2) == [16, 16]
    assert pairs_by_axis(10, 3) == [2, 2, 1]
