"""A report's dictionary → its sections, in the order in which they are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeAlias

from roformer_tf.finetuning.report import words
from roformer_tf.finetuning.report.blocks import (
    Block,
    Mistake,
    Picture,
    Table,
    Text,
    Tile,
    Tiles,
    Warnings,
)
from roformer_tf.runs.plots import (
    Range,
    draw_calibration,
    draw_curve,
    draw_numbers,
    draw_ranges,
)
from roformer_tf.tasks.thresholds import ENOUGH

LABELS = 40
"""Rows of a table by label, at most."""
CONFUSED = 15
"""Labels up to which a confusion matrix is shown whole; beyond, its greatest entries."""

Report: TypeAlias = Mapping[str, Any]


class Scored(NamedTuple):
    """The figures of one set of examples."""

    name: str
    examples: int
    scores: Mapping[str, float]
    ends: Mapping[str, Sequence[float]]
    """Of each metric's interval."""
    ours: bool
    """The model's, not the baseline's."""

    def spelled(self, metric: str) -> str:
        """A figure and its interval: 93.5% [92.4%, 94.5%]."""
        ends = words.interval(metric, self.ends[metric])
        return f"{words.figure(metric, self.scores[metric])} {ends}"


def sections(report: Report) -> dict[str, list[Block]]:
    """What the report shows, in order, by title."""
    makers: dict[str, Callable[[Report], Iterable[Block]]] = {
        "Figures": _figures,
        "Data": _data,
        "Training": _training,
        "Each label": _each_label,
        "Thresholds": _thresholds,
        "Confusion": _confusion,
        "Numbers": _numbers,
        "Calibration": _calibration,
        "Worst mistakes": _mistakes,
        "Settings": _settings,
        "Trainings": _trials,
        "Hardware and time": _hardware,
    }
    made = {title: list(maker(report)) for title, maker in makers.items()}
    return {title: blocks for title, blocks in made.items() if blocks}


def _figures(report: Report) -> Iterable[Block]:
    """The figures beside the baseline's, and what to know of them."""
    metric = report["metric"]
    rows = list(_scored(report))
    yield Tiles([_tile(metric, row) for row in rows if row.name != "valid" or len(rows) == 1])
    if report["warnings"]:
        yield Warnings(report["warnings"])
    metrics = list(rows[0].scores)
    yield Table(
        ["", "examples", *(words.METRICS[one] for one in metrics)],
        [[row.name, f"{row.examples:,}", *(row.spelled(one) for one in metrics)] for row in rows],
    )
    yield Text(
        "In brackets: where the figure lies in 95 of 100 sets drawn anew from the same examples."
        + ("" if "baseline" not in report else f" The baseline: {report['baseline']['name']}.")
    )
    ranges = [Range(row.name, row.scores[metric], row.ends[metric], row.ours) for row in rows]
    yield Picture(
        draw_ranges(ranges, words.METRICS[metric], words.is_share(metric)),
        f"{words.METRICS[metric]} with its interval, ours and the baseline's",
    )


def _scored(report: Report) -> Iterable[Scored]:
    """The judged set whole and new texts only, the baseline's likewise, and the validation set."""
    judged, baseline = report["judged"], report.get("baseline", {})
    sizes = {data["name"]: data["examples"] for data in report["data"]}
    sizes[f"{judged}_unseen"] = report["leaks"].get("unseen", 0)
    for source, of in ((report, ""), (baseline, "baseline on ")):
        for key in (judged, f"{judged}_unseen"):
            if key in source:
                name, ends = of + words.of_set(key), source["intervals"][key]
                yield Scored(name, sizes[key], source[key], ends, source is report)
    if judged != "valid":
        yield Scored("valid", sizes["valid"], report["valid"], report["intervals"]["valid"], True)


def _tile(metric: str, row: Scored) -> Tile:
    """The main figure of a row."""
    return Tile(
        f"{words.METRICS[metric]} on {row.name}" if row.ours else row.name,
        words.figure(metric, row.scores[metric]),
        words.interval(metric, row.ends[metric]),
        row.ours,
    )


def _data(report: Report) -> Iterable[Block]:
    """Counts, lengths, labels, and what stands there more than once."""
    sets = report["data"]
    yield _lengths(sets)
    if sets[0]["labels"]:
        yield _label_balance(sets)
    elif sets[0]["numbers"]:
        yield Table(
            ["set", *sets[0]["numbers"]],
            [[one["name"], *(f"{x:.4g}" for x in one["numbers"].values())] for one in sets],
        )
    if report["leaks"]:
        yield _met_again(report["judged"], report["leaks"])


