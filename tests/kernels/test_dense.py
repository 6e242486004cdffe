"""Tests of GELU against the error function of the standard library."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.dense import gelu

X = np.linspace(-12, 12, 2001)
CUMULATIVE = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in X])  # Φ(x)
DENSITY = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)  # φ(x)


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 4e-2), ("float16", 5e-3)]
)
def test_gelu_is_x_times_the_normal_distribution(dtype, bound):
    x = ops.cast(X, dtype)
    y = gelu(x)
    assert keras.backend.standardize_dtype(y.dtype) == dtype
    exact = ops.convert_to_numpy(x).astype("float64")
    want = [value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in exact]
    np.testing.assert_allclose(ops.convert_to_numpy(y).astype("float64"), want, atol=bound)


def test_the_gradient_is_exact(gradient):
    got = gradient(gelu, X.astype("float32"))
    np.testing.assert_allclose(got, CUMULATIVE + X * DENSITY, atol=2e-6)


def test_gelu_is_not_the_tanh_approximation():
    x = np.float32([-2.2, 2.2])
    difference = ops.convert_to_numpy(gelu(x) - keras.activations.gelu(x, approximate=True))
    assert np.abs(difference).max() > 1e-4
