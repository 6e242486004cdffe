"""Tests of each operation in its fast and its plain form, against NumPy in float64."""

import math
from contextlib import nullcontext
from functools import cache

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.attention import attend
from roformer_tf.kernels.cross_entropy import cross_entropy
from roformer_tf.kernels.dense import affine, gelu, layer_norm, product_with_rows
from roformer_tf.kernels.dropout import add_dropped, dropped, kept
from roformer_tf.kernels.forms import fast, flashes, plain_forms
from roformer_tf.kernels.local_attention import attend_locally
from roformer_tf.kernels.rotation import PARTS, split_and_rotate

RATE = 0.3
SEED = np.array([5, 77], "int64")
RNG = np.random.default_rng(0)
VISIBLE = RNG.random((2, 5, 5)) > 0.3
VISIBLE[:, range(5), range(5)] = True
LABELS = np.array([0, 6, 2, 2], "int32")
THETA = RNG.normal(size=(5, 2))
TABLES = [np.cos(THETA), np.sin(THETA)]
THETA_OF_EXAMPLES = RNG.normal(size=(2, 5, 2))
TABLES_OF_EXAMPLES = [np.cos(THETA_OF_EXAMPLES), np.sin(THETA_OF_EXAMPLES)]
NEAR = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 2
BACK = NEAR & np.tri(5, dtype=bool)


@cache  # central differences call it for each element
def mask(shape):
    return ops.convert_to_numpy(kept(ops.array(SEED), shape, RATE)) / (1 - RATE)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def numpy_attention(query, key, value, visible=None, shape=None, bias=0.0):
    scores = query @ key.swapaxes(-1, -2) + bias
    if visible is not None:
        scores = np.where(visible[:, None], scores, -np.inf)
    weights = softmax(scores)
    return (weights * mask(weights.shape) if shape else weights) @ value


def in_bands(visible, forward):
    """Split a mask (B, 5, 5) into blocks of 2 queries with neighbouring keys: (B, 3, 2, K)."""
    backward = 2 if forward else 0
    wide = np.pad(visible, [(0, 0), (0, 1), (2, 1 + backward)])
    return np.stack([wide[:, i : i + 2, i : i + 4 + backward] for i in (0, 2, 4)], axis=1)


def of_bands(bias, forward):
    """Expand the bias (N, 2, K) of a block to all tokens: (N, 5, 5)."""
    full = np.zeros((len(bias), 6, 8 + (2 if forward else 0)))
    for i in (0, 2, 4):
        full[:, i : i + 2, i : i + bias.shape[2]] = bias
    return full[:, :5, 2:7]


def normalised(x, gamma, beta):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * gamma + beta


def rotated_pairs(pairs, theta):
    """Rotate by complex numbers: (B, T, N, 2, H/2) → (B, N, T, H)."""
    x = (pairs[..., 0, :] + 1j * pairs[..., 1, :]).swapaxes(1, 2) * np.exp(1j * theta)
    return np.concatenate([x.real, x.imag], -1)


def rotated(projected, scales=(1, 1, 0), factor=1.0):
    """Return queries, keys and values as one array (3, B, N, T, H).

    `scales` multiply the angles, and `factor` multiplies whatever is rotated.
    """
    parts = zip(projected.transpose(2, 0, 1, 3, 4, 5), scales, (0.5, 1, 1), strict=True)
    return np.stack(
        [rotated_pairs(x, s * THETA) * (factor if s else 1) * scale for x, s, scale in parts]
    )


def losses(scores, bias=0.0):
    return -np.log(softmax(scores + bias))[range(4), LABELS]


