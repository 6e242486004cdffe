"""Tests of RoFormerForMaskedLM as a Keras model. Its recorded outputs are in test_families.py."""

import contextlib
import io
import logging
import shutil

import keras
import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

from roformer_tf import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels import cross_entropy
from roformer_tf.models import head_layers, heads
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.train_step import MaskedTokenLoss

LOGIT_BOUND = 2e-5


def test_logits_at_masked_positions_equal_those_of_the_full_sequence(
    masked_lm, recorded, inputs_of, to_float64
):
    model, inputs = masked_lm("char"), inputs_of(recorded("char"))
    rows, length = inputs["token_ids"].shape
    positions = np.random.default_rng(0).integers(0, length, (rows, 7)).astype("int32")
    positions[0] = [0, 0, length - 1, length - 1, 3, 2, 1]
    full = to_float64(model(inputs))
    selected = model({**inputs, "masked_positions": positions})
    assert selected.shape == (rows, 7, model.config.vocab_size)
    want = np.take_along_axis(full, positions[..., None], 1)
    np.testing.assert_allclose(to_float64(selected), want, rtol=0, atol=5e-6)


@pytest.mark.usefixtures("eager_steps")
def test_gradients_through_masked_positions_equal_those_of_all_positions(tiny):
    """The last layer computes only the masked positions, which must not change gradients."""
    rng = np.random.default_rng(1)
    token_ids = rng.integers(1, 60, (4, 12)).astype("int32")
    token_ids[:, 9:] = 0
    positions = np.stack([rng.permutation(9)[:3] for _ in range(4)]).astype("int32")
    labels = rng.integers(1, 60, (4, 3)).astype("int32")
    all_labels = np.zeros((4, 12), "int32")
    np.put_along_axis(all_labels, positions, labels, 1)
    label_weights = (all_labels != 0).astype("float32")
    config = tiny(vocab_size=60, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trained_weights = []
    for arguments, wanted, weights in [
        ({"masked_positions": positions}, labels, None),
        ({}, all_labels, label_weights),
    ]:
        keras.utils.set_random_seed(3)
        model = RoFormerForMaskedLM(config)
        model.compile(keras.optimizers.SGD(1.0), MaskedTokenLoss())
        model.train_on_batch({"token_ids": token_ids, **arguments}, wanted, weights)
        trained_weights.append(
            [ops.convert_to_numpy(variable) for variable in model.trainable_variables]
        )
    for at_positions, at_all_positions in zip(*trained_weights, strict=True):
        np.testing.assert_allclose(at_positions, at_all_positions, rtol=0, atol=2e-6)


@pytest.mark.quick_cases(
    *("float32-False", "mixed_bfloat16-True", "mixed_float16-False", "bfloat16-True"),
)
@pytest.mark.parametrize("at_positions", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_logits_are_float32_under_every_policy(dtype, at_positions, tiny):
    model = RoFormerForMaskedLM(tiny(), dtype=dtype)
    inputs = {"token_ids": np.ones((2, 6), "int32")}
    if at_positions:
        inputs["masked_positions"] = np.ones((2, 3), "int32")
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"
    hidden = model.encoder({"token_ids": inputs["token_ids"]})
    assert keras.backend.standardize_dtype(hidden.dtype) == model.compute_dtype


@pytest.mark.quick_cases("mixed_bfloat16-*", "float16-*")
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("mixed_bfloat16", 0.15), ("bfloat16", 0.15), ("mixed_float16", 0.02), ("float16", 0.02)],
)
def test_half_precision_loads_and_its_logits_are_close(
    dtype, bound, released, recorded, inputs_of, real_positions, to_float64
):
    arrays = recorded("word")
    model = RoFormerForMaskedLM.from_pretrained(released("word"), dtype=dtype)
    dtypes = {keras.backend.standardize_dtype(weight.dtype) for weight in model.encoder.weights}
    assert dtypes == {"float32" if dtype.startswith("mixed") else dtype}
    real = real_positions(arrays["token_ids"])
    logits = to_float64(model(inputs_of(arrays)))
    token_logits = np.take_along_axis(logits, arrays["token_ids"][..., None], -1)[..., 0]
    errors = np.abs(token_logits - arrays["mlm_token_logit"])[real]
    assert 1e-4 < errors.max() < bound  # the largest of these logits are about 4


