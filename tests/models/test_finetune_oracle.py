"""Tests of 20 steps of plain SGD on a released checkpoint against a recording of bert4keras."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.checkpoints.names import table
from roformer_tf.models.head_layers import mean_of_tokens
from roformer_tf.models.heads import RoFormerForMaskedLM, RoFormerForSequenceClassification
from roformer_tf.pretraining.train_step import MaskedTokenLoss

BOUND = 1e-4
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def steps(recorded):
    return recorded("finetune_mlm")


@pytest.fixture(scope="module", params=["every position", "masked positions"])
def batch(request, steps):
    """Return inputs, labels and weights of all positions, or of masked ones as in pretraining."""
    inputs = {key: steps[key] for key in ("token_ids", "segment_ids")}
    labels = steps["labels"]
    assert (steps["token_ids"][labels > 0] != 0).all()
    if request.param == "every position":
        return inputs, labels, (labels > 0).astype("float32")
    slots = (labels > 0).sum(1).max() + 1  # at least one unused slot per sequence
    positions = np.argsort(labels == 0, axis=1, kind="stable")[:, :slots].astype("int32")
    labels = np.take_along_axis(labels, positions, 1)
    return inputs | {"masked_positions": positions}, labels, (labels > 0).astype("float32")


def trained(source, batch, learning_rate, steps):
    """Train a masked language model on one batch; return it and the loss before each step."""
    model = RoFormerForMaskedLM.from_pretrained(source, **NO_DROPOUT)
    model.compile(keras.optimizers.SGD(learning_rate), MaskedTokenLoss())
    inputs, labels, weights = batch
    history = model.fit(
        inputs, labels, batch_size=len(labels), sample_weight=weights, epochs=steps, verbose=0
    )
    return model, history.history["loss"]


def tf1_arrays(model):
    """Return every weight by its TF1 name and in its TF1 shape."""
    variables, config = model.named_variables(), model.config
    return {
        row.tf1: row.to_file(ops.convert_to_numpy(variables[row.name]), "tf1", config.rotary_style)
        for row in table(config)
        if row.name in variables
    }


def recorded_weights(steps, kind):
    """Return the arrays recorded under "grad0:…" or "final:…", by TF1 name."""
    prefix = f"{kind}:"
    actual = {
        key.removeprefix(prefix).replace(".", "/"): value
        for key, value in steps.items()
        if key.startswith(prefix)
    }
    assert len(actual) == 8
    return actual


def compare(got, want, word_rows):
    for name, value in want.items():
        actual = got[name][word_rows] if name == "bert/embeddings/word_embeddings" else got[name]
        np.testing.assert_allclose(actual, value, rtol=0, atol=BOUND, err_msg=name)


@pytest.mark.quick_cases("masked positions")
def test_twenty_steps_give_the_recorded_losses_and_weights(released, batch, steps):
    model, losses = trained(released("word"), batch, float(steps["lr"]), 20)
    inputs, labels, weights = batch
    after = model.evaluate(inputs, labels, sample_weight=weights, verbose=0)
    np.testing.assert_allclose([*losses, after], steps["losses"], rtol=0, atol=BOUND)
    compare(tf1_arrays(model), recorded_weights(steps, "final"), steps["word_rows"])


@pytest.mark.usefixtures("eager_steps")
def test_the_first_gradient_equals_the_recorded_one(released, batch, steps, masked_lm):
    after = tf1_arrays(trained(released("word"), batch, 1.0, 1)[0])
    compare_gradients(tf1_arrays(masked_lm("word")), after, steps)


def compare_gradients(before, after, steps):
    """Check gradients: one step of SGD at a rate of 1 subtracts exactly the gradient."""
    gradients = {name: before[name] - after[name] for name in before}
    compare(gradients, recorded_weights(steps, "grad0"), steps["word_rows"])
    norm = np.sqrt(sum(np.square(g.astype("float64")).sum() for g in gradients.values()))
    np.testing.assert_allclose(norm, steps["grad_norm_step0"], rtol=0, atol=BOUND)


# --- A classifier with mean pooling --------------------------------------------------------------


@pytest.fixture(scope="module")
def classified(recorded):
    return recorded("finetune_cls")


def classifier(source, classified, learning_rate=0.0):
    """Return a classifier with the recorded head on a released encoder."""
    model = RoFormerForSequenceClassification.from_pretrained(
        source, num_labels=1, pooling="mean", **NO_DROPOUT
    )
    model.classifier.out_proj.set_weights([classified["head_kernel"], classified["head_bias"]])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate), loss)
    return model


def batch_of(classified):
    """Return inputs and labels of the single batch."""
    inputs = {key: classified[key] for key in ("token_ids", "segment_ids")}
    return inputs, classified["labels"]


def arrays_with_head(model):
    """Return every weight by its TF1 name, and the head by its recorded name."""
    return {
        name.replace("classifier/out_proj", "head"): array
        for name, array in tf1_arrays(model).items()
    }


def test_mean_pooling_and_probabilities_equal_the_recorded_ones(released, classified):
    model, (inputs, _) = classifier(released("word"), classified), batch_of(classified)
    real = inputs["token_ids"] != 0
    mean = ops.convert_to_numpy(mean_of_tokens(model.encoder(inputs), real.astype("int32")))
    np.testing.assert_allclose(mean, classified["mean_pooled"], rtol=0, atol=1e-5)
    probabilities = 1 / (1 + np.exp(-ops.convert_to_numpy(model(inputs))))
    np.testing.assert_allclose(probabilities, classified["probs"], rtol=0, atol=1e-5)


def test_twenty_steps_of_a_classifier_give_the_recorded_losses_and_weights(released, classified):
    model = classifier(released("word"), classified, float(classified["lr"]))
    inputs, labels = batch_of(classified)
    history = model.fit(inputs, labels, batch_size=len(labels), epochs=20, verbose=0)
    losses = [*history.history["loss"], model.evaluate(inputs, labels, verbose=0)]
    np.testing.assert_allclose(losses, classified["losses"], rtol=0, atol=BOUND)
    final = recorded_weights(classified, "final")
    compare(arrays_with_head(model), final, classified["word_rows"])


@pytest.mark.usefixtures("eager_steps")
def test_the_first_gradient_of_a_classifier_equals_the_recorded_one(released, classified):
    model = classifier(released("word"), classified, 1.0)
    before = arrays_with_head(model)
    inputs, labels = batch_of(classified)
    model.fit(inputs, labels, batch_size=len(labels), verbose=0)
    compare_gradients(before, arrays_with_head(model), classified)