ERF = np.vectorize(math.erf)
CASES = {  # name: (ours, the same in NumPy, shapes of the inputs)
    "dropped": (lambda x: dropped(x, SEED, RATE), lambda x: x * mask(x.shape), [(3, 4, 5)]),
    "add_dropped": (
        lambda x, y: add_dropped(x, y, SEED, RATE),
        lambda x, y: x + y * mask(y.shape),
        [(3, 4, 5), (3, 4, 5)],
    ),
    "gelu": (
        lambda x: gelu(x, training=True),
        lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2,
        [(3, 40)],
    ),
    "layer_norm": (
        lambda *x: layer_norm(*x, 1e-12, training=True),
        normalised,
        [(2, 3, 12), (12,), (12,)],
    ),
    "affine": (
        lambda *x: affine(*x, training=True),
        lambda x, kernel, bias: x @ kernel + bias,
        [(2, 3, 4), (4, 5), (5,)],
    ),
    "affine without bias": (affine, lambda x, kernel: x @ kernel, [(2, 3, 4), (4, 5)]),
    "product_with_rows": (product_with_rows, lambda x, table: x @ table.T, [(2, 3, 4), (7, 4)]),
    "split_and_rotate": (
        lambda x: ops.stack(split_and_rotate(x, *TABLES, training=True)),
        rotated,
        [(2, 5, 3, 2, 2, 2)],
    ),
    "split_and_rotate queries at positions of their own": (
        lambda x: split_and_rotate(x, *TABLES_OF_EXAMPLES, ("query",), training=True)[0],
        lambda x: rotated_pairs(x[:, :, 0], THETA_OF_EXAMPLES[:, None]) / 2,
        [(2, 5, 1, 2, 2, 2)],
    ),
    "split_and_rotate keys and values": (
        lambda x: ops.stack(split_and_rotate(x, *TABLES, ("key", "value"), training=True)),
        lambda x: np.stack(
            [rotated_pairs(x[:, :, 0], THETA), rotated_pairs(x[:, :, 1], 0 * THETA)]
        ),
        [(2, 5, 2, 2, 2, 2)],
    ),
    "split_and_rotate values, too": (
        lambda x: ops.stack(split_and_rotate(x, *TABLES, PARTS, True, PARTS)),
        lambda x: rotated(x, (1, 1, 1)),
        [(2, 5, 3, 2, 2, 2)],
    ),
    "split_and_rotate nothing": (
        lambda x: ops.stack(split_and_rotate(x, *TABLES, PARTS, True, ())),
        lambda x: rotated(x, (0, 0, 0)),
        [(2, 5, 3, 2, 2, 2)],
    ),
    "split_and_rotate by longer tables": (
        lambda x: ops.stack(split_and_rotate(x, *(1.3 * table for table in TABLES), PARTS, True)),
        lambda x: rotated(x, factor=1.3),
        [(2, 5, 3, 2, 2, 2)],
    ),
    "attend": (lambda *x: attend(*x, training=True), numpy_attention, [(2, 3, 5, 4)] * 3),
    "attend of fewer queries": (
        lambda *x: attend(*x, VISIBLE[:, :2], SEED, RATE, training=True),
        lambda *x: numpy_attention(*x, VISIBLE[:, :2], True),
        [(2, 3, 2, 4), (2, 3, 5, 4), (2, 3, 5, 4)],
    ),
    "attend to what is visible": (
        lambda *x: attend(*x, VISIBLE, training=True),
        lambda *x: numpy_attention(*x, VISIBLE),
        [(2, 3, 5, 4)] * 3,
    ),
    "attend with dropout": (
        lambda *x: attend(*x, VISIBLE, SEED, RATE, training=True),
        lambda *x: numpy_attention(*x, VISIBLE, True),
        [(2, 3, 5, 4)] * 3,
    ),
    "attend with a bias": (
        lambda *x: attend(*x[:3], VISIBLE, SEED, RATE, True, x[3]),
        lambda *x: numpy_attention(*x[:3], VISIBLE, True, x[3]),
        [(2, 3, 5, 4)] * 3 + [(1, 3, 5, 5)],
    ),
    "attend with a bias of each row": (
        lambda *x: attend(*x[:3], None, None, 0.0, True, x[3]),
        lambda *x: numpy_attention(*x[:3], None, None, x[3]),
        [(2, 3, 2, 4), (2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 2, 5)],
    ),
    "attend_locally": (
        lambda *x: attend_locally(*x, in_bands(VISIBLE & NEAR, True), training=True),
        lambda *x: numpy_attention(*x, VISIBLE & NEAR),
        [(2, 3, 5, 4)] * 3,
    ),
    "attend_locally with a bias to previous tokens": (
        lambda *x: attend_locally(
            *x[:3], in_bands(VISIBLE & BACK, False), bias=x[3], training=True
        ),
        lambda *x: numpy_attention(*x[:3], VISIBLE & BACK, None, of_bands(x[3][0], False)),
        [(2, 3, 5, 4)] * 3 + [(1, 3, 2, 4)],
    ),
    "attend_locally with a bias": (
        lambda *x: attend_locally(*x[:3], in_bands(VISIBLE & NEAR, True), bias=x[3]),
        lambda *x: numpy_attention(*x[:3], VISIBLE & NEAR, None, of_bands(x[3][0], True)),
        [(2, 3, 5, 4)] * 3 + [(1, 3, 2, 6)],
    ),
    "cross_entropy": (lambda *x: cross_entropy(*x, LABELS), losses, [(4, 7), (7,)]),
    "cross_entropy without bias": (lambda x: cross_entropy(x, None, LABELS), losses, [(4, 7)]),
}
each_case = pytest.mark.parametrize("name", CASES)
each_form = pytest.mark.parametrize("form", [nullcontext, plain_forms], ids=["fast", "plain"])


