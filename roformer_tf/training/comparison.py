"""The `runs` command: compares runs in tables.

Keras is not imported, so the tables appear at once, even while runs are training. The files are
written by `run_files.metrics_file`, `run_files.write_settings` and `report.write_report`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.terminal import printable, show, table, terminal_width
from roformer_tf.training.run_files import (
    EVALUATIONS_FILE,
    METRICS_FILE,
    REPORT,
    RESULT,
    SETTINGS,
    TRIALS,
    read_keys,
    read_metrics,
    read_settings,
)

PRETRAINING, FINE_TUNING = "pretraining", "fine-tuning"

Plain: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunsConfig:
    """Compare runs of `pretrain` and `finetune`: progress, metrics and settings that differ.

    Runs that are still training are shown with what they have so far.

    Examples:
        roformer-tf runs runs/
        roformer-tf runs runs/a runs/b
    """

    folder: Annotated[tuple[Path, ...], "DIR"]
    """Folders of runs, or folders that contain such folders."""


@dataclass(frozen=True)
class RecordedRun:
    """The contents of a run's folder."""

    folder: Path
    name: str
    settings: Plain
    # The lines of metrics.jsonl.
    lines: list[Plain]
    evaluations: list[Plain]
    # report.json of a finished fine-tuning, else {}.
    report: Plain
    # Number of the current training, if fine-tuning consists of several; else 0.
    training: int

    @property
    def kind(self) -> str:
        """Whether it is pretraining or fine-tuning; one training of several has only epochs."""
        epochs = "epochs" in self.settings or any("epoch" in line for line in self.evaluations)
        return FINE_TUNING if epochs else PRETRAINING


def compare(config: RunsConfig) -> None:
    """Print the tables."""
    folders = [run for folder in config.folder for run in find_runs(folder)]
    runs = [read_run(*pair) for pair in named(folders).items()]
    show("\n".join(tables(runs, terminal_width())))


def find_runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run's, else those in it, sorted. Raises InputError for none."""
    # `glob`, unlike `iterdir`, finds nothing where there is no folder.
    runs = [folder] if _is_run(folder) else sorted(filter(_is_run, folder.glob("*")))
    if not runs:
        raise InputError(
            f"{folder} holds no run: there is no {SETTINGS} or {METRICS_FILE} in it or in its "
            "subfolders. Give the --output of a run, or a folder that holds runs."
        )
    return runs


def named(folders: Sequence[Path]) -> dict[Path, str]:
    """A unique name for each folder: its own name, or its path if two have the same name."""
    known: dict[Path, Path] = {}  # a folder may be given twice, as itself and within another
    for folder in folders:
        known.setdefault(folder.resolve(), folder)
    times = Counter(path.name for path in known)
    return {
        folder: printable(path.name if times[path.name] == 1 else str(folder))
        for path, folder in known.items()
    }


def read_run(folder: Path, name: str) -> RecordedRun:
    """Read a run's folder. Raises InputError for a damaged file.

    If fine-tuning consists of several trainings, its lines are those of the best one once all are
    finished, and before that those of the current one.
    """
    trials = list(folder.glob(f"{TRIALS}/*/{METRICS_FILE}"))
    # Lines of the best training are copied to the run's folder when all are finished.
    under_way = bool(trials) and not (folder / METRICS_FILE).exists()
    source = max(trials, key=lambda path: path.stat().st_mtime).parent if under_way else folder
    settings = read_settings(folder)
    if settings.get("stages"):  # with them --steps has its default, which is not used
        settings.pop("steps", None)
    return RecordedRun(
        folder,
        name,
        settings,
        read_metrics(source / METRICS_FILE),
        read_metrics(source / EVALUATIONS_FILE),
        read_keys(folder / REPORT, parse_json),
        len(trials) if under_way else 0,
    )


