"""What a fine-tuning run shows for itself: figures beside a baseline, warnings, mistakes.

`analyse` makes one plain dictionary of a run; `write_report` writes it as report.json, report.md
and report.html, which show nothing that is not in the dictionary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.files import write_text
from roformer_tf.finetuning.report.details import calibration, confusion, mistakes
from roformer_tf.finetuning.report.pages import html_page, markdown_page
from roformer_tf.finetuning.report.warnings import warnings
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.labelled.task import Example, Label, Prediction, Task
from roformer_tf.tasks.metrics import by_kind, intervals, score, tally

POINTS = 1000
"""Of a curve or a cloud, at most."""

Plain: TypeAlias = dict[str, Any]
"""A dictionary that JSON knows."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the sets of a run, and the answers to it."""

    examples: Sequence[Example]
    lengths: np.ndarray
    """Tokens of each example before it is cut."""
    predictions: Sequence[Prediction] = ()
    """The model's; none to the training examples."""
    baseline: Sequence[Prediction] = ()
    duplicates: Duplicates | None = None
    """Which of its examples stand in training, or in validation, too."""

    @property
    def gold(self) -> list[Label]:
        """The labels in the data."""
        return [example.label for example in self.examples if example.label is not None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a report is made of."""

    task: Task
    metric: str
    """The one that the best weights were kept by."""
    train: Part
    valid: Part
    test: Part | None = None
    """Without one, the report judges by `valid`, and says so."""
    baseline: str = ""
    """The baseline's method in words."""
    no_baseline: str = ""
    """Why there is none, although it was asked for."""
    losses: Sequence[Mapping[str, float]] = ()
    """Lines with `step` and `loss`."""
    evaluations: Sequence[Mapping[str, float]] = ()
    """Lines with `step`, `epoch` and the metrics of the validation set."""
    trials: Sequence[Mapping[str, Any]] = ()
    """Of several trainings: `name`, `learning_rate`, `seconds`, and by set ("valid", "test") the
    metrics."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of each phase."""


class Answers(NamedTuple):
    """Labels and the answers to compare with them."""

    gold: Sequence[Label]
    predictions: Sequence[Prediction]


def write_report(folder: str | Path, report: Plain) -> None:
    """Write report.json, report.md and report.html: a pure function of the dictionary."""
    folder = Path(folder)
    write_text(folder / "report.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / "report.md", markdown_page(report))
    write_text(folder / "report.html", html_page(report))


def analyse(run: Run) -> Plain:
    """Everything that the report shows, as JSON knows it.

    {"judged": "test", "test": {"accuracy": 0.93, …}, "valid": {…}, "test_unseen": {…},
     "intervals": {"test": {"accuracy": [0.92, 0.94]}, …}, "baseline": {"name": …, "test": {…}},
     "leaks": {…}, "warnings": […], "per_class": […], "mistakes": […], …}
    `…_unseen` are the examples whose texts stand neither in training, nor in validation, nor before
    in their own set, where others do. Without a test set the validation set is "judged", and there
    is no "test".
    """
    judged, part = ("test", run.test) if run.test else ("valid", run.valid)
    task = run.task
    report: Plain = {
        "task": task.name,
        "metric": run.metric,
        "judged": judged,
        "text_columns": list(task.text_columns),
        "max_length": task.max_length,
        "long_texts": "windows" if task.name == "tagging" else task.long_texts,
        "data": [_describe(name, one, task) for name, one in _parts(run).items()],
        "leaks": _leaks(part),
        "thresholds": dict(zip(task.labels, task.thresholds, strict=False)),  # all, or none
        **_figures(run, judged, part),
        **_details(task, part),
        "losses": _thinned(run.losses),
        "evaluations": [dict(line) for line in run.evaluations],
        "trials": [dict(trial) for trial in run.trials],
        "settings": dict(run.settings),
        "hardware": dict(run.hardware),
        "seconds": dict(run.seconds),
    }
    return report | {"warnings": warnings(report)}


def _parts(run: Run) -> dict[str, Part]:
    """The sets by their names."""
    parts = {"train": run.train, "valid": run.valid}
    return parts | {"test": run.test} if run.test else parts


def _describe(name: str, part: Part, task: Task) -> Plain:
    """How many examples a set has, how long they are, and what labels."""
    levels = {"median": 50, "90th": 90, "99th": 99, "longest": 100}
    return {
        "name": name,
        "examples": len(part.examples),
        "tokens": {key: int(np.percentile(part.lengths, x)) for key, x in levels.items()},
        "longer": float(np.mean(part.lengths > task.max_length)),
        "labels": {} if task.name == "regression" else tally(task, part.gold),
        "numbers": _numbers(part.gold) if task.name == "regression" else {},
    }


def _numbers(gold: Sequence[Any]) -> dict[str, float]:
    """Where a set's numbers lie."""
    x = np.array(gold, np.float64)
    figures = {"lowest": x.min(), "mean": x.mean(), "highest": x.max(), "deviation": x.std()}
    return {name: float(value) for name, value in figures.items()}


def _leaks(part: Part) -> Plain:
    """What the judged set shares with training and validation."""
    if part.duplicates is None:
        return {}
    known = part.duplicates.in_train | part.duplicates.in_valid
    return {
        "in_train": int(np.sum(part.duplicates.in_train)),
        "in_valid": int(np.sum(part.duplicates.in_valid)),
        "of": len(part.examples),
        "contradicting": part.duplicates.contradicting,
        "repeated": int(np.sum(part.duplicates.repeated & ~known)),
        "unseen": int(np.sum(part.duplicates.unseen)),
        "within": part.duplicates.within,
    }


def _figures(run: Run, judged: str, part: Part) -> Plain:
    """Scores and intervals of the validation set and the judged one, with and without leaks."""
    sets = _unleaked(judged, part, Answers(part.gold, part.predictions))
    valid = {"valid": Answers(run.valid.gold, run.valid.predictions)}
    report = _scores(run.task, valid | sets)
    if run.no_baseline:
        report["no_baseline"] = run.no_baseline
    if part.baseline:
        sets = _unleaked(judged, part, Answers(part.gold, part.baseline))
        report["baseline"] = {"name": run.baseline, **_scores(run.task, sets)}
    return report


def _unleaked(judged: str, part: Part, answers: Answers) -> dict[str, Answers]:
    """The judged set and, if it has texts that are met again, those that are new as `…_unseen`."""
    sets = {judged: answers}
    if part.duplicates is not None and 0 < np.sum(part.duplicates.unseen) < len(part.examples):
        kept = np.flatnonzero(part.duplicates.unseen).tolist()
        gold, predictions = answers
        sets[f"{judged}_unseen"] = Answers([gold[i] for i in kept], [predictions[i] for i in kept])
    return sets


def _scores(task: Task, sets: Mapping[str, Answers]) -> Plain:
    """Every metric of each set, and its interval."""
    scores: Plain = {name: score(task, *answers) for name, answers in sets.items()}
    return scores | {
        "intervals": {
            name: {metric: list(ends) for metric, ends in intervals(task, *answers).items()}
            for name, answers in sets.items()
        }
    }


def _details(task: Task, part: Part) -> Plain:
    """What to look at beside the figures: as far as the task has it."""
    gold, predictions = part.gold, part.predictions
    details: Plain = {"mistakes": mistakes(task, part.examples, predictions)}
    if task.name == "regression":
        points = [[number, answer.label] for number, answer in zip(gold, predictions, strict=True)]
        return details | {"scatter": points[:: -(-len(points) // POINTS)]}
    details["calibration"] = calibration(task, gold, predictions)
    if task.name != "ranking":
        details["per_class"] = by_kind(task, gold, predictions)
    if task.name in ("classification", "pair"):
        details["confusion"] = confusion(gold, predictions)
    return details


def _thinned(lines: Sequence[Mapping[str, float]]) -> list[Plain]:
    """Step and loss, as means over so many lines that few enough remain."""
    several = -(-len(lines) // POINTS) or 1
    groups = [lines[i : i + several] for i in range(0, len(lines), several)]
    return [
        {"step": group[-1]["step"], "loss": sum(line["loss"] for line in group) / len(group)}
        for group in groups
    ]
