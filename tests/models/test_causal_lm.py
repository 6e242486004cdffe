"""Tests of the losses of a causal language model."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.pretraining.train_step import MaskedTokenLoss

VOCABULARY = 50
V2 = {"norm_type": "rms_norm", "use_bias": False}


@pytest.fixture(scope="module", params=[{}, V2], ids=["v1", "v2"])
def model(request, tiny):
    keras.utils.set_random_seed(0)
    model = RoFormerForCausalLM(tiny(**request.param))
    if model.mlm.bias is not None:
        model.mlm.bias.assign(np.random.default_rng(0).normal(size=VOCABULARY))
    return model


def texts(*sizes, seed=0):
    """Return random token ids of texts, without padding."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, size).astype("int32") for size in sizes]


def packed_inputs(documents, length):
    """Pack documents into one sequence; the labels are the next tokens within each document."""
    tokens, sequences, labels = (np.zeros((1, length), "int32") for _ in range(3))
    start = 0
    for number, ids in enumerate(documents, start=1):
        stop = start + len(ids)
        tokens[0, start:stop], sequences[0, start:stop] = ids, number
        labels[0, start : stop - 1] = ids[1:]
        start = stop
    return {"token_ids": tokens, "sequence_ids": sequences, "labels": labels}


def losses_of(model, inputs, training=False):
    return ops.convert_to_numpy(model(inputs, training=training)).astype("float64")


def reference(model, inputs):
    """Return −log softmax at the labels, from the logits in float64."""
    arguments = {key: x for key, x in inputs.items() if key != "labels"}
    logits = ops.convert_to_numpy(model(arguments)).astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    at_labels = np.take_along_axis(shifted, inputs["labels"][..., None], -1)[..., 0]
    return np.log(np.exp(shifted).sum(-1)) - at_labels


def test_with_labels_the_model_returns_token_losses(model):
    inputs = packed_inputs(texts(6, 5), 14)
    arguments = model(inputs)
    assert arguments.shape == (1, 14)
    assert keras.backend.standardize_dtype(arguments.dtype) == "float32"
    np.testing.assert_allclose(losses_of(model, inputs), reference(model, inputs), rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_a_label_below_0_has_no_loss_and_no_gradient(model, gradient, training):
    inputs = packed_inputs(texts(6, 5), 14)
    some = np.where(np.arange(14) % 3 == 0, -100, inputs["labels"])
    want = np.where(some < 0, 0, losses_of(model, inputs, training))
    np.testing.assert_array_equal(losses_of(model, inputs | {"labels": some}, training), want)
    hidden = np.random.default_rng(0).normal(size=(1, 14, model.config.hidden_size))
    slopes = gradient(
        lambda x: model.logits_or_losses(x, {"labels": some}, training), hidden.astype("float32")
    )
    np.testing.assert_array_equal((slopes == 0).all(-1), some < 0)


@pytest.mark.usefixtures("eager_steps")
def test_losses_of_a_bfloat16_model_are_float32(tiny):
    keras.utils.set_random_seed(0)
    model = RoFormerForCausalLM(tiny(initializer_range=0.1), dtype="mixed_bfloat16")
    inputs = packed_inputs(texts(6, 5), 14)
    arguments = model(inputs)
    assert keras.backend.standardize_dtype(arguments.dtype) == "float32"
    np.testing.assert_allclose(
        losses_of(model, inputs), reference(model, inputs), rtol=1e-5, atol=1e-5
    )


def test_losses_of_packed_documents_equal_those_of_each_document_alone(model):
    documents = texts(7, 2, 9, 5)
    packed = losses_of(model, packed_inputs(documents, 24))[0]
    start = 0
    for ids in documents:
        alone = losses_of(model, packed_inputs([ids], len(ids)))[0]
        output = slice(start, start + len(ids) - 1)
        np.testing.assert_allclose(packed[output], alone[:-1], rtol=2e-5, atol=2e-5)
        start += len(ids)


def test_another_neighbouring_document_does_not_change_losses(model):
    first, *rest = texts(7, 6, 8)
    original = losses_of(model, packed_inputs([first, *rest], 24))[0]
    replaced = losses_of(model, packed_inputs([first, *texts(9, 4, seed=5)], 24))[0]
    np.testing.assert_array_equal(original[:6], replaced[:6])
    assert (original[7:12] != replaced[7:12]).all()


@pytest.mark.parametrize("position", [1, 5, 10])
def test_losses_do_not_depend_on_the_predicted_or_later_tokens(model, position):
    """Changing a token must not change predictions of the tokens up to it by a single bit."""
    inputs = packed_inputs(texts(11), 12)
    changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
    changed["token_ids"][0, position] = inputs["token_ids"][0, position] % (VOCABULARY - 1) + 1
    before, after = losses_of(model, inputs)[0], losses_of(model, changed)[0]
    np.testing.assert_array_equal(before[:position], after[:position])
    assert (before[position:10] != after[position:10]).all()


def trained(rematerialize, config):
    """Train two steps of gradient descent on a packed sequence; return losses and all weights."""
    keras.utils.set_random_seed(1)
    model = RoFormerForCausalLM(config)
    model.encoder.rematerialize = rematerialize
    model.compile(keras.optimizers.SGD(0.5), MaskedTokenLoss(), jit_compile=True)
    inputs = packed_inputs(texts(7, 9), 20)  # not a multiple of the chunk size
    weights = (inputs["labels"] != 0).astype("float32")
    losses = [model.train_on_batch(inputs, inputs["labels"], weights) for _ in range(2)]
    return np.array(losses), [ops.convert_to_numpy(v) for v in model.trainable_variables]


@pytest.mark.slow
def test_rematerialization_in_chunks_trains_the_same_weights(tiny):
    config = tiny(initializer_range=0.05, num_hidden_layers=1)
    losses, weights = trained(False, config)
    again, recomputed = trained(True, config)
    assert losses[1] < losses[0]
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    for ours, theirs in zip(recomputed, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
