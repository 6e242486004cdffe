"""A report's dictionary → its sections, in the order in which they are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeAlias

from roformer_tf.finetuning.report import phrases, words
from roformer_tf.finetuning.report.rate_search import of_learning_rate, rates_tried
from roformer_tf.finetuning.report.warnings import compare, main_metric, newest, warnings
from roformer_tf.finetuning.report.words import Report
from roformer_tf.runs.plots import (
    Range,
    draw_calibration,
    draw_curve,
    draw_histograms,
    draw_numbers,
    draw_ranges,
)
from roformer_tf.tasks import wording
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.blocks import (
    MOST_LABELS,
    Block,
    Definitions,
    Histograms,
    Mistake,
    Picture,
    ReportTable,
    Scatter,
    Text,
    Tile,
    Tiles,
    Warnings,
)
from roformer_tf.tasks.metrics import ACCURACY, Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import Language, Wording, Words, in_language

VERDICTS = {
    "better": phrases.BETTER,
    "hardly": phrases.HARDLY_BETTER,
    "no better": phrases.NO_BETTER,
}


@dataclass(frozen=True)
class Drawing:
    """What becomes a picture once it is known in which language."""

    draw: Callable[..., bytes]
    """Gives an SVG file; the names of what it shows are its keywords."""
    names: Mapping[str, Wording | Sequence[Wording]]
    words: Wording
    """What stands for the picture where none is shown."""


Made: TypeAlias = Iterable[Block | Drawing]


class FiguresRow(NamedTuple):
    """The figures of one set of examples."""

    name: Words
    examples: int
    metrics: Mapping[str, float | None]
    ends: Mapping[str, Sequence[float] | None]
    """Of each metric's interval."""
    ours: bool
    """The model's, not the baseline's."""
    judged: bool = True
    """What the report judges by, whole or in part; not the validation set beside a test set."""

    def spelled(self, metric: Metric) -> str:
        """A figure and its interval: 93.5% [92.4%, 94.5%]; "—" without a value."""
        value = self.metrics[metric.name]
        ends = "" if value is None else f" {words.interval(metric, self.ends[metric.name])}"
        return f"{words.figure(metric, value)}{ends}"


def sections(report: Report, language: Language) -> dict[str, list[Block]]:
    """What the report shows, in order, by title: how good, where wrong, of what, how it was made.

    All in one language; what would be empty is left out.
    """
    first: dict[Words, Callable[[Report], Made]] = {
        phrases.RESULTS: _results,
        phrases.PER_LABEL: _each_label,
    }
    last: dict[Words, Callable[[Report], Made]] = {
        phrases.MISTAKES: _mistakes,
        phrases.LABEL_ISSUES: _label_issues,
        phrases.CALIBRATION: _calibration,
        phrases.DATA: _data,
        phrases.RATE_SEARCH: _learning_rate,
        phrases.TRAINING: _training,
        phrases.TRIALS: _trials,
        phrases.SETTINGS: _settings,
        phrases.HARDWARE: _hardware,
    }
    made: dict[Words, Made] = {title: maker(report) for title, maker in first.items()}
    made |= _task(report).metrics.sections(report)
    made |= {title: maker(report) for title, maker in last.items()}
    shown = {
        in_language(title, language): [_drawn(block, language) for block in blocks]
        for title, blocks in made.items()
    }
    return {title: blocks for title, blocks in shown.items() if blocks}


def _task(report: Report) -> type[Task]:
    """The task that the report is of."""
    return TASKS[report["task"]]


def _named(report: Report, names: Iterable[str]) -> list[Metric]:
    """The task's metrics of these names."""
    return [_task(report).metrics.named(name) for name in names]


def _drawn(block: Block | Drawing, language: Language) -> Block:
    """A block as the templates know it."""
    if isinstance(block, Scatter):
        names = {"true": phrases.TRUE_VALUE, "predicted": phrases.PREDICTED_VALUE}
        block = Drawing(partial(draw_numbers, block.points), names, block.words)
    if isinstance(block, Histograms):
        draw = partial(draw_histograms, block.edges, [found for _, found in block.counts])
        titles = {"names": [name for name, _ in block.counts], "axis_name": block.words}
        block = Drawing(draw, titles, block.words)
    block = in_language(block, language)
    if isinstance(block, Drawing):
        return Picture(partial(block.draw, **block.names), block.words)
    return block