def random_inputs(name):
    rng = np.random.default_rng(len(name))
    return [rng.normal(size=shape).astype("float32") for shape in CASES[name][2]]


def central_difference(function, inputs, i, weights, step=1e-5):
    """Compute ∂ Σ weights · function / ∂ inputs[i], element by element, in float64."""
    slope = np.zeros(inputs[i].shape)
    for index in np.ndindex(slope.shape):
        shifted = [[x.astype("float64") for x in inputs] for _ in range(2)]
        for sign, arrays in zip((1, -1), shifted, strict=True):
            arrays[i][index] += sign * step
        forward, backward = ((weights * function(*arrays)).sum() for arrays in shifted)
        slope[index] = (forward - backward) / (2 * step)
    return slope


@cache  # shared by both forms
def weights_and_slopes(name):
    """Return random weights of a case's outputs, and the gradients of the weighted sum."""
    _, reference, _ = CASES[name]
    inputs = random_inputs(name)
    shape = reference(*inputs).shape
    weights = np.random.default_rng(1).normal(size=shape).astype("float32")
    return weights, [central_difference(reference, inputs, i, weights) for i in range(len(inputs))]


@each_case
@each_form
def test_values_equal_numpy(name, form):
    ours, reference, _ = CASES[name]
    inputs = random_inputs(name)
    want = reference(*(x.astype("float64") for x in inputs))
    with form():
        got = ops.convert_to_numpy(ours(*map(ops.array, inputs)))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.quick_cases("fast-*", "plain-attend with dropout")  # the rest is tested in float64
@each_case
@each_form
def test_gradients_equal_central_differences(name, form, gradient):
    ours, _, _ = CASES[name]
    inputs = random_inputs(name)
    weights, wanted = weights_and_slopes(name)
    for i, want in enumerate(wanted):

        def weighted(x, i=i):
            return ours(*(ops.array(y) if j != i else x for j, y in enumerate(inputs))) * weights

        with form():
            got = gradient(weighted, inputs[i])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@each_case
