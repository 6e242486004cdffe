"""The report on a fine-tuning run: figures compared with a baseline, warnings, errors.

`analyse` makes one dictionary of a run. `write_report` writes it as report.json, report.md and
report.html; the pages show nothing that is not in the dictionary.
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
from roformer_tf.tasks.scoring import POINTS, JsonObject
from roformer_tf.translation import Language, Translator


@dataclass(frozen=True, kw_only=True)
class EvaluatedSet:
    """A set of examples of a run, and the predictions for it."""

    examples: Sequence[Example]
    lengths: np.ndarray
    """Tokens of each example before truncation."""
    predictions: Sequence[Prediction] = ()
    """The model's; none for the training examples."""
    baseline: Sequence[Prediction] = ()
    duplicates: Duplicates | None = None
    """Which of its examples are also in the training or the validation set."""

    @property
    def gold(self) -> list[Label]:
        """The labels in the data."""
        return [example.label for example in self.examples if example.label is not None]


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything that a report needs."""

    task: Task
    metric: str
    """The one that selected the best weights."""
    train: EvaluatedSet
    valid: EvaluatedSet
    test: EvaluatedSet | None = None
    """Without one, the figures are on `valid`, and there is a warning."""
    baseline: str = ""
    """The baseline's method; "" without a baseline."""
    other_baselines: Sequence[tuple[str, Sequence[Prediction]]] = ()
    """Further ones: name of the method, and its predictions for the test set, or for `valid`."""
    no_baseline: str = ""
    """Why there is none although it was requested."""
    losses: Sequence[Mapping[str, float]] = ()
    """Lines with `step` and `loss`."""
    evaluations: Sequence[Mapping[str, float]] = ()
    """Lines with `step`, `epoch` and the metrics of the validation set."""
    trials: Sequence[Mapping[str, Any]] = ()
    """Of several training runs: `name`, `learning_rate`, `seconds`, and the metrics of "valid" and
    "test"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    answered_by: Mapping[str, str] = field(default_factory=dict)
    """Engine and precision of the predictions, the same as those of `predict` on this machine."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of each phase of the run."""


class LabelledPredictions(NamedTuple):
    """Labels, and the predictions to compare with them."""

    gold: Sequence[Label]
    predictions: Sequence[Prediction]


