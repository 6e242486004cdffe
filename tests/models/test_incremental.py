"""Tests of incremental decoding with cached keys and values against calls on full sequences."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.models.incremental import CHUNK, STEP, IncrementalDecoder, OnnxStep

VOCABULARY = 50
PROMPTS = [[1, 7, 8, 9, 10], [1, 11], [1, *range(20, 20 + STEP)], [1, 12, 13, 0, 14]]
"""Prompts of several lengths: one fills the slots exactly, one contains a padding token."""


@pytest.fixture(autouse=True)
def without_onnx(monkeypatch):
    """Keras decodes several sequences here; `test_onnx_step.py` tests decoding by ONNX Runtime."""
    monkeypatch.setattr(OnnxStep, "can_read", lambda model: False)


def model_of(tiny, style="interleaved", attention_type="causal", dtype="float32", **options):
    keras.utils.set_random_seed(3)
    config = tiny(rotary_style=style, attention_type=attention_type, **options)
    return RoFormerForCausalLM(config, dtype=dtype)


def full_logits(model, prompts, new_tokens):
    """Return logits after each prompt and each new token, from one call on full sequences."""
    ids = np.zeros((len(prompts), max(map(len, prompts)) + len(new_tokens[0])), "int32")
    segments = np.zeros_like(ids)
    for row, (prompt, tokens) in enumerate(zip(prompts, new_tokens, strict=True)):
        end = len(prompt) + len(tokens)  # the padding after it has no effect
        ids[row, :end] = [*prompt, *tokens]
        segments[row, len(prompt) : end] = model.config.attention_type == "unilm"
    logits = ops.convert_to_numpy(model({"token_ids": ids, "segment_ids": segments}))
    return [
        logits[row, len(prompt) - 1 :][: len(tokens) + 1]
        for row, (prompt, tokens) in enumerate(zip(prompts, new_tokens, strict=True))
    ]


@pytest.mark.quick_cases("interleaved-causal", "half-unilm")
@pytest.mark.parametrize("attention_type", ["causal", "unilm"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_each_step_gives_the_logits_of_the_full_sequence(
    tiny, style, attention_type, record_property
):
    model = model_of(tiny, style, attention_type)
    decoder = IncrementalDecoder(model)
    new_tokens = np.random.default_rng(0).integers(1, VOCABULARY, (len(PROMPTS), 6))
    new_tokens[1, 2] = 0  # treated as padding
    logits = decoder.begin(PROMPTS, room=6)
    worst, expected = 0.0, full_logits(model, PROMPTS, new_tokens)
    for step in range(7):
        for row in range(len(PROMPTS)):
            if step and new_tokens[row, step - 1] == 0:
                continue  # the logits at padding are not specified
            worst = max(worst, float(np.abs(logits[row] - expected[row][step]).max()))
        if step < 6:
            logits = decoder.append(new_tokens[:, step])
    assert worst <= 1e-5
    record_property("difference", (f"kept, {style}, {attention_type}", "logits", worst, 1e-5))


@pytest.mark.usefixtures("eager_steps")
def test_a_packed_document_has_the_logits_of_the_document_alone(tiny):
    model = model_of(tiny)
    first, second = [1, 30, 31, 32], [1, 33, 34]
    logits = IncrementalDecoder(model).begin([second], room=1)
    packed = {
        "token_ids": np.array([[*first, *second]], "int32"),
        "sequence_ids": np.array([[1] * 4 + [2] * 3], "int32"),
    }
    np.testing.assert_allclose(logits[0], ops.convert_to_numpy(model(packed))[0, -1], atol=1e-5)


@pytest.mark.usefixtures("eager_steps")
def test_a_sequence_gives_the_same_in_a_batch_and_alone(tiny):
    model = model_of(tiny)
    batched = IncrementalDecoder(model)
    logits = batched.begin(PROMPTS, room=3)
    for row in (1, 3):  # the shortest prompt, and one with padding inside
        alone = IncrementalDecoder(model).begin([PROMPTS[row]], room=3)
        np.testing.assert_allclose(logits[row], alone[0], atol=1e-5)


def test_sequences_are_repeated_reordered_and_dropped(tiny):
    model = model_of(tiny)
    decoder = IncrementalDecoder(model)
    decoder.begin(PROMPTS, room=4)
    decoder.append(np.array([5, 6, 7, 8]))
    decoder.choose([2, 0, 2])
    logits = decoder.append(np.array([9, 10, 11]))
    expected = full_logits(model, [PROMPTS[i] for i in (2, 0, 2)], [[7, 9], [5, 10], [7, 11]])
    for row in range(3):
        np.testing.assert_allclose(logits[row], expected[row][-1], atol=1e-5)


@pytest.mark.slow
def test_slots_are_added_as_needed(tiny):
    model = model_of(tiny, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    decoder = IncrementalDecoder(model)
    logits = decoder.begin([[1, 2, 3]], room=1)
    new_tokens = np.random.default_rng(1).integers(1, VOCABULARY, CHUNK + STEP + 2)
    for token in new_tokens:
        logits = decoder.append(np.array([token]))
    expected = full_logits(model, [[1, 2, 3]], [new_tokens])[0][-1]
    np.testing.assert_allclose(logits[0], expected, atol=1e-5)


@pytest.mark.usefixtures("eager_steps")
def test_bfloat16_logits_are_close(tiny):
    model = model_of(tiny, dtype="bfloat16", initializer_range=0.1)
    decoder = IncrementalDecoder(model)
    decoder.begin(PROMPTS[:1], room=2)
    logits = decoder.append(np.array([5]))
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[0], full_logits(model, PROMPTS[:1], [[5]])[0][-1], atol=0.05)


@pytest.mark.slow
def test_a_quantized_model_is_decoded_quantized(tiny):
    model = model_of(tiny)
    model.quantize("int8")
    logits = IncrementalDecoder(model).begin(PROMPTS[:1], room=1)
    np.testing.assert_allclose(logits[0], full_logits(model, PROMPTS[:1], [[]])[0][-1], atol=1e-4)


def test_a_bidirectional_model_is_refused(tiny):
    with pytest.raises(InputError, match="bidirectional"):
        IncrementalDecoder(model_of(tiny, attention_type="bidirectional"))
