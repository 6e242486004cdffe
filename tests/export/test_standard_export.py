"""Exports with standard operators and the inputs of transformers, for ONNX Runtime and OpenVINO."""

import json
from functools import cache
from importlib.util import find_spec

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines.network import Network
from roformer_tf.engines.standard_onnx import standard_model
from roformer_tf.export.command import export
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.heads import (
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)
from roformer_tf.tasks.regression import Regression
from tests.engines.test_network import FAMILIES, config_of, with_random_weights
from tests.export.test_export_card import code_of
from tests.support.finetuned import load_finetuned
from tests.support.random_model import save_random_models

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="needs the extra [fast]")
pytestmark = pytest.mark.usefixtures("eager_steps")

BOUND = 1e-5
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
TEXTS = ["今天天气很好", "北京", "我们去公园学习" * 3, "上海的天气"]


def pad(rows, side, extra=3):
    """Pad token ids and segments on one side, as a tokenizer of transformers does."""
    length = max(len(ids) for ids, _ in rows) + extra
    arrays = {name: np.zeros((len(rows), length), "int64") for name in INPUTS}
    for number, (ids, segments) in enumerate(rows):
        start = length - len(ids) if side == "left" else 0
        index = number, slice(start, start + len(ids))
        arrays["input_ids"][index], arrays["token_type_ids"][index] = ids, segments
        arrays["attention_mask"][index] = 1
    return arrays


def keras_output(model, ids, segments):
    """Return the Keras output for one text without padding."""
    rows = {"token_ids": np.array([ids], "int32"), "segment_ids": np.array([segments], "int32")}
    return np.asarray(model(rows))[0]


def open_file(runtime, path):
    """Open a model file as a function from inputs to outputs by name."""
    if runtime == "onnxruntime":
        session = onnxruntime.InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(path, "CPU", settings)
    return lambda inputs: {x.get_any_name(): y for x, y in model(inputs).items()}


