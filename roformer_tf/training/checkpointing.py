"""Checkpoints of a run: everything that the next step depends on, written atomically.

    checkpoints/step-00001000/model/                the weights, in our own format
    checkpoints/step-00001000/training.safetensors  optimizer, random states, mean loss so far
    checkpoints/step-00001000/state.json            step, fingerprint of data, hash of each file

The data of a step is a function of (settings, step), so there is no data position to save. Keras'
own BackupAndRestore loses the position in a grain pipeline.
"""

import filecmp
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from roformer_tf.checkpoints.archives import CONFIG, WEIGHTS
from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.files import hash_file, parse_json, remove, temporary_folder, write_bytes
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.terminal import say
from roformer_tf.training.devices import to_numpy
from roformer_tf.training.run_files import MODEL

STATE = "state.json"
TRAINING = "training.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """A copy of a run's state in memory, so that training can continue while it is written."""

    # Completed steps.
    step: int
    # Fingerprint of the data that was trained on.
    data: str
    weights: dict[str, np.ndarray]
    training: dict[str, np.ndarray]


def take_snapshot(step: int, data: str, model: PretrainedModel) -> Snapshot:
    """Copy the state of a compiled model and its optimizer; all processes must call it.

    Raises DivergedError if a weight is not finite.
    """
    weights = {name: to_numpy(v) for name, v in model.named_variables().items()}
    # A sum is not finite if a value is not, and needs no array of booleans as large as the weight.
    if broken := [name for name, array in weights.items() if not np.isfinite(np.sum(array))]:
        raise DivergedError(f"{len(broken)} weights are no longer finite, such as {broken[0]}.")
    training = {name: to_numpy(v) for name, v in _training_state(model).items()}
    return Snapshot(step, data, weights, training)


def save_checkpoint(folder: Path, step: int, data: str, model: PretrainedModel, keep: int) -> Path:
    """Save the run under `folder`: `write_checkpoint` of its snapshot."""
    return write_checkpoint(folder, take_snapshot(step, data, model), model, keep)