def _lengths(sets: Sequence[Mapping[str, Any]]) -> Table:
    """How many examples each set has, and of how many tokens."""
    levels = list(sets[0]["tokens"])
    return Table(
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


def _met_again(judged: str, leaks: Mapping[str, int]) -> Table:
    """What stands more than once in the data."""
    return Table(
        ["texts that are met again", ""],
        [
            [f"{judged}: stand in train, too", f"{leaks['in_train']:,}"],
            *([[f"{judged}: stand in valid, too", f"{leaks['in_valid']:,}"]] * (judged != "valid")),
            [f"{judged}: repeat another that does not", f"{leaks['repeated']:,}"],
            ["train: repeat another", f"{leaks['within']:,}"],
            ["different texts with more than one label", f"{leaks['contradicting']:,}"],
        ],
    )


def _label_balance(sets: Sequence[Mapping[str, Any]]) -> Table:
    """How often each label stands in each set, and how often by the example."""
    labels = sorted(sets[0]["labels"], key=sets[0]["labels"].__getitem__, reverse=True)[:LABELS]
    return Table(
        ["label (by the example)", *(f"{one['name']}" for one in sets)],
        [
            [label, *(_share(one["labels"][label], one["examples"]) for one in sets)]
            for label in labels
        ],
    )


def _share(number: int, examples: int) -> str:
    """8,588 (50.9%)."""
    return f"{number:,} ({number / examples:.1%})"


def _training(report: Report) -> Iterable[Block]:
    """The curve, and what each epoch gave."""
    metric, lines = report["metric"], report["evaluations"]
    if not lines:
        return
    name, shares = f"{words.METRICS[metric]} on valid", words.is_share(metric)
    loss = draw_curve(report["losses"], "loss", "training loss", held_out=False, shares=False)
    yield Picture(loss, "training loss by step")
    yield Picture(draw_curve(lines, metric, name, held_out=True, shares=shares), f"{name} by step")
    metrics = [one for one in report["valid"] if one in lines[0]]
    yield Table(
        ["epoch", "step", *(f"{words.METRICS[one]} on valid" for one in metrics)],
        [
            [f"{x['epoch']:g}", f"{x['step']:,}", *(words.figure(one, x[one]) for one in metrics)]
            for x in lines
        ],
    )


def _each_label(report: Report) -> Iterable[Block]:
    """Precision, recall and F1 by label, the worst of many."""
    rows = report.get("per_class", [])
    if len(rows) > LABELS:
        yield Text(f"The {LABELS} of {len(rows):,} labels with the lowest F1.")
        rows = sorted(rows, key=lambda row: row["f1"])[:LABELS]
    shares = ("precision", "recall", "f1")
    if rows:
        yield Table(
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


def _thresholds(report: Report) -> Iterable[Block]:
    """From which probability on each label of several is answered."""
    found = report.get("thresholds", {})
    if not found:
        return
    yield Text(
        "A label is answered where its probability is above its threshold. These were chosen on "
        "valid, for the highest micro F1: one for all labels, and one for each label of which "
        f"there are at least {ENOUGH} examples."
    )
    rows = [[label, f"{threshold:.2f}"] for label, threshold in found.items()]
    if len(rows) > LABELS:
        yield Text(f"The first {LABELS} of {len(rows):,} labels.")
    yield Table(["label", "threshold"], rows[:LABELS])


def _confusion(report: Report) -> Iterable[Block]:
    """Which labels are taken for which."""
    found = report.get("confusion", [])
    totals = {row["label"]: row["gold"] for row in report.get("per_class", [])}
    if not found:
        return
    if len(totals) > CONFUSED:
        wrong = [x for x in found if x["gold"] != x["predicted"]][:LABELS]
        rows = [[x["gold"], x["predicted"], f"{x['count']:,}"] for x in wrong]
        yield Table(["in the data", "answered", "times"], rows, words=2)
        return
    counts = {(x["gold"], x["predicted"]): x["count"] for x in found}
    square = [[counts.get((label, answer), 0) for answer in totals] for label in totals]
    yield Table(
        ["in the data ↓, answered →", *totals],
        [[label, *(f"{x:,}" for x in row)] for label, row in zip(totals, square, strict=True)],
        shades=[[x / max(sum(row), 1) for x in row] for row in square],
    )


def _numbers(report: Report) -> Iterable[Block]:
    """A regression's answers beside the data's numbers."""
    if report.get("scatter"):
        yield Picture(draw_numbers(report["scatter"]), "numbers answered, by numbers in the data")


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
    yield Table(
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
    if report["mistakes"]:
        yield Text(
            words.WORST.get(report["task"], "The wrong answers that the model was surest of.")
        )
    sure = words.SURENESS.get(report["task"], "{:.1%} sure")
    for found in report["mistakes"]:
        place, sureness = found["place"], sure.format(found["sureness"])
        if report["task"] == "tagging":
            texts = [("in the data", found["gold"]), ("answered", found["predicted"])]
            yield Mistake(place, [("", sureness)], texts)
            continue
        facts = [
            ("in the data", words.label(found["gold"])),
            ("answered", words.label(found["predicted"])),
            ("", sureness),
        ]
        names = report["text_columns"] if len(found["texts"]) > 1 else [""]
        texts = [(name, [[text, ""]]) for name, text in zip(names, found["texts"], strict=True)]
        yield Mistake(place, facts, texts)


def _settings(report: Report) -> Iterable[Block]:
    """Every setting of the run."""
    if report["settings"]:
        rows = [[name, words.setting(value)] for name, value in report["settings"].items()]
        yield Table(["setting", "value"], rows, words=2)


def _trials(report: Report) -> Iterable[Block]:
    """Several trainings, and mean ± deviation of those with the same learning rate."""
    trials = report["trials"]
    if not trials:
        return
    sets = [name for name in ("valid", "test") if name in trials[0]]
    figures = [(name, metric) for name in sets for metric in trials[0][name]]
    yield Table(
        ["training", *(f"{words.METRICS[metric]} on {name}" for name, metric in figures), "time"],
        [
            [
                trial["name"],
                *(words.figure(metric, trial[name][metric]) for name, metric in figures),
                words.duration(trial["seconds"]),
            ]
            for trial in trials
        ]
        + [
            [
                f"mean ± deviation of {len(equal)} at {rate:g}",
                *(
                    _spread(metric, [one[name][metric] for one in equal])
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


def _spread(metric: str, values: Sequence[float]) -> str:
    """93.5% ± 0.4%, the deviation that of a sample."""
    return f"{words.figure(metric, mean(values))} ± {words.figure(metric, stdev(values))}"


def _hardware(report: Report) -> Iterable[Block]:
    """What it ran on, and how long each part took."""
    rows = [[name, value] for name, value in report["hardware"].items()]
    rows += [[f"time: {name}", words.duration(x)] for name, x in report["seconds"].items()]
    if rows:
        yield Table(["", ""], rows, words=2)
