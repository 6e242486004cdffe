"""Attention in blocks, interpreted: against NumPy in float64, and the plain form's gradients."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from roformer_tf.kernels import block_attention
from roformer_tf.kernels.attention import attend_plainly
from roformer_tf.kernels.block_attention import attend
from roformer_tf.kernels.dropout import kept
from roformer_tf.layers.masks import visible_documents

if keras.backend.backend() != "jax":
    pytest.skip("Pallas is JAX's", allow_module_level=True)

import jax
import jax.numpy as jnp

SEED = np.array([5, 77], "uint32")
LENGTH = 41  # three blocks of 16, the last with padding of the kernel's own


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks in a row that can be interpreted in a second."""
    monkeypatch.setattr(block_attention, "BLOCK", 16)


def packed(kind=None):
    """Two rows of documents, short and long, one in pieces, with padding behind and between."""
    rows = [[1] * 3 + [2] * 20 + [3] * 12 + [0] * 6, [1] * 17 + [0] * 2 + [2] * 9 + [1] * 13]
    ids = np.array(rows, "int32")
    segments = np.arange(LENGTH)[None] % 7 == 3  # several begin in each document
    return visible_documents(kind, jnp.array(ids), jnp.array(np.repeat(segments, 2, 0), "int32"))


def inputs(documents, size=8, dtype="float32"):
    """Queries, keys, values, and what comes from above, which is 0 where padding stands."""
    rng = np.random.default_rng(0)
    (rows, length), keys = documents.query_ids.shape, documents.key_ids.shape[1]
    shapes = [(rows, 3, count, size) for count in (length, keys, keys, length)]
    *tensors, upstream = (rng.normal(size=shape).astype("float32") for shape in shapes)
    real = np.asarray(documents.query_ids != 0)[:, None, :, None]
    return *(jnp.asarray(x, dtype) for x in tensors), upstream * real


def in_float64(query, key, value, documents, rate):
    """The same in NumPy, by one sum for each pair; of queries that see nothing, 0."""
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    visible = np.asarray(documents.mask())[:, None]
    scores = np.where(visible, query @ key.swapaxes(2, 3), -np.inf)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    if rate:
        weights = weights * np.asarray(kept(SEED, weights.shape, rate)) / (1 - rate)
    return weights @ value


def plainly(query, key, value, documents, rate):
    hidden = jnp.where(documents.mask(), 0.0, -1e9)[:, None]
    return attend_plainly(query, key, value, hidden, SEED, rate)


def with_gradients(function, upstream, *tensors):
    """What a function gives, and the gradients of Σ upstream · that to queries, keys and values."""
    value, back = jax.vjp(function, *tensors)
    slopes = back(jnp.asarray(upstream, value.dtype))
    return [np.asarray(x, "float64") for x in (value, *slopes)]


def assert_near(ours, theirs, bound):
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(one - other).max() <= bound * np.abs(other).max()


@pytest.mark.parametrize(
    ("kind", "rate"), [(None, 0.0), (None, 0.3), ("causal", 0.0), ("unilm", 0.3)]
)
@pytest.mark.parametrize("where", ["everywhere", "at positions"])
def test_values_and_gradients_are_those_of_the_plain_form(kind, rate, where):
    documents = packed(kind)
    if where == "at positions":  # out of order, twice, and of padding
        positions = [[40, 1, 5, 22, 23, 3, 30], [0, 18, 20, 40, 2, 2, 16]]
        documents = documents.at(jnp.array(positions, "int32"))
    *tensors, upstream = inputs(documents)
    ours = with_gradients(lambda *x: attend(*x, documents, SEED, rate), upstream, *tensors)
    plain = with_gradients(lambda *x: plainly(*x, documents, rate), upstream, *tensors)
    assert_near(ours[:1], [in_float64(*tensors, documents, rate)], 1e-6)
    assert_near(ours[1:], plain[1:], 2e-6)


@pytest.mark.parametrize("size", [6, 64])
def test_heads_of_any_size(size):
    documents = packed()
    *tensors, _ = inputs(documents, size)
    got = np.asarray(attend(*tensors, documents))
    want = in_float64(*tensors, documents, 0.0)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def test_in_bfloat16_it_is_as_near_as_that_can_be():
    documents = packed()
    *tensors, upstream = inputs(documents, dtype="bfloat16")
    wide = [x.astype("float32") for x in tensors]
    assert attend(*tensors, documents).dtype == "bfloat16"
    ours = with_gradients(lambda *x: attend(*x, documents), upstream, *tensors)
    plain = with_gradients(lambda *x: plainly(*x, documents, 0.0), upstream, *wide)
    assert_near(ours[:1], [in_float64(*wide, documents, 0.0)], 0.01)
    assert_near(ours[1:], plain[1:], 0.02)


