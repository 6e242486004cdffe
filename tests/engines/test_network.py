"""Graphs against what bert4keras and transformers recorded, and against Keras at other shapes."""

from functools import cache

import numpy as np
import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import unsupported_reason
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
    """Which tokens are no padding; the first always counts."""
    actual = token_ids != 0
    actual[:, 0] = True
    return actual


def network_of(path, part="hidden", **more):
    with OpenedSource(path) as source:
        checkpoint = source.checkpoint()
        config = checkpoint.config.replace(**more.pop("config", {}))
        arrays = {name: checkpoint.arrays[name] for name in checkpoint.arrays}
    return Network(config, arrays, part, **more)


@pytest.mark.parametrize(
    ("name", "attention", "bound"),
    [
        *(("word", None, BOUND), ("char", None, BOUND), ("word_project", None, BOUND)),
        *(("v2_char", None, BOUND), ("gpt_char", "causal", BOUND), ("sim_char", "unilm", BOUND)),
        *(("word_long", None, 2e-5), ("hf_word", None, BOUND), ("word_adam", None, BOUND)),
    ],
)
def test_hidden_states_are_the_recorded_ones(name, attention, bound, engine, released, recorded):
    arrays = recorded(name)
    network = network_of(released(name), config={"attention_type": attention})
    run = graph_model(network, engine, "float32")
    rows = {key: arrays[key].astype("int32") for key in ("token_ids", "segment_ids")}
    want = arrays["hidden_last"] if "hidden_last" in arrays else arrays["hidden"][-1]
    seen = real(rows["token_ids"])
    np.testing.assert_allclose(run(rows)[seen], want[seen], rtol=0, atol=bound)
    if "edge_token_ids" in arrays:  # padding inside and in front
        rows = {key: arrays[f"edge_{key}"].astype("int32") for key in rows}
        want, seen = arrays["edge_hidden_last"], real(rows["token_ids"])
        np.testing.assert_allclose(run(rows)[seen], want[seen], rtol=0, atol=bound)


def test_a_classification_is_the_one_transformers_recorded(engine, released, recorded):
    arrays = recorded("hf_word_seqcls")
    run = graph_model(network_of(released("hf_word_seqcls"), "classifier"), engine, "float32")
    rows = {key: arrays[key].astype("int32") for key in ("token_ids", "segment_ids")}
    np.testing.assert_allclose(run(rows), arrays["logits"], rtol=0, atol=BOUND)


def test_a_sentence_vector_is_the_recorded_one(engine, released, recorded):
    arrays = recorded("sim_char")
    network = network_of(released("sim_char"), "vectors", pooling="pooler")
    rows = {key: arrays[f"sentence_{key}"].astype("int32") for key in network.inputs}
    got = graph_model(network, engine, "float32")(rows)
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
def test_masked_positions_score_the_vocabulary_as_keras(name, attention, engine, released, rows_of):
    network = network_of(released(name), "masked", config={"attention_type": attention})
    run = graph_model(network, engine, "float32")
    for rows, want in masked_scores(released(name), attention, rows_of):
        # Of 1.2 million logits, the largest are the most rounded.
        np.testing.assert_allclose(run(rows), want, rtol=1e-6, atol=BOUND)


@cache  # by each engine
def masked_scores(path, attention, rows_of):
    """Rows with masked positions, and what Keras scores there."""
    model = RoFormerForMaskedLM.from_pretrained(path, attention_type=attention)
    chance = np.random.default_rng(0)
    answered = []
    for batch, length in SHAPES:
        rows = rows_of(batch, length, model.config.vocab_size)
        # within each text, several in one place, and more of them than a row has tokens
        last = np.maximum(1, (rows["token_ids"] != 0).sum(axis=1, keepdims=True))
        rows["masked_positions"] = (chance.integers(0, length, (batch, 9)) % last).astype("int32")
        answered.append((rows, np.asarray(model(rows))))
    return answered


FAMILIES = {
    "v1": {},
    "v2": {"norm_type": "rms_norm", "use_bias": False},
    "half": {"rotary_style": "half", "rotary_base": 1000.0, "hidden_act": "gelu_new"},
    "projected": {"embedding_size": 8, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "causal": {"attention_type": "causal"},
    "unilm": {"attention_type": "unilm"},
}


def config_of(family, **more):
    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 40, "initializer_range": 0.3}
    return RoFormerConfig(**sizes | FAMILIES[family] | more)


def drawn(model, seed=0):
    """The model with every weight drawn anew, biases and norms, too; and its arrays."""
    chance = np.random.default_rng(seed)
    for name, variable in model.named_variables().items():
        scale = 0.5 if name.endswith("kernel") else 0.2
        values = chance.normal(size=variable.shape) * scale / np.sqrt(max(variable.shape[0], 8) / 8)
        variable.assign(values + name.endswith("gamma"))
    return model, {name: np.asarray(x) for name, x in model.named_variables().items()}


