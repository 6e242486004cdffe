"""A network, or a graph on disk → a model that answers on this processor's cores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.engines.network import BYTE, PRECISION, SEVEN_BITS, Network
from roformer_tf.errors import InputError
from roformer_tf.machine import instructions, usable_cores

TOKENS = 1024
"""Of a batch, padding included: more of them leave the processor's caches."""
SOUND = (1, 22)
"""ONNX Runtime from which on all masks are right: 1.20 and 1.21 leave out a bias of the scores."""
OPENVINO_STEP = 16
"""OpenVINO compiles its products for every shape, and keeps them: with rows of any length a text
alone took twice as long, and a service grew by 50 MB in a thousand requests."""
OPENVINO_KEPT = 512
"""Compiled operations that a process keeps at most, of all shapes."""
GROUP = 32
"""Features of a token that are rounded with one scale, where OpenVINO multiplies in int8."""
WITHOUT_OVERFLOW = ("avx_vnni", "avx512_vnni", "amx_int8")
"""Instructions that multiply bytes and sum in 32 bits."""


@dataclass(frozen=True)
class GraphModel:
    """Rows of one shape → what the network gives for them.

    {"token_ids", "segment_ids"} int32 (B, T) → an array, as `models.rows.Forward`.
    """

    run: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    engine: Engine
    precision: Precision
    tokens: int = TOKENS
    """Tokens of a batch. Where activations are rounded by the call, rows come alone: else a text's
    answer would depend on its neighbours."""
    step: int = 1
    """Lengths of batches are multiples of it; 1: rows are padded to the longest, and no further."""

    def __call__(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Answer rows."""
        return self.run(rows)


def graph_model(
    network: Network, engine: Engine, precision: Precision, threads: int | None = None
) -> GraphModel:
    """Write a network down, and have an engine read it.

    threads: how many compute; unset, one for each core that the process may use. Raises InputError
    for weights that are missing or unknown.
    """
    if engine == "openvino":
        return _openvino(network, precision, threads)
    return onnx_session(_onnx_bytes(network, precision), network.output, threads=threads)


def share_onnx(network: Network, precision: Precision, folder: Path) -> Path:
    """Write a network so that several processes share its weights: the graph's file.

    As ONNX Runtime has optimized it for this processor, with kernels as its products want them:
    whoever opens it maps them into memory, and is ready at once. It is for this machine alone.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    target = folder / "model.onnx"
    options.optimized_model_filepath = str(target)
    for key, value in (
        ("optimized_model_external_initializers_file_name", "weights"),
        ("optimized_model_external_initializers_min_size_in_bytes", "1024"),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    onnxruntime.InferenceSession(
        _onnx_bytes(network, precision), options, providers=["CPUExecutionProvider"]
    )
    return target


def _onnx_bytes(network: Network, precision: Precision) -> bytes:
    from roformer_tf.engines.onnx_graph import onnx_model

    largest = None
    if precision == "int8":
        largest = BYTE if instructions() & set(WITHOUT_OVERFLOW) else SEVEN_BITS
    return onnx_model(network, largest).SerializeToString()


def onnx_session(
    graph: bytes | str | Path,
    output: str,
    precision: Precision = "float32",
    threads: int | None = None,
) -> GraphModel:
    """Open an ONNX model on the cores that the process may use, for one of its outputs.

    Its precision is what the file says, or what is said here of one that says nothing.

    Raises InputError where that cannot be done.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        name = "an ONNX model" if isinstance(graph, bytes) else graph
        raise InputError(f"{name} needs onnxruntime: `pip install 'roformer-tf[onnx]'`.") from None
    if not is_sound(onnxruntime):
        raise InputError(
            f"onnxruntime is {onnxruntime.__version__}, whose attention is wrong under some masks. "
            "Upgrade it: `pip install 'onnxruntime>=1.22'`."
        )
    options = session_options(threads)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many kinds, all its own, with no parent in common
        if isinstance(graph, bytes):
            raise
        raise InputError(f"cannot read {graph}: {error}. Export it again.") from None
    names = [one.name for one in session.get_inputs()]
    if session.get_modelmeta().custom_metadata_map.get(PRECISION) == "int8":
        precision = "int8"

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(session.run([output], {name: rows[name] for name in names})[0])

    return GraphModel(run, "onnx", precision, 1 if precision == "int8" else TOKENS)


def is_sound(onnxruntime: Any) -> bool:
    """Whether this ONNX Runtime attends rightly under every mask."""
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= SOUND


def session_options(threads: int | None = None) -> Any:
    """How an ONNX model is opened: one operation at a time, on the cores that may be used."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads or usable_cores(), 1
    options.log_severity_level = 3  # errors
    return options


@cache
def _openvino_core() -> Any:
    """OpenVINO, once for the process, and to its end.

    Each plugin of it gives the thread a stack for its signals, and going, unmaps that and hands
    back the one before, though that may be an older plugin's and unmapped already. The next signal
    that Python receives, such as Ctrl+C, then ends the process without a word (2026.4).
    """
    import openvino

    return openvino.Core()


def _openvino(network: Network, precision: Precision, threads: int | None) -> GraphModel:
    """Compile for OpenVINO, all cores on one request."""
    from roformer_tf.engines.openvino_graph import openvino_model, rotation_tables

    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": threads or usable_cores(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "CPU_RUNTIME_CACHE_CAPACITY": OPENVINO_KEPT,
        "ENABLE_CPU_PINNING": False,  # a tenth slower where others use the cores, too
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
    }
    # without instructions for bytes the plugin multiplies in float32: nothing overflows
    model = openvino_model(network, BYTE if precision == "int8" else None)
    request = _openvino_core().compile_model(model, "CPU", settings).create_infer_request()
    config = network.config
    tables: dict[str, np.ndarray] = {}

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        length = rows["token_ids"].shape[1]
        if not tables or next(iter(tables.values())).shape[2] < length:
            most = max(length, config.max_position_embeddings)
            tables.update(rotation_tables(most, config.head_size, config.rotary_base))
        inputs = {name: rows[name] for name in network.inputs}
        places = {name: np.ascontiguousarray(x[:, :, :length]) for name, x in tables.items()}
        # answers are copied: what is shared is written over by the next call
        return np.array(request.infer({**inputs, **places}, share_inputs=True)[network.output])

    return GraphModel(run, "openvino", precision, step=OPENVINO_STEP)
