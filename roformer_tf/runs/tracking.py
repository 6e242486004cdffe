"""The lines of a run at Weights & Biases too, for teams that look there."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.runs.callbacks import scalars

Track: TypeAlias = Callable[[Mapping[str, Any]], None]
IDENTITY = "wandb-id"
"""File of a run's folder that holds its name there, so that it is the same run when it resumes."""


def check_tracking(project: str | None) -> None:
    """Raise InputError where a project is named, but the package is missing."""
    if project is not None and find_spec("wandb") is None:
        raise InputError("--wandb needs the package: pip install 'roformer-tf[wandb]'.")


@contextmanager
def tracked(project: str | None, output: Path, settings: Mapping[str, Any]) -> Iterator[Track]:
    """Give what takes a line of metrics to a project of wandb; without one, it does nothing.

    Plots go by `step`, as our own do: the steps that a killed run does again stand there twice.
    WANDB_MODE=offline writes to the run's folder alone, for `wandb sync`. Raises InputError where
    the service refuses.
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
            settings=wandb.Settings(console="off"),  # what is printed stays here
        )
    except (wandb.Error, OSError) as error:
        raise InputError(
            f"wandb did not begin a run of {project}: {error}. Log in by `wandb login`, set "
            "WANDB_MODE=offline, or leave --wandb out."
        ) from None
    run.define_metric("*", step_metric="step")

    def track(line: Mapping[str, Any]) -> None:
        run.log({"step": line["step"]} | scalars(line))

    failed = True
    try:
        yield track
        failed = False
    finally:
        run.finish(exit_code=int(failed))
