"""Saved regression models: the head in the file includes the mean and deviation of the labels.

Other programs then get the number itself; roformer_tf must not scale it twice.
"""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.regression import Regression
from tests.support.random_model import random_model

pytestmark = pytest.mark.usefixtures("eager_steps")

TASK = Regression(mean=2020.5, deviation=4.0, max_length=16)
TEXTS = ["今天天气很好", "我们", "公园学习中国" * 4]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return random_model(TASK, max_position_embeddings=8)


@pytest.fixture
def folder(model, tmp_path):
    LabelledDataset([], TASK).save_model(model, tmp_path / "model")
    return tmp_path / "model"


def head_outputs(model, folder):
    """Apply the saved head to the encoder's hidden states of TEXTS, in float64."""
    tensors = {
        name: x.astype(np.float64) for name, x in load_file(folder / "model.safetensors").items()
    }
    actual = []
    for text in TEXTS:
        ids, _ = model.tokenizer.encode(text, max_length=TASK.max_length)
        x = np.asarray(model.encoder({"token_ids": np.array([ids])}), np.float64)[0, 0]
        x = keras.activations.gelu(
            tensors["classifier.dense.weight"] @ x + tensors["classifier.dense.bias"],
            approximate=False,
        )
        weight, bias = (tensors[f"classifier.out_proj.{x}"] for x in ("weight", "bias"))
        actual.append(float((weight @ np.asarray(x) + bias)[0]))
    return actual


def scores(folder, engine="keras", **settings):
    return [x["score"] for x in roformer_tf.load(folder, engine=engine, **settings)(TEXTS)]


def test_the_saved_head_returns_scaled_numbers(model, folder):
    actual = head_outputs(model, folder)
    logits = np.asarray(model(model.tokenizer(TEXTS, TASK.max_length)))[:, 0]
    np.testing.assert_allclose(actual, 2020.5 + 4 * logits, atol=2e-3)
    assert np.ptp(actual) > 0.1
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["problem_type"] == "regression"
    assert config["sentence_transformers"]["activation_fn"].endswith("Identity")
    assert config["id2label"] == {"0": "value"}


@pytest.mark.parametrize("engine", ["keras", "onnx", "openvino"])
def test_predictions_are_scaled_once(engine, model, folder):
    np.testing.assert_allclose(
        scores(folder, engine, precision="float32"), head_outputs(model, folder), atol=2e-3
    )


def test_bfloat16_keeps_large_means(folder):
    """The scale is applied in float32: 2017 and 2023 are the same number in bfloat16."""
    exact = scores(folder, precision="float32")
    np.testing.assert_allclose(scores(folder, precision="bfloat16"), exact, atol=0.1)


def test_loading_restores_the_saved_weights(model, folder, tmp_path):
    loaded = RoFormerForSequenceClassification.from_pretrained(folder)
    for name, variable in loaded.named_variables().items():
        np.testing.assert_allclose(variable, model.named_variables()[name], atol=2e-4)
    loaded.save_pretrained(tmp_path / "again")
    TASK.save(tmp_path / "again")
    assert scores(tmp_path / "again") == pytest.approx(scores(folder), abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_conversion_keeps_predictions(dtype, model, folder, tmp_path):
    target = tmp_path / "converted"
    command = ["checkpoints", "convert", str(folder), str(target), "--to", "huggingface"]
    assert main([*command, "--dtype", dtype]) == 0
    np.testing.assert_allclose(
        scores(target), scores(folder), atol=2e-3 if dtype == "float32" else 0.3
    )
    np.testing.assert_allclose(head_outputs(model, target), scores(target), atol=0.3)
    config = json.loads((target / "tokenizer_config.json").read_text("utf-8"))
    assert config["model_max_length"] == 16


def test_conversion_to_tf1_and_back_keeps_the_head(folder, tmp_path):
    """A TF1 checkpoint has the unscaled head; converting it back scales the head again."""
    zipped, restored = tmp_path / "model.zip", tmp_path / "again"
    assert main(["checkpoints", "convert", str(folder), str(zipped), "--to", "tf1"]) == 0
    assert main(["checkpoints", "convert", str(zipped), str(restored), "--to", "own"]) == 0
    name = "classifier.out_proj.bias"
    before, after = (load_file(x / "model.safetensors")[name] for x in (folder, restored))
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_weights_of_an_unfinished_training_are_saved_unscaled(model, tmp_path):
    weights = {name: np.asarray(x) for name, x in model.named_variables().items()}
    model.save_pretrained(tmp_path / "model", weights)
    loaded = RoFormerForSequenceClassification.from_pretrained(tmp_path / "model")
    for name, variable in loaded.named_variables().items():
        np.testing.assert_array_equal(variable, weights[name])


def test_other_tasks_do_not_inherit_the_scale(folder, tmp_path):
    encoder = RoFormerEncoder.from_pretrained(folder)
    encoder.save_pretrained(tmp_path / "encoder")
    assert "label_mean" not in (tmp_path / "encoder" / "config.json").read_text("utf-8")
    for task in (Classification(labels=("0", "1")), Multilabel(labels=("a", "b"))):
        config = task.decoding.described_in(encoder.config.replace(num_labels=2))
        other = RoFormerForSequenceClassification(config)
        other.tokenizer = encoder.tokenizer
        LabelledDataset([], task).save_model(other, tmp_path / "other")
        saved_config = json.loads((tmp_path / "other" / "config.json").read_text("utf-8"))
        kinds = {"multilabel": "multi_label_classification"}
        assert saved_config.get("problem_type") == kinds.get(task.name)
        assert not saved_config.keys() & {"label_mean", "label_deviation", "sentence_transformers"}
        kernel = load_file(tmp_path / "other" / "model.safetensors")["classifier.out_proj.weight"]
        np.testing.assert_array_equal(kernel, np.transpose(other.classifier.out_proj.kernel))


def test_config_json_has_positions_for_max_length(folder):
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    assert (config["max_position_embeddings"], tokenizer["model_max_length"]) == (16, 16)
    learned = RoFormerEncoder.from_pretrained(folder).config.replace(
        position_embedding_type="learned", max_position_embeddings=8
    )
    assert TASK.decoding.described_in(learned).max_position_embeddings == 8  # size of the table


def test_an_older_folder_with_an_unscaled_head_is_read(model, tmp_path):
    """Older folders have an unscaled head, and mean and deviation in task.json."""
    weights = {name: np.asarray(x) for name, x in model.named_variables().items()}
    model.save_pretrained(tmp_path / "before", weights)
    TASK.save(tmp_path / "before")
    logits = np.asarray(model(model.tokenizer(TEXTS, TASK.max_length)))[:, 0]
    np.testing.assert_allclose(scores(tmp_path / "before"), 2020.5 + 4 * logits, atol=2e-3)
