"""Tests that a `.keras` file keeps the settings of layers or refuses, and that LoRA is merged."""

import keras
import numpy as np
import pytest

from roformer_tf import (
    InputError,
    RoFormerEncoder,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RotaryLinearAttention,
    RotaryMultiHeadAttention,
)

INPUTS = {"token_ids": np.arange(1, 13).reshape(2, 6)}


@pytest.fixture
def classifier(tiny):
    return RoFormerForSequenceClassification(tiny(), num_labels=3)


def state(model):
    """Return which layers and weights are trainable, in order."""
    layers = [layer.trainable for layer in model._flatten_layers()]
    return layers, [weight.trainable for weight in model.weights], len(model.trainable_weights)


def freeze_all_but_one_layer(model):
    model.encoder.trainable = False
    model.encoder.layer_stack[1].trainable = True


def freeze_biases(model):
    for weight in model.weights:
        if weight.name == "bias":
            weight.trainable = False


FREEZE = {
    "encoder": lambda model: setattr(model.encoder, "trainable", False),
    "model": lambda model: setattr(model, "trainable", False),
    "all but one layer": freeze_all_but_one_layer,
    "an embedding": lambda model: setattr(model.encoder.embeddings.word, "trainable", False),
    "a projection": lambda model: setattr(
        model.encoder.layer_stack[0].attention.query_dense, "trainable", False
    ),
    "biases": freeze_biases,
    "thawed": lambda model: [setattr(model, "trainable", x) for x in (False, True)],
}


@pytest.mark.quick_cases("encoder-False", "*-True")
@pytest.mark.parametrize(
    ("case", "nested"), [*((case, False) for case in FREEZE), ("all but one layer", True)]
)
def test_frozen_layers_and_weights_stay_frozen(case, nested, classifier, tmp_path):
    FREEZE[case](classifier)
    model = classifier
    if nested:  # as part of a user's own model
        ids = keras.Input((None,), dtype="int32", name="token_ids")
        model = keras.Model({"token_ids": ids}, keras.layers.Dense(2)(model({"token_ids": ids})))
    before = state(classifier)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.get_layer(classifier.name) if nested else loaded
    assert state(again) == before
    assert (before[2] < len(classifier.weights)) == (case != "thawed")
    np.testing.assert_allclose(np.asarray(loaded(INPUTS)), np.asarray(model(INPUTS)), atol=1e-6)


CHANGE = {
    "rate": lambda model: setattr(model.encoder.embeddings.drop, "rate", 0.3),
    "epsilon": lambda model: setattr(model.encoder.layer_stack[0].output_norm, "epsilon", 0.1),
    "lora_alpha": lambda model: model.classifier.out_proj.enable_lora(2),
    "activation": lambda model: setattr(
        model.encoder.layer_stack[0].intermediate, "activation", keras.activations.relu
    ),
    "dtype": lambda model: setattr(model.classifier.out_proj, "dtype_policy", "bfloat16"),
    "config": lambda model: setattr(
        model.encoder, "config", model.config.replace(attention_type="causal")
    ),
}


@pytest.mark.quick_cases("rate", "lora_alpha", "dtype", "config")
@pytest.mark.parametrize("case", CHANGE)
def test_settings_that_a_file_cannot_keep_are_refused(case, classifier, tmp_path):
    path = tmp_path / "model.keras"
    classifier.save(path)
    before = path.read_bytes()
    CHANGE[case](classifier)
    with pytest.raises(InputError, match=f"cannot be saved as .keras: .*{case}"):
        classifier.save(path)
    assert path.read_bytes() == before


def test_rematerialize_is_saved(classifier, tmp_path):
    classifier.encoder.rematerialize = True
    classifier.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").encoder.rematerialize


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_quantized_model_is_not_saved(classifier, tmp_path):
    classifier.quantize("int8")
    with pytest.raises(InputError, match=r"saved as \.keras: the model is quantized.* Save before"):
        classifier.save(tmp_path / "model.keras")


@pytest.mark.parametrize("kind", [RotaryMultiHeadAttention, RotaryLinearAttention])
def test_frozen_projections_in_a_users_model_stay_frozen(kind, tmp_path):
    x = keras.Input((5, 8))
    layer = kind(2, 4)
    model = keras.Model(x, layer(x, x))
    layer.query_dense.trainable = layer.output_dense.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert state(loaded)[2] == state(model)[2] == 4
    assert not loaded.layers[-1].query_dense.trainable


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("trained", [False, True])
def test_lora_is_merged_into_our_format(trained, classifier, tmp_path):
    dense = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)
    adapted = [x for x in classifier._flatten_layers() if isinstance(x, dense)]
    for layer in adapted:
        layer.enable_lora(2)
        for weight in layer.trainable_weights:
            if trained and weight.name == "lora_kernel_b":
                weight.assign(np.random.default_rng(0).normal(size=weight.shape) / 3)
    want = np.asarray(classifier(INPUTS))
    classifier.save_pretrained(tmp_path / "model")
    again = RoFormerForSequenceClassification.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(np.asarray(again(INPUTS)), want, atol=1e-5)
    assert all(layer.lora_enabled for layer in adapted)  # the model itself is unchanged


def test_lora_on_word_embeddings_is_merged(tiny, tmp_path):
    model = RoFormerForMaskedLM(tiny(num_hidden_layers=1))
    model.encoder.embeddings.word.enable_lora(2)
    # Not a constant: the norm after the embeddings would subtract it.
    change = np.random.default_rng(0).normal(size=(2, 32)) / 5
    model.encoder.embeddings.word.lora_embeddings_b.assign(change)
    want = np.asarray(model.encoder(INPUTS))
    model.save_pretrained(tmp_path / "model")
    again = RoFormerEncoder.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(np.asarray(again(INPUTS)), want, atol=1e-5)