@pytest.mark.slow
def test_both_forms_agree_in_bfloat16(name, gradient):
    ours, reference, _ = CASES[name]
    inputs = [ops.convert_to_numpy(ops.cast(x, "bfloat16")) for x in random_inputs(name)]
    wide = {i for i in range(len(inputs)) if name.startswith(("layer_norm", "cross")) and i > 0}
    inputs = [x.astype("float32") if i in wide else x for i, x in enumerate(inputs)]
    results = []
    for form in (nullcontext, plain_forms):
        with form():
            value = ours(*map(ops.array, inputs))
            slope = gradient(lambda x: ours(x, *map(ops.array, inputs[1:])), inputs[0])
        wanted = "float32" if name.startswith("cross") else "bfloat16"
        assert keras.backend.standardize_dtype(value.dtype) == wanted
        results.append([np.asarray(x, "float64") for x in (ops.convert_to_numpy(value), slope)])
    exact = reference(*(x.astype("float64") for x in inputs))
    for value, _ in results:
        assert np.abs(value - exact).max() <= 0.03 * np.abs(exact).max()
    assert np.abs(results[0][1] - results[1][1]).max() <= 0.05 * max(1, np.abs(results[1][1]).max())


@pytest.mark.quick_cases(
    *("fast-attend with dropout", "fast-cross_entropy", "fast-attend_locally"),
    "plain-layer_norm",
    "plain-cross_entropy",
    "plain-split_and_rotate",
)
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has float64 only if enabled")
@each_case
@each_form
def test_float64_is_computed_in_float64_throughout(name, form, gradient):
    ours, reference, _ = CASES[name]
    inputs = [x.astype("float64") for x in random_inputs(name)]
    is_loss = name.startswith("cross")  # losses are always float32
    with form():
        value = ours(*map(ops.array, inputs))
        got = gradient(lambda x: ours(x, *map(ops.array, inputs[1:])), inputs[0])
    assert keras.backend.standardize_dtype(value.dtype) == ("float32" if is_loss else "float64")
    bound = 1e-6 if is_loss else 1e-13
    np.testing.assert_allclose(value, reference(*inputs), rtol=bound, atol=bound)
    want = central_difference(reference, inputs, 0, np.ones(value.shape))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=3e-9, atol=3e-9)


