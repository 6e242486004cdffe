"""A run's folder: what it was asked for, and where it goes on when the command is given again.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/checkpoints/    what a killed run continues from
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from roformer_tf.errors import InputError
from roformer_tf.files import sweep, write_text
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.runs.checkpointing import checkpoints, restore_checkpoint
from roformer_tf.runs.devices import choose_precision
from roformer_tf.runs.run_files import (
    BEST,
    CHECKPOINTS,
    MODEL,
    REPORT,
    RESULT,
    SETTINGS,
    TRIALS,
    read_settings,
)

Settings = TypeVar("Settings", bound=Any)  # a dataclass of a command that trains

RESULTS = (MODEL, CHECKPOINTS, BEST, TRIALS, RESULT, REPORT, "report.md")
"""Some of what a run writes, and would replace."""


def check_output(config: Any, may_change: Sequence[str]) -> None:
    """Raise InputError unless the run's folder is new, or holds a run with the same settings.

    `may_change` names those that may differ when a run continues, since they change no weight.
    """
    output = Path(config.output)
    settings = output / SETTINGS
    if not settings.exists():
        in_the_way = [output / name for name in RESULTS if (output / name).exists()]
        if output.is_file() or in_the_way:
            raise InputError(
                f"{(in_the_way or [output])[0]} exists, but is of no run that began here. "
                "Choose another --output."
            )
        return
    began = read_settings(output)
    if began:  # a setting may be younger than the run
        began = _defaults(type(config)) | began
    changed = [
        f"{key} was {began.get(key)!r} and is {value!r}"
        for key, value in plain(config).items()
        if key not in may_change and began.get(key) != value
    ]
    if changed:
        raise InputError(
            f"{output} holds a run with other settings: {'; '.join(changed)}. "
            "Give those to continue it, or another --output to start anew."
        )


def settle_precision(config: Settings) -> Settings:
    """Replace `precision="auto"` by what the run began with, else by what suits the device.

    Begun on one machine and continued on another, a run does not change its arithmetic.
    """
    if config.precision != "auto":
        return config
    began = read_settings(Path(config.output)).get("precision", "auto")
    return dataclasses.replace(config, precision=choose_precision(began))


def write_settings(config: Any) -> None:
    """Write the run's settings, by which the same command finds it again."""
    text = yaml.safe_dump(plain(config), allow_unicode=True, sort_keys=False)
    write_text(Path(config.output) / SETTINGS, text)


def tidy(output: Path) -> None:
    """Remove what a killed process was writing, in a folder that is known to be a run's."""
    if (output / SETTINGS).exists():
        for folder in (output, output / "export", *output.glob(f"{TRIALS}/*")):
            sweep(folder)
            sweep(folder / CHECKPOINTS)


def resume(folder: Path, model: PretrainedModel, data: str) -> tuple[int, Path | None]:
    """Continue from the newest checkpoint under `folder` that can be read.

    `data` is the fingerprint of what is trained on. Gives the steps done, and the checkpoint.
    Raises InputError where there are checkpoints, but none that this run can continue from.
    """
    damaged = []
    for checkpoint in checkpoints(folder):
        try:
            state = restore_checkpoint(checkpoint, model)
        except InputError as error:
            damaged.append(str(error))
            continue
        if state.rows != data:
            raise InputError(
                f"{checkpoint} was trained on other rows than these. Give the same data and "
                "settings to continue, or another --output to start anew."
            )
        for message in damaged:
            print(message, file=sys.stderr)
        print(f"continuing from {checkpoint}")
        return state.step, checkpoint
    if damaged:
        raise InputError(
            f"{damaged[0]} No other checkpoint is left to continue from. "
            "Choose another --output to start anew."
        )
    return 0, None


def _defaults(settings: Any) -> dict[str, Any]:
    """What a settings dataclass has where nothing is given, as `plain` tells it."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if field.default_factory is not dataclasses.MISSING:
            values |= plain(field.default_factory())
        elif field.default is not dataclasses.MISSING:
            plural = isinstance(field.default, tuple)
            values[field.name] = [*field.default] if plural else field.default
    return values


def plain(settings: Any) -> dict[str, Any]:
    """A settings dataclass as YAML knows values, flags of nested ones beside the others."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            values |= plain(value)
        elif isinstance(value, tuple):
            values[field.name] = list(value)
        else:
            values[field.name] = value
    return values
