"""The body of `export`: a fine-tuned model, or any model for its vectors, as a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from roformer_tf.errors import InputError
from roformer_tf.export.formats import Format, check_export, write_export
from roformer_tf.export.task_export import export_finetuned
from roformer_tf.export.vector_export import vectors_of
from roformer_tf.files import check_writable
from roformer_tf.inference.embed import VectorSettings, embedder_from
from roformer_tf.inference.opening import open_model


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
    check_writable(config.output)
    with open_model(config.model, "keras", "float32") as opened:
        if opened.task is not None and opened.is_finetuned:
            if config.dimensions is not None:
                raise InputError(f"--dimensions cuts vectors, which {config.model} does not give.")
            export_finetuned(opened, config.output, config.to)
            return
        check_export(config.to, config.output)
        embedder = embedder_from(opened, VectorSettings(dimensions=config.dimensions))
        exported = vectors_of(opened, embedder, config.to)
        write_export(exported, config.output, config.to)
