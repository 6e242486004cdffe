"""What a reader of a report must know before quoting a figure."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from roformer_tf.finetuning.report import phrases
from roformer_tf.finetuning.report.words import Report, figure, interval, of_set, several
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import Words

FEW_EXAMPLES = 300
"""Examples below which figures hardly tell two models apart."""
MUCH_CUT = 0.01
"""Share of texts too long that is worth a word."""
UNEVEN = 10
"""Times that the commonest label may be commoner than the rarest."""
DOUBTFUL = 0.1
"""Calibration error from which a probability should not be taken at its word."""
SHOWN = 10
"""Labels that a warning names."""


def warnings(report: Report) -> list[Words]:
    """Whole sentences, the gravest first; none where nothing is wrong."""
    checks = (
        _leak,
        _no_test,
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
    return [sentence for check in (_few, _never, _unsure) for sentence in check(report)]


class Comparison(NamedTuple):
    """The model beside the baseline, by the main metric on texts that are as new as can be had."""

    metric: Metric
    set: str
    """test, test_unseen, valid or valid_unseen."""
    ours: float
    other: float
    verdict: Literal["better", "hardly", "no better"]
    """Hardly, where the baseline's figure lies within the interval of the model's."""


def main_metric(report: Report) -> Metric:
    """The one that the best weights were kept by."""
    return TASKS[report["task"]].metric(report["metric"])


def newest(report: Report) -> str:
    """The judged set: of its new texts alone, where some are not."""
    unseen = f"{report['judged']}_unseen"
    return unseen if unseen in report else report["judged"]


def compare(report: Report) -> Comparison | None:
    """The model beside the baseline; None where there is none."""
    if "baseline" not in report:
        return None
    metric, name = main_metric(report), newest(report)
    ours, other = report[name][metric.name], report["baseline"][name][metric.name]
    low, high = report["intervals"][name][metric.name]
    ahead = ours < other if metric.falls else ours > other
    better: Any = "hardly" if low <= other <= high else "better"
    return Comparison(metric, name, ours, other, better if ahead else "no better")


def is_behind(report: Report) -> bool:
    """Whether the model is no better than its baseline, or by so little that it may be chance."""
    found = compare(report)
    return found is not None and found.verdict != "better"


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
    yield phrases.LEAK_WITHOUT.format(
        leak=leak,
        metric=metric.title,
        figure=figure(metric, report[unseen][metric.name]),
        interval=interval(metric, report["intervals"][unseen][metric.name]),
    )


def _no_test(report: Report) -> Iterator[Words]:
    if report["judged"] == "valid":
        yield phrases.NO_TEST


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
    fixed = TASKS[report["task"]].long_texts_fixed
    may_choose = len(report["text_columns"]) == 1 and not fixed
    if cut and train["longer"] > MUCH_CUT:
        yield phrases.LONG.format(
            share=f"{train['longer']:.1%}",
            length=report["max_length"],
            cut=cut,
            other=phrases.OTHER_LONG_TEXTS if may_choose else "",
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
        more = len(missed) - SHOWN
        yield phrases.NEVER.format(
            labels=Words(", ".join(missed[:SHOWN]), "、".join(missed[:SHOWN])),
            more=phrases.MORE_LABELS.format(number=more) if more > 0 else "",
        )


def _unsure(report: Report) -> Iterator[Words]:
    error = report.get("calibration", {"ece": 0})["ece"]
    if error > DOUBTFUL:
        yield phrases.UNSURE.format(error=f"{error:.1%}")
