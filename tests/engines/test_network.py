"""Tests of graphs against recordings of bert4keras and transformers, and against Keras."""

import dataclasses
from collections import Counter
from functools import cache

import numpy as np
import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import _CHOICES, RoFormerConfig
from roformer_tf.engines.choice import KERAS_ONLY, unsupported_reason
from roformer_tf.engines.model import graph_model
from roformer_tf.engines.network import Network, OutputKind, rounded
from roformer_tf.errors import InputError
from roformer_tf.models.heads import (
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    RoFormerForSequenceClassification,
    RoFormerForSpanExtraction,
    RoFormerForTokenClassification,
    pooled,
)

pytestmark = pytest.mark.usefixtures("eager_steps")
BOUND = 1e-5
SHAPES = ((1, 1), (1, 7), (64, 9), (3, 64))


def real(token_ids):
    """Return a mask of the tokens that are not padding; the first token always counts."""
    actual = token_ids != 0
    actual[:, 0] = True
    return actual


def network_of(path, part="hidden", **changes):
    with OpenedSource(path) as source:
        checkpoint = source.checkpoint()
        config = checkpoint.config.replace(**changes.pop("config", {}))
        arrays = {name: checkpoint.arrays[name] for name in checkpoint.arrays}
    return Network(config, arrays, part, **changes)


@pytest.mark.parametrize(
    ("name", "attention", "bound"),
    [
        *(("word", None, BOUND), ("char", None, BOUND), ("word_project", None, BOUND)),
        *(("v2_char", None, BOUND), ("gpt_char", "causal", BOUND), ("sim_char", "unilm", BOUND)),
        *(("word_long", None, 2e-5), ("hf_word", None, BOUND), ("word_adam", None, BOUND)),
    ],
)
def test_hidden_states_equal_the_recorded_ones(name, attention, bound, engine, released, recorded):
    arrays = recorded(name)
    network = network_of(released(name), config={"attention_type": attention})
    run = graph_model(network, engine, "float32")
    inputs = {key: arrays[key].astype("int32") for key in ("token_ids", "segment_ids")}
    want = arrays["hidden_last"] if "hidden_last" in arrays else arrays["hidden"][-1]
    mask = real(inputs["token_ids"])
    np.testing.assert_allclose(run(inputs)[mask], want[mask], rtol=0, atol=bound)
    if "edge_token_ids" in arrays:  # padding inside and at the beginning
        inputs = {key: arrays[f"edge_{key}"].astype("int32") for key in inputs}
        want, mask = arrays["edge_hidden_last"], real(inputs["token_ids"])
        np.testing.assert_allclose(run(inputs)[mask], want[mask], rtol=0, atol=bound)


def test_logits_of_a_classifier_equal_those_of_transformers(engine, released, recorded):
    arrays = recorded("hf_word_seqcls")
    run = graph_model(network_of(released("hf_word_seqcls"), "classifier"), engine, "float32")
    inputs = {key: arrays[key].astype("int32") for key in ("token_ids", "segment_ids")}
    np.testing.assert_allclose(run(inputs), arrays["logits"], rtol=0, atol=BOUND)


def test_sentence_vectors_equal_the_recorded_ones(engine, released, recorded):
    arrays = recorded("sim_char")
    network = network_of(released("sim_char"), "vectors", config={"pooling": "pooler"})
    inputs = {key: arrays[f"sentence_{key}"].astype("int32") for key in network.inputs}
    got = graph_model(network, engine, "float32")(inputs)
    np.testing.assert_allclose(got, arrays["sentence_unit"], rtol=0, atol=BOUND)


@pytest.mark.quick_cases(
    "*-word-bidirectional", "*-word_project-causal", "*-v2_char-unilm", "*-sim_char-unilm"
)
@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *(("word", "bidirectional"), ("word_project", "causal"), ("v2_char", "unilm")),
        *(("v2_char", "bidirectional"), ("gpt_char", "causal"), ("sim_char", "unilm")),
    ],
)
def test_logits_at_masked_positions_equal_keras(name, attention, engine, released, random_inputs):
    network = network_of(released(name), "masked", config={"attention_type": attention})
    run = graph_model(network, engine, "float32")
    for inputs, want in masked_scores(released(name), attention, random_inputs):
        # The rounding error is relative: there are 1.2 million logits, some of them large.
        np.testing.assert_allclose(run(inputs), want, rtol=1e-6, atol=BOUND)


