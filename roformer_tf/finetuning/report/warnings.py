"""What a reader of a report must know before quoting a figure."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from roformer_tf.finetuning.report import phrases
from roformer_tf.finetuning.report.words import Report, figure, interval, of_set, several
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import Words, enumerated

FEW_EXAMPLES = 300
"""Examples below which figures hardly tell two models apart."""
MUCH_CUT = 0.01
"""Share of texts too long that is worth a word."""
UNEVEN = 10
"""Times that the commonest label may be commoner than the rarest."""
DOUBTFUL = 0.1
"""Calibration error from which a probability should not be taken at its word."""


def warnings(report: Report, figures: bool = True) -> list[Words]:
    """Whole sentences, the gravest first; none where nothing is wrong.

    figures: whether also to name those that have no value, which a page without them need not.
    """
    checks = (
        _leak,
        _no_test,
        *[_undefined] * figures,
        _missing,
        _behind,
        _no_baseline,
        _few,
        _contradictions,
        _long,
        _uneven,
        _never,
        _unsure,
    )
    return [sentence for check in checks for sentence in check(report)]


def warnings_of_answers(report: Report) -> list[Words]:
    """Those that need no training: of a finished model's answers to a labelled file."""
    checks = (_undefined, _missing, _few, _never, _unsure)
    return [sentence for check in checks for sentence in check(report)]


class Comparison(NamedTuple):
    """The model beside the baseline, by the main metric on texts that are as new as can be had."""

    metric: Metric
    set: str
    """test, test_unseen, valid or valid_unseen."""
    ours: float
    other: float
    verdict: Literal["better", "hardly", "no better"]
    """Hardly, where the baseline's figure lies within the interval of the model's, or where that
    has no interval."""


def main_metric(report: Report) -> Metric:
    """The one that the best weights were kept by."""
    return TASKS[report["task"]].metrics.named(report["metric"])


def newest(report: Report) -> str:
    """The judged set: of its new texts alone, where some are not."""
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


def _leak(report: Report) -> Iterator[Words]:
    judged, metric, leaks = report["judged"], main_metric(report), report["leaks"]
    if not leaks or leaks["unseen"] == leaks["of"]:
        return
    valid, repeated = leaks["in_valid"], leaks["repeated"]
    leak = phrases.LEAK.format(
        train=f"{leaks['in_train']:,}",
        all=f"{leaks['of']:,}",
        set=of_set(judged),
        valid=phrases.LEAK_VALID.format(number=f"{valid:,}") if valid else "",
        repeated=phrases.LEAK_REPEATED.format(number=f"{repeated:,}") if repeated else "",
    )
    if not leaks["unseen"]:
        yield phrases.LEAK_ALL.format(leak=leak)
        return
    unseen = f"{judged}_unseen"
    if report[unseen][metric.name] is None:
        yield phrases.LEAK_ALONE.format(leak=leak)
        return
    yield phrases.LEAK_WITHOUT.format(
        leak=leak,
        metric=metric.title,
        figure=figure(metric, report[unseen][metric.name]),
        interval=interval(metric, report["intervals"][unseen][metric.name]),
    )


def _no_test(report: Report) -> Iterator[Words]:
    if report["judged"] == "valid":
        yield phrases.NO_TEST


def _undefined(report: Report) -> Iterator[Words]:
    """Of each set the figures without a value, those of the same reason in one sentence."""
    task = TASKS[report["task"]]
    for name, found in report["undefined"].items():
        lost = {metric: why for metric, why in found.items() if why["what"] == "value"}
        for reason in dict.fromkeys(Words(why["en"], why["zh"]) for why in lost.values()):
            titles = [
                task.metrics.named(x).title for x, why in lost.items() if why["en"] == reason.en
            ]
            yield phrases.UNDEFINED.format(
                metrics=Words(
                    ", ".join(title.en for title in titles), "、".join(title.zh for title in titles)
                ),
                set=of_set(name),
                reason=reason,
            )


def _missing(report: Report) -> Iterator[Words]:
    """Labels that training has, but another set lacks."""
    for data in report["data"]:
        labels = [label for label, number in data["labels"].items() if not number]
        if labels and data["name"] != "train":
            yield phrases.MISSING.format(set=of_set(data["name"]), labels=enumerated(labels))


def _behind(report: Report) -> Iterator[Words]:
    found = compare(report)
    if found is None or found.verdict == "better":
        return
    sentence = phrases.HARDLY_AHEAD if found.verdict == "hardly" else phrases.BEHIND
    yield sentence.format(
        metric=found.metric.title,
        ours=figure(found.metric, found.ours),
        other=figure(found.metric, found.other),
        set=of_set(found.set),
    )


def _no_baseline(report: Report) -> Iterator[Words]:
    if "no_baseline" in report:
        yield phrases.NO_BASELINE.format(problem=report["no_baseline"])


def _few(report: Report) -> Iterator[Words]:
    examples = {data["name"]: data["examples"] for data in report["data"]}[report["judged"]]
    if examples < FEW_EXAMPLES:
        yield phrases.FEW.format(
            set=of_set(report["judged"]), examples=several(examples, "example"), number=examples
        )


def _contradictions(report: Report) -> Iterator[Words]:
    number = report["leaks"].get("contradicting")
    if number:
        yield phrases.CONTRADICTIONS.format(texts=several(number, "text"), number=f"{number:,}")


def _long(report: Report) -> Iterator[Words]:
    train = report["data"][0]
    cut = phrases.CUT.get(report["long_texts"])  # windows read everything
    if cut and train["longer"] > MUCH_CUT:
        yield phrases.LONG.format(
            share=f"{train['longer']:.1%}",
            length=report["max_length"],
            cut=cut,
        )


def _uneven(report: Report) -> Iterator[Words]:
    labels = report["data"][0]["labels"]
    if not labels or len(labels) < 2:
        return
    rarest, commonest = min(labels, key=labels.__getitem__), max(labels, key=labels.__getitem__)
    most, least = labels[commonest], labels[rarest]
    if most >= UNEVEN * least:
        yield phrases.UNEVEN.format(
            common=commonest, most=most, rare=rarest, least=least, times=several(least, "time")
        )


def _never(report: Report) -> Iterator[Words]:
    missed = [
        one["label"] for one in report.get("per_class", ()) if one["gold"] > one["predicted"] == 0
    ]
    if missed:
        yield phrases.NEVER.format(labels=enumerated(missed))


def _unsure(report: Report) -> Iterator[Words]:
    error = report.get("calibration", {"ece": 0})["ece"]
    if error > DOUBTFUL:
        yield phrases.UNSURE.format(error=f"{error:.1%}")