def write_report(folder: str | Path, report: JsonObject, language: Language = "en") -> None:
    """Write report.json, and report.md and report.html in this language."""
    folder = Path(folder)
    write_text(folder / "report.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / "report.md", markdown_page(report, language))
    write_text(folder / "report.html", html_page(report, language))


def analyse(data: ReportData) -> JsonObject:
    """Everything that the report shows, as values of JSON.

    {"judged": "test", "test": {"accuracy": 0.93, …}, "valid": {…}, "test_unseen": {…},
     "intervals": {"test": {"accuracy": [0.92, 0.94]}, …}, "baseline": {"name": …, "test": {…}},
     "leaks": {…}, "warnings": […], "per_class": […], "mistakes": […], …}
    "judged" names the set of the main figures: "test", or "valid" without a test set. `…_unseen`
    are its examples with new texts: those that are neither in the training nor in the validation
    set, nor earlier in the set itself. It is absent where all texts are new. Warnings are in
    English; the pages have them in their own language.
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
        "data": [describe_set(name, part, task) for name, part in _sets(data).items()],
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
        "seconds": dict(data.seconds),
    }
    return report | {"warnings": warnings(report, Translator("en"))}


def _sets(data: ReportData) -> dict[str, EvaluatedSet]:
    """The sets of examples by name."""
    sets = {"train": data.train, "valid": data.valid}
    return sets | {"test": data.test} if data.test else sets


def describe_set(name: str, evaluated: EvaluatedSet, task: Task) -> JsonObject:
    """Examples of a set, their lengths, and their labels."""
    levels = {"median": 50, "90th": 90, "99th": 99, "longest": 100}
    return {
        "name": name,
        "examples": len(evaluated.examples),
        "tokens": {key: int(np.percentile(evaluated.lengths, x)) for key, x in levels.items()},
        "longer": float(np.mean(evaluated.lengths > task.max_length)),
        **task.metrics.describe_labels(evaluated.gold),
    }


def _leaks(evaluated: EvaluatedSet) -> JsonObject:
    """Texts that the set has in common with training and validation."""
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
    """Metrics and intervals of the model and the baselines, on all and on new texts only."""
    sets = _with_new_texts(
        judged, evaluated, LabelledPredictions(evaluated.gold, evaluated.predictions)
    )
    valid = {"valid": LabelledPredictions(data.valid.gold, data.valid.predictions)}
    report = with_intervals(data.task, valid | sets)
    if data.no_baseline:
        report["no_baseline"] = data.no_baseline
    if evaluated.baseline:
        sets = _with_new_texts(
            judged, evaluated, LabelledPredictions(evaluated.gold, evaluated.baseline)
        )
        report["baseline"] = _names(data.baseline) | with_intervals(data.task, sets)
    others = []
    for name, predictions in data.other_baselines:
        sets = _with_new_texts(judged, evaluated, LabelledPredictions(evaluated.gold, predictions))
        others.append(_names(name) | with_intervals(data.task, sets))
    if others:
        report["other_baselines"] = others
    return report


def _names(method: str) -> JsonObject:
    """A baseline's method in both languages."""
    return {"name": str(method), "name_zh": Translator("zh")(method)}


def _with_new_texts(
    judged: str, evaluated: EvaluatedSet, labelled: LabelledPredictions
) -> dict[str, LabelledPredictions]:
    """The whole set, and as `…_unseen` its new texts, if some texts are not new."""
    sets = {judged: labelled}
    if evaluated.duplicates is not None and 0 < np.sum(evaluated.duplicates.unseen) < len(
        evaluated.examples
    ):
        kept = np.flatnonzero(evaluated.duplicates.unseen).tolist()
        gold, predictions = labelled
        sets[f"{judged}_unseen"] = LabelledPredictions(
            [gold[i] for i in kept], [predictions[i] for i in kept]
        )
    return sets


def with_intervals(task: Task, sets: Mapping[str, LabelledPredictions]) -> JsonObject:
    """Every metric of each set and its interval, None where the data cannot give it, and why.

    {"test": {"roc_auc": None, …}, "intervals": {"test": {"roc_auc": None, …}}, "undefined":
    {"test": {"roc_auc": {"what": "value", "en": "there is no example of …", "zh": …}}}}
    """
    report: JsonObject = {"intervals": {}, "undefined": {}}
    for name, labelled in sets.items():
        figures, ends = task.metrics.compute(*labelled), task.metrics.intervals(*labelled)
        report[name] = figures
        report["intervals"][name] = {metric: pair and list(pair) for metric, pair in ends.items()}
        report["undefined"][name] = {
            metric: _why(task, metric, labelled.gold, figures[metric])
            for metric in figures
            if ends[metric] is None
        }
    return report


def _why(task: Task, name: str, gold: Sequence[Label], value: float | None) -> JsonObject:
    """What a metric lacks, its value or only its interval, and the reason."""
    reason = task.metrics.reason(task.metrics.named(name), gold, value is not None)
    return {
        "what": "value" if value is None else "interval",
        "en": str(reason),
        "zh": Translator("zh")(reason),
    }


def _thinned(lines: Sequence[Mapping[str, float]]) -> list[JsonObject]:
    """Steps and mean losses of at most `POINTS` groups of lines."""
    size = -(-len(lines) // POINTS) or 1
    groups = [lines[i : i + size] for i in range(0, len(lines), size)]
    return [
        {"step": group[-1]["step"], "loss": sum(line["loss"] for line in group) / len(group)}
        for group in groups
    ]