def write_checkpoint(folder: Path, snapshot: Snapshot, model: PretrainedModel, keep: int) -> Path:
    """Write a checkpoint in `folder`, and delete all but the last `keep` up to this one.

    Checkpoints of later steps are damaged ones, which `resume` skipped: they are deleted, too.
    From `model` only the configuration is read; it may be training meanwhile.
    """
    # With leading zeros, so that names sort like steps.
    checkpoint = folder / f"step-{snapshot.step:08}"
    with temporary_folder(checkpoint) as temporary:
        model.save_pretrained(temporary / MODEL, snapshot.weights)
        save_tensors(snapshot.training, temporary / TRAINING)
        files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
        hashes = {path.relative_to(temporary).as_posix(): hash_file(path) for path in files}
        state = {"step": snapshot.step, "rows": snapshot.data, "blake2b": hashes}
        (temporary / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")
    earlier = [path for path in checkpoints(folder) if path < checkpoint]
    for path in set(checkpoints(folder)) - {checkpoint, *earlier[: keep - 1]}:
        remove(path)
    return checkpoint


def checkpoints(folder: Path) -> Iterator[Path]:
    """The checkpoints of a run, the newest first."""
    yield from sorted(folder.glob("step-*"), reverse=True)


def restore_checkpoint(checkpoint: Path, model: PretrainedModel) -> tuple[int, str]:
    """Load the saved state into a compiled model and its optimizer; return step and data.

    Raises InputError if a file is damaged or belongs to another model.
    """
    try:
        state = parse_json((checkpoint / STATE).read_text(encoding="utf-8"))
        step, data = state["step"], state["rows"]
        # Before anything is assigned: if this one is damaged, `resume` tries the one before it.
        for name, digest in state["blake2b"].items():
            if hash_file(checkpoint / name) != digest:
                raise ValueError(f"{name} is damaged")
        arrays = load_file(checkpoint / TRAINING)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise InputError(f"cannot read the checkpoint {checkpoint}: {error}.") from None
    # Compared before the weights are loaded: another optimizer has other slots.
    variables = _training_state(model)
    shapes = {name: tuple(v.shape) for name, v in variables.items()}
    # An architecture whose file was edited may have equal shapes, too. Of the config, a checkpoint
    # of a training does not record these keys.
    keys = {"unknown": {}, "crf": False, "label_mean": 0.0, "label_deviation": 1.0}
    saved = RoFormerConfig.from_file(checkpoint / MODEL / CONFIG).replace(**keys)
    if saved != model.config.replace(**keys) or {n: x.shape for n, x in arrays.items()} != shapes:
        raise InputError(f"the checkpoint {checkpoint} belongs to another model or optimizer.")
    model.load_pretrained(checkpoint / MODEL)
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return step, data


def publish(model: Path, target: Path, files: Mapping[str, bytes] = {}) -> None:
    """Publish a saved model as `target`, by hard links where possible.

    `files` are further ones, by name, or other versions of the model's, that are published together
    with it. If the weights are there already, only these files are updated.
    """
    weights = target / WEIGHTS
    if not (weights.is_file() and filecmp.cmp(model / WEIGHTS, weights, shallow=False)):
        with temporary_folder(target) as temporary:
            shutil.copytree(model, temporary, copy_function=_link, dirs_exist_ok=True)
            for name, content in files.items():
                write_bytes(temporary / name, content)
        return
    for name, content in files.items():
        file = target / name
        if not file.is_file() or file.read_bytes() != content:
            write_bytes(file, content)


@contextmanager
def checkpoint_writer(
    folder: Path, model: PretrainedModel, keep: int, then: Callable[[Path], None]
) -> Iterator[Callable[[Snapshot], None]]:
    """Yield a function that writes a snapshot in a thread while training continues.

    At most one is written at a time; the end of the block waits for the last one. An error in the
    thread is raised by the next call, or at the end. `then(checkpoint)` is called in the thread
    after each checkpoint.
    """
    pending: list[Future[None]] = []

    def wait() -> None:
        while pending:
            pending.pop().result()

    def write(snapshot: Snapshot) -> None:
        wait()
        pending.append(pool.submit(lambda: then(write_checkpoint(folder, snapshot, model, keep))))

    with ThreadPoolExecutor(1, "checkpoint") as pool:
        yield write
        wait()


def _training_state(model: PretrainedModel) -> dict[str, keras.Variable]:
    """All variables except the weights: dropout's random states, optimizer slots, mean loss.

    They are numbered, because the names of seed generators depend on a counter of the process.
    """
    weights = {id(v) for v in model.named_variables().values()}
    groups = {
        "model": [v for v in model.variables if id(v) not in weights],
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return {f"{name}.{i}": v for name, group in groups.items() for i, v in enumerate(group)}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def resume(folder: Path, model: PretrainedModel, data: str) -> tuple[int, Path | None]:
    """Resume from the newest checkpoint in `folder` that is not damaged.

    `data` is the fingerprint of the training data. Returns the completed steps and the checkpoint.
    Raises InputError if there are checkpoints, but none from which this run can resume.
    """
    damaged = []
    for checkpoint in checkpoints(folder):
        try:
            step, trained_on = restore_checkpoint(checkpoint, model)
        except InputError as error:
            damaged.append(str(error))
            continue
        if trained_on != data:
            raise InputError(
                f"{checkpoint} was trained on other data than this. Give the same data and "
                "settings to continue, or another --output to start anew."
            )
        for message in damaged:
            print(message, file=sys.stderr)
        say("continuing from {checkpoint}", checkpoint=checkpoint)
        return step, checkpoint
    if damaged:
        raise InputError(
            f"{damaged[0]} No other checkpoint is left to continue from. "
            "Choose another --output to start anew."
        )
    return 0, None
