"""A report's dictionary → its sections, in the order in which they are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from roformer_tf.finetuning.report import words
from roformer_tf.finetuning.report.advice import of_learning_rate, rates_tried
from roformer_tf.finetuning.report.words import Report
from roformer_tf.runs.plots import (
    Range,
    draw_calibration,
    draw_curve,
    draw_numbers,
    draw_ranges,
)
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.blocks import (
    MOST_LABELS,
    Block,
    Code,
    Picture,
    ReportTable,
    Scatter,
    Text,
    Tile,
    Tiles,
    Warnings,
)
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS


class FiguresRow(NamedTuple):
    """The figures of one set of examples."""

    name: str
    examples: int
    metrics: Mapping[str, float]
    ends: Mapping[str, Sequence[float]]
    """Of each metric's interval."""
    ours: bool
    """The model's, not the baseline's."""

    def spelled(self, metric: Metric) -> str:
        """A figure and its interval: 93.5% [92.4%, 94.5%]."""
        ends = words.interval(metric, self.ends[metric.name])
        return f"{words.figure(metric, self.metrics[metric.name])} {ends}"


def sections(report: Report) -> dict[str, list[Block]]:
    """What the report shows, in order, by title."""
    first: dict[str, Callable[[Report], Iterable[Block]]] = {
        "Figures": _figures,
        "What to try next": _next,
        "Data": _data,
        "Learning rate": _learning_rate,
        "Training": _training,
        "Each label": each_label,
    }
    last: dict[str, Callable[[Report], Iterable[Block]]] = {
        "Calibration": _calibration,
        "Worst mistakes": _mistakes,
        "Settings": _settings,
        "Trainings": _trials,
        "Hardware and time": _hardware,
    }
    made = {title: list(maker(report)) for title, maker in first.items()}
    made |= {title: [*map(_drawn, x)] for title, x in _task(report).sections(report).items()}
    made |= {title: list(maker(report)) for title, maker in last.items()}
    return {title: blocks for title, blocks in made.items() if blocks}


def _task(report: Report) -> type[Task]:
    """The task that the report is of."""
    return TASKS[report["task"]]


def _named(report: Report, names: Iterable[str]) -> list[Metric]:
    """The task's metrics of these names."""
    return [_task(report).metric(name) for name in names]


def _drawn(block: Block) -> Block:
    """A block as the templates know it."""
    return Picture(draw_numbers(block.points), block.words) if isinstance(block, Scatter) else block


def _figures(report: Report) -> Iterable[Block]:
    """The figures beside the baseline's, and what to know of them."""
    (metric,) = _named(report, [report["metric"]])
    rows = list(_rows(report))
    yield Tiles([_tile(metric, row) for row in rows if row.name != "valid" or len(rows) == 1])
    if report["warnings"]:
        yield Warnings(report["warnings"])
    metrics = _named(report, rows[0].metrics)
    yield ReportTable(
        ["", "examples", *(one.title for one in metrics)],
        [[row.name, f"{row.examples:,}", *(row.spelled(one) for one in metrics)] for row in rows],
    )
    yield Text(
        "In brackets: where the figure lies in 95 of 100 sets drawn anew from the same examples."
        + ("" if "baseline" not in report else f" The baseline: {report['baseline']['name']}.")
    )
    ranges = [
        Range(row.name, row.metrics[metric.name], row.ends[metric.name], row.ours) for row in rows
    ]
    yield Picture(
        draw_ranges(ranges, metric.title, words.is_share(metric)),
        f"{metric.title} with its interval, ours and the baseline's",
    )


def _rows(report: Report) -> Iterable[FiguresRow]:
    """The judged set whole and new texts only, the baseline's likewise, and the validation set."""
    judged, baseline = report["judged"], report.get("baseline", {})
    sizes = {data["name"]: data["examples"] for data in report["data"]}
    sizes[f"{judged}_unseen"] = report["leaks"].get("unseen", 0)
    for source, of in ((report, ""), (baseline, "baseline on ")):
        for key in (judged, f"{judged}_unseen"):
            if key in source:
                name, ends = of + words.of_set(key), source["intervals"][key]
                yield FiguresRow(name, sizes[key], source[key], ends, source is report)
    if judged != "valid":
        yield FiguresRow(
            "valid", sizes["valid"], report["valid"], report["intervals"]["valid"], True
        )


