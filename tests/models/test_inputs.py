"""Tests of the inputs of models: invalid ones give an error that lists the expected keys."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import (
    InputError,
    RoFormerEncoder,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

IDS = np.array([[2, 30, 40, 3]], "int32")
EXPECTED = r"token_ids .*segment_ids, sequence_ids"

WRONG = {
    "an array": (IDS, f"type ndarray.*{EXPECTED}"),
    "a tuple": ((IDS, IDS), f"type tuple.*{EXPECTED}"),
    "transformers' key": (
        {"input_ids": IDS},
        f"input_ids.*{EXPECTED}.*input_ids is token_ids here",
    ),
    "an unknown key": (
        {"token_ids": IDS, "attention_mask": IDS},
        f"attention_mask.*{EXPECTED}.*attention_mask is sequence_ids here",
    ),
    "a misspelt key": ({"token_ids": IDS, "segment_id": IDS}, f"inputs: segment_id.*{EXPECTED}"),
    "a key of another model": ({"token_ids": IDS, "masked_positions": IDS}, "masked_positions"),
    "a key of training": ({"token_ids": IDS, "labels": IDS}, f"labels.*{EXPECTED}"),
    "no token_ids": ({"segment_ids": IDS}, f"no token_ids.*{EXPECTED}"),
    "nothing": ({}, f"no token_ids.*{EXPECTED}"),
    "-100": ({"token_ids": np.array([[2, -100, 3]])}, "token_ids contains -100, .* 0 to 49"),
    "beyond": ({"token_ids": np.array([[2, 50, 3]])}, "token_ids contains 50, .* 0 to 49"),
    "a segment": ({"token_ids": IDS, "segment_ids": IDS}, "segment_ids contains 40, .* 0 to 1"),
    "a document": (
        {"token_ids": IDS, "sequence_ids": -IDS},
        "sequence_ids contains -40, .*st 0",
    ),
    "floats": ({"token_ids": IDS.astype("float32")}, "token_ids is of dtype float32"),
    "strings": ({"token_ids": np.array([["a", "b"]])}, "token_ids is of dtype"),
    "one row": ({"token_ids": IDS[0]}, r"shape \(4,\).*\(batch, length\)"),
    "no token": ({"token_ids": IDS[:, :0]}, r"shape \(1, 0\).*at least one token"),
    "three axes": ({"token_ids": IDS[None]}, r"shape \(1, 1, 4\)"),
    "two lengths": ({"token_ids": IDS, "segment_ids": IDS[:, :2] * 0}, r"\(1, 2\).*\(1, 4\)"),
    "ragged": ({"token_ids": [[2, 3], [2]]}, "different lengths"),
    "ragged tensor": ({"token_ids": tf.ragged.constant([[2, 3], [2]])}, r"is a Ragged.*0, as `to_"),
    "sparse tensor": ({"token_ids": tf.sparse.from_dense(IDS)}, r"is a Sparse.* dense array"),
}


@pytest.fixture(scope="module")
def encoder(tiny):
    return RoFormerEncoder(tiny(num_hidden_layers=1))


@pytest.mark.parametrize("case", WRONG)
def test_invalid_inputs_are_refused(case, encoder):
    inputs, message = WRONG[case]
    for _ in range(2):  # the second call may be traced
        with pytest.raises(InputError, match=message):
            encoder(inputs)


def test_lists_none_and_boolean_masks_are_accepted(encoder, to_float64):
    want = to_float64(encoder({"token_ids": IDS}))
    for inputs in (
        {"token_ids": IDS.tolist()},
        {"token_ids": keras.ops.array(IDS), "segment_ids": None},
        {"token_ids": IDS, "sequence_ids": IDS != 0},
    ):
        np.testing.assert_allclose(to_float64(encoder(inputs)), want, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "known", "unknown"),
    [
        (RoFormerForMaskedLM, ("masked_positions", "labels"), "attention_mask"),
        (RoFormerForCausalLM, ("labels",), "masked_positions"),
        (RoFormerForSequenceClassification, (), "labels"),
        (RoFormerForTokenClassification, (), "labels"),
    ],
)
def test_each_class_accepts_only_its_own_keys(kind, known, unknown, tiny):
    model = kind(tiny(num_hidden_layers=1, num_labels=3))
    zeros = np.zeros_like(IDS)
    model({"token_ids": IDS, **dict.fromkeys(known, zeros)})
    names = ", ".join(("segment_ids", "sequence_ids", *known))
    with pytest.raises(InputError, match=f"{unknown}.* {kind.__name__} .*{names}"):
        model({"token_ids": IDS, unknown: zeros})


@pytest.mark.parametrize("method", ["fit", "predict", "functional"])
def test_keys_are_checked_in_fit_predict_and_functional_models(method, tiny):
    model = RoFormerForSequenceClassification(tiny(num_hidden_layers=1, num_labels=2))
    inputs = {"token_ids": IDS, "attention_mask": np.ones_like(IDS)}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    calls = {
        "fit": lambda: model.fit(inputs, np.array([0]), verbose=0),
        "predict": lambda: model.predict(inputs, verbose=0),
        "functional": lambda: model({x: keras.Input((None,), dtype="int32") for x in inputs}),
    }
    with pytest.raises(InputError, match="attention_mask is sequence_ids here"):
        calls[method]()


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 2, 1)])
@pytest.mark.parametrize("name", ["masked_positions", "labels"])
def test_inputs_must_have_the_batch_size_of_the_tokens(name, shape, tiny):
    model = RoFormerForMaskedLM(tiny(num_hidden_layers=1))
    with pytest.raises(InputError, match=f"{name} has the shape"):
        model({"token_ids": np.repeat(IDS, 2, 0), name: np.zeros(shape, "int32")})


@pytest.mark.parametrize("name", ["segment_ids", "sequence_ids"])
def test_arrays_of_different_sizes_are_refused_by_predict(name, encoder):
    inputs = {"token_ids": np.repeat(IDS, 2, 0), name: np.zeros((3, 4), "int32")}
    with pytest.raises(InputError, match=rf"{name} has the shape \(3, 4\), but token_ids \(2, 4\)"):
        encoder.predict(inputs, verbose=0)


REPLICAS = """
import json
import keras, numpy as np, tensorflow as tf
from roformer_tf import RoFormerConfig, RoFormerForSequenceClassification

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # two steps
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
config = RoFormerConfig(vocab_size=50, intermediate_size=8, **sizes, **rates)
ids = np.random.default_rng(0).integers(1, 50, (8, 6)).astype("int32")
for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    keras.utils.set_random_seed(0)
    eager = strategy.num_replicas_in_sync == 1
    with strategy.scope():
        model = RoFormerForSequenceClassification(config, num_labels=2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eager)
    fit = model.fit({"token_ids": ids}, np.arange(8) % 2, epochs=2, shuffle=False, verbose=0)
    print(json.dumps(fit.history["loss"]))
"""


def test_two_replicas_train_like_one_device():
    """Keras builds the model with the mean of the replicas' ids, which are floats."""
    # In a process of its own, because devices are configured before TensorFlow starts.
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    single, double = map(json.loads, done.stdout.splitlines())
    assert double == pytest.approx(single, abs=1e-6)
