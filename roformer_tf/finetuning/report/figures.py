"""Figures of a report: how they are written, the comparison with the baseline, and warnings.

A report is the dictionary of report.json. `_` translates into the language of the page.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.terminal import printable
from roformer_tf.translation import Translator

# The dictionary of report.json, as `analysis.analyse` makes it.
Report: TypeAlias = Mapping[str, Any]

# Shown where the data cannot give a figure.
ABSENT = "—"
FORMATS = {"share": ".1%", "coefficient": ".3f", "distance": ".4g"}

# With fewer examples, figures can hardly distinguish two models.
FEW_EXAMPLES = 300
# Fraction of truncated texts from which there is a warning.
MUCH_CUT = 0.01
# Ratio of the most frequent to the rarest label from which there is a warning.
IMBALANCE = 10
# Calibration error from which there is a warning, if it is also larger than chance.
UNRELIABLE = 0.1


def figure(value: float | None, metric: Metric, sign: Literal["", "+"] = "") -> str:
    """A fraction as 93.5%, a coefficient as 0.935, a distance in four digits."""
    return ABSENT if value is None else f"{value:{sign}{FORMATS[metric.kind]}}"


def interval(ends: Sequence[float] | None, metric: Metric) -> str:
    """[92.4%, 94.5%]."""
    return ABSENT if ends is None else f"[{', '.join(figure(end, metric) for end in ends)}]"


def set_name(name: str, _: Translator) -> str:
    """Name of a set of examples, such as "test" or "test_unseen"."""
    part, __, unseen = name.partition("_")
    names = {"train": _("training set"), "valid": _("validation set"), "test": _("test set")}
    return _("{set} (new texts)", set=names[part]) if unseen else names[part]


def window_notes(report: Report, _: Translator) -> list[str]:
    """A sentence for each set with entities or answers that every window cuts."""
    return [
        _(
            "{number:,} of {of:,} {what} of the {set} are cut by every window of {length:,} "
            "tokens: the model cannot find them. The longest has {longest:,} characters; with "
            "--max-length {enough} or more none is cut.",
            **data["in_no_window"],
            what=TASKS[report["task"]].labelling.span_name,
            set=set_name(data["name"], _),
            length=report["max_length"],
        )
        for data in report["data"]
        if data.get("in_no_window")
    ]


def lowest_f1(rows: Sequence[Mapping[str, Any]], number: int) -> Sequence[Mapping[str, Any]]:
    """All labels in their order if they are few, else those with the lowest F1, lowest first."""
    if len(rows) <= number:
        return rows
    return sorted(rows, key=lambda row: (row["f1"] is None, row["f1"]))[:number]


def absent_intervals(report: Report, _: Translator) -> list[str]:
    """Why figures of the report have no interval: each reason once."""
    absent = [why for of_set in report["undefined"].values() for why in of_set.values()]
    return list(dict.fromkeys(why[_.language] for why in absent if why["what"] == "interval"))


# The model and the baseline


class Comparison(NamedTuple):
    """The main metric of the model and the baseline, on new texts where possible."""

    metric: Metric
    set: str  # test, test_unseen, valid or valid_unseen
    ours: float
    other: float
    # "hardly": the model's interval contains the baseline's figure, or there is no interval.
    verdict: Literal["better", "hardly", "no better"]


def metric_of(report: Report, name: str) -> Metric:
    """A metric of the report's task by its name."""
    return TASKS[report["task"]].metrics.named(name)


def main_metric(report: Report) -> Metric:
    """The one that selected the best weights."""
    return metric_of(report, report["metric"])


def newest(report: Report) -> str:
    """The set with the main figure: new texts only, where some texts are not new."""
    unseen = f"{report['judged']}_unseen"
    return unseen if unseen in report else report["judged"]


def compare(report: Report) -> Comparison | None:
    """The model compared with the baseline; None without one, or where a figure has no value."""
    if "baseline" not in report:
        return None
    metric, name = main_metric(report), newest(report)
    ours, other = report[name][metric.name], report["baseline"][name][metric.name]
    if ours is None or other is None:
        return None
    ends = report["intervals"][name][metric.name]
    ahead = ours < other if metric.falls else ours > other
    better: Any = "hardly" if ends is None or ends[0] <= other <= ends[1] else "better"
    return Comparison(metric, name, ours, other, better if ahead else "no better")


