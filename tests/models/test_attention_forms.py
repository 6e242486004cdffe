"""A whole model by each form of attention that a GPU may take, here interpreted."""

import keras
import numpy as np
import pytest

from roformer_tf import RoFormerConfig, RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.kernels import attention
from roformer_tf.models import encoder

if keras.backend.backend() != "jax":
    pytest.skip("the forms are JAX's", allow_module_level=True)

import jax

LENGTH = 32


def config(**changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = {"vocab_size": 30, "intermediate_size": 24, "hidden_dropout_prob": 0.2}
    return RoFormerConfig(**sizes, **settings, **changes)


def batch():
    """Rows of documents, the second with padding; segments begin within them."""
    rng = np.random.default_rng(0)
    ids = np.array([[1] * 5 + [2] * 11 + [3] * 16, [1] * 9 + [2] * 6 + [0] * 17], "int32")
    return {
        "token_ids": rng.integers(1, 30, ids.shape).astype("int32"),
        "segment_ids": (rng.random(ids.shape) < 0.2).astype("int32"),
        "sequence_ids": ids,
        "masked_positions": np.array([[1, 4, 5, 18], [0, 8, 9, 14]], "int32"),
        "labels": rng.integers(1, 30, (2, 4)).astype("int32"),
    }


def losses_and_gradients(model, inputs, real):
    """Each label's loss where `real`, and the gradient of their sum to every weight."""
    weights, rest = (
        [x.value for x in each]
        for each in (model.trainable_variables, model.non_trainable_variables)
    )

    def total(weights):
        losses, _ = model.stateless_call(weights, rest, inputs, training=True)
        losses = losses * real
        return losses.sum(), losses

    # compiled as a whole, not operation by operation
    slopes, losses = jax.jit(jax.grad(total, has_aux=True))(weights)
    return [np.asarray(x, "float64") for x in (losses, *slopes)]


@pytest.fixture
def segments(monkeypatch):
    """segments(): from now on attention goes by segments, float32 too; counts its calls."""
    calls = []
    attend = attention.attend_in_segments

    def counted(query, *rest):
        calls.append(query.shape)
        return attend(query, *rest)

    def takes(query, documents, rate):
        return query.shape[2] == LENGTH and documents.ranks is None and not rate

    def take():
        monkeypatch.setattr(attention, "attend_in_segments", counted)
        monkeypatch.setattr(attention, "takes_segments", takes)
        monkeypatch.setattr(encoder, "attention_form", lambda: "segments")
        return calls

    return take


@pytest.mark.parametrize(
    ("kind", "rate", "rematerialize", "taken"),
    [
        ("bidirectional", 0.0, False, True),
        ("bidirectional", 0.0, True, True),
        ("bidirectional", 0.3, False, False),
        ("causal", 0.0, False, False),
        ("unilm", 0.3, False, False),
    ],
)
def test_losses_and_gradients_are_those_of_the_mask(segments, kind, rate, rematerialize, taken):
    keras.utils.set_random_seed(0)
    result = RoFormerForMaskedLM if kind == "bidirectional" else RoFormerForCausalLM
    model = result(config(attention_type=kind, attention_probs_dropout_prob=rate))
    model.encoder.rematerialize = rematerialize
    inputs = batch()
    real = np.ones((2, 4))
    if kind != "bidirectional":
        del inputs["masked_positions"]
        inputs["labels"] = inputs["token_ids"]
        real = inputs["sequence_ids"] != 0
    by_mask = losses_and_gradients(model, inputs, real)
    calls = segments()
    by_segments = losses_and_gradients(model, inputs, real)
    assert bool(calls) == taken
    for item, other in zip(by_segments, by_mask, strict=True):
        assert np.abs(item - other).max() <= 1e-5 * max(1e-3, np.abs(other).max())
