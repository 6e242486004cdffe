"""Sends the metrics of a run to Weights & Biases, MLflow or SwanLab."""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.training.callbacks import scalars
from roformer_tf.training.settings import Tracker

Track: TypeAlias = Callable[[Mapping[str, Any]], None]
# What to do where a tracker cannot start a run.
REMEDIES: dict[Tracker, str] = {
    "wandb": "Log in with `wandb login`, set WANDB_MODE=offline",
    "mlflow": "Set MLFLOW_TRACKING_URI to the address of a server",
    "swanlab": "Log in with `swanlab login`, set SWANLAB_MODE=offline",
}


class Tracked(NamedTuple):
    """A run at a tracker."""

    identity: str
    """By which a resumed run continues it."""
    log: Callable[[dict[str, float], int], Any]
    """Takes metrics and the step."""
    finish: Callable[[bool], Any]
    """Takes whether the run failed."""


def check_tracking(tracker: Tracker | None) -> None:
    """Raise InputError if the package of the tracker is not installed."""
    if tracker is not None and find_spec(tracker) is None:
        raise InputError(
            f"--tracker {tracker} needs the package: pip install 'roformer-tf[{tracker}]'."
        )


@contextmanager
def tracked(
    tracker: Tracker | None, project: str, output: Path, settings: Mapping[str, Any]
) -> Iterator[Track]:
    """Yield a function that sends a line of metrics to a tracker's project, or does nothing.

    Plots are by `step`. Steps that a resumed run repeats appear twice. Raises InputError if the
    tracker cannot start the run.
    """
    if tracker is None:
        yield lambda line: None
        return
    file = output / f"{tracker}-id"
    identity = file.read_text(encoding="utf-8") if file.exists() else ""
    output.mkdir(parents=True, exist_ok=True)
    try:
        run = _STARTERS[tracker](project, output, dict(settings), identity)
    except Exception as error:  # of many classes, without a common base class
        raise InputError(
            f"{tracker} could not start a run of {project}: {error}. {REMEDIES[tracker]}, or leave "
            "--tracker out."
        ) from None
    write_text(file, run.identity)
    # Not `with` wandb's run: it prints a traceback for an exception that has a clear message, too.
    failed = True
    try:
        yield lambda line: run.log(scalars(line), line["step"])
        failed = False
    finally:
        run.finish(failed)


def _wandb(project: str, output: Path, settings: dict[str, Any], identity: str) -> Tracked:
    import wandb

    run = wandb.init(
        project=project,
        name=output.name,
        id=identity or uuid.uuid4().hex[:12],
        resume="allow",
        dir=os.fspath(output),
        config=settings,
        settings=wandb.Settings(console="off"),  # do not upload what is printed
    )
    run.define_metric("*", step_metric="step")
    return Tracked(
        run.id,
        lambda metrics, step: run.log({"step": step} | metrics),
        lambda failed: run.finish(exit_code=int(failed)),
    )


def _mlflow(project: str, output: Path, settings: dict[str, Any], identity: str) -> Tracked:
    import mlflow

    client = mlflow.MlflowClient()
    if identity:
        client.update_run(identity, status="RUNNING")
    else:
        known = client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else client.create_experiment(project)
        identity = client.create_run(experiment, run_name=output.name).info.run_id
        for name, value in settings.items():
            client.log_param(identity, name, value)

    def log(metrics: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        values = [mlflow.entities.Metric(name, x, now, step) for name, x in metrics.items()]
        client.log_batch(identity, metrics=values)

    def finish(failed: bool) -> None:
        client.set_terminated(identity, "FAILED" if failed else "FINISHED")

    return Tracked(identity, log, finish)


def _swanlab(project: str, output: Path, settings: dict[str, Any], identity: str) -> Tracked:
    import swanlab

    identity = identity or uuid.uuid4().hex[:21]
    run = swanlab.init(
        project=project,
        name=output.name,
        id=identity,
        resume="allow",
        log_dir=os.fspath(output / "swanlab"),
        config=settings,
    )
    return Tracked(
        identity, run.log, lambda failed: run.finish(state="crashed" if failed else "success")
    )


_STARTERS = {"wandb": _wandb, "mlflow": _mlflow, "swanlab": _swanlab}