def baseline_name(baseline: Mapping[str, Any], _: Translator) -> str:
    """A baseline's method."""
    return str(baseline["name_zh" if _.language == "zh" else "name"])


def teacher_notes(report: Report, _: Translator) -> Iterator[str]:
    """Whether the teacher helped, if a training without it was compared."""
    without, metric, name = report.get("without_teacher"), main_metric(report), newest(report)
    gain, ends = without["difference"][name][metric.name] if without else (None, None)
    if gain is None:
        return  # not compared, or without a value
    verdict = _("the teacher helped")
    # Where less is better (`falls`), a negative difference is an improvement.
    if gain == 0 or (gain < 0) != metric.falls:
        verdict = _("the student is no better with the teacher")
    elif ends is None or ends[0] <= 0 <= ends[1]:
        verdict = _("it is not shown that the teacher helped")
    yield _(
        "The teacher changes the student's {metric} on the {set} by {gain} (95% CI {interval}): "
        "{verdict}.",
        set=set_name(name, _),
        metric=_(metric.title),
        gain=figure(gain, metric, "+"),
        interval=interval(ends, metric),
        verdict=verdict,
    )


# Warnings


def warnings(report: Report, _: Translator, figures: bool = True) -> list[str]:
    """Warnings of a fine-tuning report.

    figures: whether to include figures without a value; a page that does not show them need not.
    """
    checks = [
        *(_leak, _no_test, _undefined, _missing, _not_better, _no_baseline),
        *(_few, _contradictions, _long, _uneven, _never, _unreliable),
    ]
    if not figures:
        checks.remove(_undefined)
    # A label may have a line break, which would end the sentence's line.
    return [printable(sentence) for check in checks for sentence in check(report, _)]


def evaluation_warnings(report: Report, _: Translator) -> list[str]:
    """Warnings that need no training run: of predictions for a labelled file."""
    checks = (_undefined, _missing, _few, window_notes, _never, _unreliable)
    return [printable(sentence) for check in checks for sentence in check(report, _)]


def _leak(report: Report, _: Translator) -> Iterator[str]:
    """Texts of the set that are not new."""
    judged, metric, leaks = report["judged"], main_metric(report), report["leaks"]
    if not leaks or leaks["unseen"] == leaks["of"]:
        return
    leak = _(
        "{train:,} of {all:,} examples of the {set} have texts that are also in the training set",
        train=leaks["in_train"],
        all=leaks["of"],
        set=set_name(judged, _),
    )
    if leaks["in_valid"]:
        leak += _(", {number:,} more are in the validation set", number=leaks["in_valid"])
    if leaks["repeated"]:
        leak += _(", and {number:,} repeat another one", number=leaks["repeated"])
    unseen = f"{judged}_unseen"
    if not leaks["unseen"]:
        yield _(
            "{leak}: no figure shows how the model does on new texts. Provide other texts with "
            "--test.",
            leak=leak,
        )
    elif report[unseen][metric.name] is None:
        yield _("{leak}.", leak=leak)
    else:
        yield _(
            "{leak}. Without them: {metric} {figure} {interval}.",
            leak=leak,
            metric=_(metric.title),
            figure=figure(report[unseen][metric.name], metric),
            interval=interval(report["intervals"][unseen][metric.name], metric),
        )


def _no_test(report: Report, _: Translator) -> Iterator[str]:
    if report["judged"] != "valid":
        return
    if report["settings"].get("folds"):
        yield _(
            "There is no test set. The figures are those of a cross-validation: each example was "
            "predicted by a model that was not trained on it. But each fold also selected the best "
            "epoch of its model: the figures are too good. Give a test set with --test."
        )
    else:
        yield _(
            "There is no test set. The figures are on the validation set, which also selected the "
            "best weights: they are slightly too good. Give a test set with --test."
        )