@pytest.mark.quick_cases(
    *("*-cls-causal", "*-cls-half", "*-mean-v1", "*-mean-v2"),
    *("*-tokens-projected", "*-tokens-unilm", "*-spans-v2"),
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean", "tokens", "spans"])
def test_every_head_answers_as_keras(family, pooling, engine, rows_of):
    part = {"tokens": "token_classifier", "spans": "global_pointer"}.get(pooling, "classifier")
    config, arrays, answered = answers_of_a_head(family, pooling, rows_of)
    run = graph_model(Network(config, arrays, part), engine, "float32")
    for rows, want in answered:
        seen = slice(None) if part == "classifier" else real(rows["token_ids"])
        np.testing.assert_allclose(run(rows)[seen], want[seen], atol=BOUND)


@cache  # by each engine
def answers_of_a_head(family, pooling, rows_of):
    """A model's config and arrays; rows, and what Keras answers them."""
    if pooling in ("tokens", "spans"):
        kind = RoFormerForTokenClassification if pooling == "tokens" else RoFormerForSpanExtraction
        model, arrays = drawn(kind(config_of(family), num_labels=5))
    else:
        model, arrays = drawn(
            RoFormerForSequenceClassification(config_of(family), num_labels=5, pooling=pooling)
        )
    arguments = [rows_of(*shape, 40) for shape in SHAPES]
    return model.config, arrays, [(rows, np.asarray(model(rows))) for rows in arguments]


@pytest.mark.parametrize("family", ["causal", "unilm"])
def test_what_is_written_is_scored_everywhere_as_by_keras(family, engine, rows_of):
    model, arrays = drawn(RoFormerForMaskedLM(config_of(family)))
    run = graph_model(Network(model.config, arrays, "next_token"), engine, "float32")
    rows = rows_of(3, 20, 40)
    seen = real(rows["token_ids"])
    np.testing.assert_allclose(run(rows)[seen], np.asarray(model(rows))[seen], atol=BOUND)


@pytest.mark.parametrize("pooling", ["pooler", "mean", "cls"])
def test_vectors_are_pooled_cut_and_made_one_long(pooling, engine, rows_of):
    config, arrays, answered = vectors_of(pooling, rows_of)
    for settings, rows_and_vectors in answered:
        network = Network(config, arrays, "vectors", pooling=pooling, **settings)
        run = graph_model(network, engine, "float32")
        for rows, want in rows_and_vectors:
            np.testing.assert_allclose(run(rows), want, atol=BOUND)


@cache  # by each engine
def vectors_of(pooling, rows_of):
    """A model's config and arrays; rows and the vectors that Keras gives."""
    model, arrays = drawn(RoFormerForSentenceSimilarity(config_of("v1")))
    answered = []
    for settings in ({"dimensions": None}, {"dimensions": 7}):
        arguments = [rows_of(*shape, 40) for shape in SHAPES[:3]]
        pooler = model.pooler if pooling == "pooler" else None
        whole = [np.asarray(pooled(model.encoder, pooler, pooling, rows)) for rows in arguments]
        cut = [x[:, : settings["dimensions"]] for x in whole]
        vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in cut]
        answered.append((settings, list(zip(arguments, vectors, strict=True))))
    return model.config, arrays, answered


