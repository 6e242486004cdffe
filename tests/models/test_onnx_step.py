"""Tests of decoding by ONNX Runtime against the model's own call on the full sequence."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.forms import plain_forms
from roformer_tf.models import incremental
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.models.incremental import CHUNK, STEP, IncrementalDecoder, OnnxStep

engine = pytest.importorskip("roformer_tf.engines.step_session", reason="needs the extra [onnx]")
pytestmark = [
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="for TensorFlow on a CPU"),
    pytest.mark.usefixtures("eager_steps"),
]
PROMPTS = [[1, 7, 8, 9, 10], [1, 11], [1, *range(20, 20 + STEP)], [1, 12, 13, 0, 14]]
"""Prompts of several lengths: one exceeds the slots, one contains a padding token."""
V2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}


def model_of(tiny, **changes):
    keras.utils.set_random_seed(3)
    model = RoFormerForCausalLM(tiny(**{"attention_type": "causal"} | changes))
    rng = np.random.default_rng(0)  # random, so that norms and biases affect the result
    for variable in model.variables:
        if variable.name in ("gamma", "beta", "bias"):
            variable.assign(variable + rng.normal(0, 0.2, variable.shape).astype("float32"))
    return model


def full_logits(model, prompt, new_tokens):
    """Return logits after each new token, from one call on the full sequence."""
    ids = np.array([[*prompt, *new_tokens]], "int32")
    segments = (np.arange(ids.shape[1]) >= len(prompt))[None].astype("int32")
    segments *= model.config.attention_type == "unilm"
    logits = model({"token_ids": ids, "segment_ids": segments})
    return ops.convert_to_numpy(logits)[0, len(prompt) :]


class Texts:
    """Sequences of a decoder, with the new tokens of each, and the logits of each token."""

    def __init__(self, model, prompts):
        self.model, self.decoder = model, IncrementalDecoder(model)
        self.decoder.begin(prompts, room=4)
        self.sequences = [(prompt, [], []) for prompt in prompts]

    def choose(self, indices):
        self.decoder.choose(indices)
        self.sequences = [tuple(list(part) for part in self.sequences[i]) for i in indices]

    def append(self, tokens):
        logits = self.decoder.append(np.array(tokens))
        assert logits.dtype == np.float32
        assert logits.shape == (len(self.sequences), self.model.config.vocab_size)
        for (_, new_tokens, token_logits), token, row in zip(
            self.sequences, tokens, logits, strict=True
        ):
            new_tokens.append(token)
            token_logits.append(row)

    def difference(self):
        """Return the largest difference from the logits of full sequences, except at padding."""
        worst = 0.0
        for prompt, new_tokens, token_logits in self.sequences:
            real = np.array(new_tokens) != 0
            difference = np.array(token_logits) - full_logits(self.model, prompt, new_tokens)
            worst = max(worst, float(np.abs(difference[real]).max()))
        return worst


@pytest.fixture
def batch_sizes(monkeypatch):
    """The batch size of each step that ONNX Runtime computed."""
    sizes, read = [], OnnxStep.read

    def counting_read(self, token_ids, *rest):
        sizes.append(len(token_ids))
        return read(self, token_ids, *rest)

    monkeypatch.setattr(OnnxStep, "read", counting_read)
    return sizes


@pytest.mark.quick_cases(
    "v1-interleaved-causal", "projected-half-unilm", "v2, large epsilon-interleaved-unilm"
)
@pytest.mark.parametrize("attention_type", ["causal", "unilm"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="v1"),
        pytest.param(
            {"embedding_size": 24, "rotary_base": 50.0, "hidden_act": "gelu_new"}, id="projected"
        ),
        pytest.param(V2, id="v2"),
        pytest.param(V2 | {"layer_norm_eps": 0.1}, id="v2, large epsilon"),
    ],
)
def test_each_step_gives_the_logits_of_the_full_sequence(
    tiny, style, attention_type, options, batch_sizes, record_property
):
    texts = Texts(
        model_of(tiny, rotary_style=style, attention_type=attention_type, **options), PROMPTS
    )
    texts.append([5, 30, 6, 44])
    texts.append([9, 0, 31, 8])  # 0 is treated as padding
    texts.append([7, 45, 3, 2])
    texts.choose([1, 0, 3, 3])  # as beam search does
    texts.append([4, 5, 6, 7])
    texts.choose([0, 1, 2, 3, 1, 0])
    texts.append([8, 9, 0, 11, 12, 13])
    texts.choose([5, 2, 0])
    texts.append([14, 15, 16])
    texts.choose([1])
    texts.append([17])
    texts.choose([0, 0])
    texts.append([18, 19])
    assert batch_sizes == [4, 4, 4, 4, 6, 3, 1, 2]
    worst = texts.difference()
    assert worst <= 1e-5
    record_property("difference", (f"ONNX, {style}, {attention_type}", "logits", worst, 1e-5))


@pytest.mark.quick_cases("interleaved")
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_keys_and_values_of_the_prompts_are_taken_over_and_reordered(tiny, style, batch_sizes):
    texts = Texts(model_of(tiny, rotary_style=style), PROMPTS)
    texts.append([5, 6, 7, 8])
    texts.choose([3, 0, 1])
    texts.append([9, 10, 11])
    texts.append([12, 13, 14])
    texts.choose([0, 1, 1, 2])
    texts.append([15, 16, 17, 18])
    texts.choose([3, 2])
    texts.append([19, 20])
    assert batch_sizes == [4, 3, 3, 4, 2]
    assert texts.difference() <= 1e-5
    texts.decoder.begin([[1, 2, 3], [1, 4]], room=1)  # does not reuse the previous cache
    texts.sequences = [([1, 2, 3], [], []), ([1, 4], [], [])]
    texts.append([5, 6])
    assert texts.difference() <= 1e-5


def test_slots_are_added_as_needed(tiny, batch_sizes):
    model = model_of(tiny, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    texts = Texts(model, PROMPTS[:2])
    for tokens in np.random.default_rng(1).integers(1, 50, (CHUNK, 2)).tolist():
        texts.append(tokens)
    assert len(batch_sizes) == CHUNK
    assert texts.difference() <= 1e-5


@pytest.mark.quick_cases("assign_sub")
@pytest.mark.parametrize("method", ["assign", "assign_sub"])
def test_weights_are_packed_once_and_again_after_a_change(tiny, method, monkeypatch):
    sessions, original = [], engine.StepSession
    monkeypatch.setattr(engine, "StepSession", lambda *args: sessions.append(0) or original(*args))
    model = model_of(tiny)
    decoder = IncrementalDecoder(model)
    for _ in range(2):
        decoder.begin(PROMPTS[:2], room=1)
        decoder.append(np.array([5, 6]))
        decoder.end()
    assert len(sessions) == 1
    for variable in model.variables:
        getattr(variable.value, method)(
            variable.value * 0.1
        )  # assign_sub changes the memory in place
    decoder.begin(PROMPTS[:2], room=1)
    logits = decoder.append(np.array([5, 6]))
    np.testing.assert_allclose(logits[:1], full_logits(model, PROMPTS[0], [5]), atol=1e-5)
    assert len(sessions) == 2


def test_unsupported_models_are_decoded_by_keras(tiny, no_garbage_collection, monkeypatch):
    model = model_of(tiny, num_hidden_layers=1)
    assert OnnxStep.can_read(model)
    with plain_forms():  # as on a GPU
        assert not OnnxStep.can_read(model)
    assert not OnnxStep.can_read(RoFormerForCausalLM(tiny(), dtype="bfloat16"))
    assert not OnnxStep.can_read(model_of(tiny, num_attention_heads=8))  # heads of size 4
    assert not OnnxStep.can_read(model_of(tiny, position_embedding_type="learned"))
    with monkeypatch.context() as patch:
        patch.setattr("onnxruntime.__version__", "1.21.1")
        assert not OnnxStep.can_read(model)
    with monkeypatch.context() as patch:
        patch.setattr(incremental, "installed", lambda engine: False)
        assert not OnnxStep.can_read(model)
    adapted = model_of(tiny)
    adapted.encoder.layer_stack[0].attention.query_dense.enable_lora(2)
    assert not OnnxStep.can_read(adapted)
    model.quantize("int8")
    assert not OnnxStep.can_read(model)
