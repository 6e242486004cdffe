"""Plots of a run as PNG files, or as SVG for a page, with a font that has Chinese characters.

No pyplot: it keeps global state, and may need a display.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pylopdf_fonts_zh_cn
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font
from matplotlib.ticker import PercentFormatter

from roformer_tf.files import temporary_file

_TRAINING, _HELD_OUT, _OTHER = "tab:blue", "tab:orange", "tab:gray"


def plot_loss(lines: Sequence[Mapping[str, Any]], target: Path, title: str) -> None:
    """Draw the lines of `metrics.jsonl`: loss by step and, where measured, held-out accuracy.

    A line has `step` and any of `loss`, `held_out_loss` (nats) and `held_out_accuracy` (0 to 1).
    """
    accuracies = _curve(lines, "held_out_accuracy")
    panels = 2 if accuracies[0] else 1
    with drawing(target, width=6 * panels, height=4) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        axes[0].plot(*_curve(lines, "loss"), color=_TRAINING, linewidth=1, label="training")
        held_out = _curve(lines, "held_out_loss")
        if held_out[0]:
            axes[0].plot(*held_out, "o-", color=_HELD_OUT, markersize=4, label="held out")
            axes[0].legend()
        axes[0].set(xlabel="step", ylabel="loss (nats per predicted token)")
        if accuracies[0]:
            axes[1].plot(*accuracies, "o-", color=_HELD_OUT, markersize=4)
            axes[1].set(xlabel="step", ylabel="held-out accuracy on predicted tokens")
            axes[1].yaxis.set_major_formatter(PercentFormatter(1))
        for axis in axes:
            axis.grid(alpha=0.3)


def plot_lengths(models: Mapping[str, Mapping[str, Any]], target: Path) -> None:
    """Draw held-out losses by sequence length, and by position in the longest sequences: PNG.

    models: `by_length` and `by_position` of `evaluate --corpus`, by a name; "" for a single model.
    """
    with drawing(target, width=11, height=4) as figure:
        by_length, by_position = figure.subplots(1, 2, sharey=True)
        for number, (name, report) in enumerate(models.items()):
            look = {"color": f"C{number}", "marker": "o", "markersize": 4}
            lengths, figures = zip(*report["by_length"].items(), strict=True)
            x = [int(length) for length in lengths]
            by_length.plot(x, [point["loss"] for point in figures], label=name or None, **look)
            ends = [point["interval"] for point in figures]
            if all(ends):
                by_length.fill_between(x, *zip(*ends, strict=True), alpha=0.15, color=look["color"])
            spans = report["by_position"]
            middles = [(span["from"] + span["to"]) / 2 for span in spans]
            by_position.plot(middles, [span["loss"] for span in spans], **look)
        by_length.set_xscale("log", base=2)
        by_length.set_xticks(x, [f"{length:,}" for length in x])
        by_length.set(xlabel="sequence length", ylabel="held-out loss (nats per predicted token)")
        by_position.set(xlabel=f"position in sequences of {max(x):,}")
        if len(models) > 1:
            by_length.legend(fontsize=8)
        for axes in (by_length, by_position):
            _lighten(axes)


class Range(NamedTuple):
    """A figure and its interval."""

    name: str
    value: float
    # The lowest and the highest value of the interval, if there is one.
    ends: Sequence[float] | None
    # Whether it is the model's; a baseline's is drawn in another colour.
    ours: bool


def draw_ranges(ranges: Sequence[Range], *, axis_name: str, shares: bool) -> bytes:
    """Draw figures below each other with their intervals, the first on top: SVG."""
    with _page(width=6, height=0.7 + 0.38 * len(ranges)) as figure:
        axes = figure.subplots()
        for row, (_, value, ends, ours) in enumerate(ranges):
            colour = _TRAINING if ours else _OTHER
            if ends is not None:
                axes.plot(ends, [row, row], color=colour, linewidth=5, alpha=0.35)
            axes.plot(value, row, "o", color=colour)
        axes.set_yticks(range(len(ranges)), [x.name for x in ranges])
        # An inverted axis, so that the first row is on top.
        axes.set_ylim(len(ranges) - 0.5, -0.5)
        axes.set_xlabel(axis_name)
        if shares:
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        return _svg(figure)


def draw_curve(
    lines: Sequence[Mapping[str, Any]],
    key: str,
    *,
    step: str,
    axis_name: str,
    held_out: bool,
    shares: bool,
) -> bytes:
    """Draw the values of `key` in the lines by their `step`: SVG. The rest are axis labels."""
    with _page(width=4.4, height=3) as figure:
        axes = figure.subplots()
        if held_out:
            axes.plot(*_curve(lines, key), "o-", color=_HELD_OUT, markersize=4)
        else:
            axes.plot(*_curve(lines, key), color=_TRAINING, linewidth=1)
        axes.set(xlabel=step, ylabel=axis_name)
        if shares:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        return _svg(figure)


def draw_calibration(
    bins: Sequence[Mapping[str, Any]], *, probability: str, frequency: str, count: str
) -> bytes:
    """Draw a reliability diagram, and below it the number of predictions of each point: SVG.

    bins: of `tasks.scoring.calibration`; the other arguments are axis labels.
    """
    with _page(width=4.6, height=4.6) as figure:
        shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        shares.plot([0, 1], [0, 1], "--", color=_OTHER, linewidth=1)
        shares.plot(
            [x["probability"] for x in bins], [x["right"] for x in bins], "o-", color=_TRAINING
        )
        shares.set(ylabel=frequency, ylim=(-0.03, 1.03), xlim=(-0.03, 1.03))
        shares.yaxis.set_major_formatter(PercentFormatter(1))
        edges = [x["from"] for x in bins]
        widths = [x["to"] - x["from"] for x in bins]
        counts.bar(edges, [x["count"] for x in bins], widths, align="edge", edgecolor="white")
        counts.set(xlabel=probability, ylabel=count)
        counts.xaxis.set_major_formatter(PercentFormatter(1))
        return _svg(figure)


def draw_numbers(points: Sequence[Sequence[float]], *, true: str, predicted: str) -> bytes:
    """Draw a regression's points (true value, predicted value) around the diagonal: SVG."""
    with _page(width=4.6, height=4.6) as figure:
        axes = figure.subplots()
        # The diagonal covers both axes: from the smallest to the largest number of either.
        ends = [min(map(min, points)), max(map(max, points))]
        axes.plot(ends, ends, "--", color=_OTHER, linewidth=1)
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=12, alpha=0.5, linewidths=0, color=_TRAINING)
        axes.set(xlabel=true, ylabel=predicted)
        return _svg(figure)


