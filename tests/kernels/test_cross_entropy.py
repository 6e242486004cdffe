"""Tests of chunked losses over a vocabulary against NumPy in float64."""

import logging

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels import cross_entropy
from roformer_tf.kernels.cross_entropy import chunks_that_fit, token_losses

B, P, E, V = 3, 7, 4, 11
RNG = np.random.default_rng(0)
X, TABLE, BIAS = (RNG.normal(size=shape) for shape in ((B, P, E), (V, E), (V,)))
LABELS = RNG.integers(0, V, (B, P)).astype("int32")
UPSTREAM = RNG.normal(size=(B, P))
UPSTREAM[1, 2] = 0  # an unused prediction slot


def in_float64(x, table, bias):
    """Return losses, and the gradients of Σ upstream · loss, by the analytic formula."""
    logits = x @ table.T + bias
    logits -= logits.max(-1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    one_hot = np.eye(V)[LABELS]
    gradients = (probabilities - one_hot) * UPSTREAM[..., None]
    losses = -np.log((probabilities * one_hot).sum(-1))
    return [
        losses,
        gradients @ table,
        np.einsum("bpv,bpe->ve", gradients, x),
        gradients.sum((0, 1)),
    ]


def computed(chunks, gradient, dtype="float32", bias=BIAS):
    """Return the same by `token_losses`, with x in `dtype` and the weights in float32."""
    inputs = [ops.cast(X, dtype), *(ops.cast(x, "float32") for x in (TABLE, bias) if x is not None)]

    def losses(*inputs):
        x, table, *rest = inputs
        return token_losses(x, table, rest[0] if rest else None, LABELS, chunks)

    weights = ops.cast(UPSTREAM, "float32")
    gradients = [
        gradient(lambda x, i=i: losses(*inputs[:i], x, *inputs[i + 1 :]) * weights, inputs[i])
        for i in range(len(inputs))
    ]
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in (losses(*inputs), *gradients)]


@pytest.mark.quick_cases("2", "7")
@pytest.mark.parametrize("chunks", [1, 2, 3, P])
def test_values_and_gradients_equal_the_formula(chunks, gradient):
    for got, want in zip(computed(chunks, gradient), in_float64(X, TABLE, BIAS), strict=True):
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_no_gradient_of_the_labels_is_computed(gradient, monkeypatch):
    """TensorFlow printed a warning for every chunk."""
    warnings = []
    monkeypatch.setattr(logging.getLogger("tensorflow"), "handle", warnings.append)
    computed(3, gradient)
    assert not warnings


def test_values_and_gradients_without_a_bias(gradient):
    want = in_float64(X, TABLE, np.zeros(V))[:3]
    for got, expected in zip(computed(3, gradient, bias=None), want, strict=True):
        assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.quick_cases("7")
@pytest.mark.parametrize("chunks", [1, P])
def test_in_bfloat16_gradients_are_summed_in_float32(chunks, gradient):
    """Summing seven chunks in bfloat16 would lose precision."""
    rounded = [np.asarray(ops.cast(ops.cast(x, "bfloat16"), "float32")) for x in (X, TABLE)]
    want = in_float64(*(x.astype("float64") for x in rounded), BIAS)
    for got, expected in zip(computed(chunks, gradient, "bfloat16"), want, strict=True):
        assert np.abs(got - expected).max() <= 0.012 * np.abs(expected).max()


def test_gradients_have_the_dtypes_of_their_inputs(gradient):
    x, table = ops.cast(X, "bfloat16"), ops.cast(TABLE, "float32")
    to_x = gradient(lambda x: token_losses(x, table, None, LABELS, 3), x)
    to_table = gradient(lambda table: token_losses(x, table, None, LABELS, 3), table)
    assert (to_x.dtype, to_table.dtype) == ("bfloat16", "float32")


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX can list what it would compute")
def test_the_logits_of_all_predictions_are_never_materialized():
    import jax

    x, table = np.zeros((B, P, E), "float32"), np.zeros((V, E), "float32")

    def total(x, table, chunks):
        return token_losses(x, table, None, LABELS, chunks).sum()

    def jaxpr(chunks):
        return str(jax.make_jaxpr(jax.grad(total, (0, 1)), static_argnums=2)(x, table, chunks))

    assert f"f32[{B * P},{V}]" in jaxpr(1)
    for shape in (f"[{B * P},{V}]", f"[{B},{P},{V}]", f"[{P},{B},1,{V}]"):
        assert shape not in jaxpr(P)
    assert f"f32[{B},1,{V}]" in jaxpr(P)


def test_chunks_have_at_most_their_maximum_size(monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_BYTES", 4 * 100 * 10)
    assert chunks_that_fit(rows=2, predictions=5, vocab_size=100) == 1
    assert chunks_that_fit(rows=2, predictions=6, vocab_size=100) == 2  # 5 and 1 per chunk
    assert chunks_that_fit(rows=2, predictions=50, vocab_size=100) == 10
    assert chunks_that_fit(rows=64, predictions=7, vocab_size=100) == 7  # at least one per sequence
