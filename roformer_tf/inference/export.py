"""A fine-tuned model → a folder that runs without this package: SavedModel, ONNX, int8 ONNX.

savedmodel   saved_model.pb, variables/   for TensorFlow Serving, or `tf.saved_model.load`
onnx         model.onnx                   for ONNX Runtime, in its fused operations
int8         model.onnx                   the same, its kernels in 8 bits: for CPUs

All take `token_ids` and `segment_ids` int32 (batch, length), whatever the batch and the length,
and give `logits` and `probabilities` float32 (a regression: `value`). Beside them stand the
tokenizer's files and `task.json`, for a service makes rows of texts, and a `README.md` with the
lines that make them elsewhere. A graph does not decode tags: for that it has `transitions.json` and
lines in the README; with a conditional random field it gives no `probabilities`, which logits alone
do not tell.
"""

import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.model import onnx_session
from roformer_tf.engines.network import SEVEN_BITS, Network, unsupported
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.files import check_writable, folder_beside, write_text
from roformer_tf.inference.engines import ONNX
from roformer_tf.inference.export_card import ORDER_SCORES, export_card
from roformer_tf.inference.predict import load_finetuned, predict_encoded
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import Forward
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import Scores
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    import keras

    from roformer_tf.models.pretrained import PretrainedModel

Format = Literal["savedmodel", "onnx", "int8"]

INPUTS = ("token_ids", "segment_ids")
COMPARED_AT = ((1, 8), (3, 64), (2, 300))  # batch, length: what is fixed by mistake shows
LARGEST_DIFFERENCE = 1e-4
MEGABYTE = 1_000_000
MOST_MEASURED = 2_000
"""Labelled examples that int8 is judged by: each is answered twice."""


class Measured(NamedTuple):
    """A model file: bytes, seconds an example, and how well it answers."""

    size: int
    seconds: float
    metrics: Scores


def export(
    model_folder: str | Path, output: str | Path, to: Format, examples: Sequence[Example] = ()
) -> None:
    """Write the folder `output`, whole or not at all, and print what was measured.

    On the labelled `examples` int8 is compared with float32. An earlier export in the output's
    place is replaced. Raises InputError as `check_export` does, where there is no fine-tuned model,
    and for int8 without labelled examples; DifferenceError where ONNX Runtime computes something
    else than the model.
    """
    check_export(to, Path(output))
    if to == "int8" and not examples:
        raise InputError(
            "int8 changes the answers a little, and is written only where that is measured. Give "
            "--data, a file of labelled examples that the model was not trained on."
        )
    model, tokenizer, task = load_finetuned(model_folder)
    task = task.decoding.with_weights(model)  # a graph has no place for all of them
    with folder_beside(output) as folder:
        if to == "savedmodel":
            write_saved_model(servable(model, task), folder)
        else:
            with OpenedSource(model_folder) as source:
                network = _network(source, task)
                if to == "onnx":
                    write_onnx(network, model, folder / ONNX)
                else:
                    _write_int8(network, model, tokenizer, task, folder / ONNX, examples)
        tokenizer.with_units(task.units).save_pretrained(folder, max_length=task.max_length)
        task.save(folder)
        if scores := task.decoding.order_scores():
            write_text(folder / ORDER_SCORES, json.dumps(scores) + "\n")
        write_text(folder / MODEL_CARD, export_card(to, tokenizer, task))
    print(f"{output} is written: {to}, {_megabytes(Path(output)):.1f} MB.")


def check_export(to: Format, output: Path) -> None:
    """Raise InputError where an export cannot succeed; asked before hours of training.

    That is: for a SavedModel another backend than TensorFlow; missing packages, an output that
    cannot be written, or something else in its place.
    """
    import keras

    if to == "savedmodel" and keras.backend.backend() != "tensorflow":
        raise InputError(
            f"TensorFlow writes a SavedModel, but Keras runs on {keras.backend.backend()}. Models "
            "are the same on every backend: set KERAS_BACKEND=tensorflow for the export."
        )
    needed = () if to == "savedmodel" else ("onnx", "onnxruntime")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise InputError(f"{to} needs {', '.join(missing)}: run `pip install 'roformer-tf[onnx]'`.")
    check_writable(output)
    if output.exists() and not _is_export(output):
        raise InputError(f"{output} exists, and is no earlier export. Choose another --output.")


def _network(source: OpenedSource, task: Task) -> Network:
    """The network of a fine-tuned model. Raises InputError where no graph can be written of it."""
    checkpoint = source.checkpoint()
    check_supported(checkpoint.config, source.name)
    return Network(
        checkpoint.config,
        checkpoint.arrays,
        task.decoding.graph_part,
        task.decoding.graph_meaning(),
        source=source.name,
    )


def check_supported(config: RoFormerConfig, name: str) -> None:
    """Raise InputError for an architecture that no ONNX graph is written of."""
    if reason := unsupported(config):
        raise InputError(f"{name} cannot be written as ONNX: {reason}. Export it as a SavedModel.")


