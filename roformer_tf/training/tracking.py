"""Sends the metrics of a run to Weights & Biases."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.training.callbacks import scalars

Track: TypeAlias = Callable[[Mapping[str, Any]], None]
# File with the run's id at Weights & Biases, so that a resumed run continues the same one.
IDENTITY = "wandb-id"


def check_tracking(project: str | None) -> None:
    """Raise InputError if a project is set, but wandb is not installed."""
    if project is not None and find_spec("wandb") is None:
        raise InputError("--wandb needs the package: pip install 'roformer-tf[wandb]'.")


@contextmanager
def tracked(project: str | None, output: Path, settings: Mapping[str, Any]) -> Iterator[Track]:
    """Yield a function that sends a line of metrics to a wandb project, or does nothing without.

    Plots are by `step`. Steps that a resumed run repeats appear twice. WANDB_MODE=offline writes to
    the run's folder only, for `wandb sync`. Raises InputError if wandb cannot start the run.
    """
    if project is None:
        yield lambda line: None
        return
    import wandb

    identity = output / IDENTITY
    if not identity.exists():
        output.mkdir(parents=True, exist_ok=True)
        write_text(identity, uuid.uuid4().hex[:12])
    try:
        run = wandb.init(
            project=project,
            name=output.name,
            id=identity.read_text(encoding="utf-8"),
            resume="allow",
            dir=os.fspath(output),
            config=dict(settings),
            settings=wandb.Settings(console="off"),  # do not upload what is printed
        )
    except (wandb.Error, OSError) as error:
        raise InputError(
            f"wandb could not start a run of {project}: {error}. Log in with `wandb login`, set "
            "WANDB_MODE=offline, or leave --wandb out."
        ) from None
    run.define_metric("*", step_metric="step")

    def track(line: Mapping[str, Any]) -> None:
        run.log({"step": line["step"]} | scalars(line))

    # Not `with run`: it prints a traceback for an exception that has a clear message, too.
    failed = True
    try:
        yield track
        failed = False
    finally:
        run.finish(exit_code=int(failed))
