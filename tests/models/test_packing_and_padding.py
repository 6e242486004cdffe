"""Tests that neither padding nor other documents of a packed sequence change a token's output."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM

LENGTH, VOCABULARY = 24, 50
# In bfloat16 a hidden state of 2 or 3 is a multiple of 1/64. Positions do not restart in a packed
# sequence, so the angles differ, and queries and keys are rounded differently.
BOUNDS = {"float32": 5e-6, "mixed_bfloat16": 0.15}


KINDS = {
    "v1": {},
    "v2": {"norm_type": "rms_norm", "use_bias": False},
    "causal": {"attention_type": "causal"},
    "unilm": {"attention_type": "unilm"},
}


@pytest.fixture(
    scope="module",
    params=[("v1", "mixed_bfloat16"), *((kind, "float32") for kind in KINDS)],
    ids=" ".join,
)
def model(request, tiny):
    """A model of each kind and precision."""
    kind, dtype = request.param
    keras.utils.set_random_seed(0)
    config = tiny(vocab_size=VOCABULARY, num_hidden_layers=1, **KINDS[kind])
    return RoFormerForMaskedLM(config, dtype=dtype)


@pytest.fixture(scope="module")
def bound(model):
    return BOUNDS[model.dtype_policy.name]


@st.composite
def packed_documents(draw):
    """Draw a list of documents of at least one token that fit into one sequence."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    while sum(sizes) > LENGTH:
        sizes.pop()
    token = st.integers(1, VOCABULARY - 1)
    return [draw(st.lists(token, min_size=n, max_size=n)) for n in sizes]


def pack(documents, numbers):
    """Pack documents into one sequence of LENGTH; segments alternate within each document."""
    row = {
        name: np.zeros((1, LENGTH), "int32")
        for name in ("token_ids", "segment_ids", "sequence_ids")
    }
    start = 0
    for document, number in zip(documents, numbers, strict=True):
        span = slice(start, start + len(document))
        row["token_ids"][0, span] = document
        row["segment_ids"][0, span] = np.arange(len(document)) % 2
        row["sequence_ids"][0, span] = number
        start = span.stop
    return row


@settings(deadline=None, max_examples=5)
@given(documents=packed_documents(), data=st.data())
def test_a_packed_document_gives_the_same_as_alone(model, bound, to_float64, documents, data):
    numbers = data.draw(st.permutations(range(1, len(documents) + 1)))  # in any order
    hidden = to_float64(model.encoder(pack(documents, numbers)))[0]
    start = 0
    for document in documents:
        alone = pack([document], [1])
        want = to_float64(model.encoder(alone))[0, : len(document)]
        got = hidden[start : start + len(document)]
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)
        start += len(document)


@settings(deadline=None, max_examples=5)
@given(documents=packed_documents(), token=st.integers(1, VOCABULARY - 1))
def test_other_documents_do_not_change_a_single_bit(model, to_float64, documents, token):
    numbers = range(1, len(documents) + 1)
    row = pack(documents, numbers)
    rest = row["sequence_ids"] != 1
    changed = {**row, "token_ids": np.where(rest, token, row["token_ids"])}
    first, second = (to_float64(model.encoder(r))[0, : len(documents[0])] for r in (row, changed))
    np.testing.assert_array_equal(first, second)


@st.composite
def texts(draw):
    """Draw four token sequences of few different lengths: JAX recompiles for each shape."""
    sizes = st.sampled_from([1, 2, 7, LENGTH])
    token = st.integers(1, VOCABULARY - 1)
    return [draw(st.lists(token, min_size=n, max_size=n)) for n in [draw(sizes) for _ in range(4)]]


@settings(deadline=None, max_examples=5)
@given(texts=texts())
def test_padding_does_not_change_real_tokens(model, bound, to_float64, texts):
    """Without sequence_ids, padding is recognized by its id, as in bert4keras."""
    token_ids = np.array([text + [0] * (LENGTH - len(text)) for text in texts], "int32")
    hidden = to_float64(model.encoder({"token_ids": token_ids}))
    for row, text in enumerate(texts):
        alone = to_float64(model.encoder({"token_ids": np.array([text], "int32")}))[0]
        np.testing.assert_allclose(hidden[row, : len(text)], alone, rtol=0, atol=bound)


@pytest.mark.quick_cases("word-*-float32", "sim_char-*")
@pytest.mark.parametrize(
    ("name", "attention_type", "dtype"),
    [
        ("word", None, "mixed_bfloat16"),
        ("word", None, "float32"),
        ("gpt_char", "causal", "float32"),
        ("sim_char", "unilm", "float32"),
        ("v2_char", None, "float32"),
    ],
)
def test_released_models_are_independent_of_padding_and_packing(
    name, attention_type, dtype, released, recorded, inputs_of, real_positions, to_float64
):
    encoder = RoFormerEncoder.from_pretrained(
        released(name), dtype=dtype, attention_type=attention_type
    )
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    padded = to_float64(encoder(inputs))
    for row, size in enumerate(real.sum(1)):
        alone = {name: ids[row : row + 1, :size] for name, ids in inputs.items()}
        np.testing.assert_allclose(
            to_float64(encoder(alone))[0], padded[row, :size], rtol=0, atol=BOUNDS[dtype]
        )
    # and all of them packed into one sequence
    sizes, numbers = real.sum(1), np.arange(1, len(real) + 1)
    packed = {name: ids[real][None] for name, ids in inputs.items()}
    packed["sequence_ids"] = np.repeat(numbers, sizes)[None].astype("int32")
    np.testing.assert_allclose(
        to_float64(encoder(packed))[0], padded[real], rtol=0, atol=BOUNDS[dtype]
    )


def test_tokens_of_one_document_attend_to_each_other(tiny, to_float64):
    model = RoFormerForMaskedLM(tiny(vocab_size=VOCABULARY))
    row = pack([[5, 6, 7, 8]], [1])
    changed = {**row, "token_ids": np.where(row["token_ids"] == 8, 9, row["token_ids"])}
    first, second = (to_float64(model.encoder(r))[0, 0] for r in (row, changed))
    assert np.abs(first - second).max() > 1e-3


def test_sequences_without_tokens_give_finite_values(model, to_float64):
    empty = {"token_ids": np.zeros((2, 5), "int32")}
    assert np.isfinite(to_float64(model(empty))).all()
    padding = {**empty, "sequence_ids": np.zeros((2, 5), "int32")}
    assert np.isfinite(to_float64(model(padding))).all()