def _tile(metric: Metric, row: FiguresRow) -> Tile:
    """The main figure of a row."""
    return Tile(
        f"{metric.title} on {row.name}" if row.ours else row.name,
        words.figure(metric, row.metrics[metric.name]),
        words.interval(metric, row.ends[metric.name]),
        row.ours,
    )


def _data(report: Report) -> Iterable[Block]:
    """Counts, lengths, labels, and what stands there more than once."""
    sets = report["data"]
    yield _lengths(sets)
    if sets[0]["labels"]:
        yield _label_balance(sets)
    elif sets[0]["numbers"]:
        yield ReportTable(
            ["set", *sets[0]["numbers"]],
            [[one["name"], *(f"{x:.4g}" for x in one["numbers"].values())] for one in sets],
        )
    if report["leaks"]:
        yield _met_again(report["judged"], report["leaks"])


def _lengths(sets: Sequence[Mapping[str, Any]]) -> ReportTable:
    """How many examples each set has, and of how many tokens."""
    levels = list(sets[0]["tokens"])
    return ReportTable(
        ["set", "examples", *(f"tokens: {level}" for level in levels), "longer than a row"],
        [
            [
                one["name"],
                f"{one['examples']:,}",
                *(f"{one['tokens'][level]:,}" for level in levels),
                f"{one['longer']:.1%}",
            ]
            for one in sets
        ],
    )


def _met_again(judged: str, leaks: Mapping[str, int]) -> ReportTable:
    """What stands more than once in the data."""
    return ReportTable(
        ["texts that are met again", ""],
        [
            [f"{judged}: stand in train, too", f"{leaks['in_train']:,}"],
            *([[f"{judged}: stand in valid, too", f"{leaks['in_valid']:,}"]] * (judged != "valid")),
            [f"{judged}: repeat another that does not", f"{leaks['repeated']:,}"],
            ["train: repeat another", f"{leaks['within']:,}"],
            ["different texts with more than one label", f"{leaks['contradicting']:,}"],
        ],
    )


def _label_balance(sets: Sequence[Mapping[str, Any]]) -> ReportTable:
    """How often each label stands in each set, and how often by the example."""
    labels = sorted(sets[0]["labels"], key=sets[0]["labels"].__getitem__, reverse=True)[
        :MOST_LABELS
    ]
    return ReportTable(
        ["label (by the example)", *(f"{one['name']}" for one in sets)],
        [
            [label, *(_share(one["labels"][label], one["examples"]) for one in sets)]
            for label in labels
        ],
    )


def _share(number: int, examples: int) -> str:
    """8,588 (50.9%)."""
    return f"{number:,} ({number / examples:.1%})"


def _next(report: Report) -> Iterable[Block]:
    """Advice, where the model is no better than its baseline."""
    for one in report.get("advice", ()):
        yield Text(one["en"])
        yield Code(one["command"])


def _learning_rate(report: Report) -> Iterable[Block]:
    """How it was found, unless it was given."""
    if not (search := report.get("rate_search")):
        return
    yield Text(of_learning_rate(search)["en"])
    (metric,) = _named(report, [report["metric"]])
    if tried := rates_tried(search, metric.name):
        yield ReportTable(
            ["learning rate", "loss on valid", f"{metric.title} on valid"],
            [[rate, f"{loss:.4f}", words.figure(metric, value)] for rate, loss, value in tried],
        )


def _training(report: Report) -> Iterable[Block]:
    """The curve, and what each epoch gave."""
    lines = report["evaluations"]
    if not lines:
        return
    (metric,) = _named(report, [report["metric"]])
    name, shares = f"{metric.title} on valid", words.is_share(metric)
    loss = draw_curve(report["losses"], "loss", "training loss", held_out=False, shares=False)
    yield Picture(loss, "training loss by step")
    curve = draw_curve(lines, metric.name, name, held_out=True, shares=shares)
    yield Picture(curve, f"{name} by step")
    metrics = _named(report, [one for one in report["valid"] if one in lines[0]])
    yield ReportTable(
        ["epoch", "step", *(f"{one.title} on valid" for one in metrics)],
        [
            [
                f"{x['epoch']:g}",
                f"{x['step']:,}",
                *(words.figure(one, x[one.name]) for one in metrics),
            ]
            for x in lines
        ],
    )


