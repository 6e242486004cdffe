"""Tests that the requested engine and precision are used, from flags to the compiled graph."""

import dataclasses
import json
import os
from importlib.util import find_spec

import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines import choice as engine_choice
from roformer_tf.engines import model as engine_model
from roformer_tf.engines.choice import Choice, choose
from roformer_tf.engines.model import TOKENS, GraphModel
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.inference.fill_mask import FillMaskConfig, MaskedModel
from roformer_tf.inference.opening import (
    open_finetuned,
    open_model,
    share_weights,
)
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import run_rows
from roformer_tf.serving import command, serve_predictions
from roformer_tf.serving.serve_predictions import (
    BATCH_TOKENS,
    ServedTask,
    TaskQuery,
)
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ServeConfig, WorkerPart
from roformer_tf.tasks.classification import Classification
from tests.support.service_app import create_task_app, served_task

BOTH = [find_spec(name) for name in ("onnx", "onnxruntime", "openvino")]
needs_both = pytest.mark.skipif(not all(BOTH), reason="needs the extras [onnx] and [fast]")
needs_onnx = pytest.mark.skipif(not all(BOTH[:2]), reason="needs the extra [onnx]")


def flags(name, engine, precision):
    arguments = {"engine": engine, "precision": precision}
    return [name, *(word for key, x in arguments.items() if x for word in (f"--{key}", x))]


@pytest.fixture
def processor(monkeypatch, original_choose):
    """processor(native, accelerator=False) sets the hardware that `auto` detects."""

    def set_hardware(native, accelerator=False):
        monkeypatch.setattr("roformer_tf.inference.opening.choose", original_choose)
        monkeypatch.setattr(engine_choice, "multiplies_bfloat16", lambda: native)
        monkeypatch.setattr(engine_choice, "has_accelerator", lambda: accelerator)

    return set_hardware


@pytest.fixture
def computed(monkeypatch):
    """Return a function: (engine, precision) of each graph that ran since its last call."""
    calls, call = [], GraphModel.__call__

    def recording(self, rows):
        calls.append((self.engine, self.precision))
        return call(self, rows)

    def computed():
        actual = set(calls)
        calls.clear()
        return actual

    monkeypatch.setattr(GraphModel, "__call__", recording)
    return computed


LABELS = ("predict", "evaluate", "load", "serve")
VECTORS = ("embed", "load", "serve", "fill-mask", "load to fill")
DEFAULTS = {"labels": ("openvino", "bfloat16"), "vectors": ("onnx", "float32")}


@needs_both
@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("requested", [("auto", None), ("openvino", "int8"), ("keras", None)])
@pytest.mark.parametrize(
    ("kind", "interface"),
    [
        *(("labels", interface) for interface in LABELS),
        *(("vectors", interface) for interface in VECTORS),
    ],
)
def test_the_requested_engine_and_precision_are_used(
    kind, interface, requested, processor, computed, finetuned, released, tmp_path
):
    """By default, labels may be computed in bfloat16, embeddings and mask probabilities may not."""
    processor(True)
    engine, precision = requested
    masked = "fill" in interface
    source = released("hf_char") if masked else released("sim_char")
    folder = str(finetuned("classification") if kind == "labels" else source)
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n今天\t好\n天气\t坏\n", encoding="utf-8")
    files = {
        "predict": ["--input", data, "--output", tmp_path / "out.tsv"],
        "evaluate": ["--data", data],
        "embed": ["--input", data, "--text-columns", "text", "--output", tmp_path / "out.npy"],
        "fill-mask": ["今天[MASK]"],
    }
    if interface in files:
        assert (
            main([*flags(interface, *requested), "--model", folder, *map(str, files[interface])])
            == 0
        )
    elif "load" in interface:
        roformer_tf.load(folder, engine=engine, precision=precision)("今天[MASK]")
    else:
        pooling = None if kind == "labels" else "mean"
        config = ServeConfig(model=(folder,), engine=engine, precision=precision, pooling=pooling)
        open_service(config)  # the service predicts once at start
    expected = {DEFAULTS[kind]} if engine == "auto" else {requested} if engine != "keras" else set()
    assert computed() == expected


@needs_both
@pytest.mark.parametrize(
    ("native", "precision", "want"),
    [
        (True, None, ("openvino", "bfloat16")),
        (False, None, ("onnx", "float32")),
        (False, "bfloat16", ("onnx", "float32")),
        (True, "int8", ("onnx", "int8")),
    ],
)
def test_predictions_use_the_chosen_engine_and_precision(
    native, precision, want, processor, finetuned, caplog
):
    processor(native)
    opened = open_finetuned(finetuned("classification"), "auto", precision)
    actual = [(x.engine, x.precision) for x in (opened.choice, opened.model)]
    assert actual == [want, want]
    caplog.clear()
    roformer_tf.load(finetuned("classification"), precision=precision)
    fell_back = "no instructions for bfloat16, so float32 is used"
    assert (fell_back in caplog.text) == (precision == "bfloat16")
    assert ("OpenVINO computes in bfloat16" in caplog.text) == (want[1] == "bfloat16")


