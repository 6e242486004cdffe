"""Tests of the rotation against complex phases in float64, bert4keras and the paper's form."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.rotary import angles, rotate, rotate_as_in_the_paper


def to_float64(x):
    return ops.convert_to_numpy(x).astype("float64")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def rotated_by_complex_phases(x, positions, base, style):
    """Multiply each pair of x (B, T, N, H), float64, by e^(iθ)."""
    size = x.shape[-1]
    first, second = (
        (x[..., ::2], x[..., 1::2])
        if style == "interleaved"
        else (x[..., : size // 2], x[..., size // 2 :])
    )
    theta = np.outer(positions, base ** (-np.arange(0, size, 2) / size))  # (T, H/2)
    rotated = (first + 1j * second) * np.exp(1j * theta)[:, None]
    if style == "half":
        return np.concatenate([rotated.real, rotated.imag], -1)
    return np.stack([rotated.real, rotated.imag], -1).reshape(x.shape)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("head_size", [2, 6, 64])
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 6e-5), ("bfloat16", 4e-3), ("float16", 5e-4)]
)
def test_rotation_multiplies_pairs_by_a_complex_phase(style, base, head_size, dtype, bound):
    # In float32, an angle of 1500 radians has an error of up to 6e-5; the bound allows for it.
    positions = np.r_[0:8, 250:262, 505:512, 1530:1536]
    x = ops.cast(random(2, len(positions), 3, head_size), dtype)  # (B, T, N, H)
    want = rotated_by_complex_phases(to_float64(x), positions, base, style)
    got = rotate(x, positions, base, style)
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    assert np.abs(to_float64(got) - want).max() <= bound * np.abs(want).max()


@pytest.mark.parametrize("head_size", [2, 8, 64])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_values_and_gradients_equal_those_of_the_papers_form(head_size, base, gradient):
    x, weight = random(2, 300, 3, head_size), random(2, 300, 3, head_size, seed=1)
    positions = np.arange(300)

    def fast(x):
        return rotate(x, positions, base) * weight

    def paper(x):
        return rotate_as_in_the_paper(x, positions, base) * weight

    np.testing.assert_allclose(to_float64(fast(x)), to_float64(paper(x)), atol=1e-6)
    np.testing.assert_allclose(gradient(fast, x), gradient(paper, x), atol=1e-6)


def test_half_style_is_interleaved_style_with_permuted_dimensions(gradient):
    x, positions = random(2, 300, 3, 8), np.arange(300)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # firsts of the pairs, then seconds
    want = to_float64(rotate(x, positions))[..., order]
    np.testing.assert_allclose(
        to_float64(rotate(x[..., order], positions, style="half")), want, atol=1e-6
    )
    interleaved = gradient(lambda x: rotate(x, positions) ** 3, x)[..., order]
    half = gradient(lambda x: rotate(x, positions, style="half") ** 3, x[..., order])
    np.testing.assert_allclose(half, interleaved, atol=1e-5)


def test_tables_equal_those_of_bert4keras(recorded):
    values = recorded("rotary")
    for key, positions, bound in [
        ("table", np.arange(24), 1e-6),
        ("table_dim64", np.arange(24), 1e-6),
        ("far_table", values["far_positions"], 1e-5),
    ]:
        theta = to_float64(angles(positions, values[key].shape[1]))
        np.testing.assert_allclose(values[key][:, 0::2], np.sin(theta), atol=bound)
        np.testing.assert_allclose(values[key][:, 1::2], np.cos(theta), atol=bound)


def test_queries_keys_and_scores_equal_those_of_bert4keras(recorded):
    values = recorded("rotary")
    positions = np.arange(values["q"].shape[1])
    query, key = (to_float64(rotate(values[name], positions)) for name in "qk")
    np.testing.assert_allclose(query, values["q_rotated"], atol=5e-6)
    np.testing.assert_allclose(key, values["k_rotated"], atol=5e-6)
    scores = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1])
    np.testing.assert_allclose(scores, values["scores"], atol=1e-5)


def product(query_at, key_at, style):
    """Return q · k of each head, the query rotated to one position and the key to another."""
    query = rotate(random(1, 1, 2, 8), np.array([query_at]), style=style)
    key = rotate(random(1, 1, 2, 8, seed=1), np.array([key_at]), style=style)
    return (to_float64(query) * to_float64(key)).sum(-1)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@settings(deadline=None, max_examples=30)
@given(query_at=st.integers(0, 600), key_at=st.integers(0, 600), shift=st.integers(1, 900))
def test_a_product_depends_only_on_the_distance(style, query_at, key_at, shift):
    unshifted = product(query_at, key_at, style)
    np.testing.assert_allclose(
        product(query_at + shift, key_at + shift, style), unshifted, atol=5e-4
    )
    assert np.abs(product(query_at + 1, key_at, style) - unshifted).max() > 1e-3


def test_angles_are_float32_under_a_bfloat16_policy():
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("bfloat16")
        theta = angles(np.array([256, 257]), 8)
        assert keras.backend.standardize_dtype(theta.dtype) == "float32"
        np.testing.assert_allclose(to_float64(theta)[:, 0], [256, 257])
        ones = ops.ones((1, 2, 1, 8), "bfloat16")
        first, second = to_float64(rotate(ones, np.array([256, 257])))[0]
        assert np.abs(first - second).max() > 0.5
    finally:
        keras.config.set_dtype_policy(policy)


def test_an_unknown_style_is_refused():
    with pytest.raises(InputError, match=r"rotary_style is 'gpt', .* one of interleaved, half"):
        rotate(random(1, 2, 1, 4), np.arange(2), style="gpt")