@cache  # shared by the engines
def masked_scores(path, attention, random_inputs):
    """Return inputs with masked positions, and the logits that Keras computes there."""
    model = RoFormerForMaskedLM.from_pretrained(path, attention_type=attention)
    rng = np.random.default_rng(0)
    expected = []
    for batch, length in SHAPES:
        inputs = random_inputs(batch, length, model.config.vocab_size)
        # within each text, with repetitions, and more positions than a text may have tokens
        last = np.maximum(1, (inputs["token_ids"] != 0).sum(axis=1, keepdims=True))
        inputs["masked_positions"] = (rng.integers(0, length, (batch, 9)) % last).astype("int32")
        expected.append((inputs, np.asarray(model(inputs))))
    return expected


FAMILIES = {
    "v1": {},
    "v2": {"norm_type": "rms_norm", "use_bias": False},
    "half": {"rotary_style": "half", "rotary_base": 1000.0, "hidden_act": "gelu_new"},
    "projected": {"embedding_size": 8, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "causal": {"attention_type": "causal"},
    "unilm": {"attention_type": "unilm"},
}


def config_of(family, **changes):
    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 40, "initializer_range": 0.3}
    return RoFormerConfig(**sizes | FAMILIES[family] | changes)


def with_random_weights(model, seed=0):
    """Return the model and its arrays, after assigning random values to all weights."""
    rng = np.random.default_rng(seed)
    for name, variable in model.named_variables().items():
        scale = 0.5 if name.endswith("kernel") else 0.2
        values = rng.normal(size=variable.shape) * scale / np.sqrt(max(variable.shape[0], 8) / 8)
        variable.assign(values + name.endswith("gamma"))
    return model, {name: np.asarray(x) for name, x in model.named_variables().items()}


@pytest.mark.quick_cases(
    *("*-cls-causal", "*-cls-half", "*-mean-v1", "*-mean-v2"),
    *("*-tokens-projected", "*-tokens-unilm", "*-spans-v2"),
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean", "tokens", "spans"])
def test_logits_of_every_head_equal_keras(family, pooling, engine, random_inputs):
    part = {"tokens": "token_classifier", "spans": "global_pointer"}.get(pooling, "classifier")
    config, arrays, expected = keras_outputs_of_a_head(family, pooling, random_inputs)
    run = graph_model(Network(config, arrays, part), engine, "float32")
    for inputs, want in expected:
        mask = slice(None) if part == "classifier" else real(inputs["token_ids"])
        np.testing.assert_allclose(run(inputs)[mask], want[mask], atol=BOUND)


@cache  # shared by the engines
def keras_outputs_of_a_head(family, pooling, random_inputs):
    """Return a model's config and arrays, and pairs of inputs and Keras' outputs."""
    if pooling in ("tokens", "spans"):
        kind = RoFormerForTokenClassification if pooling == "tokens" else RoFormerForSpanExtraction
        model, arrays = with_random_weights(kind(config_of(family), num_labels=5))
    else:
        model, arrays = with_random_weights(
            RoFormerForSequenceClassification(config_of(family), num_labels=5, pooling=pooling)
        )
    arguments = [random_inputs(*shape, 40) for shape in SHAPES]
    return model.config, arrays, [(inputs, np.asarray(model(inputs))) for inputs in arguments]


@pytest.mark.parametrize("family", ["causal", "unilm"])
def test_next_token_logits_equal_keras(family, engine, random_inputs):
    model, arrays = with_random_weights(RoFormerForMaskedLM(config_of(family)))
    run = graph_model(Network(model.config, arrays, "next_token"), engine, "float32")
    inputs = random_inputs(3, 20, 40)
    mask = real(inputs["token_ids"])
    np.testing.assert_allclose(run(inputs)[mask], np.asarray(model(inputs))[mask], atol=BOUND)


@pytest.mark.parametrize("pooling", ["pooler", "mean", "cls"])
def test_vectors_are_pooled_truncated_and_normalized(pooling, engine, random_inputs):
    config, arrays, expected = vectors_of(pooling, random_inputs)
    for settings, rows_and_vectors in expected:
        network = Network(config.replace(pooling=pooling), arrays, "vectors", **settings)
        run = graph_model(network, engine, "float32")
        for inputs, want in rows_and_vectors:
            np.testing.assert_allclose(run(inputs), want, atol=BOUND)


@cache  # shared by the engines
def vectors_of(pooling, random_inputs):
    """Return a model's config and arrays, and pairs of inputs and Keras' vectors."""
    model, arrays = with_random_weights(RoFormerForSentenceSimilarity(config_of("v1")))
    expected = []
    for settings in ({"dimensions": None}, {"dimensions": 7}):
        arguments = [random_inputs(*shape, 40) for shape in SHAPES[:3]]
        pooler = model.pooler if pooling == "pooler" else None
        full = [np.asarray(pooled(model.encoder, pooler, pooling, inputs)) for inputs in arguments]
        truncated = [x[:, : settings["dimensions"]] for x in full]
        vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in truncated]
        expected.append((settings, list(zip(arguments, vectors, strict=True))))
    return model.config, arrays, expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["v1", "v2"])
