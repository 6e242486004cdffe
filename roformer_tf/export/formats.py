"""A model → a folder that runs without this package: SavedModel, ONNX, OpenVINO, int8 ONNX.

savedmodel    saved_model.pb, variables/   for TensorFlow Serving, or `tf.saved_model.load`
onnx          model.onnx, config.json      standard operators, for any runtime, as optimum's
openvino      openvino_model.xml and .bin  the same for OpenVINO, as optimum-intel's
onnxruntime   model.onnx                   for ONNX Runtime alone, in its fused operations
int8          model.onnx                   the same with kernels in 8 bits, for CPUs

`onnx` and `openvino` have transformers' inputs, `input_ids`, `attention_mask` and `token_type_ids`
int64 (batch, length); all others `token_ids` and `segment_ids` int32, of any batch and length. The
folder also holds the tokenizer's files, the settings that `roformer-tf serve` needs, and a
`README.md` with the code that uses the folder elsewhere.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.archives import TASK_FILE
from roformer_tf.checkpoints.huggingface import MODEL_CARD, write_graph_config
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import Engine, check_installed, unsupported_reason
from roformer_tf.engines.model import ONNX, OPENVINO, exported_graph, open_graph
from roformer_tf.engines.network import MASKED_POSITIONS, SEVEN_BITS, Network
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.files import check_writable, temporary_folder, write_text
from roformer_tf.models.rows import Forward
from roformer_tf.templates import environment, markdown
from roformer_tf.terminal import say

if TYPE_CHECKING:
    from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
    from roformer_tf.inference.opening import OpenedModel
    from roformer_tf.tasks.base import Task
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

Format = Literal["savedmodel", "onnx", "onnxruntime", "openvino", "int8"]
# With transformers' inputs.
STANDARD: tuple[Format, ...] = ("onnx", "openvino")
# The engine whose packages write a format, and compare it with the model; of all others "onnx".
WRITERS: dict[Format, Engine] = {"savedmodel": "keras", "openvino": "openvino"}

# Batches and lengths for comparison: several, so that a size fixed by mistake fails.
COMPARED_AT = ((1, 8), (3, 64), (2, 300))
LARGEST_DIFFERENCE = 1e-4
MEGABYTE = 1_000_000
# Scores of a tagger's labels for their order, in the folder of its graph.
ORDER_SCORES = "transitions.json"


@dataclass(frozen=True)
class Exportable:
    """A model as `write_export` needs it."""

    opened: "OpenedModel"
    model: Forward
    """The Keras model, or a function that calls it."""
    outputs: "Callable[[Mapping[str, Any]], dict[str, Any]]"
    """Symbolic inputs of a Keras graph → the outputs of a SavedModel, by name."""
    network: Network
    tokenizer: "RoFormerTokenizer"
    settings: "Task | EmbeddingConfig"
    """How predictions or vectors are made, with the length to which texts are truncated."""
    architecture: str
    """The class of transformers."""
    task: "Task | None" = None
    """None for sentence vectors."""


def write_export(exported: Exportable, output: Path, to: Format) -> None:
    """Write the folder `output`, whole or not at all, and print what was measured.

    An earlier export there is replaced. Raises InputError as `check_model`, and DifferenceError if
    ONNX Runtime computes something else than the model.
    """
    network, task, max_length = exported.network, exported.task, exported.settings.max_length
    check_model(to, network.config, task, network.source)
    with temporary_folder(output) as folder:
        if to == "savedmodel":
            write_saved_model(exported, folder)
        else:
            write_graph(network, exported.model, folder, to)
        exported.tokenizer.save_pretrained(folder, max_length=max_length)
        exported.settings.save(folder)
        if task is None and exported.opened.task is not None:  # of vectors, for `evaluate`
            exported.opened.task.save(folder)
        if to in STANDARD:
            write_graph_config(folder, exported.opened.checkpoint.config, exported.architecture)
        if task is not None and (scores := task.decoding.order_scores()):
            write_text(folder / ORDER_SCORES, json.dumps(scores) + "\n")
        card = export_card(to, exported.tokenizer, max_length, task)
        write_text(folder / MODEL_CARD, card)
    # With the tokenizer's files, as somebody copies the folder.
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    say("{output} is written: {to}, {size:.1f} MB.", output=output, to=to, size=size / MEGABYTE)


def export_card(
    to: str, tokenizer: "RoFormerTokenizer", max_length: int, task: "Task | None" = None
) -> str:
    """The `README.md` of an export: how to use it in a program without roformer_tf."""
    texts: list[Any] = ["今天天气很好", "天气不错"]
    if task is not None:
        texts = [tuple(texts)] if len(task.text_columns) > 1 else texts[:1]
        if task.decoding.graph_part == "masked":
            texts = ["今天天气很[MASK]"]
    units = None if task is None else task.units
    return markdown(
        environment(Path(__file__).parent),
        "export_card.md.jinja",
        to=to,
        task=task,
        texts=texts,
        # The tokenizer splits words by jieba, unless characters are labelled.
        by_words=(tokenizer.tokenization, units) == ("word", None),
        max_length=max_length,
        order_scores=ORDER_SCORES,
        mask_id=tokenizer.mask_id,
        segments=tokenizer.segments,
    )


def check_export(to: Format, output: Path) -> None:
    """Raise InputError where an export cannot succeed; called before hours of training.

    That is: a backend other than TensorFlow for a SavedModel, missing packages, an output that
    cannot be written, or that is something else than an earlier export.
    """
    import keras

    if to == "savedmodel" and keras.backend.backend() != "tensorflow":
        raise InputError(
            f"TensorFlow writes a SavedModel, but Keras runs on {keras.backend.backend()}. Models "
            "are the same on every backend: set KERAS_BACKEND=tensorflow for the export."
        )
    check_installed(to, WRITERS.get(to, "onnx"))
    check_writable(output)
    if output.exists() and not _is_export(output):
        raise InputError(f"{output} exists, and is not an export. Choose another --output.")


def check_model(to: Format, config: RoFormerConfig, task: "Task | None", name: str) -> None:
    """Raise InputError for an architecture or task that the format cannot hold."""
    if to != "savedmodel" and (reason := unsupported_reason(config)):
        raise InputError(f"{name} cannot be written as ONNX: {reason}. Export it as a SavedModel.")
    if getattr(task, "label_prompts", False):
        raise InputError(
            f"{name} reads a text once for each label, which the code in an export does not do. "
            "Serve or load the folder itself."
        )
    if to in STANDARD and task is not None and task.decoding.graph_part == "masked":
        raise InputError(
            f"{name} fills gaps at positions that are an input, which transformers' models do not "
            "have. Export it as onnxruntime, int8 or savedmodel."
        )


def write_saved_model(exported: Exportable, folder: Path) -> None:
    """Write a SavedModel; `Model.export` would write every weight twice (Keras 3.15)."""
    import keras
    from keras.export import ExportArchive

    names = exported.network.inputs
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    graph = keras.Model(inputs, exported.outputs(inputs))
    signature = {name: keras.InputSpec("int32", (None, None), name=name) for name in names}
    archive = ExportArchive()
    archive.add_endpoint("serve", graph, [signature])
    archive.write_out(folder, verbose=False)


def write_graph(network: Network, model: Forward, folder: Path, to: Format) -> None:
    """Write a network as ONNX, or converted for OpenVINO, and compare it with the model.

    Raises DifferenceError where the results differ.
    """
    from roformer_tf.engines.standard_onnx import NAMED, scale_of, standard_model
    from roformer_tf.engines.writer import onnx_model

    path, scale = folder / ONNX, scale_of(network) if to in STANDARD else None
    graph = standard_model(network) if to in STANDARD else onnx_model(network)
    path.write_bytes(graph.SerializeToString())
    if to == "openvino":
        import openvino

        converted = openvino.convert_model(path)
        # OpenVINO may merge tensors when it compiles, with all their names, of which other programs
        # read any: only inputs and outputs keep theirs.
        for value in (value for node in converted.get_ops() for value in node.outputs()):
            value.get_tensor().set_names(value.get_names() & NAMED)
        # in float32: float16 would change the numbers
        openvino.save_model(converted, folder / OPENVINO, compress_to_fp16=False)
        path.unlink()
        path = folder / OPENVINO
    session = open_graph(path)

    def expected(rows: Any) -> np.ndarray:
        outputs = np.asarray(model(rows))
        return outputs if scale is None else outputs * scale.scale + scale.offset

    name = f"{network.output} of {'OpenVINO' if to == 'openvino' else 'ONNX Runtime'}"
    difference, allowed = largest_difference(session, expected, network), LARGEST_DIFFERENCE
    if scale is not None:  # differences grow with the labels' deviation, rounding with their mean
        allowed = allowed * max(1.0, scale.scale) + 2e-7 * abs(scale.offset)
    if not difference <= allowed:  # also for NaN
        raise DifferenceError(
            f"{name} differ from the model's by {difference:.1e}; {allowed:.0e} is allowed. "
            "Nothing was written."
        )
    if to == "int8":  # the graph in float32 was compared, that of 8 bits is only reported
        # Kernels of 7 bits give the same results on every CPU: see `SEVEN_BITS`.
        path.write_bytes(onnx_model(network, SEVEN_BITS).SerializeToString())
        difference = largest_difference(open_graph(path), expected, network)
    say(
        "{name} differ from ours by at most {difference:.1e} at lengths {lengths}.",
        name=name,
        difference=difference,
        lengths=", ".join(str(length) for _, length in COMPARED_AT),
    )


def largest_difference(first: Forward, second: Forward, network: Network) -> float:
    """The largest difference between two models of a network, on random rows with padding."""
    random, config = np.random.default_rng(0), network.config
    differences = []
    for shape in COMPARED_AT:
        rows = {
            # From 1: token 0 is padding.
            "token_ids": random.integers(1, config.vocab_size, shape, "int32"),
            "segment_ids": random.integers(0, config.type_vocab_size, shape, "int32"),
        }
        rows["token_ids"][-1, shape[1] // 2 :] = 0  # padding in the last sequence
        if MASKED_POSITIONS in network.inputs:
            # In the first half, where the last sequence has no padding.
            rows[MASKED_POSITIONS] = random.integers(0, shape[1] // 2, (shape[0], 4), "int32")
        ours, theirs = (np.asarray(model(rows)) for model in (first, second))
        # Outputs at padding are arbitrary.
        tagged = ours.ndim == 3 and MASKED_POSITIONS not in rows
        real = rows["token_ids"] != 0 if tagged else ...
        differences.append(np.abs(ours[real] - theirs[real]).max())
    return float(np.max(differences))


def _is_export(folder: Path) -> bool:
    """Whether a folder is empty, or looks like an export."""
    # A file has no names: {""} is not empty and matches nothing, so a file is no export.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    has_settings = bool(names & {TASK_FILE, embedding_config.FILE})
    return not names or (has_settings and exported_graph(folder) is not None)
