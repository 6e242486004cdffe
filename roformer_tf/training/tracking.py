"""Sends the metrics of a run to Weights & Biases, MLflow or SwanLab."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from roformer_tf.errors import InputError, check_packages
from roformer_tf.files import write_text
from roformer_tf.training.callbacks import scalars
from roformer_tf.training.settings import Tracker

Track: TypeAlias = Callable[[Mapping[str, Any]], None]
# A started run: its identity, by which a resumed run continues it; a function that takes metrics
# and the step; and one that takes whether the run failed.
Started: TypeAlias = tuple[str, Callable[[dict[str, float], int], Any], Callable[[bool], Any]]


def check_tracking(tracker: Tracker | None) -> None:
    """Raise InputError if the package of the tracker is not installed."""
    if tracker is not None:
        check_packages(f"--tracker {tracker}", tracker, tracker)


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
    former = file.read_text(encoding="utf-8") if file.exists() else ""
    output.mkdir(parents=True, exist_ok=True)
    try:
        identity, log, finish = _STARTERS[tracker](project, output, dict(settings), former)
    except Exception as error:  # of many classes, without a common base class
        remedy = f"Log in with `{tracker} login`, set {tracker.upper()}_MODE=offline"
        if tracker == "mlflow":
            remedy = "Set MLFLOW_TRACKING_URI to the address of a server"
        raise InputError(
            f"{tracker} could not start a run of {project}: {error}. {remedy}, or leave --tracker "
            "out."
        ) from None
    write_text(file, identity)
    # Not `with` wandb's run: it prints a traceback for an exception that has a clear message, too.
    failed = True
    try:
        yield lambda line: log(scalars(line), line["step"])
        failed = False
    finally:
        finish(failed)


def _wandb(project: str, output: Path, settings: dict[str, Any], former: str) -> Started:
    import wandb

    run = wandb.init(
        project=project,
        name=output.name,
        id=former or uuid.uuid4().hex[:12],
        resume="allow",
        dir=os.fspath(output),
        config=settings,
        settings=wandb.Settings(console="off"),  # do not upload what is printed
    )
    run.define_metric("*", step_metric="step")
    return (
        run.id,
        lambda metrics, step: run.log({"step": step} | metrics),
        lambda failed: run.finish(exit_code=int(failed)),
    )


def _mlflow(project: str, output: Path, settings: dict[str, Any], former: str) -> Started:
    import mlflow

    mlflow.set_experiment(project)
    run = mlflow.start_run(former or None, run_name=output.name)
    if not former:
        mlflow.log_params(settings)
    return (
        run.info.run_id,
        mlflow.log_metrics,
        lambda failed: mlflow.end_run("FAILED" if failed else "FINISHED"),
    )


def _swanlab(project: str, output: Path, settings: dict[str, Any], former: str) -> Started:
    import swanlab

    run = swanlab.init(
        project=project,
        name=output.name,
        id=former or uuid.uuid4().hex[:21],
        resume="allow",
        log_dir=os.fspath(output / "swanlab"),
        config=settings,
    )
    return run.id, run.log, lambda failed: run.finish("crashed" if failed else "success")


_STARTERS = {"wandb": _wandb, "mlflow": _mlflow, "swanlab": _swanlab}