# OpenVINO is slow because it compiles every graph; quick tests of other files use it.
OPENVINO = pytest.param("openvino", marks=[needs_openvino, pytest.mark.slow])
RUNTIMES = ["onnxruntime", OPENVINO]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    lengths = (1, 7, 16, 5)
    return [
        (rng.integers(0, 40, n).tolist(), (np.arange(n) > n // 2).astype(int).tolist())
        for n in lengths
    ]


@pytest.mark.quick_cases("*-cls-causal", "*-mean-v2", "*-tokens-half")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean", "tokens"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_head_equals_keras_on_both_padding_sides(runtime, pooling, family, rows, tmp_path):
    tokens = pooling == "tokens"
    kind = RoFormerForTokenClassification if tokens else RoFormerForSequenceClassification
    config = config_of(family, **({} if tokens else {"pooling": pooling}))
    model, arrays = with_random_weights(kind(config, num_labels=3))
    network = Network(model.config, arrays, "token_classifier" if tokens else "classifier")
    (tmp_path / "model.onnx").write_bytes(standard_model(network).SerializeToString())
    run = open_file(runtime, tmp_path / "model.onnx")
    # In transformers, only the mask marks padding, and a real token may have the id 0.
    rows = [([i or 1 for i in ids], segments) for ids, segments in rows]
    for side in ("right", "left"):
        inputs = pad(rows, side)
        logits = run(inputs)["logits"]
        for number, row in enumerate(rows):
            is_token = inputs["attention_mask"][number] == 1
            actual = logits[number][is_token] if tokens else logits[number]
            np.testing.assert_allclose(actual, keras_output(model, *row), rtol=0, atol=BOUND)


def operators(path):
    """Return the domains of all operators and the names of all nodes."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    domains = {node.domain for node in model.graph.node} | {x.domain for x in model.opset_import}
    return domains, [node.name for node in model.graph.node]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_question_answering_has_the_outputs_of_transformers(runtime, finetuned, rows, tmp_path):
    to = "onnx" if runtime == "onnxruntime" else runtime
    export(finetuned("question-answering"), tmp_path / "out", to)
    model = RoFormerForQuestionAnswering.from_pretrained(finetuned("question-answering"))
    file = "model.onnx" if to == "onnx" else "openvino_model.xml"
    rows = [([i % 22 + 1 for i in ids], segments) for ids, segments in rows]
    inputs = pad(rows, "left")
    outputs = open_file(runtime, tmp_path / "out" / file)(inputs)
    assert set(outputs) == {"start_logits", "end_logits"}
    for number, (ids, segments) in enumerate(rows):
        is_token = inputs["attention_mask"][number] == 1
        actual = [outputs[name][number][is_token] for name in ("start_logits", "end_logits")]
        want = keras_output(model, ids, segments).T
        np.testing.assert_allclose(actual, want, rtol=0, atol=BOUND)
    if to == "onnx":
        pair = "今天天气", "我们去公园学习"
        assert roformer_tf.load(tmp_path / "out")(pair) == pytest.approx(
            roformer_tf.load(finetuned("question-answering"), engine="keras")(pair), abs=1e-5
        )


NAMES = ("classification", "pair", "regression", "tagging", "multilabel")


@pytest.fixture(scope="module")
def exported(finetuned, tmp_path_factory):
    """exported("pair") → the folder of its export to ONNX, written once."""

    @cache
    def make(name):
        folder = tmp_path_factory.mktemp("exported") / name
        export(finetuned(name), folder, "onnx")
        return folder

    return make


@pytest.mark.parametrize("name", NAMES)
def test_an_export_has_the_layout_of_optimum(name, finetuned, exported):
    folder = exported(name)
    domains, names = operators(folder / "model.onnx")
    assert domains <= {"", "ai.onnx"}
    assert len(set(names)) == len(names)
    layers = [x for x in names if x.startswith("encoder/layer_0/attention/")]
    assert {x.rsplit("/", 1)[1].partition("_")[0] for x in layers} >= {"MatMul", "Softmax", "Split"}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    kinds = [(x.name, x.type, x.shape) for x in session.get_inputs()]
    assert kinds == [(x, "tensor(int64)", ["batch_size", "sequence_length"]) for x in INPUTS]
    assert [x.name for x in session.get_outputs()] == ["logits"]
    files = {path.name for path in folder.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert files >= {"config.json", "model.onnx", "task.json", "README.md", *tokenizer}
    config = json.loads((folder / "config.json").read_text("utf-8"))
    source_config = json.loads((finetuned(name) / "config.json").read_text("utf-8"))
    assert config["model_type"] == "roformer"
    for key in ("architectures", "id2label", "hidden_size", "vocab_size"):
        assert config[key] == source_config[key], key


@pytest.mark.parametrize("to", ["onnx", OPENVINO])
def test_logits_of_a_regression_equal_its_predictions(to, finetuned, tmp_path):
    export(finetuned("regression"), tmp_path / "out", to)
    tokenizer = load_finetuned(finetuned("regression"))[1]
    inputs = pad([tokenizer.encode(text) for text in TEXTS], "right")
    file, runtime = {
        "onnx": ("model.onnx", "onnxruntime"),
        "openvino": ("openvino_model.xml", "openvino"),
    }[to]
    logits = open_file(runtime, tmp_path / "out" / file)(inputs)["logits"]
    want = [x["score"] for x in roformer_tf.load(finetuned("regression"))(TEXTS)]
    np.testing.assert_allclose(logits[:, 0], want, rtol=0, atol=1e-5)
    assert not (tmp_path / "out" / "model.onnx").exists() or to == "onnx"


def test_a_regression_of_large_labels_is_exported(tmp_path):
    """In their units, rounding is far above the bound for logits."""
    task = Regression(mean=1e6, deviation=3e4, label_column="price", max_length=64)
    folder = save_random_models({"regression": task}, tmp_path)["regression"]
    export(folder, tmp_path / "out", "onnx")
    _, tokenizer, _ = load_finetuned(folder)
    run = open_file("onnxruntime", tmp_path / "out" / "model.onnx")
    logits = run(pad([tokenizer.encode(text) for text in TEXTS], "right"))["logits"]
    want = [prediction["score"] for prediction in roformer_tf.load(str(folder))(TEXTS)]
    np.testing.assert_allclose(logits[:, 0], want, rtol=1e-6)


@pytest.mark.parametrize("to", ["onnx", OPENVINO])
@pytest.mark.parametrize(("source", "dimensions"), [("sim_char", 7), ("word", None)])
def test_exported_vectors_equal_embed(source, dimensions, to, released, tmp_path):
    folder = released(source)
    embedder = VectorSettings(dimensions=dimensions).open(folder)
    flags = [] if dimensions is None else ["--dimensions", str(dimensions)]
    assert main(["export", str(folder), "--to", to, "--output", str(tmp_path / "out"), *flags]) == 0
    file = "model.onnx" if to == "onnx" else "openvino_model.xml"
    run = open_file("onnxruntime" if to == "onnx" else "openvino", tmp_path / "out" / file)
    rows = [embedder.tokenizer.encode(text) for text in TEXTS]
    for side in ("right", "left"):
        inputs = pad(rows, side)
        outputs = run(inputs)
        assert outputs.keys() == {"last_hidden_state", "sentence_embedding"}
        want = embedder.embed(TEXTS)
        np.testing.assert_allclose(outputs["sentence_embedding"], want, rtol=0, atol=BOUND)
        assert outputs["last_hidden_state"].shape == (*inputs["input_ids"].shape, 32)
    inputs["attention_mask"][0] = 0  # a text without tokens
    assert np.isfinite(run(inputs)["sentence_embedding"]).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend is enough")
@pytest.mark.parametrize("to", ["onnx", OPENVINO])
@pytest.mark.parametrize("name", ["classification", "sim"])
def test_the_code_in_an_export_card_gives_the_same_numbers(
    name, to, finetuned, released, tmp_path, monkeypatch
):
    folder = released("sim_char") if name == "sim" else finetuned(name)
    assert main(["export", str(folder), "--to", to, "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    code = code_of(card)
    assert "roformer_tf" not in code
    tokenizer = roformer_tf.RoFormerTokenizer.from_pretrained(tmp_path / "out")
    inputs = pad([tokenizer.encode(text) for text in TEXTS], "right")
    monkeypatch.chdir(tmp_path / "out")
    actual = {"inputs": inputs, "np": np}
    exec(code[code.index("import onnxr" if to == "onnx" else "import openvino") :], actual)
    predictions = roformer_tf.load(folder)(TEXTS)
    if name == "sim":
        want = np.stack([x["vector"] for x in predictions])
        np.testing.assert_allclose(actual["vectors"], want, rtol=0, atol=BOUND)
    else:
        probabilities = np.exp(actual["answers"]["logits"])
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        want = [list(x["scores"].values()) for x in predictions]
        np.testing.assert_allclose(probabilities, want, rtol=0, atol=BOUND)