def test_logits_for_any_length_equal_keras(family, engine, random_inputs):
    model, arrays = with_random_weights(
        RoFormerForTokenClassification(config_of(family), num_labels=5)
    )
    run = graph_model(Network(model.config, arrays, "token_classifier"), engine, "float32")
    rng = np.random.default_rng(5)
    for length in (*rng.integers(1, 2001, 12), 2000, 2001, 1537):
        inputs = random_inputs(
            int(rng.integers(1, 1 + 64 * 2000 // (40 * length + 2000))), length, 40
        )
        mask = real(inputs["token_ids"])
        np.testing.assert_allclose(run(inputs)[mask], np.asarray(model(inputs))[mask], atol=BOUND)


@pytest.mark.parametrize("engine", ["openvino"])
def test_bfloat16_distinguishes_distant_positions(engine, random_inputs):
    """Wrong angles would make long sequences (2,000 tokens) less accurate than short ones."""
    pytest.importorskip("openvino")
    model, arrays = with_random_weights(
        RoFormerForTokenClassification(config_of("v1"), num_labels=5)
    )
    network = Network(model.config, arrays, "token_classifier")
    exact, rounded = (graph_model(network, engine, x) for x in ("float32", "bfloat16"))
    actual = []
    for length in (20, 2000):
        inputs = random_inputs(1, length, 40)
        actual.append(np.abs(exact(inputs) - rounded(inputs)).mean())
    assert actual[1] <= 2 * actual[0]


def test_openvino_fuses_the_operators_of_a_rotation():
    """The graph has them in the one form that OpenVINO recognizes."""
    pytest.importorskip("openvino")
    from roformer_tf.engines.model import _openvino_compiled, _openvino_core
    from roformer_tf.engines.openvino_graph import openvino_model

    model, arrays = with_random_weights(
        RoFormerForTokenClassification(config_of("v1", hidden_size=48), num_labels=5)
    )
    network = Network(model.config, arrays, "token_classifier")
    compiled = _openvino_compiled(openvino_model(network, _openvino_core(), None), "float32", 1)
    operations = compiled.get_runtime_model().get_ops()
    kinds = Counter(operation.get_rt_info()["layerType"].value for operation in operations)
    assert kinds["RoPE"] == 2 * model.config.num_hidden_layers  # of queries and of keys


@pytest.mark.parametrize(
    ("function", "want"),
    [
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("linear", lambda x: 1.5 * x + 3.0),
    ],
)
def test_outputs_apply_the_activation_of_the_task(function, want, random_inputs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from roformer_tf.engines.writer import onnx_model

    model, arrays = with_random_weights(
        RoFormerForSequenceClassification(config_of("v1"), num_labels=3)
    )
    network = Network(model.config, arrays, "classifier", OutputKind("x", function, 1.5, 3.0))
    session = onnxruntime.InferenceSession(onnx_model(network).SerializeToString())
    assert [(item.name, item.shape) for item in session.get_inputs()] == [
        ("token_ids", ["batch", "length"]),
        ("segment_ids", ["batch", "length"]),
    ]
    logits, output = session.run(["logits", "x"], random_inputs(3, 8, 40))
    np.testing.assert_allclose(output, want(logits.astype("float64")), rtol=1e-5)


def test_weights_that_are_missing_or_unknown_are_refused(engine):
    model, arrays = with_random_weights(
        RoFormerForSequenceClassification(config_of("v1"), num_labels=3)
    )
    for name in (
        *("encoder/layer_1/output/kernel", "encoder/layer_1/output/bias"),
        *("encoder/embeddings/norm/beta", "classifier/out_proj/bias"),
    ):
        incomplete = {key: x for key, x in arrays.items() if key != name}
        network = Network(model.config, incomplete, "classifier", source="here")
        with pytest.raises(InputError, match=f"here lacks weights, such as {name}"):
            graph_model(network, engine, "float32")
    extended = arrays | {"encoder/layer_0/attention/distance": np.zeros(3, "float32")}
    with pytest.raises(InputError, match="holds encoder/layer_0/attention/distance"):
        graph_model(Network(model.config, extended, "classifier"), engine, "float32")
    other = arrays | {"mlm/bias": np.zeros(3, "float32")}  # not part of this network
    assert graph_model(Network(model.config, other, "classifier"), engine, "float32")


FORMS = (
    *({"position_embedding_type": x} for x in ("learned", "sinusoidal", "t5", "none")),
    *({"rotary_value": True}, {"rotary_share": 0.5}, {"local_attention": 4}),
    {"use_logn_attn": True, "trained_length": 64},
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
)


ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "embedding_size", "max_position_embeddings", "type_vocab_size"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("layer_norm_eps", "rotary_base", "num_labels", "unknown"),
    # used only together with other fields
    *("trained_length", "global_attn_every_n_layers", "relative_attention_num_buckets"),
    "relative_attention_max_distance",
    # applied to the output of the network later
    *("label_mean", "label_deviation"),
}
VALUES = {
    "hidden_act": ("gelu", "gelu_new", "relu"),
    "rotary_style": ("interleaved", "half"),
    "norm_type": ("layer_norm", "rms_norm"),
    "use_bias": (True, False),
    "attention_type": (None, "bidirectional", "causal", "unilm"),
    "pooling": ("cls", "mean", "pooler"),
    "crf": (False, True),
}


def test_unsupported_configs_have_a_reason():
    assert unsupported_reason(config_of("v2")) == ""
    for form in FORMS:
        (name, value) = next(iter(form.items()))
        assert f"its config has {name} {value!r}" in unsupported_reason(config_of("v1", **form))


def test_no_field_of_a_config_is_ignored():
    """A new field, or a new value, has to be written into graphs, or to be Keras' alone."""
    names = {field.name for field in dataclasses.fields(RoFormerConfig)}
    assert names == {*ANY_VALUE, *VALUES, *KERAS_ONLY}
    choices = {name: x for name, x in _CHOICES.items() if name not in KERAS_ONLY}
    assert choices == VALUES


@pytest.mark.parametrize("part", ["classifier", "token_classifier"])
def test_int8_is_close_and_independent_of_the_batch(part, engine, random_inputs):
    from roformer_tf.models.rows import run_rows

    kind = RoFormerForSequenceClassification
    if part == "token_classifier":
        kind = RoFormerForTokenClassification
    model, arrays = with_random_weights(kind(config_of("v1", hidden_size=96), num_labels=5))
    network = Network(model.config, arrays, part)
    exact, rounded = (graph_model(network, engine, x) for x in ("float32", "int8"))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 40, length) for length in (5, 31, 9, 9, 64, 1)]
    alone = [run_rows(rounded, [row])[0] for row in inputs]
    batched = run_rows(rounded, inputs)
    for row, item, other in zip(inputs, alone, batched, strict=True):
        # Only the order of sums differs; another quantization would differ by hundredths.
        np.testing.assert_allclose(item, other, rtol=0, atol=1e-5)
        want = run_rows(exact, [row])[0]
        assert 0 < np.abs(item - want).max() < 0.2 * np.abs(want).max()


@pytest.mark.parametrize("largest", [63, 127])
def test_each_column_of_a_kernel_has_its_own_scale(largest):
    """With one scale for the whole kernel, columns of small weights would become zero."""
    sizes = np.float32([1e-3, 1, 50, 0])
    kernel = np.random.default_rng(0).normal(size=(32, 4)).astype("float32") * sizes
    integers, scales = rounded(kernel, largest)
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max(axis=0).tolist() == [largest] * 3 + [0]
    error = np.abs(integers * scales - kernel).max(axis=0)
    assert (error <= 0.51 * np.abs(kernel).max(axis=0) / largest).all()
