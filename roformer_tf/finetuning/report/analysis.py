"""The report on a fine-tuning run: figures compared with a baseline, warnings, errors.

`analyse` returns one dictionary for a run. `pages.write_report` writes it as report.json, report.md
and report.html; the pages show nothing that is not in the dictionary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.finetuning.report.figures import warnings
from roformer_tf.labelled.examples import Example, Label, labels_of
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.scoring import POINTS, JsonObject
from roformer_tf.translation import Message, Translator

TEACHER, WITHOUT_TEACHER = Message("the teacher"), Message("student without teacher")
# Fields of `ReportData` that the report has as they are.
COPIED = ("evaluations", "trials", "settings", "hardware", "computed_by", "seconds")


# Labels, and the predictions to compare with them.
LabelledPredictions: TypeAlias = tuple[Sequence[Label], Sequence[Prediction]]


@dataclass(frozen=True, kw_only=True)
class EvaluatedSet:
    """A set of examples of a run, and the predictions for it."""

    examples: Sequence[Example]
    # Tokens of each example before truncation.
    lengths: np.ndarray
    # Of its entities or answers those that no window holds: see `Labelling.in_no_window`.
    in_no_window: Mapping[str, int] = field(default_factory=dict)
    # The model's; none for the training examples.
    predictions: Sequence[Prediction] = ()
    # The model's without lexical features, if it has them.
    alone: Sequence[Prediction] = ()
    # Which of its examples are also in the training or the validation set.
    duplicates: Duplicates | None = None


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything that a report needs."""

    task: Task
    # The one that selected the best weights.
    metric: str
    train: EvaluatedSet
    valid: EvaluatedSet
    # Without one, the figures are on `valid`, and there is a warning.
    test: EvaluatedSet | None = None
    # Name of each method, and its predictions for the test set, or for `valid`; the best first.
    baselines: Sequence[tuple[str, Sequence[Prediction]]] = ()
    # Those of the teacher for the same set, if there is one.
    teacher: Sequence[Prediction] = ()
    # Those of the same training without the teacher, if it was compared.
    without_teacher: Sequence[Prediction] = ()
    trials_without_teacher: Sequence[Mapping[str, Any]] = ()  # as `trials`
    # Of lexical features: `name` (a message), `weight`, `factors`.
    lexical: Mapping[str, Any] = field(default_factory=dict)
    # How the method was chosen: `name`, `cross_validated`, and what was compared.
    method: Mapping[str, Any] = field(default_factory=dict)
    # Why there is no baseline although it was requested.
    no_baseline: str = ""
    # Lines with `step` and `loss`.
    losses: Sequence[Mapping[str, float]] = ()
    # Lines with `step`, `epoch` and the metrics of the validation set.
    evaluations: Sequence[Mapping[str, float]] = field(default_factory=list)
    # Of several training runs: `name`, `learning_rate`, `seconds`, and the metrics of "valid" and
    # "test".
    trials: Sequence[Mapping[str, Any]] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    # Engine and precision of the predictions, the same as those of `predict` on this machine.
    computed_by: Mapping[str, str] = field(default_factory=dict)
    # Of each phase of the run.
    seconds: Mapping[str, float] = field(default_factory=dict)


def analyse(data: ReportData) -> JsonObject:
    """Everything that the report shows, as values of JSON.

    {"test": {"accuracy": 0.93, …}, "valid": {…}, "test_unseen": {…},
     "intervals": {"test": {"accuracy": [0.92, 0.94]}, …}, "baseline": {"name": …, "test": {…}},
     "leaks": {…}, "warnings": […], "per_class": […], "mistakes": […], …}
    A further key names the set of the main figures: "test", or "valid" without a test set.
    `…_unseen` are its examples with new texts: those that are neither in the training nor in the
    validation set, nor earlier in the set itself. It is absent if all texts are new. Warnings are
    in English; the pages have them in their own language.
    """
    name, evaluated = ("test", data.test) if data.test else ("valid", data.valid)
    task, sets = data.task, {"train": data.train, "valid": data.valid}
    report: JsonObject = {
        "date": date.today().isoformat(),
        "version": version("roformer-tf"),
        **described_task(task, name, sets | ({"test": data.test} if data.test else {})),
        "metric": data.metric,
        "leaks": _leaks(evaluated),
        **_figures(data, name, evaluated),
        **task.metrics.details(evaluated.examples, evaluated.predictions),
        "losses": _thinned(data.losses),
        **({"method": data.method} if data.method else {}),
        **{name: getattr(data, name) for name in COPIED},
    }
    return report | {"warnings": warnings(report, Translator("en"))}


