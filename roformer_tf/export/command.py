"""The body of `export`: a fine-tuned model, or any model for its vectors, as a folder."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from roformer_tf.checkpoints.archives import LEXICAL_FILE
from roformer_tf.errors import InputError
from roformer_tf.export.formats import STANDARD, Exportable, Format, check_export, write_export
from roformer_tf.inference.embed import VectorSettings, embedder_from
from roformer_tf.inference.opening import OpenedModel, open_model
from roformer_tf.tasks.base import Task
from roformer_tf.terminal import say


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    r"""Write a fine-tuned model, or a model's vectors, as a folder that runs without roformer_tf.

    Examples:
        roformer-tf export runs/reviews/model --to onnx --output onnx-model
        roformer-tf export runs/reviews/model --to int8 --output small
    """

    model: Annotated[str, "MODEL"]
    """The model/ folder of a run of `finetune`; or, for its vectors, any other model: a released
    zip or name, a folder. --model itself may be omitted."""
    to: Format
    """savedmodel: for TensorFlow Serving; onnx: standard operators, for any runtime; openvino: the
    same for OpenVINO; onnxruntime: faster, for ONNX Runtime alone; int8: smaller, for CPUs."""
    output: Annotated[Path, "DIR"]
    """The folder to write. TensorFlow Serving needs a number as its name, such as sentiment/1."""
    dimensions: int | None = None
    """Cut vectors to so many numbers, for a model that was trained for it."""


def export_model(config: ExportConfig) -> None:
    """Export, and print what was measured."""
    export(config.model, config.output, config.to, config.dimensions)


def export(source: str | Path, output: Path, to: Format, dimensions: int | None = None) -> None:
    """Export a fine-tuned model, or any other model for its vectors.

    The graph of a fine-tuned model gives `logits` and `probabilities` float32 (of a regression:
    `value`); in the formats with transformers' inputs `logits` alone, of a regression the value, of
    question answering `start_logits` and `end_logits`. It does not decode tags: for that the folder
    holds `transitions.json` and code in its README.md. With a conditional random field there are no
    `probabilities`, which depend on more than the logits.

    That of any other model gives `vectors` float32 (batch, D) of length 1. In the formats with
    transformers' inputs it is called `sentence_embedding`, and the graph also gives the
    `last_hidden_state` (batch, length, H).

    Raises InputError as `check_export` does, and for a model that the format cannot hold;
    DifferenceError as `write_export`.
    """
    check_export(to, output)
    with open_model(source, "keras", "float32") as opened:
        if not opened.is_finetuned:
            exported = _of_vectors(opened, dimensions)
        elif dimensions is None:
            exported = _of_task(opened, to)
        else:
            raise InputError(f"--dimensions cuts vectors, which {source} does not give.")
        write_export(exported, output, to)


def _of_task(opened: OpenedModel, to: Format) -> Exportable:
    """A fine-tuned model."""
    finetuned = opened.finetuned()
    if finetuned.lexical is not None:
        raise InputError(
            f"{opened.name} has lexical features ({LEXICAL_FILE}), which no export can hold. Give "
            "the model of a run of `finetune` with --lexical-features no; the same command with "
            "this flag writes it without training again."
        )
    if finetuned.task.labelling.lists_texts and not opened.has_task_file:
        raise InputError(
            f"{opened.name} is a multiple choice of transformers, which export does not support. "
            "Serve or load the folder itself."
        )
    model, task = finetuned.model, finetuned.task
    outputs = partial(task_outputs, model, task)
    network = opened.network(task.decoding.graph_part, meaning=task.decoding.graph_meaning())
    tokenizer = finetuned.tokenizer.replaced(units=task.units)
    # The logits of a graph with transformers' outputs have the scale of the labels.
    settings = replace(task, mean=0.0, deviation=1.0) if to in STANDARD else task
    architecture = model.architecture
    return Exportable(opened, model, outputs, network, tokenizer, settings, architecture, task)


def task_outputs(model: Any, task: Task, inputs: Any) -> dict[str, Any]:
    """Logits, and their meaning: {"logits", "probabilities" or "value"}."""
    logits = model(inputs)
    return {"logits": logits, **task.decoding.graph_outputs(logits)}


def _of_vectors(opened: OpenedModel, dimensions: int | None) -> Exportable:
    """A model for its vectors."""
    embedder = embedder_from(opened, VectorSettings(dimensions=dimensions))
    say("{report}.", report=embedder.described)

    def model(rows: Any) -> np.ndarray:
        return embedder.finished(np.asarray(embedder.pooled(rows)))

    def outputs(inputs: Any) -> dict[str, Any]:
        from keras import ops

        # To be traced by Keras; `model` does the same in NumPy, for the comparison.
        return {"vectors": ops.normalize(embedder.pooled(inputs)[:, :dimensions], axis=-1)}

    settings = replace(embedder.config, fingerprint=embedder.fingerprint)
    tokenizer = embedder.tokenizer.replaced(units=None)
    changes = opened.vector_changes(settings.pooling)
    network = opened.network("vectors", changes=changes, dimensions=dimensions)
    return Exportable(opened, model, outputs, network, tokenizer, settings, "RoFormerModel")
