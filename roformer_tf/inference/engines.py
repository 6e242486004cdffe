"""A folder, or a checkpoint → what answers: Keras, or a graph on this processor.

A graph is written from the weights as the process starts; no TensorFlow has part in it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import Choice, Engine, Precision, choose
from roformer_tf.engines.model import GraphModel, graph_model, onnx_session, share_onnx
from roformer_tf.engines.network import Network, unsupported
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, write_text
from roformer_tf.inference.predict import KerasPrecision, check_together, load_finetuned
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import Scores, score_text
from roformer_tf.tasks.table import load_task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, find_tokenizer

ONNX = "model.onnx"
"""What an export to onnx or int8 answers by."""
COST = "int8.json"
"""What int8 costs on the validation set, in the folder of a fine-tuned model."""


@dataclass(frozen=True)
class Finetuned:
    """What `finetune` wrote, opened."""

    model: Any
    """A Keras model, or a graph."""
    tokenizer: RoFormerTokenizer
    task: Task
    choice: Choice


def open_finetuned(
    folder: str | Path,
    engine: Engine = "auto",
    precision: Precision | None = None,
    *,
    lossy: bool = False,
    threads: int | None = None,
    shared: Path | None = None,
) -> Finetuned:
    """Read what `finetune` wrote, or `export` to onnx or int8.

    lossy: whether bfloat16 may be taken unasked. threads: of a graph; unset, all cores. shared: the
    graph itself, if `share_weights` has written it. Raises InputError as `load_finetuned` and
    `choose` do.
    """
    if (Path(folder) / ONNX).is_file():
        return _exported(Path(folder), engine, precision, threads)
    task = load_task(folder)
    with OpenedSource(folder) as source:
        checkpoint = source.checkpoint()
        config = checkpoint.config
        choice = choose(engine, precision, unsupported=unsupported(config), lossy=lossy)
        if choice.engine != "keras":
            tokenizer = find_tokenizer(source)
            if tokenizer is None:
                raise InputError(
                    f"{folder} has no vocab.txt: put the one there that the model came with."
                )
            check_together(folder, task, config, tokenizer)
            task = task.decoding.with_arrays(checkpoint.arrays)
            if shared is not None:
                model = onnx_session(shared, "logits", choice.precision, threads)
                return Finetuned(model, tokenizer, task, choice)
            network = Network(
                config, checkpoint.arrays, task.decoding.graph_part, source=str(folder)
            )
            model = graph_model(network, choice.engine, choice.precision, threads)
            return Finetuned(model, tokenizer, task, choice)
    found = load_finetuned(folder, keras_precision(choice))
    return Finetuned(*found, choice)


def share_weights(folder: str | Path, choice: Choice, room: Path) -> Path | None:
    """Write the graph of a fine-tuned model into `room`, so that processes share its weights.

    None where they cannot: OpenVINO lays them out anew for itself, and an export has its own file.
    """
    if choice.engine != "onnx" or (Path(folder) / ONNX).is_file():
        return None
    task = load_task(folder)
    with OpenedSource(folder) as source:
        checkpoint = source.checkpoint()
        network = Network(
            checkpoint.config, checkpoint.arrays, task.decoding.graph_part, source=str(folder)
        )
        return share_onnx(network, choice.precision, room)


def _exported(
    folder: Path, engine: Engine, precision: Precision | None, threads: int | None
) -> Finetuned:
    """An export answers by ONNX Runtime, in the precision that it was written in."""
    if engine not in ("auto", "onnx") or precision == "bfloat16":
        asked = f"--engine {engine}" if engine not in ("auto", "onnx") else "bfloat16"
        raise InputError(
            f"{folder} is an export, which ONNX Runtime answers by in its own precision, not by "
            f"{asked}. Give the model/ folder that it was exported from, or leave it out."
        )
    model, tokenizer, task = load_exported(folder, threads)
    return Finetuned(model, tokenizer, task, Choice("onnx", model.precision))


def load_exported(
    folder: str | Path, threads: int | None = None
) -> tuple[GraphModel, RoFormerTokenizer, Task]:
    """Open an export to onnx or int8 on the CPU. Raises InputError where that cannot be done."""
    folder = Path(folder)
    task = load_task(folder)
    model = onnx_session(folder / ONNX, "logits", threads=threads)
    return model, RoFormerTokenizer.from_pretrained(folder), task


def keras_precision(choice: Choice) -> KerasPrecision:
    """The precision of a choice that fell on Keras, which has no int8."""
    assert choice.engine == "keras"
    return "bfloat16" if choice.precision == "bfloat16" else "float32"


def chosen_for(
    config: RoFormerConfig, engine: Engine, precision: Precision | None, *, lossy: bool = False
) -> Choice:
    """What answers for a model of this architecture."""
    return choose(engine, precision, unsupported=unsupported(config), lossy=lossy)


def classifier_graph(
    checkpoint: Checkpoint, task: Task, choice: Choice, source: str
) -> tuple[GraphModel, Task]:
    """The graph of a classification head, and the task with what its weights tell."""
    task = task.decoding.with_arrays(checkpoint.arrays)
    network = Network(checkpoint.config, checkpoint.arrays, task.decoding.graph_part, source=source)
    return graph_model(network, choice.engine, choice.precision), task


def int8_cost(folder: str | Path) -> str:
    """What is known of the cost of int8, in a sentence."""
    try:
        found = parse_json((Path(folder) / COST).read_text(encoding="utf-8"))
        moved = ", ".join(
            f"{name} {score_text(found['float32'][name])} → {score_text(value)}"
            for name, value in found["int8"].items()
        )
        return f"int8 on the {found['examples']:,} validation examples: {moved}."
    except (OSError, ValueError, KeyError, TypeError):
        return (
            f"what int8 costs is not known of {folder}: `roformer-tf evaluate {folder} "
            "--precision int8 --data F` measures it."
        )


def save_int8_cost(folder: str | Path, exact: Scores, rounded: Scores, examples: int) -> None:
    """Keep in a model's folder what int8 costs."""
    values = {"examples": examples, "float32": dict(exact), "int8": dict(rounded)}
    write_text(Path(folder) / COST, json.dumps(values, indent=2) + "\n")
