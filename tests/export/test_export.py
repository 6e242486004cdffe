import json
import os
import subprocess
import sys
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf import errors
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.model import open_graph
from roformer_tf.engines.network import Network
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.export import formats
from roformer_tf.export.command import ExportConfig, export, export_model, task_outputs
from roformer_tf.export.formats import check_export
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.finetuned import load_finetuned, predict
from tests.support.service_app import served_task
from tests.support.task_files import load_task

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow writes exports"
)
needs_onnx = pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")

TEXTS = ["今天天气很好", "北京", "我们去公园学习" * 9]
EXAMPLES = [Example((text,), "好坏"[i % 2], f"{i}") for i, text in enumerate(TEXTS * 4)]
NAMES = ("classification", "multilabel", "regression", "ranking", "tagging")
VOCABULARY_SIZE = 23


def rows(batch, length, seed=0):
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(1, VOCABULARY_SIZE, (batch, length), "int32")
    token_ids[-1, length * 2 // 3 :] = 0
    segment_ids = np.broadcast_to(np.arange(length) > length // 2, (batch, length))
    return {"token_ids": token_ids, "segment_ids": segment_ids.astype("int32")}


ROWS = [rows(*shape) for shape in ((1, 5), (2, 64), (5, 33), (1, 600))]


def logits_of(folder, inputs):
    model, _, _ = load_finetuned(folder)
    return [np.asarray(model(item)) for item in inputs]


SCRIPT = """
import json, sys
sys.modules["roformer_tf"] = sys.modules["keras"] = None  # importing them fails
import numpy as np
import tensorflow as tf
for folder in sys.argv[1:]:
    run = tf.saved_model.load(folder).signatures["serving_default"]
    with np.load(folder + ".npz") as arrays:
        rows = [{k: arrays[f"{k}{i}"] for k in ("token_ids", "segment_ids")} for i in range(4)]
    answers = [run(**{k: tf.constant(x) for k, x in row.items()}) for row in rows]
    arrays = {f"{name}{i}": x for i, answer in enumerate(answers) for name, x in answer.items()}
    np.savez(folder + ".out.npz", **arrays)
"""


def python_operations(folder):
    """Return the operations of a saved model that call Python: these work only in our process."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved_model = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    names = {item.name for item in saved_model.meta_graphs[0].meta_info_def.stripped_op_list.op}
    assert "MatMul" in names
    return {name for name in names if "PyFunc" in name}


@pytest.mark.parametrize("process", ["this", pytest.param("its own", marks=pytest.mark.slow)])
def test_saved_models_run_with_only_tensorflow(process, finetuned, tmp_path, monkeypatch):
    names = ("tagging",) if process == "this" else ("classification", "tagging")
    for name in names:
        export(finetuned(name), tmp_path / name, "savedmodel")
        (values,) = (tmp_path / name / "variables").glob("*.data-*")
        assert values.stat().st_size < 1.3 * (finetuned(name) / "model.safetensors").stat().st_size
        np.savez(
            tmp_path / f"{name}.npz",
            **{f"{k}{i}": x for i, row in enumerate(ROWS) for k, x in row.items()},
        )
    folders = [str(tmp_path / name) for name in names]
    if process == "this":  # TensorFlow is loaded here already; loading it again takes seconds
        assert [python_operations(tmp_path / name) for name in names] == [set()] * len(names)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["-c", *folders])
            for module in ("roformer_tf", "keras"):
                patch.setitem(sys.modules, module, None)
            exec(SCRIPT, {})
    else:
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *folders],
            check=True,
            cwd=tmp_path,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=300,
        )
    for name in names:
        with np.load(tmp_path / f"{name}.out.npz") as actual:
            for i, want in enumerate(logits_of(finetuned(name), ROWS)):
                assert np.abs(actual[f"logits{i}"] - want).max() <= 1e-5
                probabilities = np.exp(want) / np.exp(want).sum(-1, keepdims=True)
                assert np.abs(actual[f"probabilities{i}"] - probabilities).max() <= 1e-5
        _, tokenizer, task = load_finetuned(finetuned(name))
        exported = RoFormerTokenizer.from_pretrained(tmp_path / name)
        assert exported.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
        assert exported.units == task.units
        assert load_task(tmp_path / name) == task
        config = json.loads((tmp_path / name / "tokenizer_config.json").read_text("utf-8"))
        assert config["model_max_length"] == task.max_length


@needs_onnx
def test_onnx_equals_the_model_at_any_batch_and_length(finetuned, tmp_path, capsys):
    import onnxruntime

    export(finetuned("tagging"), tmp_path / "onnx", "onnxruntime")
    assert "logits of ONNX Runtime differ from ours by at most" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    assert {item.name: item.shape for item in session.get_inputs()} == {
        "token_ids": ["batch", "length"],
        "segment_ids": ["batch", "length"],
    }
    for row, want in zip(ROWS, logits_of(finetuned("tagging"), ROWS), strict=True):
        logits, probabilities = session.run(["logits", "probabilities"], row)
        is_token = row["token_ids"] != 0
        assert np.abs(logits - want)[is_token].max() <= 1e-4
        assert probabilities.sum(-1) == pytest.approx(1)
    tokenizer = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == [
        *("README.md", "model.onnx", "task.json", *tokenizer)
    ]


@needs_onnx
@pytest.mark.slow
def test_int8_quantizes_kernels(finetuned, tmp_path, capsys):
    import onnx

    folder = finetuned("classification")
    export_model(ExportConfig(model=str(folder), to="int8", output=tmp_path / "int8"))
    # That of 8 bits, not of the graph in float32 that was checked before.
    assert 1e-4 < float(capsys.readouterr().out.split(" by at most ")[1].split()[0]) < 0.1
    model, tokenizer, task = load_finetuned(folder)
    exact = predict(model, tokenizer, task, EXAMPLES)

    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    weights = {item.name: item for item in graph.initializer if len(item.dims) > 1}
    floats = [n for n, item in weights.items() if item.data_type == onnx.TensorProto.FLOAT]
    assert sorted(floats) == [f"encoder/embeddings/{x}/embeddings" for x in ("segment", "word")]
    # Queries (only of the first token), keys and values, output, two feed-forward, two of the head.
    products = [node.op_type for node in graph.node if "MatMul" in node.op_type]
    assert products == ["DynamicQuantizeMatMul"] * (5 + 2)
    kernels = [onnx.numpy_helper.to_array(weights[n]) for n in weights if n not in floats]
    # 63, not 127: older CPUs add two products in int16, which must not overflow.
    assert all(np.abs(kernel).max(axis=0).max() == 63 for kernel in kernels)
    served = served_task(tmp_path / "int8", batch_size=8)
    assert served.task == task
    for got, want in zip(served.predict(EXAMPLES), exact, strict=True):
        assert got.scores == pytest.approx(want.scores, abs=0.05)
        assert got.label == task.labels[int(np.argmax(got.scores))]
    run = open_finetuned(tmp_path / "int8").model
    assert (run.precision, run.tokens) == ("int8", 1)
    for row, want in zip(ROWS, logits_of(folder, ROWS), strict=True):
        assert 0 < np.abs(run(row) - want).max() < 0.2 * np.abs(want).max()


@needs_onnx
@pytest.mark.parametrize("difference", [2e-4, float("nan")])
def test_an_inexact_onnx_model_is_not_written(finetuned, tmp_path, monkeypatch, difference):
    def inexact(path):
        graph = open_graph(path)
        return lambda rows: graph(rows) + difference

    monkeypatch.setattr(formats, "open_graph", inexact)
    with pytest.raises(DifferenceError, match="Nothing was written"):
        export(finetuned("tagging"), tmp_path / "onnx", "onnxruntime")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_the_largest_difference_is_reported(segments):
    seen = set()

    def first(rows):
        seen.update(rows["segment_ids"].ravel().tolist())
        return np.zeros((*rows["token_ids"].shape, 2), "float32")

    def other(rows):
        answer = first(rows)
        answer[rows["token_ids"] == 0] = 9  # outputs of padding are ignored
        if rows["token_ids"].shape[1] == 64:
            answer[1, 3, 1] = -0.5
        return answer

    network = Network(RoFormerConfig(50, 8, 1, 2, 8, type_vocab_size=segments), {})
    assert formats.largest_difference(first, other, network) == 0.5
    assert formats.largest_difference(other, other, network) == 0
    assert seen == set(range(segments))


@pytest.mark.parametrize("name", NAMES)
def test_exported_outputs_equal_the_predictions(finetuned, name):
    """The exported outputs of a single sequence equal the scores of the prediction."""
    model, tokenizer, task = load_finetuned(finetuned(name))
    texts = (TEXTS[0],) * len(task.text_columns)
    units = tuple(TEXTS[0]) if name == "tagging" else ()
    want = predict(model, tokenizer, task, [Example(texts, None, "", units)])[0].scores
    ids, segments = tokenizer.encode(*texts[:2])
    row = {"token_ids": np.array([ids]), "segment_ids": np.array([segments])}
    outputs = task_outputs(model, task, row)
    (output_name,) = outputs.keys() - {"logits"}
    assert output_name == ("value" if name == "regression" else "probabilities")
    got = np.asarray(outputs[output_name])[0]
    got = got[1:-1] if name == "tagging" else got  # without [CLS] and [SEP]
    assert got == pytest.approx(want[:1] if name == "ranking" else want, abs=1e-5)


def test_only_an_earlier_export_is_replaced(finetuned, tmp_path):
    output = tmp_path / "1"
    output.mkdir()
    for _ in range(2):  # first an empty folder, then an export
        check_export("savedmodel", output)
        (output / "saved_model.pb").touch()
        (output / "task.json").touch()
    for folder in (finetuned("tagging"), tmp_path):
        with pytest.raises(InputError, match="is not an export"):
            check_export("savedmodel", folder)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not an export"):
        check_export("savedmodel", tmp_path / "file")


def test_a_missing_package_is_reported_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "onnx" else 1)
    check_export("savedmodel", tmp_path / "out")
    with pytest.raises(InputError, match=r"needs onnx: `pip install 'roformer-tf\[onnx\]'`"):
        check_export("onnxruntime", tmp_path / "out")
    monkeypatch.setattr(errors, "find_spec", lambda name: 1)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match="KERAS_BACKEND=tensorflow"):
        check_export("savedmodel", tmp_path / "out")
    check_export("onnxruntime", tmp_path / "out")  # independent of the backend


def test_a_damaged_onnx_file_is_reported(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="Export it again"):
        open_graph(tmp_path / "model.onnx")