def servable(model: "PretrainedModel", task: Task) -> "keras.Model":
    """{"token_ids", "segment_ids"} int32 (B, T) → {"logits", and what they mean} float32."""
    import keras

    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    logits = model(inputs)
    return keras.Model(inputs, {"logits": logits, **task.decoding.graph_outputs(logits)})


def write_saved_model(graph: "keras.Model", folder: Path) -> None:
    """Write a SavedModel; `Model.export` would write every weight twice (Keras 3.15)."""
    from keras.export import ExportArchive

    archive = ExportArchive()
    archive.add_endpoint("serve", graph, signature())
    archive.write_out(folder, verbose=False)


def signature() -> "list[dict[str, keras.InputSpec]]":
    """What a servable model is called with: int32 (batch, length), both of any size."""
    from keras import InputSpec

    return [{name: InputSpec("int32", (None, None), name=name) for name in INPUTS}]


def write_onnx(network: Network, model: Forward, path: Path) -> None:
    """Write a network as ONNX, and compare what ONNX Runtime makes of it with a Keras model's.

    Raises DifferenceError where they differ.
    """
    from roformer_tf.engines.onnx_graph import onnx_model

    path.write_bytes(onnx_model(network).SerializeToString())
    found = onnx_session(path, network.output)
    difference = largest_logit_difference(found, model, network.config.vocab_size)
    if not difference <= LARGEST_DIFFERENCE:
        raise DifferenceError(
            f"ONNX Runtime's {network.output} are {difference:.1e} from the model's, where "
            f"{LARGEST_DIFFERENCE:.0e} is allowed. Nothing was written."
        )
    lengths = ", ".join(str(length) for _, length in COMPARED_AT)
    print(
        f"ONNX Runtime's {network.output} are at most {difference:.1e} from ours at lengths "
        f"{lengths}."
    )


def write_int8(network: Network, path: Path) -> None:
    """Write a network as ONNX with kernels of int8, the same on every processor."""
    from roformer_tf.engines.onnx_graph import onnx_model

    path.write_bytes(onnx_model(network, SEVEN_BITS).SerializeToString())


def largest_logit_difference(one: Forward, other: Forward, vocabulary_size: int) -> float:
    """Largest difference between what two models give, on random rows with padding."""
    chance = np.random.default_rng(0)
    found = []
    for shape in COMPARED_AT:
        rows = {
            "token_ids": chance.integers(1, vocabulary_size, shape, "int32"),
            "segment_ids": chance.integers(0, 2, shape, "int32"),
        }
        rows["token_ids"][-1, shape[1] // 2 :] = 0
        first, second = (np.asarray(model(rows)) for model in (one, other))
        seen = rows["token_ids"] != 0 if first.ndim == 3 else ...  # padding gives anything
        found.append(np.abs(first[seen] - second[seen]).max())
    return float(np.max(found))


def _write_int8(
    network: Network,
    model: "PretrainedModel",
    tokenizer: RoFormerTokenizer,
    task: Task,
    path: Path,
    examples: Sequence[Example],
) -> None:
    """Write both graphs, keep the one of int8, and print what it gains and what it costs."""
    examples = examples[:: -(-len(examples) // MOST_MEASURED)]
    encoded = task.labelling.encode(examples, tokenizer)
    labels = [example.label for example in examples if example.label is not None]

    def measure(file: Path) -> Measured:
        run = onnx_session(file, network.output)
        start = time.perf_counter()
        answers = predict_encoded(run, task, encoded)
        seconds = (time.perf_counter() - start) / len(labels)
        return Measured(file.stat().st_size, seconds, task.metrics.compute(labels, answers))

    with TemporaryDirectory(dir=path.parent) as folder:
        exact = Path(folder) / ONNX
        write_onnx(network, model, exact)
        write_int8(network, path)
        print("\n".join(describe_cost(measure(exact), measure(path), len(labels))))


def describe_cost(exact: Measured, rounded: Measured, examples: int) -> list[str]:
    """What int8 gains and what it costs, in lines to print."""
    return [
        f"float32: {exact.size / MEGABYTE:.1f} MB, {1e3 * exact.seconds:.2f} ms an example. "
        f"int8: {rounded.size / MEGABYTE:.1f} MB, {1e3 * rounded.seconds:.2f} ms an example.",
        f"On {examples:,} labelled examples, from float32 to int8:",
        *(
            f"  {name}: {value:.4f} → {after:.4f} ({after - value:+.4f})"
            for name, value in exact.metrics.items()
            if value is not None and (after := rounded.metrics[name]) is not None
        ),
    ]


def _is_export(folder: Path) -> bool:
    """Whether a folder is of the kind that `export` writes, or empty."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    told = names & {TASK_FILE, embedding_config.FILE}
    return not names or bool(told and names & {ONNX, "saved_model.pb"})


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MEGABYTE