def _results(report: Report) -> Made:
    """The figures beside the baseline's, and what to know of them."""
    metric = main_metric(report)
    rows = list(_rows(report))
    yield Text(_lead(report), kind="lead")
    yield Tiles([_tile(metric, row) for row in rows if row.judged])
    found = warnings(report)
    if found:
        yield Warnings(found)
    metrics = _named(report, rows[0].metrics)
    yield ReportTable(
        ["", phrases.EXAMPLES, *(one.title for one in metrics)],
        [[row.name, f"{row.examples:,}", *(row.spelled(one) for one in metrics)] for row in rows],
    )
    yield Text(phrases.INTERVALS, kind="note")
    for reason in without_interval(report):
        yield Text(phrases.ABSENT_INTERVALS.format(reason=reason), kind="note")
    if "baseline" in report:
        yield Text(phrases.BASELINE.format(name=_baseline(report)), kind="note")
    yield Definitions([(one.title, one.meaning) for one in metrics if one.meaning])
    drawn = [(row, value) for row in rows if (value := row.metrics[metric.name]) is not None]
    if len(drawn) > 1:
        yield Drawing(
            lambda axis_name, names: draw_ranges(
                [
                    Range(name, value, row.ends[metric.name], row.ours)
                    for name, (row, value) in zip(names, drawn, strict=True)
                ],
                axis_name=axis_name,
                shares=words.is_share(metric),
            ),
            {"axis_name": metric.title, "names": [row.name for row, _ in drawn]},
            phrases.RANGES.format(metric=metric.title),
        )


def without_interval(report: Report) -> list[Words]:
    """Why figures that the report shows have no interval, each reason once."""
    every = [why for found in report["undefined"].values() for why in found.values()]
    reasons = [Words(why["en"], why["zh"]) for why in every if why["what"] == "interval"]
    return list(dict.fromkeys(reasons))


def _baseline(report: Report) -> Words:
    """The baseline's method."""
    return Words(report["baseline"]["name"], report["baseline"]["name_zh"])


def _lead(report: Report) -> Words:
    """The result in two sentences, for who reads no further."""
    metric, name = main_metric(report), newest(report)
    part, _, unseen = name.partition("_")
    number = report["leaks"]["unseen"] if unseen else _sizes(report)[part]
    among = phrases.LEAD_NEW_TEXTS if unseen else phrases.LEAD_EXAMPLES
    why = report["undefined"][name].get(metric.name, {"what": "", "en": "", "zh": ""})
    sentence = {
        "value": phrases.LEAD_UNDEFINED,
        "interval": phrases.LEAD_WITHOUT_INTERVAL,
        "": phrases.LEAD,
    }[why["what"]]
    lead = sentence.format(
        examples=among.format(number=f"{number:,}", set=words.of_set(part)),
        metric=metric.title,
        ours=words.figure(metric, report[name][metric.name]),
        interval=words.interval(metric, report["intervals"][name][metric.name]),
        reason=Words(why["en"], why["zh"]),
    )
    found = compare(report)
    if found is None:
        return lead
    beside = phrases.LEAD_BASELINE.format(
        baseline=_baseline(report),
        other=words.figure(metric, found.other),
        verdict=VERDICTS[found.verdict],
    )
    return Words(f"{lead.en} {beside.en}", f"{lead.zh}{beside.zh}")


def _sizes(report: Report) -> dict[str, int]:
    """Examples of each set."""
    return {data["name"]: data["examples"] for data in report["data"]}


def _rows(report: Report) -> Iterable[FiguresRow]:
    """The judged set whole and new texts only, the baseline's likewise, and the validation set."""
    judged, baseline = report["judged"], report.get("baseline", {})
    sizes = _sizes(report)
    sizes[f"{judged}_unseen"] = report["leaks"].get("unseen", 0)
    for source in (report, baseline, *report.get("other_baselines", ())):
        for key in (judged, f"{judged}_unseen"):
            if key in source:
                name = words.of_set(key)
                ours = source is report
                shown = name if ours else _row_of(source, name, report)
                yield FiguresRow(shown, sizes[key], source[key], source["intervals"][key], ours)
    if judged != "valid":
        ends = report["intervals"]["valid"]
        name = words.of_set("valid")
        yield FiguresRow(name, sizes["valid"], report["valid"], ends, True, judged=False)


