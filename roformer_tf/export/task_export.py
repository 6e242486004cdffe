"""The export of a fine-tuned model.

The graph gives `logits` and `probabilities` float32 (of a regression: `value`); in the formats
with transformers' inputs `logits` alone, of a regression the value, of question answering
`start_logits` and `end_logits`. It does not decode
tags: for that the folder holds `transitions.json` and code in its README.md. With a conditional
random field there are no `probabilities`, which depend on more than the logits.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roformer_tf.checkpoints.detection import LEXICAL_FILE
from roformer_tf.checkpoints.huggingface import write_graph_config
from roformer_tf.errors import InputError
from roformer_tf.export.formats import (
    ORDER_SCORES,
    STANDARD,
    Exportable,
    Format,
    check_export,
    check_supported,
    write_export,
)
from roformer_tf.files import write_text
from roformer_tf.inference.opening import OpenedModel, open_model

if TYPE_CHECKING:
    from roformer_tf.tasks.base import Task


def export(model_folder: str | Path, output: str | Path, to: Format) -> None:
    """Export a fine-tuned model.

    Raises InputError as `check_export` does, and where there is no fine-tuned model;
    DifferenceError as `write_export`.
    """
    with open_model(model_folder, "keras", "float32") as opened:
        export_finetuned(opened, Path(output), to)


def export_finetuned(opened: OpenedModel, output: Path, to: Format) -> None:
    """`export` of an opened model."""
    check_export(to, output)
    finetuned = opened.finetuned()
    if finetuned.lexical is not None:
        raise InputError(
            f"{opened.name} has lexical features ({LEXICAL_FILE}), which no export can hold. Give "
            "the model of a run of `finetune` with --lexical-features no; the same command with "
            "this flag writes it without training again."
        )
    if getattr(finetuned.task, "label_prompts", False):
        raise InputError(
            f"{opened.name} reads a text once for each label, which the code in an export does not "
            "do. Serve or load the folder itself."
        )
    if to in STANDARD and finetuned.task.decoding.graph_part == "masked":
        raise InputError(
            f"{opened.name} fills gaps at positions that are an input, which transformers' models "
            "do not have. Export it --to onnxruntime, int8 or savedmodel."
        )
    model = finetuned.model
    # Decoding needs some weights that a graph does not hold.
    task = finetuned.task.decoding.with_weights(model)

    # Only a graph needs the network: a SavedModel may have an architecture that it lacks.
    def network() -> Any:
        check_supported(opened.checkpoint.config, opened.name)
        return opened.network(task.decoding.graph_part, meaning=task.decoding.graph_meaning())

    def save_settings(folder: Path) -> None:
        if to in STANDARD:  # whose logits have the scale of the labels
            replace(task, mean=0.0, deviation=1.0).save(folder)
            config, arrays = opened.checkpoint.config, opened.checkpoint.arrays
            write_graph_config(folder, config, arrays, model.architecture)
        else:
            task.save(folder)
        if scores := task.decoding.order_scores():
            write_text(folder / ORDER_SCORES, json.dumps(scores) + "\n")

    exported = Exportable(
        model,
        partial(task_outputs, model, task),
        network,
        finetuned.tokenizer.with_units(task.units),
        task.max_length,
        save_settings,
        task,
    )
    write_export(exported, output, to)


def task_outputs(model: Any, task: "Task", inputs: Any) -> dict[str, Any]:
    """Logits, and their meaning: {"logits", "probabilities" or "value"}."""
    logits = model(inputs)
    return {"logits": logits, **task.decoding.graph_outputs(logits)}
