"""Tests of RoFormerEncoder as a Keras model. Its recorded outputs are in test_families.py."""

import contextlib
import io

import keras
import numpy as np
import pytest

from roformer_tf.models.encoder import RoFormerEncoder


def test_an_encoder_is_loaded_without_its_head(
    released, masked_lm, recorded, inputs_of, caplog, to_float64
):
    encoder = RoFormerEncoder.from_pretrained(released("char"))
    assert "mlm left unused by RoFormerEncoder" in caplog.text
    inputs = inputs_of(recorded("char"))
    np.testing.assert_array_equal(
        to_float64(encoder(inputs)), to_float64(masked_lm("char").encoder(inputs))
    )


def test_segments_default_to_zero_and_integers_may_have_any_width(masked_lm, recorded, to_float64):
    ids, encoder = recorded("word")["token_ids"], masked_lm("word").encoder
    want = to_float64(encoder({"token_ids": ids, "segment_ids": np.zeros_like(ids)}))
    np.testing.assert_array_equal(to_float64(encoder({"token_ids": ids})), want)
    np.testing.assert_array_equal(to_float64(encoder({"token_ids": ids.astype("int64")})), want)
    ones = to_float64(encoder({"token_ids": ids, "segment_ids": np.ones_like(ids)}))
    assert np.abs(ones - want).max() > 1e-2


@pytest.mark.usefixtures("eager_steps")
def test_dropout_is_active_only_in_training(tiny, to_float64):
    inputs = {"token_ids": np.arange(1, 13).reshape(2, 6)}
    for rate in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        encoder = RoFormerEncoder(tiny(**{rate: 0.3}))
        quiet = to_float64(encoder(inputs))
        np.testing.assert_array_equal(to_float64(encoder(inputs, training=False)), quiet)
        assert np.abs(to_float64(encoder(inputs, training=True)) - quiet).max() > 0.05


def functional_model(config, length=None, name="encoder"):
    """Return a sequence classifier around an encoder, as users write it."""
    inputs = {
        name: keras.Input((length,), dtype="int32", name=name)
        for name in ("token_ids", "segment_ids", "sequence_ids")
    }
    hidden = RoFormerEncoder(config, name=name)(inputs)
    assert hidden.shape == (None, length, config.hidden_size)
    return keras.Model(inputs, keras.layers.Dense(3, name="scores")(hidden[:, 0]))


@pytest.mark.parametrize("length", [None, 6])
@pytest.mark.parametrize("changes", [{}, {"rotary_style": "half", "embedding_size": 16}])
@pytest.mark.slow
def test_a_functional_model_is_trained_saved_and_loaded(changes, length, tiny, tmp_path, request):
    if length:  # one of the cases is traced
        request.getfixturevalue("eager_steps")
    config = tiny(num_hidden_layers=1, **changes)
    model = functional_model(config, length)
    rng = np.random.default_rng(0)
    inputs = {
        "token_ids": rng.integers(1, 50, (4, 6)),
        "segment_ids": rng.integers(0, 2, (4, 6)),
        "sequence_ids": np.repeat([[1, 1, 1, 1, 2, 0]], 4, 0),
    }
    before = model.get_layer("encoder").get_weights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs, rng.integers(0, 3, 4), verbose=0)
    after = model.get_layer("encoder").get_weights()
    assert all((a != b).any() for a, b in zip(after, before, strict=True))  # all are trained
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model.summary(expand_nested=True)
    assert "RoFormerEncoder" in printed.getvalue()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("encoder").config == config
    np.testing.assert_array_equal(
        loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0)
    )


def test_an_encoder_within_another_model_supports_save_pretrained(tiny, tmp_path, to_float64):
    encoder = functional_model(tiny(), name="left").get_layer("left")
    encoder.save_pretrained(tmp_path)
    inputs = {"token_ids": np.arange(1, 13).reshape(2, 6)}
    again = RoFormerEncoder.from_pretrained(tmp_path)
    np.testing.assert_array_equal(to_float64(again(inputs)), to_float64(encoder(inputs)))
