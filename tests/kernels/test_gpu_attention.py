"""Tests of flash attention: its numbers, and when it is used."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.attention import attend, attend_by_keras, may_flash

on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX alone has flash attention"
)


def inputs(dtype="float32", length=8, head_size=16):
    """Return queries, keys and values (2, 3, T, H), and a mask of up to three documents each."""
    rng = np.random.default_rng(0)
    tensors = [ops.cast(rng.normal(size=(2, 3, length, head_size)), dtype) for _ in range(3)]
    documents = np.sort(rng.integers(0, 3, (2, length)))[:, ::-1]
    visible = documents[:, :, None] == documents[:, None, :]
    return *tensors, ops.convert_to_tensor(visible)


def numpy_attention(query, key, value, visible, dtype="float64"):
    """Compute attention in NumPy, in float64 with each result rounded to `dtype`."""

    def rounded(x):
        return ops.convert_to_numpy(ops.cast(ops.cast(x, dtype), "float32")).astype("float64")

    q, k, v = (rounded(ops.cast(x, "float32")) for x in (query, key, value))
    scores = rounded(np.einsum("bnth,bnsh->bnts", q, k))
    weights = np.where(ops.convert_to_numpy(visible)[:, None], np.exp(scores), 0)
    weights = rounded(weights / weights.sum(-1, keepdims=True))
    return rounded(np.einsum("bnts,bnsh->bnth", weights, v))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [8, 7])
def test_attention_equals_numpy(dtype, length):
    arguments = inputs(dtype, length)
    want = numpy_attention(*arguments)
    got = attend(*arguments)
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    bound = 1e-6
    if dtype == "bfloat16":  # partial sums are rounded as well
        bound = 2.5 * np.abs(numpy_attention(*arguments, dtype) - want).max()
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(got, "float32")), want, atol=bound)


def test_flash_attention_needs_a_gpu():
    assert not may_flash(8)


@pytest.fixture
def gpu(monkeypatch):
    """Make JAX treat its device as an H100 with cuDNN 9.10, which suffices for tracing."""
    import jax
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    for name, supported in (
        ("check_compute_capability", ("8.0", "9.0")),  # at least
        ("is_cuda_compute_capability_equal", ("9.0",)),
    ):
        monkeypatch.setattr(fused_attention_stablehlo, name, supported.__contains__)


def traced(*arguments):
    """Return the operations of the gradient of a rematerialized layer, without running them."""
    import jax

    def total(query, key, value, visible):
        return attend(query, key, value, visible).astype("float32").sum()

    return str(jax.make_jaxpr(jax.grad(jax.checkpoint(total), (0, 1, 2)))(*arguments))


FLASH = "dot_product_attention_fwd", "dot_product_attention_bwd"


def test_a_query_without_visible_keys_attends_to_all(monkeypatch):
    """Empty sequences that fill up a batch once caused a NaN loss on an H200."""
    masks = []
    monkeypatch.setattr(
        ops, "dot_product_attention", lambda q, k, v, mask, scale: masks.append(mask) or v
    )
    *tensors, visible = inputs()
    visible = ops.convert_to_numpy(visible).copy()
    visible[1] = False
    attend_by_keras(*tensors, ops.convert_to_tensor(visible))
    mask = ops.convert_to_numpy(masks[0])
    assert (mask[0, 0] == visible[0]).all()
    assert mask[1].all()


@on_jax
def test_on_a_gpu_cudnn_computes_both_passes(gpu):
    operations = traced(*inputs("bfloat16"))
    assert all(name in operations for name in FLASH)
    assert "bf16[2,1,8,8]" in operations  # the mask, one for all heads
    assert "[2,3,8,8]" not in operations  # no scores


@on_jax
@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16", "length": 7},
        {"dtype": "bfloat16", "head_size": 4},
    ],
    ids=["float32", "odd length", "small heads"],
)
def test_xla_computes_what_cudnn_does_not_support(gpu, changed):
    operations = traced(*inputs(**changed))
    assert not any(name in operations for name in FLASH)
    assert "exp" in operations


@on_jax
def test_a_mask_without_queries_prevents_flash_attention(gpu):
    """Keras falls back with only a log message, so `visible` must have an axis of queries."""
    query, key, value, visible = inputs("bfloat16")
    assert not any(name in traced(query, key, value, visible[:, :1]) for name in FLASH)


@on_jax
def test_the_keras_setting_disables_flash_attention(gpu):
    keras.config.disable_flash_attention()
    try:
        assert not any(name in traced(*inputs("bfloat16")) for name in FLASH)
    finally:
        keras.config.enable_flash_attention()  # the default: where possible


@on_jax
def test_flash_attention_is_not_used_on_a_tpu(monkeypatch):
    import jax

    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert not may_flash(8)
