"""The export of a fine-tuned model.

The graph gives `logits` and `probabilities` float32 (of a regression: `value`); in the formats
with transformers' inputs `logits` alone, of a regression the value. It does not decode
tags: for that the folder holds `transitions.json` and code in its README.md. With a conditional
random field there are no `probabilities`, which depend on more than the logits.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roformer_tf.checkpoints.detection import LEXICAL_FILE
from roformer_tf.checkpoints.huggingface import write_graph_config
from roformer_tf.engines.model import onnx_session
from roformer_tf.errors import InputError
from roformer_tf.export.formats import (
    MAX_MEASURED,
    MEGABYTE,
    ORDER_SCORES,
    STANDARD,
    Exportable,
    Format,
    check_export,
    check_supported,
    write_export,
)
from roformer_tf.files import write_text
from roformer_tf.inference.opening import Finetuned, OpenedModel, open_model, predict_encoded

if TYPE_CHECKING:
    from roformer_tf.labelled.examples import Example
    from roformer_tf.tasks.base import Task


def export(
    model_folder: str | Path, output: str | Path, to: Format, examples: "Sequence[Example]" = ()
) -> None:
    """Export a fine-tuned model; on the labelled `examples` int8 is compared with float32.

    Raises InputError as `check_export` does, where there is no fine-tuned model, and for int8
    without labelled examples; DifferenceError as `write_export`.
    """
    with open_model(model_folder, "keras", "float32") as opened:
        export_finetuned(opened, Path(output), to, examples)


def export_finetuned(
    opened: OpenedModel, output: Path, to: Format, examples: "Sequence[Example]"
) -> None:
    """`export` of an opened model."""
    check_export(to, output)
    if to == "int8" and not examples:
        raise InputError(
            "int8 changes the predictions a little, which has to be measured. Give --data, a file "
            "of labelled examples that the model was not trained on."
        )
    finetuned = opened.finetuned()
    if finetuned.lexical is not None:
        raise InputError(
            f"{opened.name} has lexical features ({LEXICAL_FILE}), which no export can hold. Give "
            "the model of a run of `finetune` with --lexical-features no; the same command with "
            "this flag writes it without training again."
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
        lambda exact, rounded: int8_cost(finetuned, exact, rounded, examples),
        task,
    )
    write_export(exported, output, to)


def task_outputs(model: Any, task: "Task", inputs: Any) -> dict[str, Any]:
    """Logits, and their meaning: {"logits", "probabilities" or "value"}."""
    logits = model(inputs)
    return {"logits": logits, **task.decoding.graph_outputs(logits)}


def int8_cost(
    finetuned: Finetuned, exact: Path, rounded: Path, examples: "Sequence[Example]"
) -> str:
    """Size, time and metrics of a graph in float32 and of one in int8."""
    task = finetuned.task
    examples = examples[:: -(-len(examples) // MAX_MEASURED)]  # evenly spaced
    encoded = task.labelling.encode(examples, finetuned.tokenizer)
    labels = [example.label for example in examples if example.label is not None]
    facts, scores = [], []
    for name, file in (("float32", exact), ("int8", rounded)):
        session = onnx_session(file, "logits")
        # Opening the graph is not timed, only the predictions.
        start = time.perf_counter()
        predictions = predict_encoded(session, task, encoded)
        milliseconds = 1e3 * (time.perf_counter() - start) / len(labels)
        size = file.stat().st_size / MEGABYTE
        facts.append(f"{name}: {size:.1f} MB, {milliseconds:.2f} ms an example.")
        scores.append(task.metrics.compute(labels, predictions))
    before, after = scores
    changes = [
        f"  {name}: {value:.4f} → {changed:.4f} ({changed - value:+.4f})"
        for name, value in before.items()
        if value is not None and (changed := after[name]) is not None
    ]
    heading = f"On {len(labels):,} labelled examples, from float32 to int8:"
    return "\n".join([" ".join(facts), heading, *changes])