def cells(run: RecordedRun) -> dict[str, str]:
    """Progress and metrics of a run by their headings; "" where there is no figure yet."""
    losses, held_out = points(run.lines, "loss"), points(run.evaluations, "held_out_loss")
    # The last hundredth of the lines, at least one.
    last = losses[-max(1, len(losses) // 100) :]
    best = best_evaluation(run.evaluations)
    # A mean and medians: single lines of loss and speed vary.
    return {
        "name": run.name,
        "state": state(run),
        "loss": _shown(last, fmean, ".4f"),
        "held-out": _shown(held_out[-1:], fmean, ".4f"),
        "accuracy": _shown(points(run.evaluations, "held_out_accuracy")[-1:], fmean, ".2%"),
        "best held-out": f"{best[1]:.4f} at {best[0]:,}" if best else "",
        "tokens/s": _shown(points(run.lines, "tokens_per_second"), median, ",.0f"),
        "mfu": _shown(points(run.lines, "mfu"), median, ".1%"),
    }


def state(run: RecordedRun) -> str:
    """For example "finished at step 900" or "at step 500 of 900, training 2"."""
    step = max((line["step"] for line in (*run.lines[-1:], *run.evaluations[-1:])), default=0)
    steps = _steps(run)
    finished = steps is not None and step >= steps
    if run.kind == FINE_TUNING:
        finished = any((run.folder / name).exists() for name in (REPORT, RESULT))
    if finished and not step:  # a model that is fitted without steps, by --method vectors
        return "finished"
    words = f"{'finished ' if finished else ''}at step {step:,}"
    if steps not in (None, step):
        words += f" of {steps:,}"
    return f"{words}, training {run.training}" if run.training else words


def points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """Step and value of each line that has a finite number under the key."""
    return [(line["step"], line[key]) for line in lines if _is_figure(line.get(key))]


def best_evaluation(evaluations: Sequence[Mapping[str, Any]]) -> tuple[int, float] | None:
    """Step and loss of the best evaluation at the current sequence length; None without any.

    Losses at different lengths are not comparable: a longer context makes a token easier to
    predict.
    """
    comparable: list[Mapping[str, Any]] = []
    for line in evaluations:
        if comparable and line.get("length") != comparable[-1].get("length"):
            comparable.clear()
        comparable.append(line)
    return min(points(comparable, "held_out_loss"), key=lambda point: point[1], default=None)


def tables(runs: Sequence[RecordedRun], width: int) -> Iterator[str]:
    """Tables of the runs, of the metrics of fine-tuning, and of settings that differ.

    name   state                    loss  held-out …
    base   at step 500 of 1,000   2.1034    2.3120 …
    """
    yield from table(_headed([cells(run) for run in runs]), width)
    by_metrics: dict[tuple[str, ...], list[Plain]] = {}
    for run in runs:
        if metrics := figures(run):
            names = tuple(metrics["valid"] or metrics["test"])
            by_metrics.setdefault(names, []).append({"name": run.name} | _figure_cells(metrics))
    for rows in by_metrics.values():
        yield ""
        yield from table(_headed(rows), width)
    for kind in (PRETRAINING, FINE_TUNING):
        group = [run for run in runs if run.kind == kind and run.settings]
        if different := list(_differences(group)):
            yield ""
            yield from table([["setting", "value", "runs"], *different], width, left=True)
        elif len(group) > 1:
            yield ""
            yield f"The settings of {kind} are the same."


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (SETTINGS, METRICS_FILE))


def _steps(run: RecordedRun) -> int | None:
    """The planned number of steps; for fine-tuning, known after the first evaluation."""
    if run.kind == PRETRAINING:
        steps, stages = run.settings.get("steps"), run.settings.get("stages")
        if stages:  # 'length=512 steps=1000'
            steps = sum(map(int, re.findall(r"\bsteps=(\d+)", str(stages))))
        return steps if isinstance(steps, int) else None
    epochs, rounds = run.settings.get("epochs"), points(run.evaluations, "epoch")
    if not (isinstance(epochs, int) and rounds):
        return None
    step, epoch = rounds[-1]
    # An evaluation records its epoch and step, from which follow the steps of an epoch.
    return round(epochs * step / epoch) if epoch else None


def figures(run: RecordedRun) -> dict[str, Plain]:
    """Metrics of fine-tuning by set: from its report, or before that from the last epoch."""
    sets = run.report or {"valid": run.evaluations[-1] if run.evaluations else {}}
    by_set = {
        name: {
            key: x if _is_figure(x) else None  # no value for these data
            for key, x in sets.get(name, {}).items()
            if key not in ("step", "epoch")
        }
        for name in ("test", "valid")
    }
    return by_set if run.kind == FINE_TUNING and any(by_set.values()) else {}


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _figure_cells(metrics: Mapping[str, Plain]) -> dict[str, str]:
    """{"test accuracy": "0.9120", …}."""
    return {
        f"{name} {metric}": "" if value is None else f"{value:.4f}"
        for name, values in metrics.items()
        for metric, value in values.items()
    }


def _shown(
    values: Sequence[tuple[int, float]], mean: Callable[[list[float]], float], form: str
) -> str:
    return format(mean([value for _, value in values]), form) if values else ""


def _differences(runs: Sequence[RecordedRun]) -> Iterator[list[str]]:
    """Rows of a setting that differs between runs, one of its values, and the runs that have it.

    The output folder does not count.
    """
    for key in dict.fromkeys(key for run in runs for key in run.settings if key != "output"):
        by_value: dict[str, list[str]] = {}
        for run in runs:
            if key in run.settings:  # one with stages has no steps
                by_value.setdefault(_spelled(run.settings[key]), []).append(run.name)
        # No value is that of all runs. A setting that only some runs have differs, too.
        if max(map(len, by_value.values())) < len(runs):
            for number, (value, names) in enumerate(by_value.items()):
                yield ["" if number else key, value, ", ".join(names)]


def _spelled(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(_spelled, value)) or "none"
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return printable(value)


def _headed(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Cells by heading → a line of all headings, and a line of cells for each row."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    return [headings, *([row.get(heading, "") for heading in headings] for row in rows)]