def _row_of(baseline: Mapping[str, Any], of_set: Words, report: Report) -> Words:
    """What a baseline's row is called: by its method, if there are several."""
    if "other_baselines" not in report:
        return phrases.OF_BASELINE.format(set=of_set)
    name = Words(baseline["name"], baseline["name_zh"])
    return phrases.OF_METHOD.format(name=name, set=of_set)


def _tile(metric: Metric, row: FiguresRow) -> Tile:
    """The main figure of a row."""
    return Tile(
        phrases.METRIC_ON.format(metric=metric.title, set=row.name) if row.ours else row.name,
        words.figure(metric, row.metrics[metric.name]),
        words.interval(metric, row.ends[metric.name]),
        row.ours,
    )


def _data(report: Report) -> Made:
    """Counts, lengths, labels, and what stands there more than once."""
    sets = report["data"]
    yield _lengths(sets, report["max_length"])
    if sets[0]["labels"]:
        if len(sets[0]["labels"]) > MOST_LABELS:
            yield Text(_first_labels(len(sets[0]["labels"])), kind="note")
        yield _label_balance(sets)
    elif sets[0]["numbers"]:
        yield ReportTable(
            [phrases.SET, *(phrases.NUMBERS[name] for name in sets[0]["numbers"])],
            [
                [words.of_set(one["name"]), *(f"{x:.4g}" for x in one["numbers"].values())]
                for one in sets
            ],
        )
    if report["leaks"]:
        yield _duplicates(report["judged"], report["leaks"])


def _first_labels(number: int) -> Words:
    """That not all labels are shown."""
    return wording.FIRST_LABELS.format(shown=MOST_LABELS, all=f"{number:,}")


def _lengths(sets: Sequence[Mapping[str, Any]], max_length: int) -> ReportTable:
    """How many examples each set has, and of how many tokens."""
    levels = list(sets[0]["tokens"])
    longer = phrases.LONGER.format(length=max_length)
    return ReportTable(
        [phrases.SET, phrases.EXAMPLES, *(phrases.TOKENS[level] for level in levels), longer],
        [
            [
                words.of_set(one["name"]),
                f"{one['examples']:,}",
                *(f"{one['tokens'][level]:,}" for level in levels),
                f"{one['longer']:.1%}",
            ]
            for one in sets
        ],
    )


def _duplicates(judged: str, leaks: Mapping[str, int]) -> ReportTable:
    """What stands more than once in the data."""
    judged_set, train, valid = map(words.of_set, (judged, "train", "valid"))
    rows: list[list[Wording]] = [
        [phrases.ALSO_IN.format(set=judged_set, other=train), f"{leaks['in_train']:,}"]
    ]
    if judged != "valid":
        also = phrases.ALSO_IN.format(set=judged_set, other=valid)
        rows.append([also, f"{leaks['in_valid']:,}"])
    rows += [
        [phrases.REPEATED.format(set=judged_set), f"{leaks['repeated']:,}"],
        [phrases.REPEATED.format(set=train), f"{leaks['within']:,}"],
        [phrases.CONTRADICTING, f"{leaks['contradicting']:,}"],
    ]
    return ReportTable([phrases.DUPLICATES, phrases.COUNT], rows)


def _label_balance(sets: Sequence[Mapping[str, Any]]) -> ReportTable:
    """How often each label stands in each set, and how often by the example."""
    labels = sorted(sets[0]["labels"], key=sets[0]["labels"].__getitem__, reverse=True)[
        :MOST_LABELS
    ]
    return ReportTable(
        [phrases.LABEL_BALANCE, *(words.of_set(one["name"]) for one in sets)],
        [
            [label, *(_share(one["labels"][label], one["examples"]) for one in sets)]
            for label in labels
        ],
    )


def _share(number: int, examples: int) -> str:
    """8,588 (50.9%)."""
    return f"{number:,} ({number / examples:.1%})"