def described_task(task: Task, main_set: str, sets: Mapping[str, EvaluatedSet]) -> JsonObject:
    """The task's settings, its sets of examples, and which of them has the main figures."""
    return {
        "task": task.name,
        "judged": main_set,
        "text_columns": list(task.text_columns),
        "max_length": task.max_length,
        "long_texts": task.long_texts,
        "data": [_described_set(name, part, task) for name, part in sets.items()],
        "thresholds": dict(zip(task.labels, task.thresholds, strict=False)),  # all, or none
    }


def _described_set(name: str, evaluated: EvaluatedSet, task: Task) -> JsonObject:
    """Examples of a set, their lengths, and their labels."""
    levels = {"median": 50, "90th": 90, "99th": 99, "longest": 100}
    return {
        "name": name,
        "examples": len(evaluated.examples),
        "tokens": {key: int(np.percentile(evaluated.lengths, x)) for key, x in levels.items()},
        "longer": float(np.mean(evaluated.lengths > task.max_length)),
        **({"in_no_window": evaluated.in_no_window} if evaluated.in_no_window else {}),
        **task.metrics.describe_labels(labels_of(evaluated.examples)),
    }


def _leaks(evaluated: EvaluatedSet) -> JsonObject:
    """Texts that the set has in common with training and validation."""
    if evaluated.duplicates is None:
        return {}
    # A repeated text that is also in another set is counted once, there.
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


def _figures(data: ReportData, main_set: str, evaluated: EvaluatedSet) -> JsonObject:
    """Metrics and intervals of the model and the baselines, on all and on new texts only."""

    def with_new_texts(predictions: Sequence[Prediction]) -> dict[str, LabelledPredictions]:
        """The whole set, and as `…_unseen` its new texts, if some texts are not new."""
        gold = labels_of(evaluated.examples)
        sets: dict[str, LabelledPredictions] = {main_set: (gold, predictions)}
        if evaluated.duplicates is not None:
            new = np.flatnonzero(evaluated.duplicates.unseen).tolist()
            if 0 < len(new) < len(gold):
                both = [gold[i] for i in new], [predictions[i] for i in new]
                sets[f"{main_set}_unseen"] = both
        return sets

    def of_baseline(method: str, predictions: Sequence[Prediction]) -> JsonObject:
        names = {"name": str(method), "name_zh": Translator("zh")(method)}
        return names | with_intervals(data.task, with_new_texts(predictions))

    valid = labels_of(data.valid.examples), data.valid.predictions
    report = with_intervals(data.task, {"valid": valid} | with_new_texts(evaluated.predictions))
    if evaluated.alone:
        named = of_baseline(data.lexical["name"], evaluated.alone)
        report["lexical"] = {**data.lexical} | named
    if data.no_baseline:
        report["no_baseline"] = data.no_baseline
    baselines = [of_baseline(*method) for method in data.baselines]
    if baselines:
        report["baseline"] = baselines[0]
    if baselines[1:]:
        report["other_baselines"] = baselines[1:]
    if data.teacher:
        report["teacher"] = of_baseline(TEACHER, data.teacher)
    if data.without_teacher:
        ours, without = map(with_new_texts, (evaluated.predictions, data.without_teacher))
        gains = {x: data.task.metrics.differences(*ours[x], without[x][1]) for x in ours}
        more = {"difference": gains, "trials": data.trials_without_teacher}
        report["without_teacher"] = of_baseline(WITHOUT_TEACHER, data.without_teacher) | more
    return report


def with_intervals(task: Task, sets: Mapping[str, LabelledPredictions]) -> JsonObject:
    """Every metric of each set and its interval, None if the data cannot give it, and why.

    {"test": {"roc_auc": None, …}, "intervals": {"test": {"roc_auc": None, …}}, "undefined":
    {"test": {"roc_auc": {"what": "value", "en": "there is no example of …", "zh": …}}}}
    """
    report: JsonObject = {"intervals": {}, "undefined": {}}
    for name, labelled in sets.items():
        figures, ends = task.metrics.compute(*labelled), task.metrics.intervals(*labelled)
        report[name] = figures
        report["intervals"][name] = {metric: pair and list(pair) for metric, pair in ends.items()}
        report["undefined"][name] = {
            metric: _why(task, metric, labelled[0], figures[metric])
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
    # A mean, not every n-th line: the loss of a single batch is noise.
    size = -(-len(lines) // POINTS) or 1
    groups = [lines[i : i + size] for i in range(0, len(lines), size)]
    return [
        {"step": group[-1]["step"], "loss": sum(line["loss"] for line in group) / len(group)}
        for group in groups
    ]
