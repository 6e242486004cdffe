"""The fused update compared with Keras' AdamW and with NumPy in float64."""

import keras
import numpy as np
import pytest

from roformer_tf.training.optimizers import EmaAdamW

SETTINGS = {"learning_rate": 0.01, "weight_decay": 0.1, "beta_2": 0.98, "epsilon": 1e-6}


def train(optimizer, steps):
    rng = np.random.default_rng(0)
    weights = [keras.Variable(rng.normal(size=shape)) for shape in ((7, 5), (5,))]
    optimizer.build(weights)
    for _ in range(steps):
        optimizer.apply([keras.ops.array(rng.normal(size=w.shape), "float32") for w in weights])
    return [np.asarray(w) for w in weights] + [np.asarray(v) for v in optimizer.variables[2:]]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_equals_keras_adamw(clip):
    our_result = train(EmaAdamW(**SETTINGS, global_clipnorm=clip), 20)
    keras_result = train(keras.optimizers.AdamW(**SETTINGS, global_clipnorm=clip), 20)
    for got, want in zip(our_result, keras_result, strict=True):
        assert np.abs(got - want).max() <= 3e-7


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("float32", 1e-6), ("float64", 1e-8)],
)
def test_equals_the_paper_in_float64(dtype, bound):
    """The update equals the paper's for weights of either dtype, up to rounding errors."""
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only if enabled")
    rng = np.random.default_rng(0)
    weight = 0.1 * rng.normal(size=(7, 5))
    variable = keras.Variable(weight, dtype=dtype)
    optimizer = EmaAdamW(**SETTINGS)
    optimizer.build([variable])
    m = v = np.zeros_like(weight)
    for step in range(1, 11):
        gradient = 1e-3 * rng.normal(size=weight.shape)
        optimizer.apply([keras.ops.array(gradient, dtype)])
        m = 0.9 * m + 0.1 * gradient
        v = 0.98 * v + 0.02 * gradient**2
        weight = weight - 0.01 * 0.1 * weight
        # The paper adds ε to √v̂; Keras and TensorFlow add it to √v ("ε hat").
        alpha = 0.01 * np.sqrt(1 - 0.98**step) / (1 - 0.9**step)
        weight = weight - alpha * m / (np.sqrt(v) + 1e-6)
    got = keras.ops.convert_to_numpy(variable).astype("float64")
    assert np.abs(got - weight).max() <= bound


def test_a_sparse_gradient_equals_a_dense_one():
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow has sparse gradients")
    results = []
    for sparse in (True, False):
        variable = keras.Variable(np.ones((4, 3), "float32"))
        optimizer = EmaAdamW(**SETTINGS)
        optimizer.build([variable])
        gradient = tf.IndexedSlices(tf.ones((3, 3)), tf.constant([1, 1, 3]), (4, 3))
        for _ in range(3):
            optimizer.apply([gradient if sparse else tf.convert_to_tensor(gradient)])
        results.append(np.asarray(variable))
    assert np.array_equal(*results)