def _learning_rate(report: Report) -> Made:
    """How it was found, unless it was given."""
    if not (search := report.get("rate_search")):
        return
    yield Text(Words(**of_learning_rate(search)))
    metric = main_metric(report)
    if tried := rates_tried(search, metric.name):
        yield ReportTable(
            [phrases.LEARNING_RATE, phrases.VALID_LOSS, _on_valid(metric)],
            [
                [rate, phrases.DIVERGED, "–"]
                if isnan(loss)
                else [rate, f"{loss:.4f}", words.figure(metric, value)]
                for rate, loss, value in tried
            ],
        )


def _training(report: Report) -> Made:
    """The curves, where there are more than one point of them, and what each epoch gave."""
    lines = report["evaluations"]
    if not lines:
        return
    metric = main_metric(report)
    title = _on_valid(metric)
    if len(report["losses"]) > 1:
        draw = partial(draw_curve, report["losses"], "loss", held_out=False, shares=False)
        names = {"step": phrases.STEP, "axis_name": phrases.LOSS}
        yield Drawing(draw, names, phrases.LOSS_CURVE)
    if len(lines) > 1:
        shares = words.is_share(metric)
        draw = partial(draw_curve, lines, metric.name, held_out=True, shares=shares)
        names = {"step": phrases.STEP, "axis_name": title}
        yield Drawing(draw, names, phrases.METRIC_CURVE.format(metric=title))
    metrics = _named(report, [one for one in report["valid"] if one in lines[0]])
    yield ReportTable(
        [phrases.EPOCH, phrases.STEP, *map(_on_valid, metrics)],
        [
            [
                f"{x['epoch']:g}",
                f"{x['step']:,}",
                *(words.figure(one, x[one.name]) for one in metrics),
            ]
            for x in lines
        ],
    )


def _on_valid(metric: Metric) -> Words:
    """A metric's title on the validation set."""
    return phrases.METRIC_ON.format(metric=metric.title, set=words.of_set("valid"))


def _each_label(report: Report) -> Made:
    """The same, with what the heads mean."""
    blocks = list(each_label(report))
    if blocks:
        yield from blocks
        yield Definitions(
            [
                (wording.PRECISION, phrases.ABOUT_PRECISION),
                (wording.RECALL, phrases.ABOUT_RECALL),
                (wording.F1, phrases.ABOUT_F1),
            ]
        )


def each_label(report: Report) -> Iterable[Text | ReportTable]:
    """Precision, recall and F1 by label, the worst of many."""
    rows = report.get("per_class", [])
    if len(rows) > MOST_LABELS:
        yield Text(phrases.LOWEST_F1.format(shown=MOST_LABELS, all=f"{len(rows):,}"), kind="note")
        rows = sorted(rows, key=lambda row: (row["f1"] is None, row["f1"]))[:MOST_LABELS]
    shares = ("precision", "recall", "f1")
    if rows:
        yield ReportTable(
            [
                *(wording.LABEL, wording.PRECISION, wording.RECALL, wording.F1),
                *(phrases.SUPPORT, phrases.PREDICTIONS),
            ],
            [
                [
                    row["label"],
                    *(words.figure(ACCURACY, row[one]) for one in shares),
                    f"{row['gold']:,}",
                    f"{row['predicted']:,}",
                ]
                for row in rows
            ],
            shades=[[*(row[one] or 0 for one in shares), 0, 0] for row in rows],
        )


def _calibration(report: Report) -> Made:
    """Whether the model's probabilities can be taken at their word; one bin is no picture."""
    if "calibration" not in report:
        return
    found = report["calibration"]
    yield Text(phrases.ECE.format(ece=f"{found['ece']:.1%}"))
    if len(found["bins"]) > 1:
        yield Drawing(
            partial(draw_calibration, found["bins"]),
            {
                "probability": phrases.PROBABILITY,
                "frequency": phrases.FREQUENCY,
                "count": phrases.NUMBER,
            },
            phrases.RELIABILITY,
        )
    yield ReportTable(
        [phrases.PROBABILITY, phrases.NUMBER, phrases.MEAN_PROBABILITY, phrases.FREQUENCY],
        [
            [
                phrases.BIN.format(low=f"{x['from']:.0%}", high=f"{x['to']:.0%}"),
                f"{x['count']:,}",
                f"{x['probability']:.1%}",
                f"{x['right']:.1%}",
            ]
            for x in found["bins"]
        ],
    )