@pytest.mark.parametrize("name", ["layer_norm", "cross_entropy"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@each_form
def test_weights_may_have_16_bits(name, dtype, form, gradient):
    ours, reference, _ = CASES[name]
    inputs = [ops.convert_to_numpy(ops.cast(x, dtype)) for x in random_inputs(name)]
    exact = [x.astype("float64") for x in inputs]
    bound = {"bfloat16": 0.03, "float16": 4e-3}[dtype]

    def with_one_changed(x, i):
        return ours(*(x if j == i else ops.array(y) for j, y in enumerate(inputs)))

    with form():
        value = with_one_changed(ops.array(inputs[0]), 0)
        gradients = [
            gradient(lambda x, i=i: with_one_changed(x, i), y) for i, y in enumerate(inputs)
        ]
    want = "float32" if name == "cross_entropy" else dtype
    assert keras.backend.standardize_dtype(value.dtype) == want
    value = np.asarray(ops.convert_to_numpy(value), "float64")
    assert np.abs(value - reference(*exact)).max() <= bound * np.abs(value).max()
    for i, got in enumerate(gradients):
        slope = central_difference(reference, exact, i, np.ones(value.shape))
        assert keras.backend.standardize_dtype(got.dtype) == dtype
        assert np.abs(got.astype("float64") - slope).max() <= bound * max(1, np.abs(slope).max())


def test_a_query_without_visible_keys_gives_finite_values(gradient):
    x = np.ones((1, 1, 3, 4), "float32")
    hidden = np.zeros((1, 3, 3), bool)
    assert np.isfinite(ops.convert_to_numpy(attend(*[ops.array(x)] * 3, hidden))).all()
    assert np.isfinite(gradient(lambda q: attend(q, ops.array(x), ops.array(x), hidden), x)).all()


def test_masked_keys_have_a_weight_of_exactly_zero():
    query, key, value = (ops.array(x) for x in random_inputs("attend"))
    before = ops.convert_to_numpy(attend(query, key, value, VISIBLE))
    changed = np.where(VISIBLE[:, 0][:, None, :, None], value, 1e6).astype("float32")
    after = ops.convert_to_numpy(attend(query, key, ops.array(changed), VISIBLE))
    np.testing.assert_array_equal(before[:, :, 0], after[:, :, 0])


def test_large_scores_do_not_overflow(gradient):
    scores = np.array([[900, -900, 0], [-1e4, -1e4, -1e4]], "float32")
    labels = np.array([1, 2], "int32")
    got = ops.convert_to_numpy(cross_entropy(ops.array(scores), None, labels))
    np.testing.assert_allclose(got, [1800, math.log(3)], rtol=1e-6)
    slope = gradient(lambda x: cross_entropy(x, None, labels), scores)
    np.testing.assert_allclose(slope, [[1, -1, 0], [1 / 3, 1 / 3, -2 / 3]], atol=1e-6)


def test_plain_forms_are_used_only_in_the_context():
    before = fast()
    with plain_forms():
        assert not fast()
    assert fast() == before == (keras.backend.backend() == "tensorflow")


@pytest.fixture
def with_gpu(monkeypatch):
    """Make TensorFlow list a GPU among its devices."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("on JAX no fast form runs")
    import tensorflow as tf

    devices = [*tf.config.list_logical_devices(), tf.config.LogicalDevice("/device:GPU:0", "GPU")]
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [x for x in devices if kind in (None, x.device_type)],
    )


def uses_fast_forms(traced):
    """Return the result of `fast`, called eagerly or while a new function is traced."""
    if not traced:
        return fast()
    import tensorflow as tf

    results = []
    tf.function(lambda: results.append(fast()))()
    return results[0]


each_trace = pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])


@each_trace
def test_a_gpu_uses_the_plain_forms(with_gpu, traced):
    assert not uses_fast_forms(traced)


@each_trace
@pytest.mark.parametrize(("device", "want"), [("cpu:0", True), ("gpu:0", False)])
def test_the_device_of_the_context_determines_the_form(with_gpu, traced, device, want):
    with keras.device(device):
        assert uses_fast_forms(traced) == want
        with plain_forms():
            assert not uses_fast_forms(traced)
    assert not uses_fast_forms(traced)


def test_a_device_inside_a_traced_function_determines_the_form(with_gpu):
    import tensorflow as tf

    results = []

    @tf.function
    def record():
        results.append(fast())
        with tf.device("CPU:0"):
            results.append(fast())

    record()
    assert results == [False, True]


@each_trace
def test_without_an_accelerator_the_backend_determines_the_form(traced):
    if traced and keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow's tracing")
    assert uses_fast_forms(traced) == (keras.backend.backend() == "tensorflow")


def test_a_step_on_a_gpu_has_no_cpu_operation(with_gpu):
    """Fast forms appear in the graph as calls of functions that XLA must compile."""
    import tensorflow as tf

    def step(x):
        return dropped(gelu(x, training=True), SEED, RATE)

    def functions(name):
        with keras.device(name):
            graph = tf.function(step).get_concrete_function(tf.zeros((3, 4))).graph
        return [x.type for x in graph.get_operations() if "Call" in x.type]

    assert functions("gpu:0") == []
    assert len(functions("cpu:0")) == 2


def test_without_a_gpu_attention_is_plain():
    assert not flashes()


def test_jax_on_a_gpu_uses_flash_attention_except_in_plain_forms(monkeypatch):
    if keras.backend.backend() != "jax":
        pytest.skip("flash attention is JAX's")
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert flashes()
    with plain_forms():
        assert not flashes()
    keras.config.disable_flash_attention()
    try:
        assert not flashes()
    finally:
        keras.config.enable_flash_attention()
