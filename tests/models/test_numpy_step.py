"""The next token by NumPy, against the model's own call on the whole row."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.forms import plain_forms
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.models.incremental import CHUNK, IncrementalDecoder
from roformer_tf.models.numpy_step import NumpyStep
from roformer_tf.models.onnx_step import OnnxStep

pytestmark = [
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="for TensorFlow on a CPU"),
    pytest.mark.usefixtures("eager_steps"),  # traced, it is in test_incremental.py
]
PROMPT, WRITTEN = [1, 7, 8, 9, 10], [5, 0, 30, 31, 2, 44]
V2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}


@pytest.fixture(autouse=True)
def without_onnx(monkeypatch):
    """A single row is read on by NumPy where ONNX Runtime is not."""
    monkeypatch.setattr(OnnxStep, "can_read", lambda model: False)


def model_of(tiny, **changes):
    keras.utils.set_random_seed(3)
    model = RoFormerForCausalLM(tiny(**{"attention_type": "causal"} | changes))
    rng = np.random.default_rng(0)  # so that norms and biases show
    for variable in model.variables:
        if variable.name in ("gamma", "beta", "bias"):
            variable.assign(variable + rng.normal(0, 0.2, variable.shape).astype("float32"))
    return model


def every(model, ids):
    """Logits behind each token of a row, from one call; what was written is of segment 1."""
    segments = np.zeros((1, len(ids)), "int32")
    if model.config.attention_type == "unilm":
        segments[:, len(PROMPT) :] = 1
    inputs = {"token_ids": np.array([ids], "int32"), "segment_ids": segments}
    return ops.convert_to_numpy(model(inputs))[0]


def whole(model, ids):
    """Logits behind a row, from one call on all of it."""
    return every(model, ids)[-1]


@pytest.fixture
def counted(monkeypatch):
    """What NumPy read: the rows of each step."""
    rows, read = [], NumpyStep.read

    def counting(self, token_ids, *others):
        rows.append(len(token_ids))
        return read(self, token_ids, *others)

    monkeypatch.setattr(NumpyStep, "read", counting)
    return rows


@pytest.mark.quick_cases(
    "v1-interleaved-*",
    "v1-half-unilm",
    "projected-half-causal",
    "gelu_new-interleaved-causal",
    "v2-half-causal",
    "v2, large epsilon-interleaved-unilm",
)
@pytest.mark.parametrize("attention_type", ["causal", "unilm"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(
    "others",
    [
        pytest.param({}, id="v1"),
        pytest.param(
            {"embedding_size": 24, "rotary_base": 50.0, "layer_norm_eps": 0.1}, id="projected"
        ),
        pytest.param({"hidden_act": "gelu_new"}, id="gelu_new"),
        pytest.param(V2, id="v2"),
        pytest.param(V2 | {"layer_norm_eps": 0.1}, id="v2, large epsilon"),
    ],
)
def test_each_token_gives_the_logits_of_the_whole_row(
    tiny, style, attention_type, others, counted, record_property
):
    model = model_of(tiny, rotary_style=style, attention_type=attention_type, **others)
    decoder = IncrementalDecoder(model)
    decoder.begin([PROMPT], room=len(WRITTEN))
    worst, expected = 0.0, every(model, [*PROMPT, *WRITTEN])
    for place, token in enumerate(WRITTEN, len(PROMPT)):
        logits = decoder.append(np.array([token]))
        assert logits.dtype == np.float32
        if token:  # what padding itself sees is not specified
            worst = max(worst, float(np.abs(logits[0] - expected[place]).max()))
    assert counted == [1] * len(WRITTEN)
    assert worst <= 1e-5
    record_property("difference", (f"NumPy, {style}, {attention_type}", "logits", worst, 1e-5))


def test_keys_and_values_go_back_and_forth(tiny, counted):
    model = model_of(tiny)
    decoder = IncrementalDecoder(model)
    decoder.begin([PROMPT], room=6)
    decoder.append(np.array([5]))  # one row: NumPy
    decoder.choose([0, 0, 0])
    decoder.append(np.array([6, 7, 8]))  # three: TensorFlow
    decoder.choose([1])
    logits = decoder.append(np.array([9]))
    assert counted == [1, 1]
    np.testing.assert_allclose(logits[0], whole(model, [*PROMPT, 5, 7, 9]), atol=1e-5)
    decoder.begin([PROMPT, [1, 2]], room=2)  # the next texts find nothing of the ones before
    logits = decoder.append(np.array([6, 6]))
    np.testing.assert_allclose(logits[0], whole(model, [*PROMPT, 6]), atol=1e-5)
    assert counted == [1, 1]


def test_slots_are_added_and_a_row_chosen_between(tiny, counted):
    model = model_of(tiny, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    decoder = IncrementalDecoder(model)
    decoder.begin([PROMPT], room=1)
    written = np.random.default_rng(1).integers(1, 50, CHUNK).tolist()
    for token in written:
        decoder.choose([0])
        logits = decoder.append(np.array([token]))
    assert len(counted) == CHUNK
    np.testing.assert_allclose(logits[0], whole(model, PROMPT + written), atol=1e-5)


def test_it_reads_by_the_weights_of_now(tiny):
    model = model_of(tiny)
    decoder = IncrementalDecoder(model)
    decoder.begin([PROMPT], room=1)
    decoder.append(np.array([5]))
    for variable in model.variables:
        variable.assign(variable * 0.9)
    decoder.begin([PROMPT], room=1)
    logits = decoder.append(np.array([5]))
    np.testing.assert_allclose(logits[0], whole(model, [*PROMPT, 5]), atol=1e-5)


def test_what_it_cannot_read_is_left_to_keras(tiny, quantizing):
    assert NumpyStep.can_read(model_of(tiny))
    with plain_forms():  # as on a GPU
        assert not NumpyStep.can_read(model_of(tiny))
    assert not NumpyStep.can_read(RoFormerForCausalLM(tiny(), dtype="bfloat16"))
    adapted = model_of(tiny)
    adapted.encoder.layer_stack[0].attention.query_dense.enable_lora(2)
    assert not NumpyStep.can_read(adapted)
    quantized = model_of(tiny, num_hidden_layers=1)
    quantized.quantize("int8")
    assert not NumpyStep.can_read(quantized)
