"""The folder of a run: the names of its files, its settings, and its metrics.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/checkpoints/    from which a killed run resumes

Keras is not imported here, so that `runs` prints its tables at once.
"""

import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePath
from typing import Any, TypeAlias, TypeVar

import yaml

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, remove, sweep, write_text
from roformer_tf.training.settings import Tracker

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


def settings_to_continue(output: Path) -> dict[str, Any]:
    """The settings of a run that a command continues; {} if it has saved nothing, and is new."""
    return read_settings(output) if _saved(output) else {}


def _saved(output: Path) -> list[Path]:
    # A search over settings has a folder for each training, which may have results first.
    folders = output, *output.glob(f"{TRIALS}/*")
    return [folder / name for folder in folders for name in RESULTS if (folder / name).exists()]


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

# Files and folders that a run or one of its trainings writes, and that it must not overwrite for
# another program.
RESULTS = (MODEL, CHECKPOINTS, BEST, RESULT, REPORT, "report.md")


def check_output(config: Any, may_change: Sequence[str]) -> None:
    """Raise InputError unless the run's folder is new, or holds a run with the same settings.

    A run that has not saved anything yet counts as new. `may_change`: names of settings that may
    differ when a run is resumed.
    """
    output = Path(config.output)
    existing = _saved(output)
    if not (output / SETTINGS).exists():
        if output.is_file() or existing:
            raise InputError(
                f"{(existing or [output])[0]} exists, but no run started in this folder. "
                "Choose another --output."
            )
        return
    started = _from_folder(read_settings(output))
    changed = [
        f"--{key.replace('_', '-')} was {started.get(key)!r} and is {value!r}"
        for key, value in _from_folder(plain(config)).items()
        if key not in may_change and started.get(key) != value
    ]
    if changed and existing:
        raise InputError(
            f"{output} holds a run with other settings: {'; '.join(changed)}. "
            "Give those to continue it, or another --output to start anew."
        )


def _from_folder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with paths in the run's folder relative to it: it may have been moved."""
    # With a separator at its end, which `Path` cannot have.
    folder = os.path.join(Path(settings.get("output", "")), "")  # noqa: PTH118
    return {k: x.removeprefix(folder) if isinstance(x, str) else x for k, x in settings.items()}


@contextmanager
def stored(files: Mapping[Path, str], output: Path) -> Iterator[None]:
    """Write the files of a run's examples; they are removed if the run does not begin.

    Raises InputError if the folder holds a run on other examples, except those of its test set, or
    other files of these names.
    """
    for path, content in files.items():
        if path.exists() and path.read_bytes() == content.encode():
            continue
        # No training depends on a test set; the report then has the figures of the new one.
        is_used = path.stem != "test" and settings_to_continue(output)
        if is_used or (path.exists() and not (output / SETTINGS).exists()):
            raise InputError(
                f"{output} holds other examples than these: {path} differs. Give the same ones to "
                "continue its run, or another --output to start anew."
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

    started = settings_to_continue(Path(config.output)).get("precision", "auto")
    return dataclasses.replace(config, precision=choose_precision(started))


def write_settings(config: Any, kept: Collection[str] = ()) -> None:
    """Write the run's settings; the same command is recognized by them.

    kept: names of settings that stay as they are, if a run is continued.
    """
    started = settings_to_continue(Path(config.output))
    values = plain(config) | {name: started[name] for name in kept if name in started}
    text = yaml.safe_dump(values, allow_unicode=True, sort_keys=False)
    write_text(Path(config.output) / SETTINGS, text)


def file_name(value: Any) -> str:
    """A setting, for a model card: a path without its folder; for the model of a run, the run."""
    # runs/a/model → a; data/train.csv → train.csv. Backslashes are those of a Windows path.
    path = PurePath(str(value).replace("\\", "/"))
    return path.parent.name if path.name == MODEL and path.parent.name else path.name


def tidy(output: Path) -> None:
    """Remove temporary files of a killed process from the folder of a run."""
    if (output / SETTINGS).exists():
        for folder in (output, *output.glob("*/"), *output.glob(f"{TRIALS}/*")):
            sweep(folder)
            sweep(folder / CHECKPOINTS)


def plain(settings: Any) -> dict[str, Any]:
    """A settings dataclass as a dictionary for YAML; fields of nested dataclasses are flattened."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            values |= plain(value)
        else:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


# Metrics: lines of a file, the same numbers for TensorBoard, and for a tracker on a server


# A function that stores or sends a line of metrics, which has a `step`.
Track: TypeAlias = Callable[[Mapping[str, Any]], None]


@contextmanager
def metrics_file(
    path: Path,
    *,
    resumed_at: int,
    board: str,
    writing: bool = True,
    also: Track = lambda line: None,
) -> Iterator[Track]:
    """Yield a function that appends a line of JSON to a file, and its numbers to TensorBoard.

    Lines after `resumed_at` were written before the run was killed; they are removed, because
    these steps are run again. TensorBoard has them under the name `board`. If several processes
    train, only one is `writing`; in the others nothing happens. `also` is called with every line.
    """
    if not writing:
        yield lambda line: None
        return
    from tensorboard.summary import Writer  # takes a second to load

    # A run that starts anew also empties the file of an earlier run in the folder.
    kept = [x for x in read_metrics(path) if x["step"] <= resumed_at] if resumed_at else []
    write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
    folder = path.parent / "tensorboard" / board
    with path.open("a", encoding="utf-8") as file, closing(Writer(str(folder))) as writer:

        def write(line: Mapping[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()
            for name, value in scalars(line).items():
                writer.add_scalar(name, value, line["step"])
            writer.flush()
            also(line)

        yield write


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line without its step; {"a": {"b": 1}} becomes {"a/b": 1}."""
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{name}": x for name, x in scalars(value).items()}
        elif key != "step" and value is not None:
            flat[key] = value
    return flat


# A started run: its identity, by which a resumed run continues it; a function that takes metrics
# and the step; and one that takes whether the run failed.
Started: TypeAlias = tuple[str, Callable[[dict[str, float], int], Any], Callable[[bool], Any]]


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
    # The identity of the run that is resumed, so that the tracker continues its curves.
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
