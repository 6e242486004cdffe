import ml_dtypes
import numpy as np
import pytest

from roformer_tf.checkpoints.arrays import largest_difference, statistics


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4)])
def test_statistics_equal_those_in_float64(dtype, shape):
    array = (1000 + np.random.default_rng(0).normal(size=shape)).astype(dtype)
    full = array.astype(np.float64)
    want = (full.min(), full.max(), full.mean(), full.std())
    np.testing.assert_allclose(statistics(array), want, rtol=1e-12)


def test_statistics_are_nan_if_an_element_is():
    array = np.ones(20, np.float32)
    array[9] = np.nan
    assert np.isnan(statistics(array)).all()


@pytest.mark.parametrize("position", [0, 6, 7, 19])
def test_a_single_difference_is_found(position):
    first = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    second = first.copy()
    assert largest_difference(first, second) == 0
    second.reshape(-1)[position] += np.float32(0.25)
    assert largest_difference(first, second) == pytest.approx(0.25)
    second.reshape(-1)[position] = np.nan
    assert largest_difference(first, second) == np.inf
    assert largest_difference(second, second) == np.inf


def test_rounding_to_another_dtype_is_a_difference():
    array = np.float32([1, 1.001, 0])
    rounded = array.astype(ml_dtypes.bfloat16)
    want = abs(float(rounded[1]) - float(array[1]))
    assert largest_difference(array, rounded) == want > 0
