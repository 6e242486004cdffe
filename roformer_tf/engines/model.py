"""A network, or a graph on disk → a model that runs on the CPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.engines.network import BYTE, PRECISION, SEVEN_BITS, Network
from roformer_tf.errors import InputError, check_packages
from roformer_tf.machine import instructions, usable_cores

# The graph's file in a folder that `export` wrote as onnx or int8.
ONNX = "model.onnx"
# The inputs of a graph of standard operators, as transformers has them.
STANDARD_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The outputs of such a graph for an answer's first and last token, instead of `logits`.
ANSWER_OUTPUTS = ("start_logits", "end_logits")
# The graph's file in a folder that `export` wrote as openvino.
OPENVINO = "openvino_model.xml"
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

    def __call__(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Run a batch."""
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
    return onnx_session(_onnx_bytes(network, precision), network.output, threads=threads)


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
    """Open an ONNX model for one of its outputs.

    precision: of a file without that metadata. threads: default: one for each core that the process
    may use. Raises InputError where it cannot be opened.
    """
    check_packages("an ONNX model", "onnx", "onnxruntime")
    import onnxruntime

    if not is_sound(onnxruntime):
        raise InputError(
            f"onnxruntime is {onnxruntime.__version__}, whose attention is wrong under some masks. "
            "Upgrade it: `pip install 'onnxruntime>=1.22'`."
        )
    options = session_options(threads)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of several classes of its own, without a common base class
        if isinstance(graph, bytes):
            raise
        raise InputError(f"cannot read {graph}: {error}. Export it again.") from None
    names = [tensor.name for tensor in session.get_inputs()]
    outputs = _wanted([tensor.name for tensor in session.get_outputs()], output)
    if session.get_modelmeta().custom_metadata_map.get(PRECISION) == "int8":
        precision = "int8"

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        rows = standard_rows(rows) if STANDARD_INPUTS[0] in names else rows
        return _joined(session.run(outputs, {name: rows[name] for name in names}))

    return GraphModel(run, "onnx", precision, 1 if precision == "int8" else TOKENS)


def standard_rows(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our inputs under transformers' names; the first token counts, even if its id is 0."""
    mask = rows["token_ids"] != 0
    mask[:, 0] = True
    arrays = (rows["token_ids"], mask, rows["segment_ids"])
    return {name: x.astype(np.int64) for name, x in zip(STANDARD_INPUTS, arrays, strict=True)}


def openvino_file(path: Path, output: str) -> GraphModel:
    """Open OpenVINO's file of a graph of standard operators, for one of its outputs."""
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    model = _openvino_core().compile_model(path, "CPU", settings)
    outputs = _wanted([name for tensor in model.outputs for name in tensor.names], output)

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        results = model(standard_rows(rows))
        return _joined([results[name] for name in outputs])

    return GraphModel(run, "openvino", "float32")


def _wanted(names: Sequence[str], output: str) -> Sequence[str]:
    """The outputs of a graph to compute, among its own: `ANSWER_OUTPUTS`, or this one."""
    return ANSWER_OUTPUTS if ANSWER_OUTPUTS[0] in names else (output,)


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


def _openvino(network: Network, precision: Precision, threads: int | None) -> GraphModel:
    """Compile for OpenVINO, with all cores for one request."""
    from roformer_tf.engines.openvino_graph import openvino_model, rotation_tables

    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": threads or usable_cores(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "CPU_RUNTIME_CACHE_CAPACITY": OPENVINO_KEPT,
        "ENABLE_CPU_PINNING": False,  # a tenth slower where other processes use the cores, too
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if precision == "int8" else 0,
    }
    # without instructions for bytes the plugin multiplies in float32, where nothing overflows
    model = openvino_model(network, BYTE if precision == "int8" else None)
    request = _openvino_core().compile_model(model, "CPU", settings).create_infer_request()
    config = network.config
    tables: dict[str, np.ndarray] = {}

    def run(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        length = rows["token_ids"].shape[1]
        if not tables or next(iter(tables.values())).shape[2] < length:
            size = max(length, config.max_position_embeddings)
            tables.update(rotation_tables(size, config.head_size, config.rotary_base))
        inputs = {name: rows[name] for name in network.inputs}
        angles = {name: np.ascontiguousarray(x[:, :, :length]) for name, x in tables.items()}
        # a copy, since the next call overwrites the output
        return np.array(request.infer({**inputs, **angles}, share_inputs=True)[network.output])

    return GraphModel(run, "openvino", precision, step=OPENVINO_STEP)
