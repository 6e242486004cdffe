"""The body of `export`: a fine-tuned model, or any model for its vectors."""

from dataclasses import dataclass
from pathlib import Path

from roformer_tf.errors import InputError
from roformer_tf.files import check_writable
from roformer_tf.inference.export import Format, export
from roformer_tf.inference.export_vectors import export_vectors
from roformer_tf.inference.predictor import is_finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import ColumnsConfig, Layout, find_layout, read_examples
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.table import TASKS, load_task


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a fine-tuned model, or one's vectors, as a folder that runs without roformer_tf."""

    model: str
    """The model/ folder of a run of `finetune`; or, for its vectors, any other model: a released
    zip or name, a folder. --model itself may be left out."""
    to: Format
    """savedmodel: for TensorFlow Serving; onnx: for ONNX Runtime; int8: smaller, for CPUs."""
    output: Path
    """The folder to write. TensorFlow Serving wants a number as its name, such as sentiment/1."""
    data: str | None = None
    """Labelled examples with the columns of training, or for vectors texts; on them int8 is
    compared with float32."""
    dimensions: int | None = None
    """Cut vectors to so many numbers, for a model that was trained for it, or is whitened."""


def export_model(config: ExportConfig) -> None:
    """Export, and print what was measured."""
    check_writable(config.output)
    if not is_finetuned(config.model):
        export_vectors(config.model, config.output, config.to, config.data, config.dimensions)
        return
    if config.dimensions is not None:
        raise InputError(f"--dimensions cuts vectors, but {config.model} does not give any.")
    examples = [] if config.data is None else read_labelled(config.data, load_task(config.model))
    export(config.model, config.output, config.to, examples)


def read_labelled(path: str, task: Task) -> list[Example]:
    """Labelled examples from a file with the columns of training."""
    columns = ColumnsConfig(
        text_columns=task.text_columns,
        label_column=task.label_column,
        label_separator=task.label_separator,
    )
    if task.label_column is None:  # of CoNLL, or of a folder that was written before it was kept
        return read_examples(path, find_layout(path, columns, task.name, TASKS), columns)
    layout = Layout(task, task.text_columns, task.label_column, "")
    return read_examples(path, layout, columns)
