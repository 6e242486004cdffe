"""What a reader of a report must know before quoting a figure."""

from collections.abc import Iterator

from roformer_tf.finetuning.report.words import CUT, Report, figure, interval, of_set, several
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS

FEW_EXAMPLES = 300
"""Examples below which figures hardly tell two models apart."""
MUCH_CUT = 0.01
"""Share of texts too long that is worth a word."""
UNEVEN = 10
"""Times that the commonest label may be commoner than the rarest."""
DOUBTFUL = 0.1
"""Calibration error from which a probability should not be taken at its word."""


def warnings(report: Report) -> list[str]:
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


def warnings_of_answers(report: Report) -> list[str]:
    """Those that need no training: of a finished model's answers to a labelled file."""
    return [sentence for check in (_few, _never, _unsure) for sentence in check(report)]


def _metric(report: Report) -> Metric:
    """The one that the best weights were kept by."""
    return TASKS[report["task"]].metric(report["metric"])


def _leak(report: Report) -> Iterator[str]:
    judged, metric, leaks = report["judged"], _metric(report), report["leaks"]
    if not leaks or leaks["unseen"] == leaks["of"]:
        return
    repeated = f", and {leaks['repeated']:,} repeat another" if leaks["repeated"] else ""
    in_valid = f", {leaks['in_valid']:,} more in valid" if leaks["in_valid"] else ""
    found = (
        f"{leaks['in_train']:,} of {leaks['of']:,} {judged} texts also stand in train"
        f"{in_valid}{repeated}"
    )
    if not leaks["unseen"]:
        yield f"{found}: no figure here tells how the model does on new texts. Give other texts."
        return
    unseen = f"{judged}_unseen"
    yield (
        f"{found}; without them the {metric.title} is "
        f"{figure(metric, report[unseen][metric.name])} "
        f"{interval(metric, report['intervals'][unseen][metric.name])}."
    )


def _no_test(report: Report) -> Iterator[str]:
    if report["judged"] == "valid":
        yield (
            "There is no test set: the figures are on valid, by which the best weights were "
            "chosen, so new texts will fare a little worse. Give --test, or a --test-share."
        )


def is_behind(report: Report) -> bool:
    """Whether the model is no better than its baseline, or by so little that it may be chance."""
    return any(_behind(report))


def _behind(report: Report) -> Iterator[str]:
    if "baseline" not in report:
        return
    metric, unseen = _metric(report), f"{report['judged']}_unseen"
    name = unseen if unseen in report else report["judged"]
    ours, other = report[name][metric.name], report["baseline"][name][metric.name]
    low, high = report["intervals"][name][metric.name]
    better = ours < other if metric.falls else ours > other
    if not better or low <= other <= high:
        yield (
            f"The model is {'hardly' if better else 'no'} better than the simple baseline: "
            f"{metric.title} {figure(metric, ours)} against {figure(metric, other)} on "
            f"{of_set(name)}."
        )


def _no_baseline(report: Report) -> Iterator[str]:
    if "no_baseline" in report:
        yield f"There is no baseline to compare with, for it failed: {report['no_baseline']}."


def _few(report: Report) -> Iterator[str]:
    examples = {data["name"]: data["examples"] for data in report["data"]}[report["judged"]]
    if examples < FEW_EXAMPLES:
        yield (
            f"The {report['judged']} set has only {several(examples, 'example')}: "
            "small differences in the figures are chance, and the intervals too narrow."
        )


def _contradictions(report: Report) -> Iterator[str]:
    if report["leaks"].get("contradicting"):
        number = several(report["leaks"]["contradicting"], "text")
        yield f"{number} with more than one label in the data: no model can be right on all."


def _long(report: Report) -> Iterator[str]:
    train, cut = report["data"][0], CUT.get(report["long_texts"])  # windows read everything
    if cut and train["longer"] > MUCH_CUT:
        other = ", or other --long-texts" if len(report["text_columns"]) == 1 else ""
        yield (
            f"{train['longer']:.1%} of the training texts are longer than {report['max_length']} "
            f"tokens: {cut}. Give a larger --max-length{other}."
        )


def _uneven(report: Report) -> Iterator[str]:
    labels = report["data"][0]["labels"]
    if not labels or len(labels) < 2:
        return
    rarest, commonest = min(labels, key=labels.__getitem__), max(labels, key=labels.__getitem__)
    if labels[commonest] >= UNEVEN * labels[rarest]:
        yield (
            f"The labels are uneven: {commonest} stands {labels[commonest]:,} times in train, "
            f"{rarest} {several(labels[rarest], 'time')}. Look at the figures of each label."
        )


def _never(report: Report) -> Iterator[str]:
    missed = [
        one["label"] for one in report.get("per_class", ()) if one["gold"] > one["predicted"] == 0
    ]
    if missed:
        more = f" and {len(missed) - 10} more" if len(missed) > 10 else ""
        yield f"Never answered, though in the data: {', '.join(missed[:10])}{more}."


def _unsure(report: Report) -> Iterator[str]:
    error = report.get("calibration", {"ece": 0})["ece"]
    if error > DOUBTFUL:
        yield (
            f"The probabilities are off by {error:.1%} on average: rank by them, but do not take "
            "them at their word."
        )
