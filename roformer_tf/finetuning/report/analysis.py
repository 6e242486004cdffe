"""What a fine-tuning run shows for itself: figures beside a baseline, warnings, mistakes.

`analyse` makes one plain dictionary of a run; `write_report` writes it as report.json, report.md
and report.html, which show nothing that is not in the dictionary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.files import write_text
from roformer_tf.finetuning.report.pages import html_page, markdown_page
from roformer_tf.finetuning.report.warnings import warnings
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.details import POINTS, JsonObject
from roformer_tf.tasks.wording import Language, Words, in_language

NO_BASELINE = Words("", "")
"""What a baseline is called that there is not."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedSet:
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
class ReportData:
    """All that a report is made of."""

    task: Task
    metric: str
    """The one that the best weights were kept by."""
    train: EvaluatedSet
    valid: EvaluatedSet
    test: EvaluatedSet | None = None
    """Without one, the report judges by `valid`, and says so."""
    baseline: Words = NO_BASELINE
    """The baseline's method in words."""
    other_baselines: Sequence[tuple[Words, Sequence[Prediction]]] = ()
    """Further ones, their methods in words and their answers to what the report judges by."""
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
    answered_by: Mapping[str, str] = field(default_factory=dict)
    """The engine and the precision of the answers: those of `predict` on the same machine."""
    rate_search: Mapping[str, Any] = field(default_factory=dict)
    """Where the learning rate comes from, if it was not given: a `FoundRate`'s fields."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of each phase."""


class Answers(NamedTuple):
    """Labels and the answers to compare with them."""

    gold: Sequence[Label]
    predictions: Sequence[Prediction]