@pytest.mark.slow
@pytest.mark.parametrize("family", ["v1", "v2"])
def test_rows_of_any_length_are_answered_as_by_keras(family, engine, rows_of):
    model, arrays = drawn(RoFormerForTokenClassification(config_of(family), num_labels=5))
    run = graph_model(Network(model.config, arrays, "token_classifier"), engine, "float32")
    chance = np.random.default_rng(5)
    for length in (*chance.integers(1, 2001, 12), 2000, 2001, 1537):
        rows = rows_of(int(chance.integers(1, 1 + 64 * 2000 // (40 * length + 2000))), length, 40)
        seen = real(rows["token_ids"])
        np.testing.assert_allclose(run(rows)[seen], np.asarray(model(rows))[seen], atol=BOUND)


@pytest.mark.parametrize("engine", ["openvino"])
def test_bfloat16_distinguishes_distant_positions(engine, rows_of):
    """A wrong angle would show: rows of 2,000 tokens are as near to float32 as rows of 20."""
    pytest.importorskip("openvino")
    model, arrays = drawn(RoFormerForTokenClassification(config_of("v1"), num_labels=5))
    network = Network(model.config, arrays, "token_classifier")
    exact, rounded = (graph_model(network, engine, x) for x in ("float32", "bfloat16"))
    actual = []
    for length in (20, 2000):
        rows = rows_of(1, length, 40)
        actual.append(np.abs(exact(rows) - rounded(rows)).mean())
    assert actual[1] <= 2 * actual[0]


@pytest.mark.parametrize(
    ("function", "want"),
    [
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("linear", lambda x: 1.5 * x + 3.0),
    ],
)
def test_logits_mean_what_the_task_says(function, want, rows_of, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from roformer_tf.engines.onnx_graph import onnx_model

    model, arrays = drawn(RoFormerForSequenceClassification(config_of("v1"), num_labels=3))
    network = Network(model.config, arrays, "classifier", OutputKind("x", function, 1.5, 3.0))
    session = onnxruntime.InferenceSession(onnx_model(network).SerializeToString())
    assert [(item.name, item.shape) for item in session.get_inputs()] == [
        ("token_ids", ["batch", "length"]),
        ("segment_ids", ["batch", "length"]),
    ]
    logits, meant = session.run(["logits", "x"], rows_of(3, 8, 40))
    np.testing.assert_allclose(meant, want(logits.astype("float64")), rtol=1e-5)


def test_weights_that_are_missing_or_unknown_are_refused(engine):
    model, arrays = drawn(RoFormerForSequenceClassification(config_of("v1"), num_labels=3))
    for name in (
        *("encoder/layer_1/output/kernel", "encoder/layer_1/output/bias"),
        *("encoder/embeddings/norm/beta", "classifier/out_proj/bias"),
    ):
        fewer = {key: x for key, x in arrays.items() if key != name}
        network = Network(model.config, fewer, "classifier", source="here")
        with pytest.raises(InputError, match=f"here lacks weights, such as {name}"):
            graph_model(network, engine, "float32")
    more = arrays | {"encoder/layer_0/attention/distance": np.zeros(3, "float32")}
    with pytest.raises(InputError, match="holds encoder/layer_0/attention/distance"):
        graph_model(Network(model.config, more, "classifier"), engine, "float32")
    other = arrays | {"mlm/bias": np.zeros(3, "float32")}  # of a part that has no share in it
    assert graph_model(Network(model.config, other, "classifier"), engine, "float32")


FORMS = (
    *({"position_embedding_type": x} for x in ("learned", "sinusoidal", "t5", "none")),
    *({"rotary_value": True}, {"rotary_share": 0.5}, {"local_attention": 4}),
    {"use_logn_attn": True, "trained_length": 64},
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
)


def test_what_a_graph_does_not_know_is_left_to_keras():
    config = config_of("v2")
    assert unsupported_reason(config) == ""
    for form in FORMS:
        (name, value) = next(iter(form.items()))
        assert f"its config has {name} {value!r}" in unsupported_reason(config_of("v1", **form))
    object.__setattr__(config, "hidden_act", "swish")
    assert "hidden_act 'swish'" in unsupported_reason(config)


@pytest.mark.parametrize("part", ["classifier", "token_classifier"])
def test_int8_is_near_and_does_not_depend_on_neighbours(part, engine, rows_of):
    from roformer_tf.models.rows import run_rows

    kind = RoFormerForSequenceClassification
    if part == "token_classifier":
        kind = RoFormerForTokenClassification
    model, arrays = drawn(kind(config_of("v1", hidden_size=96), num_labels=5))
    network = Network(model.config, arrays, part)
    exact, rounded = (graph_model(network, engine, x) for x in ("float32", "int8"))
    chance = np.random.default_rng(0)
    rows = [chance.integers(1, 40, length) for length in (5, 31, 9, 9, 64, 1)]
    alone = [run_rows(rounded, [row])[0] for row in rows]
    together = run_rows(rounded, rows)
    for row, item, other in zip(rows, alone, together, strict=True):
        # The order of sums differs; another step of the quantization would change some hundredths.
        np.testing.assert_allclose(item, other, rtol=0, atol=1e-5)
        want = run_rows(exact, [row])[0]
        assert 0 < np.abs(item - want).max() < 0.2 * np.abs(want).max()


@pytest.mark.parametrize("largest", [63, 127])
def test_each_column_of_a_kernel_is_rounded_by_its_own_scale(largest):
    """By one scale for the whole kernel, a column of small weights would be lost."""
    sizes = np.float32([1e-3, 1, 50, 0])
    kernel = np.random.default_rng(0).normal(size=(32, 4)).astype("float32") * sizes
    integers, scales = rounded(kernel, largest)
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max(axis=0).tolist() == [largest] * 3 + [0]
    error = np.abs(integers * scales - kernel).max(axis=0)
    assert (error <= 0.51 * np.abs(kernel).max(axis=0) / largest).all()
