"""Tests of scaled angles against formulas in plain Python, and of scores scaled by log n."""

import math

import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.rotary import Rotation
from roformer_tf.layers.scaling import frequencies, log_n, sharpened

YARN = {"rope_type": "yarn", "factor": 4.0}


def pair_by_pair(features, base, parameters, trained, length):
    """Return angles per position and the factor of cos and sin, by the published formulas."""
    factor, actual = parameters["factor"], []
    kind = parameters["rope_type"]
    for m in range(features // 2):
        plain = math.exp(-2 * m / features * math.log(base))
        if kind == "linear":  # position n counts as n / factor
            actual.append(plain / factor)
        elif kind == "dynamic":  # from no scaling (first pair) to the full ratio (last)
            ratio = factor * max(length, trained) / trained - factor + 1
            actual.append(plain * ratio ** (-2 * m / (features - 2)))
        else:

            def boundary(turns):  # the m whose pair makes this many turns in `trained` tokens
                return features / 2 * math.log(trained / (2 * math.pi * turns), base)

            low = boundary(parameters.get("beta_fast", 32))
            high = boundary(parameters.get("beta_slow", 1))
            if parameters.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, features - 1)
            blend = 1.0 if m >= high else 0.0 if m <= low else (m - low) / (high - low)
            actual.append((1 - blend) * plain + blend * plain / factor)
    return actual, 1 + 0.1 * math.log(factor) if kind == "yarn" else 1.0


@pytest.mark.parametrize("length", [None, 50, 100, 101, 700])
@pytest.mark.parametrize(("features", "base"), [(4, 10_000.0), (64, 10_000.0), (32, 300.0)])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "linear", "factor": 1},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 1.0, "original_max_position_embeddings": 40},
        YARN,
        YARN | {"original_max_position_embeddings": 2048, "truncate": False},
        YARN | {"factor": 2.5, "beta_fast": 8, "beta_slow": 0.5},
    ],
    ids=str,
)
def test_frequencies_equal_the_published_formulas(parameters, features, base, length):
    trained = parameters.get("original_max_position_embeddings", 100)
    want, factor = pair_by_pair(features, base, parameters, trained, length or 0)
    got, scale = frequencies(features, base, parameters, 100, length)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert scale == pytest.approx(factor)
    # the length is a tensor where the shape is not static
    if length is not None:
        got, _ = frequencies(features, base, parameters, 100, ops.convert_to_tensor(length))
        np.testing.assert_allclose(ops.convert_to_numpy(got), want, rtol=1e-5)


def test_yarn_uses_the_configured_attention_factor():
    def factor(**options):
        return frequencies(8, 10_000.0, YARN | options, 100)[1]

    assert factor(attention_factor=1.5) == 1.5
    assert factor(mscale=0.7, mscale_all_dim=0.4) == pytest.approx(
        (1 + 0.07 * math.log(4)) / (1 + 0.04 * math.log(4))
    )
    assert factor(mscale=0.7) == pytest.approx(1 + 0.1 * math.log(4))
    assert factor(factor=1) == 1


def test_dynamic_ntk_applies_only_beyond_the_trained_length():
    parameters = {"rope_type": "dynamic", "factor": 8.0}
    x = np.random.default_rng(0).normal(size=(2, 9, 3, 8)).astype("float32")
    plain, scaled = Rotation(8), Rotation(8, parameters=parameters, trained_length=9)
    for length in (3, 9):
        got = scaled.rotate(x[:, :length], np.arange(length), length)
        want = plain.rotate(x[:, :length], np.arange(length))
        np.testing.assert_array_equal(ops.convert_to_numpy(got), ops.convert_to_numpy(want))
    shorter = Rotation(8, parameters=parameters, trained_length=8)
    got = ops.convert_to_numpy(shorter.rotate(x, np.arange(9), 9))
    assert np.abs(got - ops.convert_to_numpy(plain.rotate(x, np.arange(9)))).max() > 1e-3


def test_dynamic_ntk_leaves_a_single_pair_as_it_is():
    parameters = {"rope_type": "dynamic", "factor": 8.0}
    angles, factor = frequencies(2, 10_000.0, parameters, 8, length=16)
    assert (list(angles), factor) == ([1.0], 1.0)


def test_log_n_grows_only_beyond_the_trained_length():
    keys = np.array([0, 1, 50, 64, 65, 4096])
    want = [1, 1, 1, 1, math.log(65) / math.log(64), 2]
    np.testing.assert_allclose(ops.convert_to_numpy(log_n(keys, 64)), want, rtol=1e-6)


@pytest.mark.parametrize(
    "shape", [(3, 7), (2, 3, 7), (2, 3, 1), (2, 1, 7), (2, 1, 3, 7), (2, 4, 3, 7)]
)
def test_queries_are_scaled_by_their_number_of_visible_keys(shape):
    mask = np.random.default_rng(0).random(shape) > 0.4
    query = np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype("float32")  # B T N H
    visible = np.broadcast_to(mask[:, None] if len(shape) == 3 else mask, (2, 4, 3, 7))
    want = query.astype("float64")
    for b, n, t in np.ndindex(2, 4, 3):
        want[b, t, n] *= max(1, math.log(max(visible[b, n, t].sum(), 1)) / math.log(3))
    got = ops.convert_to_numpy(sharpened(query, mask, 7, 3))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    got = ops.convert_to_numpy(sharpened(query, None, 7, 3))
    np.testing.assert_allclose(got, query * math.log(7) / math.log(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"factor": 2.0}, r"rope_type is one of \['dynamic', 'linear', 'yarn'\]"),
        ({"rope_type": "longrope", "factor": 2.0}, "rope_type is one of"),
        ("linear", "must be a mapping"),
        ({"rope_type": "linear"}, "lack a factor"),
        ({"rope_type": "linear", "factor": 0}, "factor of rope_parameters is 0, .* above 0"),
        ({"rope_type": "linear", "factor": None}, "lack a factor"),
        ({"rope_type": "linear", "factor": float("nan")}, "is nan"),
        ({"rope_type": "linear", "factor": True}, "is True"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "'linear' have no beta_fast"),
        (YARN | {"rope_theta": 500.0}, "have no rope_theta.* rope_theta is rotary_base here"),
        (YARN | {"beta_fast": "3"}, "beta_fast of rope_parameters is '3'"),
        (YARN | {"attention_factor": -1.0}, "attention_factor of rope_parameters is -1"),
        (YARN | {"original_max_position_embeddings": 0}, "is 0, .* above 0"),
        (YARN, "begin at the trained length, which is not known"),
    ],
)
def test_invalid_rope_parameters_are_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        RotaryMultiHeadAttention(2, 8, rope_parameters=parameters)


def test_inconsistent_scalings_are_refused():
    with pytest.raises(InputError, match="use_logn_attn scales scores beyond a trained_length"):
        RotaryMultiHeadAttention(2, 8, use_logn_attn=True)
    with pytest.raises(InputError, match=r"rotary_share is 0\.2 of heads of 8"):
        RotaryMultiHeadAttention(2, 8, rotary_share=0.2)
    with pytest.raises(InputError, match="value_dim is 6"):
        RotaryMultiHeadAttention(2, 8, rotary_value=True, value_dim=6)