def test_with_an_accelerator_keras_predicts(processor, finetuned):
    processor(True, accelerator=True)
    opened = open_finetuned(finetuned("classification"))
    assert opened.choice == Choice("keras", "float32")
    assert hasattr(opened.model, "predict_on_batch")


@needs_both
@pytest.mark.parametrize(
    ("precision", "hint", "group"),
    [("float32", "f32", 0), ("bfloat16", "bf16", 0), ("int8", "f32", engine_model.GROUP)],
)
def test_precision_and_threads_are_passed_to_openvino(
    precision, hint, group, finetuned, monkeypatch, processor
):
    import openvino

    processor(True)
    compiled_with = {}
    original = openvino.Core.compile_model

    def compiled(self, model, device, settings):
        compiled_with.update(settings, device=device)
        return original(self, model, device, settings)

    monkeypatch.setattr(openvino.Core, "compile_model", compiled)
    open_finetuned(finetuned("classification"), "openvino", precision, threads=1)
    assert compiled_with["INFERENCE_PRECISION_HINT"] == hint
    assert compiled_with["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group
    assert (
        compiled_with["device"],
        compiled_with["INFERENCE_NUM_THREADS"],
        compiled_with["NUM_STREAMS"],
    ) == ("CPU", 1, 1)
    assert compiled_with["CPU_RUNTIME_CACHE_CAPACITY"] == engine_model.OPENVINO_KEPT
    monkeypatch.setattr(engine_model, "usable_cores", lambda: 2)
    open_finetuned(finetuned("classification"), "openvino", precision)
    assert compiled_with["INFERENCE_NUM_THREADS"] == 2


@needs_both
def test_inputs_of_openvino_have_few_lengths(finetuned):
    """OpenVINO compiles each shape and keeps it."""
    model = open_finetuned(finetuned("classification"), "openvino", "float32").model
    lengths = set()

    def recording(rows):
        lengths.add(rows["token_ids"].shape[1])
        return model.run(rows)

    for length in range(1, 70):
        run_rows(dataclasses.replace(model, run=recording), [[1] * length])
    assert lengths == {16, 32, 48, 64, 80}


@needs_onnx
def test_threads_are_passed_to_onnx_runtime_and_int8_runs_single_sequences(finetuned, monkeypatch):
    import onnxruntime

    calls = []
    original = onnxruntime.InferenceSession

    def opened(graph, options, **settings):
        calls.append((options.intra_op_num_threads, settings["providers"]))
        return original(graph, options, **settings)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    monkeypatch.setattr(engine_model, "usable_cores", lambda: 2)
    folder = finetuned("classification")
    float32 = open_finetuned(folder, "onnx", "float32", threads=1)
    int8 = open_finetuned(folder, "onnx", "int8")
    assert calls == [(1, ["CPUExecutionProvider"]), (2, ["CPUExecutionProvider"])]
    assert (float32.model.tokens, int8.model.tokens) == (TOKENS, 1)


@needs_onnx
@pytest.mark.parametrize(
    ("instructions", "largest"), [({"avx2"}, 63), ({"avx2", "avx_vnni"}, 127), ({"amx_int8"}, 127)]
)
def test_int8_weights_have_seven_bits_on_cpus_where_eight_overflow(
    instructions, largest, finetuned, monkeypatch
):
    import onnx

    graphs = []
    monkeypatch.setattr(engine_model, "instructions", lambda: instructions)
    monkeypatch.setattr(engine_model, "onnx_session", lambda graph, *_, **__: graphs.append(graph))
    open_finetuned(finetuned("classification"), "onnx", "int8")
    kernels = [
        onnx.numpy_helper.to_array(x)
        for x in onnx.load_from_string(graphs[0]).graph.initializer
        if x.data_type == onnx.TensorProto.INT8 and len(x.dims) == 2
    ]
    assert kernels
    assert max(int(np.abs(x.astype(int)).max()) for x in kernels) == largest


@needs_onnx
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_worker_uses_the_chosen_engine_and_its_part_of_the_cores(
    precision, finetuned, monkeypatch, tmp_path, capsys
):
    folder, opened = finetuned("classification"), []
    original = serve_predictions.open_finetuned

    def recording_open(source, engine, precision, **part):
        opened.append((source, engine, precision, part.get("threads")))
        return original(source, engine, precision, **part)

    monkeypatch.setattr(serve_predictions, "open_finetuned", recording_open)
    alone = served_task(folder, precision=precision, engine="onnx")
    shared = share_weights(folder, alone.choice, tmp_path)
    capsys.readouterr()
    config = ServeConfig(model=(str(folder),), precision=precision, engine="onnx")
    monkeypatch.setattr(engine_model, "usable_cores", lambda: 4)
    options = engine_model.session_options
    threads = []

    def recording_options(*arguments):
        threads.append(options(*arguments).intra_op_num_threads)
        return options(*arguments)

    monkeypatch.setattr(engine_model, "session_options", recording_options)
    command.worker_app(config, [WorkerPart(2, shared)])
    assert threads == [2]
    assert capsys.readouterr().err == ""  # the first process has printed the messages
    assert opened[1] == (str(folder), "onnx", precision, 2)
    part = served_task(folder, precision=precision, engine="onnx", part=WorkerPart(1, shared))
    texts = [Example((text,), None, "") for text in ("今天", "天气很好", "北京" * 20)]
    for item, other in zip(part.predict(texts), alone.predict(texts), strict=True):
        np.testing.assert_allclose(item.scores, other.scores, atol=1e-6)


def test_a_service_limits_batches_by_tokens(monkeypatch):
    """A batch has up to --batch-size texts, and fewer if they are long."""
    pytest.importorskip("fastapi", reason="needs the extra [serve]")
    created = []
    original = serve_predictions.Batcher

    def recording_batcher(*arguments, **settings):
        created.append((arguments[1], settings))
        return original(*arguments, **settings)

    monkeypatch.setattr(serve_predictions, "Batcher", recording_batcher)
    task = Classification(labels=("坏", "好"))
    create_task_app(ServedTask("m", task, lambda examples: []), batch_size=16)
    ((size, settings),) = created
    assert size == BATCH_TOKENS
    width = settings["width"]

    def width_of(*texts, requested=None):
        return width(TaskQuery(Example(texts, None, ""), requested))

    widths = [width_of("好" * n) for n in (1, 100, 129, 5000)]
    assert widths == [BATCH_TOKENS // 16, BATCH_TOKENS // 16, 129, 5000]
    assert width_of("好" * 100, "坏" * 60) == 160
    assert width_of("好" * 129, requested=task) == 2 * 129  # one sequence per label


@needs_onnx
def test_int8_always_prints_how_to_measure_it(finetuned, tmp_path, capsys, caplog):
    folder = finetuned("classification")
    message = f"`roformer-tf evaluate {folder} --precision int8 --data F` measures its accuracy."
    texts = tmp_path / "texts.txt"
    texts.write_text("今天\n", encoding="utf-8")
    files = ["--input", str(texts), "--output", str(tmp_path / "out.tsv")]
    for precision, times in (("int8", 1), ("float32", 0)):
        command_line = [*flags("predict", "onnx", precision), "--model", str(folder), *files]
        assert main(command_line) == 0
        assert capsys.readouterr().err.count(message) == times
        served_task(folder, precision=precision, engine="onnx")
        assert capsys.readouterr().err.count(message) == times
        caplog.clear()
        roformer_tf.load(folder, precision=precision, engine="onnx")
        assert caplog.text.count(message) == times


@needs_onnx
@pytest.mark.parametrize("name", ["word", "char", "v2_char"])
def test_graphs_fill_masks_as_keras_does(name, released, capsys, monkeypatch):
    source, texts = (
        str(released(name)),
        ["今天[MASK]很好，可以去公园。", "[MASK][MASK]的经济", "[MASK]"],
    )
    command_line = ["fill-mask", "--model", source, "--top", "3", *texts]
    actual = []
    for engine in ("keras", "auto"):
        assert main([*command_line, "--engine", engine]) == 0
        actual.append(capsys.readouterr())
    assert actual[0] == actual[1]
    assert actual[0].err == ""
    with open_model(source) as opened:
        choice = MaskedModel.of(opened).choice
    assert (choice.engine, choice.precision) == ("onnx", "float32")
    assert FillMaskConfig(model="x", text=("[MASK]",)).precision is None


def test_a_limit_of_onednn_is_respected(monkeypatch):
    """Simulate a CPU without instructions newer than AVX2."""
    monkeypatch.setattr(engine_choice, "has_accelerator", lambda: False)
    monkeypatch.setattr(engine_choice, "installed", lambda engine: True)
    monkeypatch.setitem(os.environ, "ONEDNN_MAX_CPU_ISA", "AVX2")
    actual = choose("auto", "bfloat16", lossy=True)
    assert (actual.engine, actual.precision) == ("onnx", "float32")
    assert "float32 is used" in actual.note


@needs_both
@pytest.mark.usefixtures("eager_steps")
def test_a_run_is_tested_with_the_engine_of_predict_and_reports_it(
    processor, shallow, tmp_path, monkeypatch
):
    """This holds for bfloat16 as well."""
    processor(True)
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
    for name, size in (("train", 48), ("valid", 16)):
        lines = [f"{'今天' * (i % 5 + 1)}\t{'好坏'[i % 3 == 0]}\n" for i in range(size)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    command_line = [
        "finetune",
        "--checkpoint",
        shallow,
        "--output",
        tmp_path / "run",
        "--epochs",
        1,
    ]
    files = ["--train", tmp_path / "train.tsv", "--valid", tmp_path / "valid.tsv"]
    assert main([*map(str, [*command_line, *files, "--batch-size", 16]), "--no-baseline"]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["computed_by"] == {"engine": "openvino", "precision": "bfloat16"}
