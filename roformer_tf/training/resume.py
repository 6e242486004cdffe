"""Checkpoints of a run: everything that the next step depends on, whole or not there at all.

    checkpoints/step-00001000/model/                the weights, in our own format
    checkpoints/step-00001000/training.safetensors  optimizer, random states, mean loss so far
    checkpoints/step-00001000/state.json            RunState

What a step reads beside these is a function of (settings, step): there is no data position to
save. Keras' own BackupAndRestore forgets the position in a grain pipeline.
"""

import filecmp
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints.huggingface import WEIGHTS
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.files import file_beside, folder_beside, remove
from roformer_tf.models.pretrained import PretrainedModel


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    step: int
    """Steps done."""
    rows: str
    """Fingerprint of the rows that they were done on."""


STATE = "state.json"
TRAINING = "training.safetensors"


def save_checkpoint(folder: Path, state: RunState, model: PretrainedModel, keep: int) -> Path:
    """Save the run under `folder`, and delete all but the last `keep` up to this one.

    Any of a later step was damaged: the run went back behind it. Raises DivergedError, and saves
    nothing, if a weight is not finite.
    """
    if broken := [name for name, v in model.named_variables().items() if not _finite(v)]:
        raise DivergedError(f"{len(broken)} weights are no longer finite, such as {broken[0]}.")
    checkpoint = folder / f"step-{state.step:08}"
    with folder_beside(checkpoint) as beside:
        model.save_pretrained(beside / "model")
        arrays = {
            name: keras.ops.convert_to_numpy(v.value) for name, v in _training_state(model).items()
        }
        with file_beside(beside / TRAINING) as file:  # safetensors alone would make it private
            save_file(arrays, file)
        (beside / STATE).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    earlier = [other for other in checkpoints(folder) if other < checkpoint]
    for other in set(checkpoints(folder)) - {checkpoint, *earlier[: keep - 1]}:
        remove(other)
    return checkpoint


def checkpoints(folder: Path) -> Iterator[Path]:
    """The checkpoints of a run, the newest first."""
    yield from sorted(folder.glob("step-*"), reverse=True)


def restore_checkpoint(checkpoint: Path, model: PretrainedModel) -> RunState:
    """Put a compiled model and its optimizer into the saved state; tell where the run stands.

    Raises InputError where a file is damaged or belongs to another model.
    """
    try:
        state = RunState(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
        arrays = load_file(checkpoint / TRAINING)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise InputError(f"cannot read the checkpoint {checkpoint}: {error}") from None
    variables = _training_state(model)
    shapes = {name: tuple(v.shape) for name, v in variables.items()}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise InputError(f"the checkpoint {checkpoint} belongs to another model or optimizer.")
    model.load_pretrained(checkpoint / "model")
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return state


def publish(model: Path, target: Path) -> None:
    """Make a saved model the run's: the same files under another name, not copies.

    Does nothing where it is already.
    """
    weights = target / WEIGHTS
    if weights.is_file() and filecmp.cmp(model / WEIGHTS, weights, shallow=False):
        return
    with folder_beside(target) as beside:
        shutil.copytree(model, beside, copy_function=_link, dirs_exist_ok=True)


def _training_state(model: PretrainedModel) -> dict[str, keras.Variable]:
    """Every variable that is no weight: dropout's random states, optimizer slots, mean loss.

    Numbered, since Keras counts the names of seed generators up within a process.
    """
    weights = {id(v) for v in model.named_variables().values()}
    others = [v for v in model.variables if id(v) not in weights]
    groups = {
        "model": others,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return {f"{name}.{i}": v for name, group in groups.items() for i, v in enumerate(group)}


def _finite(variable: keras.Variable) -> bool:
    return bool(np.isfinite(keras.ops.convert_to_numpy(keras.ops.sum(variable.value))))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