def draw_histograms(
    edges: Sequence[float], counts: Sequence[Sequence[int]], *, names: Sequence[str], axis_name: str
) -> bytes:
    """Draw histograms of several kinds of values, as fractions, over each other: SVG."""
    with _page(width=5.2, height=3) as figure:
        axes = figure.subplots()
        for name, of_kind, colour in zip(names, counts, (_TRAINING, _HELD_OUT), strict=True):
            shares = [number / max(1, sum(of_kind)) for number in of_kind]
            axes.stairs(shares, edges, fill=True, alpha=0.45, color=colour, label=name)
        axes.set_xlabel(axis_name)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.legend()
        return _svg(figure)


def _lighten(axes: Any) -> None:
    """Draw a faint grid, and no frame on the right and above."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have the key and a value."""
    having = [line for line in lines if line.get(key) is not None]
    return [line["step"] for line in having], [line[key] for line in having]


@contextmanager
def drawing(target: Path, *, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, its size in inches, that is written to `target` if the block succeeds."""
    with _page(width=width, height=height) as figure:
        yield figure
        with temporary_file(target) as partial:
            figure.savefig(partial, format="png")


@contextmanager
def _page(*, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, its size in inches; it must be saved before the block ends."""
    with matplotlib.rc_context(
        {
            "font.family": [_chinese_font(), "DejaVu Sans"],  # the second for what the first lacks
            "text.parse_math": False,  # a review may contain dollar signs
            "svg.fonttype": "path",  # glyphs as shapes, which need no font
            "svg.hashsalt": "roformer_tf",  # the same picture is the same bytes
        }
    ):
        yield Figure(figsize=(width, height), dpi=150, layout="constrained")


def _svg(figure: Figure) -> bytes:
    """The picture as a file for pages, sharp at every size."""
    for axes in figure.axes:
        _lighten(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


@cache
def _chinese_font() -> str:
    """Make the packaged Noto Sans SC known to matplotlib, once, and return its name."""
    path = pylopdf_fonts_zh_cn.sans_path()
    fontManager.addfont(path)
    return get_font(path).family_name