def each_label(report: Report) -> Iterable[Block]:
    """Precision, recall and F1 by label, the worst of many."""
    rows = report.get("per_class", [])
    if len(rows) > MOST_LABELS:
        yield Text(f"The {MOST_LABELS} of {len(rows):,} labels with the lowest F1.")
        rows = sorted(rows, key=lambda row: row["f1"])[:MOST_LABELS]
    shares = ("precision", "recall", "f1")
    if rows:
        yield ReportTable(
            ["label", "precision", "recall", "F1", "in the data", "answered"],
            [
                [
                    row["label"],
                    *(f"{row[one]:.1%}" for one in shares),
                    f"{row['gold']:,}",
                    f"{row['predicted']:,}",
                ]
                for row in rows
            ],
            shades=[[*(row[one] for one in shares), 0, 0] for row in rows],
        )


def _calibration(report: Report) -> Iterable[Block]:
    """Whether the model's probabilities can be taken at their word."""
    if "calibration" not in report:
        return
    found = report["calibration"]
    yield Text(
        "How likely the model said something is, and how often it was so: they differ by "
        f"{found['ece']:.1%} on average (expected calibration error)."
    )
    yield Picture(draw_calibration(found["bins"]), "reliability diagram")
    yield ReportTable(
        ["said to be likely", "how many", "mean probability", "was so"],
        [
            [
                f"{x['from']:.0%} to {x['to']:.0%}",
                f"{x['count']:,}",
                f"{x['probability']:.1%}",
                f"{x['right']:.1%}",
            ]
            for x in found["bins"]
        ],
    )


def _mistakes(report: Report) -> Iterable[Block]:
    """Wrong answers, the surest first."""
    task = _task(report)
    if report["mistakes"]:
        yield Text(task.worst)
    for found in report["mistakes"]:
        yield task.mistake(found, report["text_columns"])


def _settings(report: Report) -> Iterable[Block]:
    """Every setting of the run."""
    if report["settings"]:
        rows = [[name, words.setting(value)] for name, value in report["settings"].items()]
        yield ReportTable(["setting", "value"], rows, words=2)


def _trials(report: Report) -> Iterable[Block]:
    """Several trainings, and mean ± deviation of those with the same learning rate."""
    trials = report["trials"]
    if not trials:
        return
    sets = [name for name in ("valid", "test") if name in trials[0]]
    figures = [(name, metric) for name in sets for metric in _named(report, trials[0][name])]
    yield ReportTable(
        ["training", *(f"{metric.title} on {name}" for name, metric in figures), "time"],
        [
            [
                trial["name"],
                *(words.figure(metric, trial[name][metric.name]) for name, metric in figures),
                words.duration(trial["seconds"]),
            ]
            for trial in trials
        ]
        + [
            [
                f"mean ± deviation of {len(equal)} at {rate:g}",
                *(
                    _spread(metric, [one[name][metric.name] for one in equal])
                    for name, metric in figures
                ),
                "",
            ]
            for rate, equal in _by_rate(trials).items()
            if len(equal) > 1
        ],
    )


def _by_rate(trials: Sequence[Mapping[str, Any]]) -> dict[float, list[Mapping[str, Any]]]:
    """The trainings by their learning rates."""
    rates = dict.fromkeys(trial["learning_rate"] for trial in trials)
    return {rate: [one for one in trials if one["learning_rate"] == rate] for rate in rates}


def _spread(metric: Metric, values: Sequence[float]) -> str:
    """93.5% ± 0.4%, the deviation that of a sample."""
    return f"{words.figure(metric, mean(values))} ± {words.figure(metric, stdev(values))}"


def _hardware(report: Report) -> Iterable[Block]:
    """What it ran on, and how long each part took."""
    rows = [[name, value] for name, value in report["hardware"].items()]
    rows += [[f"time: {name}", words.duration(x)] for name, x in report["seconds"].items()]
    if rows:
        yield ReportTable(["", ""], rows, words=2)