def _mistakes(report: Report) -> Made:
    """Wrong answers, the surest first."""
    task = _task(report)
    if report["mistakes"]:
        yield Text(task.metrics.worst)
    for found in report["mistakes"]:
        yield task.metrics.mistake(found, report["text_columns"])


def _label_issues(report: Report) -> Made:
    """Examples whose labels are probably wrong, and the file of all; or why none was checked."""
    found = report.get("label_issues")
    if found and (reason := found.get("reason")):
        yield Text(phrases.NOT_CHECKED[reason])
        return
    if not found or not found["checked"]:
        return
    numbers = {name: f"{found[name]:,}" for name in ("found", "checked", "all")}
    told = phrases.DOUBTFUL if found["found"] else phrases.NOT_DOUBTFUL
    yield Text(told.format(**numbers, file=found["file"]))
    if found["checked"] < found["all"]:
        yield Text(phrases.CHECKED_PART.format(**numbers), kind="note")
    several = report["text_columns"] if len(report["text_columns"]) > 1 else [""]
    for one in found["shown"]:
        facts: list[tuple[Wording, Wording]] = [
            (wording.GIVEN, one["gold"]),
            (phrases.SUGGESTED, one["suggested"]),
            ("", wording.CONFIDENCE.format(value=one["probability"])),
        ]
        texts = [(name, [[text, ""]]) for name, text in zip(several, one["texts"], strict=True)]
        yield Mistake(one["place"], facts, texts)


def _settings(report: Report) -> Made:
    """Every setting of the run."""
    if report["settings"]:
        rows = [[name, words.setting(value)] for name, value in report["settings"].items()]
        yield ReportTable([phrases.SETTING, phrases.VALUE], rows, words=2)


def _trials(report: Report) -> Made:
    """Several trainings, and mean ± deviation of those with the same learning rate."""
    trials = report["trials"]
    if not trials:
        return
    sets = [name for name in ("valid", "test") if name in trials[0]]
    figures = [(name, metric) for name in sets for metric in _named(report, trials[0][name])]
    heads = [
        phrases.METRIC_ON.format(metric=metric.title, set=words.of_set(name))
        for name, metric in figures
    ]
    rows: list[list[Wording]] = [
        [
            trial["name"],
            *(words.figure(metric, trial[name][metric.name]) for name, metric in figures),
            words.duration(trial["seconds"]),
        ]
        for trial in trials
    ]
    rows += [
        [
            phrases.SPREAD.format(number=len(equal), rate=rate),
            *(
                _spread(metric, [one[name][metric.name] for one in equal])
                for name, metric in figures
            ),
            "",
        ]
        for rate, equal in _by_rate(trials).items()
        if len(equal) > 1
    ]
    yield ReportTable([phrases.RUN, *heads, phrases.TIME], rows)


def _by_rate(trials: Sequence[Mapping[str, Any]]) -> dict[float, list[Mapping[str, Any]]]:
    """The trainings by their learning rates."""
    rates = dict.fromkeys(trial["learning_rate"] for trial in trials)
    return {rate: [one for one in trials if one["learning_rate"] == rate] for rate in rates}


def _spread(metric: Metric, scores: Sequence[float | None]) -> str:
    """93.5% ± 0.4%, the deviation that of a sample; "—" where a run has no value."""
    values = [value for value in scores if value is not None]
    if len(values) < len(scores):
        return words.ABSENT
    return f"{words.figure(metric, mean(values))} ± {words.figure(metric, stdev(values))}"


def _hardware(report: Report) -> Made:
    """What it ran on, and how long each part took."""
    known = phrases.HARDWARE_NAMES
    rows: list[list[Wording]] = [
        [known.get(name, name), known.get(value, value)]
        for name, value in report["hardware"].items()
    ]
    for name, seconds in report["seconds"].items():
        phase = phrases.PHASES.get(name, phrases.OTHER_PHASE.format(name=name))
        rows.append([phase, words.duration(seconds)])
    if rows:
        yield ReportTable(["", ""], rows, words=2)