def test_the_decoder_is_tied_to_the_word_embeddings(tiny, to_float64):
    model = RoFormerForMaskedLM(tiny(embedding_size=16))
    assert not [w.path for w in model.mlm.weights if w.shape == (50, 16)]
    inputs = {"token_ids": np.arange(1, 7)[None]}
    before = to_float64(model(inputs))
    table = model.encoder.embeddings.word.embeddings
    values = ops.convert_to_numpy(table).copy()
    values[49] *= 3.0  # of a token that is not in the input
    table.assign(values)
    changed = np.abs(to_float64(model(inputs)) - before).max((0, 1)) > 1e-6
    np.testing.assert_array_equal(np.flatnonzero(changed), [49])


def test_a_released_checkpoint_includes_its_tokenizer(masked_lm, released):
    tokenizer = masked_lm("word").tokenizer
    assert tokenizer.tokenization == "word"
    assert tokenizer.vocab_size == masked_lm("word").config.vocab_size
    assert masked_lm("char").tokenizer.tokenization == "char"


@pytest.mark.quick_cases(
    *("interleaved-word_project", "half-char", "half-hf_word"),
)
@pytest.mark.parametrize("name", ["word", "char", "word_project", "word_adam", "hf_word"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_saved_and_loaded_weights_are_bit_identical(
    name, style, released, tmp_path, recorded, inputs_of, to_float64
):
    model = RoFormerForMaskedLM.from_pretrained(released(name), rotary_style=style)
    model.save_pretrained(tmp_path / "saved")
    again = RoFormerForMaskedLM.from_pretrained(tmp_path / "saved")
    assert again.config.rotary_style == style
    for mine, other in zip(model.weights, again.weights, strict=True):
        assert mine.path == other.path
        np.testing.assert_array_equal(to_float64(mine), to_float64(other))
    inputs = inputs_of(recorded(name))
    np.testing.assert_array_equal(to_float64(again(inputs)), to_float64(model(inputs)))
    assert again.tokenizer.tokenize("今天天气很好") == model.tokenizer.tokenize("今天天气很好")


@pytest.mark.quick_cases("word_project")
@pytest.mark.parametrize("name", ["word", "char", "word_project"])
def test_a_half_style_model_of_a_released_zip_gives_the_same_hidden_states(
    name, released, masked_lm, recorded, inputs_of, real_positions, to_float64
):
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    half = RoFormerForMaskedLM.from_pretrained(released(name), rotary_style="half")
    hidden = to_float64(half.encoder(inputs)), to_float64(masked_lm(name).encoder(inputs))
    np.testing.assert_allclose(hidden[0][real], hidden[1][real], rtol=0, atol=5e-6)
    kernels = [
        to_float64(model.named_variables()["encoder/layer_0/attention/query/kernel"])
        for model in (half, masked_lm(name))
    ]
    assert (kernels[0] != kernels[1]).any()  # the weights do differ


def test_missing_heads_are_initialized_with_a_warning(tiny, tmp_path, caplog, to_float64):
    encoder = RoFormerEncoder(tiny())
    encoder.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert f"{tmp_path} holds no mlm: its weights are new." in caplog.text
    for mine, other in zip(model.encoder.weights, encoder.weights, strict=True):
        np.testing.assert_array_equal(to_float64(mine), to_float64(other))


def test_unused_heads_are_reported(released, caplog):
    with caplog.at_level(logging.WARNING):
        RoFormerForMaskedLM.from_pretrained(released("word_adam"))
    assert "pooler, seq_relationship left unused by RoFormerForMaskedLM" in caplog.text


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("roformer.embeddings.word_embeddings.weight", "lacks 1 weights, such as encoder/embedd"),
        ("roformer.encoder.layer.0.", "lacks 16 weights, such as encoder/layer_0/"),
        ("roformer.encoder.layer.1.", "num_hidden_layers 2, but its weights are of layers 0 to 0"),
        ("cls.predictions.bias", "lacks 1 weights, such as mlm/bias"),
        ("roformer.", "lacks 3[0-9] weights"),
    ],
)
def test_a_checkpoint_that_lacks_weights_is_refused(missing, message, released, tmp_path):
    folder = shutil.copytree(released("hf_word"), tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    remaining = {name: array for name, array in tensors.items() if not name.startswith(missing)}
    save_file(remaining, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        RoFormerForMaskedLM.from_pretrained(folder)


def test_an_unknown_override_is_refused(released):
    with pytest.raises(InputError, match="has no hidden_dropot_prob"):
        RoFormerForMaskedLM.from_pretrained(released("word"), hidden_dropot_prob=0.0)


def test_an_override_reaches_the_layers(released):
    model = RoFormerForMaskedLM.from_pretrained(
        released("char"), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.25
    )
    layer = model.encoder.layer_stack[-1]
    assert (layer.output_drop.rate, layer.attention.dropout) == (0.0, 0.25)


def test_a_keras_file_is_saved_and_loaded(tiny, tmp_path, to_float64):
    model = RoFormerForMaskedLM(tiny(rotary_style="half", embedding_size=16))
    model.mlm.bias.assign(np.arange(50.0))
    inputs = {"token_ids": np.arange(1, 13).reshape(2, 6)}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(to_float64(loaded(inputs)), to_float64(model(inputs)))


@pytest.mark.slow
def test_a_model_is_part_of_a_functional_model(tiny, tmp_path):
    inputs = {
        "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
        "masked_positions": keras.Input((3,), dtype="int32", name="masked_positions"),
    }
    logits = RoFormerForMaskedLM(tiny(num_hidden_layers=1))(inputs)
    assert logits.shape == (None, 3, 50)
    assert logits.dtype == "float32"
    model = keras.Model(inputs, keras.layers.Softmax()(logits))
    with contextlib.redirect_stdout(io.StringIO()) as summary:
        model.summary()
    assert "masked_lm" in summary.getvalue()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    batch = {
        "token_ids": np.arange(1, 13).reshape(2, 6),
        "masked_positions": np.array([[0, 3, 5], [1, 1, 2]]),
    }
    probabilities = model.predict(batch, verbose=0)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(loaded.predict(batch, verbose=0), probabilities)


def test_a_masked_position_outside_its_sequence_is_refused_or_clipped(masked_lm):
    model = masked_lm("word")
    ids = np.random.default_rng(0).integers(1, model.config.vocab_size, (3, 6)).astype("int32")
    wrong = np.array([[-1, 2], [6, 2], [-7, 11]], "int32")
    for row in range(3):
        with pytest.raises(InputError, match=rf"contain {wrong[row, 0]}, but the seq.* 6 tok"):
            model({"token_ids": ids, "masked_positions": np.roll(wrong, -row, 0)})
    with pytest.raises(InputError, match="contain -1"):
        model.predict({"token_ids": ids, "masked_positions": wrong}, verbose=0)
    with pytest.raises(InputError, match="contain -1"):
        model.predict_on_batch({"token_ids": ids, "masked_positions": wrong})
    # A compiled function does not see the numbers.
    got = keras.Model.predict_on_batch(model, {"token_ids": ids, "masked_positions": wrong})
    want = ops.convert_to_numpy(model({"token_ids": ids, "masked_positions": np.clip(wrong, 0, 5)}))
    np.testing.assert_allclose(got, want, rtol=0, atol=LOGIT_BOUND)


@pytest.mark.quick_cases("float32-2", "mixed_bfloat16-3")
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_with_labels_the_model_returns_losses_for_any_chunk_size(released, chunks, dtype):
    model = RoFormerForMaskedLM.from_pretrained(released("word"), dtype=dtype)
    rng = np.random.default_rng(0)
    vocabulary = model.config.vocab_size
    inputs = {
        "token_ids": rng.integers(1, vocabulary, (3, 9)).astype("int32"),
        "masked_positions": rng.integers(0, 9, (3, 5)).astype("int32"),
    }
    labels = rng.integers(0, vocabulary, (3, 5)).astype("int32")
    logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    want = -np.log(np.take_along_axis(exponents, labels[..., None], -1)[..., 0] / exponents.sum(-1))
    hidden = model.encoder({"token_ids": inputs["token_ids"]})
    hidden = keras.ops.take_along_axis(hidden, inputs["masked_positions"][..., None], axis=1)
    words = model.encoder.embeddings.word.embeddings
    for got in (
        model(inputs | {"labels": labels}),
        model.mlm.token_losses(hidden, words, labels, chunks=chunks),
    ):
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        # both have the same rounding of the bfloat16 products
        np.testing.assert_allclose(keras.ops.convert_to_numpy(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_only_jax_computes_large_logits_in_chunks(monkeypatch):
    result = []
    model = RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=50,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    )
    monkeypatch.setattr(cross_entropy, "CHUNK_BYTES", 4 * 50 * 2 * 3)  # 3 positions × 2 sequences
    monkeypatch.setattr(head_layers, "token_losses", lambda *x: result.append(x[4]) or x[3])
    row = np.ones((2, 9), "int32")
    inputs = {"token_ids": row, "masked_positions": row[:, :7], "labels": row[:, :7]}
    model(inputs, training=True)
    model(inputs, training=False)
    model.encoder.rematerialize = True
    model(inputs, training=True)
    assert result == [3 if keras.backend.backend() == "jax" else 1, 1, heads.LOSS_CHUNKS]
