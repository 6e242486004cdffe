"""How a report writes its figures, and the comparison of the model with the baseline.

A report is the dictionary of report.json. `_` translates into the language of the page.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple, TypeAlias

from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.translation import Translator

Report: TypeAlias = Mapping[str, Any]
"""The dictionary of report.json, as `analysis.analyse` makes it."""

ABSENT = "—"
"""Shown where the data cannot give a figure."""
FORMATS = {"share": ".1%", "coefficient": ".3f", "distance": ".4g"}


def figure(value: float | None, metric: Metric) -> str:
    """A fraction as 93.5%, a coefficient as 0.935, a distance in four digits."""
    return ABSENT if value is None else f"{value:{FORMATS[metric.kind]}}"


def interval(ends: Sequence[float] | None, metric: Metric) -> str:
    """[92.4%, 94.5%]."""
    return ABSENT if ends is None else f"[{', '.join(figure(end, metric) for end in ends)}]"


def set_name(name: str, _: Translator) -> str:
    """Name of a set of examples, such as "test" or "test_unseen"."""
    part, __, unseen = name.partition("_")
    names = {"train": _("training set"), "valid": _("validation set"), "test": _("test set")}
    return _("{set} (new texts)", set=names[part]) if unseen else names[part]


def duration(seconds: float, _: Translator) -> str:
    """3.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return _("{seconds:.1f} s", seconds=seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return _("{hours} h {minutes} min", hours=hours, minutes=minutes)
    return _("{minutes} min {seconds} s", minutes=minutes, seconds=rest)


def spread(values: Sequence[float | None], metric: Metric) -> str:
    """93.5% ± 0.4%: mean and standard deviation of a sample."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ABSENT
    return f"{figure(mean(known), metric)} ± {figure(stdev(known), metric)}"


def lowest_f1(rows: Sequence[Mapping[str, Any]], number: int) -> Sequence[Mapping[str, Any]]:
    """All labels in their order if they are few, else those with the lowest F1, lowest first."""
    if len(rows) <= number:
        return rows
    return sorted(rows, key=lambda row: (row["f1"] is None, row["f1"]))[:number]


class Comparison(NamedTuple):
    """The main metric of the model and the baseline, on new texts where possible."""

    metric: Metric
    set: str
    """test, test_unseen, valid or valid_unseen."""
    ours: float
    other: float
    verdict: Literal["better", "hardly", "no better"]
    """Hardly: the model's interval contains the baseline's figure, or there is no interval."""


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


class FiguresRow(NamedTuple):
    """The figures of the model or a baseline on one set of examples."""

    title: str
    examples: int
    values: Mapping[str, float | None]
    intervals: Mapping[str, Sequence[float] | None]
    ours: bool
    """The model's, not a baseline's."""
    main: bool
    """On the set that the report is about, not on the validation set next to a test set."""


def figure_rows(report: Report, _: Translator) -> Iterator[FiguresRow]:
    """The model, then the baselines, on the set of the report; then the validation set."""
    judged = report["judged"]
    sizes = {data["name"]: data["examples"] for data in report["data"]}
    sizes[f"{judged}_unseen"] = report["leaks"].get("unseen", 0)
    others = report.get("other_baselines", [])
    baselines = [report["baseline"], *others] if "baseline" in report else []
    for source in (report, *baselines):
        for key in (judged, f"{judged}_unseen"):
            if key not in source:
                continue
            title = set_name(key, _)
            if source is not report:
                method = baseline_name(source, _) if others else _("baseline")
                title = _("{name}, {set}", name=method, set=title)
            ours = source is report
            yield FiguresRow(title, sizes[key], source[key], source["intervals"][key], ours, True)
    if judged != "valid":
        values, ends = report["valid"], report["intervals"]["valid"]
        yield FiguresRow(set_name("valid", _), sizes["valid"], values, ends, True, False)


def baseline_name(baseline: Mapping[str, Any], _: Translator) -> str:
    """A baseline's method."""
    return str(baseline["name_zh" if _.language == "zh" else "name"])


def reasons(report: Report, what: Literal["value", "interval"], _: Translator) -> list[str]:
    """Why figures of the report have no value, or no interval: each reason once."""
    absent = [why for of_set in report["undefined"].values() for why in of_set.values()]
    return list(dict.fromkeys(why[_.language] for why in absent if why["what"] == what))
