"""Tests of the inputs of models: invalid ones give an error that lists the expected keys."""

import keras
import numpy as np
import pytest

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
