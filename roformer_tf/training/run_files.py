"""The folder of a run: the names of its files, how they are read, and the run's settings.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/checkpoints/    from which a killed run resumes

Keras is not imported here, so that `runs` prints its tables at once.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, TypeVar

import yaml

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, remove, sweep, write_text

SETTINGS, CHECKPOINTS, MODEL, BEST = "settings.yaml", "checkpoints", "model", "best"
METRICS_FILE, EVALUATIONS_FILE = "metrics.jsonl", "evaluations.jsonl"
REPORT, RESULT, TRIALS = "report.json", "result.json", "trials"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl and similar files, each with a `step`; none if there is no file.

    A last line that a killed process left incomplete is skipped. Raises InputError for any other
    line that cannot be read.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # a complete line ends in \n
    return [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def read_keys(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Keys and values of a JSON or YAML file, {} if there is none. InputError if it is damaged."""
    if not path.exists():
        return {}
    problem = "there are no keys with values"
    try:
        values = parse(path.read_bytes().decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem, values = f"this is damaged: {' '.join(str(error).split())[:200]}", None
    if not isinstance(values, dict):
        raise InputError(f"{path}: {problem}. Fix the file, or give another folder.")
    return {str(key): value for key, value in values.items()}


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that a run was started with; {} in a new folder."""
    return read_keys(folder / SETTINGS, yaml.safe_load)


def _read_line(text: bytes, place: str) -> dict[str, Any]:
    try:
        line = parse_json(text)
    except ValueError:
        line = None
    if not (isinstance(line, dict) and isinstance(line.get("step"), int)):
        raise InputError(
            f"{place}: this is not a line of metrics: {text[:40].decode('utf-8', 'replace')!r}. "
            "Remove the line, or the run from the command."
        )
    return line


Settings = TypeVar("Settings", bound=Any)  # a dataclass of a command that trains

# Files and folders that a run writes, and that it must not overwrite for another program.
RESULTS = (MODEL, CHECKPOINTS, BEST, TRIALS, RESULT, REPORT, "report.md")


def check_output(config: Any, may_change: Sequence[str]) -> None:
    """Raise InputError unless the run's folder is new, or holds a run with the same settings.

    `may_change`: names of settings that may differ when a run is resumed.
    """
    output = Path(config.output)
    settings = output / SETTINGS
    if not settings.exists():
        existing = [output / name for name in RESULTS if (output / name).exists()]
        if output.is_file() or existing:
            raise InputError(
                f"{(existing or [output])[0]} exists, but no run started in this folder. "
                "Choose another --output."
            )
        return
    started = read_settings(output)
    changed = [
        f"{key} was {started.get(key)!r} and is {value!r}"
        for key, value in plain(config).items()
        if key not in may_change and started.get(key) != value
    ]
    if changed:
        raise InputError(
            f"{output} holds a run with other settings: {'; '.join(changed)}. "
            "Give those to continue it, or another --output to start anew."
        )


@contextmanager
def stored(files: Mapping[Path, str], output: Path) -> Iterator[None]:
    """Write the files of a run's examples; they are removed if the run does not begin.

    Raises InputError if the folder holds a run on other examples.
    """
    for path, content in files.items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        if (output / SETTINGS).exists():
            raise InputError(
                f"{output} holds a run on other examples than these: {path} differs. Give the "
                "same ones to continue it, or another --output to start anew."
            )
        write_text(path, content)
    try:
        yield
    finally:
        if not (output / SETTINGS).exists():
            for path in files:
                remove(path)


def settle_precision(config: Settings) -> Settings:
    """Replace `precision="auto"` by the run's precision, or for a new run by the device's best.

    A run that is resumed on another machine keeps its arithmetic.
    """
    if config.precision != "auto":
        return config
    from roformer_tf.training.devices import choose_precision  # loads Keras

    started = read_settings(Path(config.output)).get("precision", "auto")
    return dataclasses.replace(config, precision=choose_precision(started))


def write_settings(config: Any) -> None:
    """Write the run's settings; the same command is recognized by them."""
    text = yaml.safe_dump(plain(config), allow_unicode=True, sort_keys=False)
    write_text(Path(config.output) / SETTINGS, text)


def file_name(value: Any) -> str:
    """A setting, for a model card: a path without its folder; for the model of a run, the run."""
    path = PurePath(str(value).replace("\\", "/"))
    return path.parent.name if path.name == MODEL and path.parent.name else path.name


def tidy(output: Path) -> None:
    """Remove temporary files of a killed process from the folder of a run."""
    if (output / SETTINGS).exists():
        for folder in (output, output / "export", *output.glob(f"{TRIALS}/*")):
            sweep(folder)
            sweep(folder / CHECKPOINTS)


def plain(settings: Any) -> dict[str, Any]:
    """A settings dataclass as a dictionary for YAML; fields of nested dataclasses are flattened."""
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
