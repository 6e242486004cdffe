"""cuDNN's packed rows: what it is told, and what we make of its answer. It needs a GPU itself, so a
few lines that keep its promises, and no more, stand in for it."""

import keras
import numpy as np
import pytest

from roformer_tf.kernels import packed_attention
from roformer_tf.kernels.documents import documents_of
from roformer_tf.kernels.packed_attention import attend, fits, lengths_and_offsets

if keras.backend.backend() != "jax":
    pytest.skip("cuDNN is JAX's", allow_module_level=True)

import jax
import jax.numpy as jnp

from roformer_tf.kernels.attention import attend_plainly

IDS = np.array(
    [
        [1] * 9 + [2] * 8 + [3] * 7,
        [5] * 3 + [0] * 4 + [2] * 11 + [0] * 6,  # padding between and behind
        [0] * 5 + [1] * 19,  # and before
        [0] * 24,
    ],
    "int32",
)


def test_each_document_is_told_once_with_its_place():
    lengths, offsets = (np.asarray(x) for x in lengths_and_offsets(jnp.array(IDS), 4))
    assert lengths.tolist() == [[9, 8, 7, -1], [3, 11, -1, -1], [19, -1, -1, -1], [-1] * 4]
    assert offsets.tolist() == [
        [0, 9, 17, -1, -1],
        [0, 7, -1, -1, -1],
        [5, -1, -1, -1, -1],
        [-1] * 5,
    ]
    assert lengths.dtype == offsets.dtype == "int32"


def test_documents_of_one_token_side_by_side():
    lengths, offsets = lengths_and_offsets(jnp.array([[1, 2, 1, 1, 0, 3]], "int32"), 4)
    assert lengths.tolist() == [[1, 1, 2, 1]]
    assert offsets.tolist() == [[0, 1, 2, 5, -1]]


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([1, 1, 2, 3, 0, 0], True),
        ([1, 1, 2, 3, 4, 0], False),  # one more than 3
        ([1, 2, 2, 1, 0, 0], False),  # in two pieces
        ([1, 0, 1, 2, 2, 2], False),  # with padding between them
        ([0, 0, 0, 0, 0, 0], True),
    ],
)
def test_it_knows_what_cannot_be_told(row, want):
    assert bool(fits(jnp.array([row, [1] * 6], "int32"), 3)) == want


def as_cudnn_does(query, key, value, lengths, offsets):
    """Document by document; what belongs to none holds no number, in the gradients too."""
    places = jnp.arange(query.shape[1])[None, :, None]
    first = offsets[:, None, :-1]
    own = (first >= 0) & (places >= first) & (places < first + lengths[:, None, :])
    ids = jnp.where(own, jnp.arange(1, own.shape[2] + 1), 0).sum(-1)

    return spoilt_attention(ids, query, key, value)


def by_document(ids, *rows):
    hidden = jnp.where(documents_of(ids).mask(), 0.0, -1e9)[:, None]
    rows = (x.swapaxes(1, 2) for x in rows)
    return attend_plainly(*rows, hidden, None, 0.0).swapaxes(1, 2)


def spoilt(ids, x):
    return jnp.where((ids != 0)[:, :, None, None], x, jnp.nan)


@jax.custom_vjp
def spoilt_attention(ids, *rows):
    return spoilt(ids, by_document(ids, *rows))


def spoilt_back(kept, upstream):
    ids, *rows = kept
    slopes = jax.vjp(lambda *x: by_document(ids, *x), *rows)[1](upstream)
    return None, *(spoilt(ids, x) for x in slopes)


spoilt_attention.defvjp(lambda *kept: (spoilt_attention(*kept), kept), spoilt_back)


@pytest.fixture
def told(monkeypatch):
    """The documents that cuDNN was told of."""
    calls = []

    def answered(*arguments):
        calls.append(arguments[3].shape)
        return as_cudnn_does(*arguments)

    monkeypatch.setattr(packed_attention, "packed_dot_product_attention", answered)
    return calls


def inputs():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(len(IDS), 2, 24, 4)), "float32") for _ in range(4)]


@pytest.mark.parametrize("ids", [IDS, np.roll(IDS, 1, axis=1)], ids=["packed", "in two pieces"])
def test_values_and_gradients_are_those_of_the_plain_form(told, ids):
    *tensors, upstream = inputs()
    documents = documents_of(jnp.array(ids))
    real = jnp.array(ids != 0)[:, None, :, None]
    hidden = jnp.where(documents.mask(), 0.0, -1e9)[:, None]
    got, back = jax.vjp(lambda *x: attend(*x, documents), *tensors)
    want, plain_back = jax.vjp(lambda *x: attend_plainly(*x, hidden, None, 0.0) * real, *tensors)
    assert told == [(4, 3)]  # 24 / 8 at most
    for one, other in zip((got, *back(upstream)), (want, *plain_back(upstream)), strict=True):
        assert np.abs(np.asarray(one - other)).max() <= 2e-6 * np.abs(np.asarray(other)).max()


@pytest.mark.parametrize(
    ("rate", "changes"),
    [(0.5, {}), (0.0, {"query_ranks": jnp.zeros((1, 24), "int32")})],
    ids=["dropout", "one direction"],
)
def test_what_cudnn_cannot_goes_by_blocks(monkeypatch, told, rate, changes):
    asked = []
    monkeypatch.setattr(
        packed_attention.block_attention, "attend", lambda *x: asked.append(x) or x[2]
    )
    documents = documents_of(jnp.array(IDS))._replace(**changes)
    attend(*inputs()[:3], documents, None, rate)
    assert len(asked) == 1
    assert asked[0][5] == rate
    assert not told
