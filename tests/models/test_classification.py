"""Tests of classification heads against NumPy, and of their number of labels."""

import logging

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

EACH_HEAD = pytest.mark.parametrize(
    ("cls", "part"),
    [
        (RoFormerForSequenceClassification, "classifier"),
        (RoFormerForTokenClassification, "token_classifier"),
    ],
)
INPUTS = {"token_ids": np.array([[2, 9, 8, 7, 3], [2, 6, 3, 0, 0]], "int32")}


def weights(model, part):
    """Return kernel and bias of a dense layer in float64."""
    variables = model.named_variables()
    return (np.asarray(variables[f"{part}/{suffix}"], "float64") for suffix in ("kernel", "bias"))


@pytest.mark.parametrize("act", ["gelu_new", "relu"])
def test_the_head_on_cls_equals_transformers(act, tiny, to_float64):
    model = RoFormerForSequenceClassification(tiny(hidden_act=act), num_labels=3)
    hidden = to_float64(model.encoder(INPUTS))
    (kernel, bias), (last, offset) = (
        weights(model, f"classifier/{suffix}") for suffix in ("dense", "out_proj")
    )
    x = hidden[:, 0] @ kernel + bias
    cubic = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    x = cubic if act == "gelu_new" else np.maximum(x, 0)
    np.testing.assert_allclose(to_float64(model(INPUTS)), x @ last + offset, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "mask"),
    [
        (INPUTS, [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        ({**INPUTS, "sequence_ids": np.array([[1, 1, 0, 0, 0]] * 2)}, [[1, 1, 0, 0, 0]] * 2),
    ],
)
def test_the_head_on_the_mean_ignores_padding(inputs, mask, tiny, to_float64):
    model = RoFormerForSequenceClassification(tiny(), num_labels=3, pooling="mean")
    assert "classifier/dense/kernel" not in model.named_variables()
    hidden, real = to_float64(model.encoder(inputs)), np.array(mask, bool)
    mean = np.stack([row[r].mean(0) for row, r in zip(hidden, real, strict=True)])
    kernel, bias = weights(model, "classifier/out_proj")
    np.testing.assert_allclose(to_float64(model(inputs)), mean @ kernel + bias, atol=1e-5)


def test_the_head_on_every_token_is_a_dense_layer(tiny, to_float64):
    model = RoFormerForTokenClassification(tiny(), num_labels=4)
    kernel, bias = weights(model, "token_classifier")
    want = to_float64(model.encoder(INPUTS)) @ kernel + bias
    np.testing.assert_allclose(to_float64(model(INPUTS)), want, atol=1e-5)


@pytest.mark.parametrize(
    ("cls", "pooling", "times"),
    [
        (RoFormerForSequenceClassification, "cls", 2),  # before either of the two dense layers
        (RoFormerForSequenceClassification, "mean", 1),
        (RoFormerForTokenClassification, "cls", 1),
    ],
)
@pytest.mark.slow
def test_the_dropout_of_a_head_has_the_configured_rate(cls, pooling, times, tiny, to_float64):
    """With hidden states of 1 and identity kernels, dropped values give logits of 0."""
    rate, size = 0.4, 32
    config = tiny(hidden_dropout_prob=rate, hidden_act="relu", num_labels=size, pooling=pooling)
    model = cls(config)
    for name, variable in model.named_variables().items():
        if name.startswith("encoder/layer_1/output_norm/"):
            variable.assign(np.full(size, name.endswith("beta")))
        elif not name.startswith("encoder/"):
            variable.assign(np.eye(size) if name.endswith("kernel") else np.zeros(size))
    ids = {"token_ids": np.random.default_rng(0).integers(1, 50, (60, 5)).astype("int32")}
    keep_rate = (1 - rate) ** times
    logits = to_float64(model(ids, training=True))
    assert abs((logits != 0).mean() - keep_rate) < 0.05
    np.testing.assert_allclose(logits[logits != 0], 1 / keep_rate, rtol=1e-5)
    np.testing.assert_allclose(to_float64(model(ids)), 1, rtol=1e-5)


def test_a_sequence_of_padding_gives_finite_logits(tiny, to_float64):
    nothing = {"token_ids": np.zeros((1, 4), "int32"), "sequence_ids": np.zeros((1, 4), "int32")}
    model = RoFormerForSequenceClassification(tiny(), num_labels=2, pooling="mean")
    assert np.isfinite(to_float64(model(nothing))).all()


@EACH_HEAD
def test_num_labels_is_required_unless_the_checkpoint_has_it(
    cls, part, tiny, released, tmp_path, caplog
):
    with pytest.raises(InputError, match=r"no classification head.* Give num_labels"):
        cls(tiny())
    with pytest.raises(InputError, match=r"no classification head.* Give num_labels"):
        cls.from_pretrained(released("v2_char"))
    with caplog.at_level(logging.WARNING):
        model = cls.from_pretrained(released("v2_char"), num_labels=5)
    assert f"holds no {part}: its weights are new." in caplog.text
    assert model(INPUTS).shape[-1] == 5
    model.save_pretrained(tmp_path)
    assert cls.from_pretrained(tmp_path).config.num_labels == 5


@EACH_HEAD
def test_a_num_labels_that_differs_from_the_checkpoint_is_refused(cls, part, tiny, tmp_path):
    cls(tiny(), num_labels=3).save_pretrained(tmp_path)
    message = r"classifier\S* has the shape \(3(, 32)?,?\), but its config requires \(5"
    with pytest.raises(InputError, match=f"{message}.*For a new head, load RoFormerEncoder"):
        cls.from_pretrained(tmp_path, num_labels=5)
    RoFormerEncoder.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    assert cls.from_pretrained(tmp_path / "encoder", num_labels=5).config.num_labels == 5


def test_the_head_of_another_task_is_skipped_with_a_warning(tiny, tmp_path, caplog):
    RoFormerForTokenClassification(tiny(), num_labels=3).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = RoFormerForSequenceClassification.from_pretrained(tmp_path)
    assert "holds no classifier: its weights are new." in caplog.text
    assert "token_classifier left unused by RoFormerForSequenceClassification" in caplog.text
    assert model.config.num_labels == 3
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        RoFormerEncoder.from_pretrained(tmp_path)
    assert "token_classifier left unused by RoFormerEncoder" in caplog.text


def test_the_pooling_is_saved_and_a_change_is_reported(tiny, tmp_path, caplog):
    mean_model = RoFormerForSequenceClassification(tiny(), num_labels=3, pooling="mean")
    mean_model.save_pretrained(tmp_path / "mean")
    again = RoFormerForSequenceClassification.from_pretrained(tmp_path / "mean")
    assert again.config.pooling == "mean"
    with pytest.raises(InputError, match="lacks 2 weights, such as classifier/dense/kernel"):
        RoFormerForSequenceClassification.from_pretrained(tmp_path / "mean", pooling="cls")
    cls_model = RoFormerForSequenceClassification(tiny(), num_labels=3)
    cls_model.save_pretrained(tmp_path / "cls")
    with caplog.at_level(logging.WARNING):
        RoFormerForSequenceClassification.from_pretrained(tmp_path / "cls", pooling="mean")
    message = "classifier/dense/bias, classifier/dense/kernel left unused by"
    assert message in caplog.text