def write_report(folder: str | Path, report: JsonObject, language: Language = "en") -> None:
    """Write report.json, report.md and report.html: a pure function of the dictionary.

    `language` is that of the two pages; report.json is the same in all.
    """
    folder = Path(folder)
    write_text(folder / "report.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / "report.md", markdown_page(report, language))
    write_text(folder / "report.html", html_page(report, language))


def analyse(data: ReportData) -> JsonObject:
    """Everything that the report shows, as JSON knows it.

    {"judged": "test", "test": {"accuracy": 0.93, …}, "valid": {…}, "test_unseen": {…},
     "intervals": {"test": {"accuracy": [0.92, 0.94]}, …}, "baseline": {"name": …, "test": {…}},
     "leaks": {…}, "warnings": […], "per_class": […], "mistakes": […], …}
    `…_unseen` are the examples whose texts stand neither in training, nor in validation, nor before
    in their own set, where others do. Without a test set the validation set is "judged", and there
    is no "test". Warnings are in English; pages say them in their own language.
    """
    judged, evaluated = ("test", data.test) if data.test else ("valid", data.valid)
    task = data.task
    report: JsonObject = {
        "task": task.name,
        "metric": data.metric,
        "judged": judged,
        "text_columns": list(task.text_columns),
        "max_length": task.max_length,
        "long_texts": task.long_texts,
        "data": [describe_set(name, one, task) for name, one in _sets(data).items()],
        "leaks": _leaks(evaluated),
        "thresholds": dict(zip(task.labels, task.thresholds, strict=False)),  # all, or none
        **_figures(data, judged, evaluated),
        **task.metrics.details(evaluated.examples, evaluated.predictions),
        "losses": _thinned(data.losses),
        "evaluations": [dict(line) for line in data.evaluations],
        "trials": [dict(trial) for trial in data.trials],
        "settings": dict(data.settings),
        "hardware": dict(data.hardware),
        "answered_by": dict(data.answered_by),
        "rate_search": dict(data.rate_search),
        "seconds": dict(data.seconds),
    }
    return report | {"warnings": in_language(warnings(report), "en")}


def _sets(data: ReportData) -> dict[str, EvaluatedSet]:
    """The sets by their names."""
    sets = {"train": data.train, "valid": data.valid}
    return sets | {"test": data.test} if data.test else sets


def describe_set(name: str, evaluated: EvaluatedSet, task: Task) -> JsonObject:
    """How many examples a set has, how long they are, and what labels."""
    levels = {"median": 50, "90th": 90, "99th": 99, "longest": 100}
    return {
        "name": name,
        "examples": len(evaluated.examples),
        "tokens": {key: int(np.percentile(evaluated.lengths, x)) for key, x in levels.items()},
        "longer": float(np.mean(evaluated.lengths > task.max_length)),
        **task.metrics.describe_labels(evaluated.gold),
    }


def _leaks(evaluated: EvaluatedSet) -> JsonObject:
    """What the judged set shares with training and validation."""
    if evaluated.duplicates is None:
        return {}
    known = evaluated.duplicates.in_train | evaluated.duplicates.in_valid
    return {
        "in_train": int(np.sum(evaluated.duplicates.in_train)),
        "in_valid": int(np.sum(evaluated.duplicates.in_valid)),
        "of": len(evaluated.examples),
        "contradicting": evaluated.duplicates.contradicting,
        "repeated": int(np.sum(evaluated.duplicates.repeated & ~known)),
        "unseen": int(np.sum(evaluated.duplicates.unseen)),
        "within": evaluated.duplicates.within,
    }


def _figures(data: ReportData, judged: str, evaluated: EvaluatedSet) -> JsonObject:
    """Metrics and intervals of the validation set and the judged one, with and without leaks."""
    sets = _unleaked(judged, evaluated, Answers(evaluated.gold, evaluated.predictions))
    valid = {"valid": Answers(data.valid.gold, data.valid.predictions)}
    report = with_intervals(data.task, valid | sets)
    if data.no_baseline:
        report["no_baseline"] = data.no_baseline
    if evaluated.baseline:
        sets = _unleaked(judged, evaluated, Answers(evaluated.gold, evaluated.baseline))
        names = {"name": data.baseline.en, "name_zh": data.baseline.zh}
        report["baseline"] = {**names, **with_intervals(data.task, sets)}
    others = []
    for name, answers in data.other_baselines:
        sets = _unleaked(judged, evaluated, Answers(evaluated.gold, answers))
        others.append({"name": name.en, "name_zh": name.zh, **with_intervals(data.task, sets)})
    if others:
        report["other_baselines"] = others
    return report


def _unleaked(judged: str, evaluated: EvaluatedSet, answers: Answers) -> dict[str, Answers]:
    """The judged set and, if it has texts that are met again, those that are new as `…_unseen`."""
    sets = {judged: answers}
    if evaluated.duplicates is not None and 0 < np.sum(evaluated.duplicates.unseen) < len(
        evaluated.examples
    ):
        kept = np.flatnonzero(evaluated.duplicates.unseen).tolist()
        gold, predictions = answers
        sets[f"{judged}_unseen"] = Answers([gold[i] for i in kept], [predictions[i] for i in kept])
    return sets


def with_intervals(task: Task, sets: Mapping[str, Answers]) -> JsonObject:
    """Every metric of each set and its interval, None where the data cannot give it, and why.

    {"test": {"roc_auc": None, …}, "intervals": {"test": {"roc_auc": None, …}}, "undefined":
    {"test": {"roc_auc": {"what": "value", "en": "there is no example of …", "zh": …}}}}
    """
    report: JsonObject = {"intervals": {}, "undefined": {}}
    for name, answers in sets.items():
        figures, ends = task.metrics.compute(*answers), task.metrics.intervals(*answers)
        report[name] = figures
        report["intervals"][name] = {metric: pair and list(pair) for metric, pair in ends.items()}
        report["undefined"][name] = {
            metric: _why(task, metric, answers.gold, figures[metric])
            for metric in figures
            if ends[metric] is None
        }
    return report


def _why(task: Task, name: str, gold: Sequence[Label], value: float | None) -> JsonObject:
    """What is missing of a metric, its value or its interval alone, and the reason."""
    reason = task.metrics.reason(task.metrics.named(name), gold, value is not None)
    return {"what": "value" if value is None else "interval", "en": reason.en, "zh": reason.zh}


def _thinned(lines: Sequence[Mapping[str, float]]) -> list[JsonObject]:
    """Step and loss, as means over so many lines that few enough remain."""
    several = -(-len(lines) // POINTS) or 1
    groups = [lines[i : i + several] for i in range(0, len(lines), several)]
    return [
        {"step": group[-1]["step"], "loss": sum(line["loss"] for line in group) / len(group)}
        for group in groups
    ]
