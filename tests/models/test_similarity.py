"""Tests of RoFormerForSentenceSimilarity: sentence embeddings."""

import logging

import keras
import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForSentenceSimilarity

TEXTS = [
    "今天天气很好",
    "我们去公园",
    "今天天气很好",
    "北京",
    "学习中国经济发展,人民生活改革工作。",
    "",
]


@pytest.fixture(scope="module")
def model(released):
    return RoFormerForSentenceSimilarity.from_pretrained(released("sim_char"))


def one_by_one(model, texts, to_float64, max_length=None):
    """Return the normalized pooler output of each text, encoded separately without padding."""
    rows = [model.tokenizer.encode(text, max_length=max_length)[0] for text in texts]
    vectors = np.stack(
        [to_float64(model({"token_ids": np.array([r])})["embedding"])[0] for r in rows]
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_embeddings_are_independent_of_the_batch_and_in_order(batch_size, model, to_float64):
    vectors = model.embed(TEXTS, batch_size=batch_size)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 32), np.float32)
    np.testing.assert_allclose(vectors, one_by_one(model, TEXTS, to_float64), rtol=0, atol=1e-5)
    similarity = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(similarity), 1.0, atol=1e-6)
    assert similarity[0, 2] > 1 - 1e-5  # the same text twice
    assert np.triu(similarity - np.eye(len(TEXTS)), 1).min() < 0.9


@pytest.mark.quick_cases("float32")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_adapted_weights_change_vectors_and_generated_texts(dtype, released):
    def adapt(model):
        for layer in model.encoder.layer_stack:
            layer.attention.value_dense.enable_lora(2)
            kernel = layer.attention.value_dense.lora_kernel_b
            kernel.assign(np.random.default_rng(1).normal(size=kernel.shape))

    used, new = (
        RoFormerForSentenceSimilarity.from_pretrained(released("sim_char"), dtype=dtype)
        for _ in range(2)
    )
    vectors, texts = used.embed(TEXTS), used.generate(TEXTS[:2], max_tokens=6)
    for model in (used, new):
        keras.utils.set_random_seed(0)
        adapt(model)
    np.testing.assert_allclose(used.embed(TEXTS), new.embed(TEXTS), atol=1e-6)
    assert np.abs(used.embed(TEXTS) - vectors).max() > 0.1
    changed = used.generate(TEXTS[:2], max_tokens=6)
    assert changed == new.generate(TEXTS[:2], max_tokens=6)
    assert changed != texts


@pytest.mark.usefixtures("eager_steps")
def test_long_texts_are_cut_at_max_length(model, to_float64):
    text = "今天天气很好" * 20
    short, full = model.embed([text], max_length=10), model.embed([text])
    want = one_by_one(model, [text], to_float64, 10)
    np.testing.assert_allclose(short, want, rtol=0, atol=1e-5)
    assert np.abs(short - full).max() > 1e-3


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("你好", r"a list of texts is needed.* Give \['你好'\]"),
        (None, "a list of texts is needed, not None"),
        (["你好", None], "text 1 is None"),
        ([("一", "二", "三")], "text 0 is "),
    ],
)
def test_inputs_other_than_a_list_of_texts_are_refused(texts, message, model):
    with pytest.raises(InputError, match=message):
        model.embed(texts)


def test_no_texts_give_an_empty_array(model):
    assert model.embed([]).shape == (0, 32)


@pytest.mark.usefixtures("eager_steps")
def test_half_precision_gives_normalized_float32_vectors(released, model):
    half = RoFormerForSentenceSimilarity.from_pretrained(
        released("sim_char"), dtype="mixed_bfloat16"
    )
    vectors = half.embed(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert (vectors * model.embed(TEXTS)).sum(1).min() > 0.99


def test_a_missing_tokenizer_is_an_error_with_a_hint(tiny):
    with pytest.raises(InputError, match=r"has no vocab\.txt.*Or set `model\.tokenizer`"):
        RoFormerForSentenceSimilarity(tiny()).embed(["今天"])


@pytest.mark.usefixtures("eager_steps")
def test_a_saved_model_keeps_its_pooler_and_tokenizer(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = RoFormerForSentenceSimilarity.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))


def test_a_missing_pooler_is_initialized_with_a_warning(released, caplog):
    with caplog.at_level(logging.WARNING):
        RoFormerForSentenceSimilarity.from_pretrained(released("char"))
    assert "holds no pooler: its weights are new." in caplog.text