def test_what_pads_gives_and_gets_nothing():
    documents = packed()
    *tensors, _ = inputs(documents)
    padding = np.asarray(documents.key_ids == 0)
    everywhere = np.ones(tensors[0].shape, "float32")
    for found in with_gradients(lambda *x: attend(*x, documents), everywhere, *tensors):
        assert np.isfinite(found).all()
        assert not found.swapaxes(1, 2)[padding].any()


def test_a_block_that_nobody_sees_is_never_read():
    """A weight of 0 times no number would be no number: in a block that is read, it would show."""
    ids = jnp.repeat(jnp.array([[1, 2, 3]], "int32"), 16, axis=1)  # a document in each block
    documents = visible_documents(None, ids, ids)
    *tensors, upstream = inputs(documents)
    spoilt = [x.at[:, :, 16:32].set(jnp.nan) for x in tensors]
    before = with_gradients(lambda *x: attend(*x, documents), upstream, *tensors)
    after = with_gradients(lambda *x: attend(*x, documents), upstream, *spoilt)
    others = np.r_[0:16, 32:48]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[:, :, others], other[:, :, others])
        assert np.isnan(other[:, :, 16:32]).all()


def test_within_a_block_no_document_knows_of_another():
    documents = packed()
    *tensors, upstream = inputs(documents)
    theirs = np.asarray(documents.key_ids == 2)[:, None, :, None]
    changed = [jnp.where(theirs, 7 * x + 1, x) for x in tensors]
    before, after = (
        with_gradients(lambda *x: attend(*x, documents), upstream * ~theirs, *x)
        for x in (tensors, changed)
    )
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.where(theirs, 0, one), np.where(theirs, 0, other))


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_it_is_translated_for_a_gpu_and_keeps_no_scores(monkeypatch, rate):
    """To Triton's language, whose limits (sizes, operations) show here; XLA goes on from there."""
    monkeypatch.undo()  # blocks as large as users have them
    documents = visible_documents(
        "causal", jnp.ones((2, 512), "int32"), jnp.ones((2, 512), "int32")
    )
    *tensors, upstream = inputs(documents, 64, "bfloat16")

    def total(*tensors):
        return (attend(*tensors, documents, SEED, rate, interpret=False) * upstream).sum()

    made = jax.jit(jax.grad(total, (0, 1, 2))).trace(*tensors).lower(lowering_platforms=("cuda",))
    text = made.as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 3  # forward, queries, keys
    assert "x512x512xbf16" not in text
    assert "x512x512xf32" not in text


ON_FOUR_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roformer_tf.kernels import block_attention
from roformer_tf.kernels.attention import attend_plainly
from roformer_tf.kernels.documents import documents_of

block_attention.BLOCK = 16
rng = np.random.default_rng(0)
tensors = [jnp.asarray(rng.normal(size=(4, 4, 40, 8)), "float32") for _ in range(3)]
ids = jnp.asarray(np.sort(rng.integers(1, 5, (4, 40)), 1), "int32")
seed = jnp.asarray([5, 7], "uint32")

def blocks(*tensors, ids):
    return (block_attention.attend(*tensors, documents_of(ids), seed, 0.3) ** 2).sum()

def plain(*tensors, ids):
    hidden = jnp.where(documents_of(ids).mask(), 0.0, -1e9)[:, None]
    return (attend_plainly(*tensors, hidden, seed, 0.3) ** 2).sum()

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("batch", "model"))
spread = NamedSharding(mesh, PartitionSpec("batch", "model"))
parts = [jax.device_put(x, spread) for x in tensors]
own = jax.device_put(ids, NamedSharding(mesh, PartitionSpec("batch")))
step = jax.jit(jax.grad(blocks, (0, 1, 2)))
assert "all-gather" not in step.lower(*parts, ids=own).compile().as_text()
for one, other in zip(step(*parts, ids=own), jax.grad(plain, (0, 1, 2))(*tensors, ids=ids)):
    assert one.sharding.spec[:2] == ("batch", "model"), one.sharding
    assert abs(one - other).max() <= 5e-6 * abs(other).max()
print("equal")
"""


@pytest.mark.slow
def test_several_devices_do_their_rows_and_heads_alone():
    """Of rows and heads spread over four devices, with the masks of dropout that one would draw."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", ON_FOUR_DEVICES],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | devices,
    )
    assert done.stdout == "equal\n", done.stderr[-3000:]
