"""A network, or a graph on disk → a model that runs on the CPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from roformer_tf.engines.choice import EXTRAS, MODULES, Engine, Precision
from roformer_tf.engines.network import (
    ANSWER_OUTPUTS,
    BYTE,
    MASKED_POSITIONS,
    OUTPUTS,
    PRECISION,
    SEVEN_BITS,
    STANDARD_INPUTS,
    VECTOR,
    Network,
)
from roformer_tf.errors import InputError, check_packages
from roformer_tf.machine import instructions, usable_cores
from roformer_tf.startup import import_quickly

# The graph's file in a folder that `export` wrote, and what runs it.
ONNX, OPENVINO, SAVED_MODEL = "model.onnx", "openvino_model.xml", "saved_model.pb"
ENGINES: dict[str, Engine] = {ONNX: "onnx", OPENVINO: "openvino", SAVED_MODEL: "keras"}
# Of a batch, with padding: more of them do not fit into the CPU's caches.
TOKENS = 1024
# The first ONNX Runtime with correct masks: 1.20 and 1.21 ignore a bias of the scores.
SOUND = (1, 22)
# OpenVINO compiles and caches its products for every shape: without a step a single text took twice
# as long, and a service grew by 50 MB in a thousand requests.
OPENVINO_STEP = 16
# Maximum number of compiled operations in the cache.
OPENVINO_KEPT = 512
# Dimensions of a token that share a scale in int8 products of OpenVINO.
GROUP = 32
# Instruction sets that multiply bytes and add in 32 bits.
WITHOUT_OVERFLOW = ("avx_vnni", "avx512_vnni", "amx_int8")


@dataclass(frozen=True)
class GraphModel:
    """A graph as a function: {"token_ids", "segment_ids"} int32 (B, T) → an array.

    It is a `models.rows.Forward`.
    """

    run: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    engine: Engine
    precision: Precision
    tokens: int = TOKENS
    """Tokens of a batch. Where the scale of activations is that of the whole batch, each text is a
    batch: else its output would depend on the others."""
    step: int = 1
    """Lengths of batches are multiples of it."""
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Held while a batch runs: a request of OpenVINO is for one thread at a time."""

    def __call__(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Run a batch."""
        with self.lock:
            return self.run(rows)


def graph_model(
    network: Network, engine: Engine, precision: Precision, threads: int | None = None
) -> GraphModel:
    """Write a network as a graph of an engine, and load it.

    threads: default: one for each core that the process may use. Raises InputError for weights that
    are missing or not supported.
    """
    if engine == "openvino":
        return _openvino(network, precision, threads)
    return onnx_session(_onnx_bytes(network, precision), threads)


def share_onnx(network: Network, precision: Precision, folder: Path) -> Path:
    """Write a network so that several processes share its weights: the graph's file.

    It is optimized by ONNX Runtime for this CPU, with kernels packed for its products, which a
    process only has to map into memory. It is for this machine alone.
    """
    import onnxruntime

    options, target = session_options(), folder / ONNX
    options.optimized_model_filepath = str(target)
    for key, value in (
        ("optimized_model_external_initializers_file_name", "weights"),
        ("optimized_model_external_initializers_min_size_in_bytes", "1024"),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    # The file is written while the session is created; the session itself is not needed.
    onnxruntime.InferenceSession(
        _onnx_bytes(network, precision), options, providers=["CPUExecutionProvider"]
    )
    return target


def _onnx_bytes(network: Network, precision: Precision) -> bytes:
    from roformer_tf.engines.writer import onnx_model

    largest = None
    if precision == "int8":
        largest = BYTE if instructions() & set(WITHOUT_OVERFLOW) else SEVEN_BITS
    return onnx_model(network, largest).SerializeToString()


def exported_graph(folder: Path) -> Path | None:
    """The graph in a folder that `export` wrote; None for another folder, or no folder."""
    return next((folder / name for name in ENGINES if (folder / name).is_file()), None)


def open_graph(file: Path, threads: int | None = None) -> GraphModel:
    """Open the graph of an export.

    threads: default: one for each core that the process may use. Raises InputError where it cannot
    be opened.
    """
    engine = ENGINES[file.name]
    # The runtime, the last of the modules; the package onnx only writes graphs.
    check_packages(str(file), EXTRAS.get(engine, ""), *MODULES.get(engine, ())[-1:])
    try:
        if engine == "onnx":
            return onnx_session(file, threads)
        return _openvino_file(file, threads) if engine == "openvino" else _saved_model(file)
    except InputError:
        raise
    except Exception as error:  # each runtime has classes of its own, without a common base class
        raise InputError(f"cannot read {file}: {error}. Export it again.") from None


def onnx_session(graph: bytes | Path, threads: int | None = None) -> GraphModel:
    """Open an ONNX model.

    threads: as of `open_graph`. Raises InputError for an ONNX Runtime that is too old.
    """
    import onnxruntime

    if not is_sound(onnxruntime):
        raise InputError(
            f"onnxruntime is {onnxruntime.__version__}, whose attention is wrong under some masks. "
            "Upgrade it: `pip install 'onnxruntime>=1.22'`."
        )
    options = session_options(threads)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    # Standard graphs have the inputs of transformers; ours have `token_ids` and `segment_ids`.
    names = [tensor.name for tensor in session.get_inputs()]
    outputs = _predicted(tensor.name for tensor in session.get_outputs())
    # Graphs of other programs have no such metadata.
    precision = session.get_modelmeta().custom_metadata_map.get(PRECISION, "float32")

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        rows = standard_rows(rows) if STANDARD_INPUTS[0] in names else rows
        return _joined(session.run(outputs, {name: rows[name] for name in names}))

    # In int8, one scale of activations covers the whole batch: with 1 token, each text is a batch.
    return GraphModel(run, "onnx", precision, 1 if precision == "int8" else TOKENS)


def standard_rows(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our inputs under transformers' names; the first token counts, even if its id is 0."""
    mask = rows["token_ids"] != 0
    # Else a text of the token 0 alone would have no visible key.
    mask[:, 0] = True
    arrays = (rows["token_ids"], mask, rows["segment_ids"])
    return {name: x.astype(np.int64) for name, x in zip(STANDARD_INPUTS, arrays, strict=True)}


def _openvino_file(file: Path, threads: int | None) -> GraphModel:
    """Open OpenVINO's file of a graph of standard operators."""
    model = _openvino_compiled(file, "float32", threads)
    outputs = _predicted(name for tensor in model.outputs for name in tensor.names)

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        results = model(standard_rows(rows))
        return _joined([results[name] for name in outputs])

    return GraphModel(run, "openvino", "float32", step=OPENVINO_STEP, lock=Lock())


def _saved_model(file: Path) -> GraphModel:
    """Open a SavedModel, whatever the backend of Keras."""
    import_quickly("tensorflow")
    import tensorflow as tf

    call = tf.saved_model.load(str(file.parent)).signatures["serving_default"]
    names, outputs = call.structured_input_signature[1], _predicted(call.structured_outputs)

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        results = call(**{name: tf.constant(rows[name]) for name in names})
        return _joined([results[name].numpy() for name in outputs])

    return GraphModel(run, "keras", "float32")


def _predicted(names: Iterable[str]) -> Sequence[str]:
    """The outputs of a graph to compute, among all: the others can be computed from them."""
    existing = set(names)
    if existing.issuperset(ANSWER_OUTPUTS):
        return ANSWER_OUTPUTS
    # A single name: "probabilities" and "last_hidden_state" are not in the set.
    return [*existing & {"logits", VECTOR, *OUTPUTS.values()}]


def _joined(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """The only output, or `ANSWER_OUTPUTS` (B, T) as logits (B, T, 2)."""
    return np.asarray(outputs[0]) if len(outputs) == 1 else np.stack(outputs, axis=-1)


def is_sound(onnxruntime: Any) -> bool:
    """Whether attention of this ONNX Runtime is correct for every mask."""
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= SOUND


def session_options(threads: int | None = None) -> Any:
    """Options of a session: one operation at a time, on all cores that may be used."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or usable_cores(), 1
    options.log_severity_level = 3  # errors
    return options


@cache
def _openvino_core() -> Any:
    """OpenVINO, created once for the process and never released.

    Each plugin installs a signal stack for the thread. When released, it restores the previous one,
    which may belong to an older plugin and be unmapped already. The next signal that
    Python receives, such as Ctrl+C, would then end the process without a message (2026.4).
    """
    import openvino

    return openvino.Core()


def _openvino_compiled(model: Any, precision: Precision, threads: int | None) -> Any:
    """Compile a model, or a file, with all cores for one request."""
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": threads or usable_cores(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "CPU_RUNTIME_CACHE_CAPACITY": OPENVINO_KEPT,
        "ENABLE_CPU_PINNING": False,  # a tenth slower where other processes use the cores, too
        # A mapped file that is overwritten would change, or end, a running service.
        "ENABLE_MMAP": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
    }
    return _openvino_core().compile_model(model, "CPU", settings)


def _openvino(network: Network, precision: Precision, threads: int | None) -> GraphModel:
    """Write a network for OpenVINO, and compile it."""
    from roformer_tf.engines.openvino_graph import openvino_model, rotation_tables

    # without instructions for bytes the plugin multiplies in float32, where nothing overflows
    graph = openvino_model(network, _openvino_core(), BYTE if precision == "int8" else None)
    model, config = _openvino_compiled(graph, precision, threads), network.config

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        length = rows["token_ids"].shape[1]
        tables = rotation_tables(length, config.head_size, config.rotary_base)  # in 0.01 to 0.5 ms
        inputs = standard_rows(rows) | tables
        if MASKED_POSITIONS in network.inputs:
            inputs[MASKED_POSITIONS] = rows[MASKED_POSITIONS]
        return np.asarray(model(inputs)[network.output])

    return GraphModel(run, "openvino", precision, step=OPENVINO_STEP, lock=Lock())
