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


def row_of(documents, length):
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
    own = np.take_along_axis(shifted, inputs["labels"][..., None], -1)[..., 0]
    return np.log(np.exp(shifted).sum(-1)) - own


def test_given_labels_it_gives_the_loss_of_each(model):
    inputs = row_of(texts(6, 5), 14)
    arguments = model(inputs)
    assert arguments.shape == (1, 14)
    assert keras.backend.standardize_dtype(arguments.dtype) == "float32"
    np.testing.assert_allclose(losses_of(model, inputs), reference(model, inputs), rtol=1e-5)


def test_it_is_float32_and_near_in_bfloat16_too(tiny):
    keras.utils.set_random_seed(0)
    model = RoFormerForCausalLM(tiny(initializer_range=0.1), dtype="mixed_bfloat16")
    inputs = row_of(texts(6, 5), 14)
    arguments = model(inputs)
    assert keras.backend.standardize_dtype(arguments.dtype) == "float32"
    np.testing.assert_allclose(
        losses_of(model, inputs), reference(model, inputs), rtol=1e-5, atol=1e-5
    )


def test_losses_in_a_packed_row_are_those_of_each_document_alone(model):
    documents = texts(7, 2, 9, 5)
    packed = losses_of(model, row_of(documents, 24))[0]
    start = 0
    for ids in documents:
        alone = losses_of(model, row_of([ids], len(ids)))[0]
        output = slice(start, start + len(ids) - 1)
        np.testing.assert_allclose(packed[output], alone[:-1], rtol=2e-5, atol=2e-5)
        start += len(ids)


def test_another_neighbour_changes_no_loss_by_a_bit(model):
    first, *rest = texts(7, 6, 8)
    item = losses_of(model, row_of([first, *rest], 24))[0]
    two = losses_of(model, row_of([first, *texts(9, 4, seed=5)], 24))[0]
    np.testing.assert_array_equal(item[:6], two[:6])
    assert (item[7:12] != two[7:12]).all()


@pytest.mark.parametrize("place", [1, 5, 10])
def test_no_loss_knows_the_token_that_it_is_about_or_a_later_one(model, place):
    """Changing a token must not change predictions of the tokens up to it by a single bit."""
    inputs = row_of(texts(11), 12)
    changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
    changed["token_ids"][0, place] = inputs["token_ids"][0, place] % (VOCABULARY - 1) + 1
    before, after = losses_of(model, inputs)[0], losses_of(model, changed)[0]
    np.testing.assert_array_equal(before[:place], after[:place])
    assert (before[place:10] != after[place:10]).all()


def trained(rematerialize, config):
    """Train two steps of gradient descent on a packed sequence; return losses and all weights."""
    keras.utils.set_random_seed(1)
    model = RoFormerForCausalLM(config)
    model.encoder.rematerialize = rematerialize
    model.compile(keras.optimizers.SGD(0.5), MaskedTokenLoss(), jit_compile=True)
    inputs = row_of(texts(7, 9), 20)  # not a multiple of the chunk size
    weights = (inputs["labels"] != 0).astype("float32")
    losses = [model.train_on_batch(inputs, inputs["labels"], weights) for _ in range(2)]
    return np.array(losses), [ops.convert_to_numpy(v) for v in model.trainable_variables]


@pytest.mark.slow
def test_rematerialising_in_chunks_trains_the_same_weights(tiny):
    config = tiny(initializer_range=0.05, num_hidden_layers=1)
    losses, weights = trained(False, config)
    again, recomputed = trained(True, config)
    assert losses[1] < losses[0]
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    for ours, theirs in zip(recomputed, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