def _undefined(report: Report, _: Translator) -> Iterator[str]:
    """For each set the figures without a value; those with the same reason in one sentence."""
    for name, absent in report["undefined"].items():
        by_reason: dict[str, list[str]] = {}
        for metric, why in absent.items():
            if why["what"] == "value":
                by_reason.setdefault(why[_.language], []).append(_(metric_of(report, metric).title))
        for reason, metrics in by_reason.items():
            yield _(
                "No value on the {set} for {metrics}: {reason}.",
                set=set_name(name, _),
                metrics=metrics,
                reason=reason,
            )


def _missing(report: Report, _: Translator) -> Iterator[str]:
    """Labels of the training set that another set does not have."""
    for data in report["data"]:
        labels = [label for label, number in data["labels"].items() if not number]
        if labels and data["name"] != "train":
            yield _(
                "The {set} has no example of {labels}: it does not show how well the model "
                "predicts them.",
                set=set_name(data["name"], _),
                labels=labels,
            )


def _not_better(report: Report, _: Translator) -> Iterator[str]:
    comparison = compare(report)
    if comparison is None or comparison.verdict == "better":
        return
    metric = comparison.metric
    if comparison.verdict == "hardly":
        verdict = _("It is not shown that the model is better than the simple baseline")
    else:
        verdict = _("The model is no better than the simple baseline")
    yield _(
        "{verdict}: on the {set} its {metric} is {ours}, the baseline's {other}.",
        verdict=verdict,
        set=set_name(comparison.set, _),
        metric=_(metric.title),
        ours=figure(comparison.ours, metric),
        other=figure(comparison.other, metric),
    )


def _no_baseline(report: Report, _: Translator) -> Iterator[str]:
    if "no_baseline" in report:
        yield _(
            "There is no baseline to compare with, because it failed: {problem}.",
            problem=report["no_baseline"],
        )


def _few(report: Report, _: Translator) -> Iterator[str]:
    number = {data["name"]: data["examples"] for data in report["data"]}[report["judged"]]
    if number < FEW_EXAMPLES:
        yield _(
            "The {set} is small (examples: {number}): small differences in the figures may be due "
            "to chance.",
            set=set_name(report["judged"], _),
            number=number,
        )


def _contradictions(report: Report, _: Translator) -> Iterator[str]:
    if number := report["leaks"].get("contradicting"):
        yield _(
            "Texts with more than one label in the data: {number:,}. No model can predict all of "
            "these labels.",
            number=number,
        )


def _long(report: Report, _: Translator) -> Iterator[str]:
    longer = report["data"][0]["longer"]
    if report["long_texts"] == "windows" or longer <= MUCH_CUT:  # windows read everything
        return
    yield _(
        "{share:.1%} of the training texts are longer than {length} tokens and are truncated.",
        share=longer,
        length=report["max_length"],
    )


def _uneven(report: Report, _: Translator) -> Iterator[str]:
    labels = report["data"][0]["labels"]
    if not labels or len(labels) < 2 or "per_class" not in report:
        return
    rarest, commonest = min(labels, key=labels.__getitem__), max(labels, key=labels.__getitem__)
    if labels[commonest] >= IMBALANCE * labels[rarest]:
        yield _(
            "The labels are imbalanced: the training set has {most:,} of {common}, but {least:,} "
            "of {rare}. See the figures of each label.",
            most=labels[commonest],
            common=commonest,
            least=labels[rarest],
            rare=rarest,
        )


def _never(report: Report, _: Translator) -> Iterator[str]:
    missed = [
        row["label"] for row in report.get("per_class", ()) if row["gold"] > row["predicted"] == 0
    ]
    if missed:
        yield _("Never predicted, although in the data: {labels}.", labels=missed)


def _unreliable(report: Report, _: Translator) -> Iterator[str]:
    calibration = report.get("calibration", {"ece": 0, "chance": 0})
    error = calibration["ece"]
    if error > max(UNRELIABLE, calibration["chance"]):
        yield _(
            "The probabilities differ by {error:.1%} on average from how often predictions are "
            "right (expected calibration error). Use them for ranking, not as probabilities.",
            error=error,
        )
