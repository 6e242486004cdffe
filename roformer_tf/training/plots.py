"""Pictures of a run as PNG files, or as SVG for a page, with Chinese drawn as characters.

No pyplot: nothing global is left behind, and no display is needed.
"""

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
import pylopdf_fonts_zh_cn
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font
from matplotlib.ticker import PercentFormatter

from roformer_tf.files import file_beside

_TRAINING, _HELD_OUT, _OTHER = "tab:blue", "tab:orange", "tab:gray"
_DASHES = ("-", "--", ":", "-.")  # each with ten colours: so many runs are told apart
_LEGEND_ROWS = 30  # of one column


class FilledMask(NamedTuple):
    """What a model puts into one masked place of a sentence."""

    sentence: str
    """The text around the mask, the mask shown as the reader should see it."""
    predictions: Sequence[tuple[str, float]]
    """Token and probability, the likeliest first."""
    answer: str | None = None
    """The token that stood there, if known: its bar gets another colour."""


def plot_loss(lines: Sequence[Mapping[str, Any]], target: Path, title: str) -> None:
    """Draw the lines of `metrics.jsonl`: loss by step and, where measured, held-out accuracy.

    A line has `step` and any of `loss`, `held_out_loss` (nats) and `held_out_accuracy` (0 to 1).
    """
    accuracies = _curve(lines, "held_out_accuracy")
    panels = 2 if accuracies[0] else 1
    with _drawing(target, width=6 * panels, height=4) as figure:
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


def plot_runs(runs: Mapping[str, Sequence[Mapping[str, Any]]], target: Path) -> None:
    """Draw the losses of several runs, each by its name with lines such as `plot_loss` takes.

    The training loss is thin, and smooth: a mean over each hundredth of a run's lines.
    """
    # Chinese has no spaces to break at; and what begins with "_" is no label to matplotlib.
    labels = [" " + "\n ".join(textwrap.wrap(name, 40)) for name in runs]
    rows = sum(label.count("\n") + 1 for label in labels)
    columns = -(-rows // _LEGEND_ROWS)
    longest = max(len(line) for label in labels for line in label.split("\n"))
    width, height = 6 + columns * (0.6 + 0.11 * longest), 0.6 + 0.19 * -(-rows // columns)
    with _drawing(target, width=width, height=max(4, height)) as figure:
        axes = figure.subplots()
        for number, (label, lines) in enumerate(zip(labels, runs.values(), strict=True)):
            look: dict[str, Any] = {
                "color": matplotlib.colormaps["tab10"](number % 10),
                "linestyle": _DASHES[number // 10 % len(_DASHES)],
            }
            axes.plot(*_smoothed(_curve(lines, "loss")), linewidth=1, alpha=0.6, **look)
            held_out = _curve(lines, "held_out_loss")
            axes.plot(*held_out, marker="o", markersize=4, label=label, **look)
        axes.set(xlabel="step", ylabel="loss (thin: training, dots: held out)")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", ncols=columns, fontsize=8, handlelength=3)


def plot_fill_masks(examples: Sequence[FilledMask], target: Path, title: str) -> None:
    """Draw for each sentence its predictions as horizontal bars, the likeliest on top."""
    rows = [len(example.predictions) for example in examples]
    with _drawing(target, width=8, height=0.6 + 0.8 * len(rows) + 0.25 * sum(rows)) as figure:
        figure.suptitle(title)
        panels = figure.subplots(len(rows), squeeze=False, sharex=True, height_ratios=rows)[:, 0]
        for axis, example in zip(panels, examples, strict=True):
            tokens = [token for token, _ in example.predictions]
            shares = [share for _, share in example.predictions]
            colours = [_HELD_OUT if token == example.answer else _TRAINING for token in tokens]
            bars = axis.barh(range(len(tokens)), shares, color=colours)
            axis.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3)
            axis.set_yticks(range(len(tokens)), tokens)
            axis.invert_yaxis()
            # Chinese has no spaces to break at: every character may end a line.
            axis.set_title("\n".join(textwrap.wrap(example.sentence, 40)), loc="left", fontsize=11)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlim(0, 1)
            axis.xaxis.set_major_formatter(PercentFormatter(1))
        panels[-1].set_xlabel("probability (orange: what stood there)")


def plot_lengths(models: Mapping[str, Mapping[str, Any]], target: Path) -> None:
    """Draw held-out losses by length of the rows, and by position within the longest: PNG.

    By a name, "" for a model alone, the `by_length` and `by_position` that `evaluate` writes.
    """
    with _drawing(target, width=11, height=4) as figure:
        by_length, by_position = figure.subplots(1, 2, sharey=True)
        for number, (name, report) in enumerate(models.items()):
            look: dict[str, Any] = {
                "color": matplotlib.colormaps["tab10"](number % 10),
                "linestyle": _DASHES[number // 10 % len(_DASHES)],
                "marker": "o",
                "markersize": 4,
            }
            lengths, found = zip(*report["by_length"].items(), strict=True)
            x = [int(length) for length in lengths]
            by_length.plot(x, [one["loss"] for one in found], label=name or None, **look)
            if all(one["interval"] for one in found):
                ends = [one["interval"] for one in found]
                by_length.fill_between(x, *zip(*ends, strict=True), alpha=0.15, color=look["color"])
            spans = report["by_position"]
            middles = [(one["from"] + one["to"]) / 2 for one in spans]
            by_position.plot(middles, [one["loss"] for one in spans], **look)
        by_length.set_xscale("log", base=2)
        by_length.set_xticks(x, [f"{length:,}" for length in x])
        by_length.set(xlabel="tokens in a row", ylabel="held-out loss (nats per predicted token)")
        by_position.set(xlabel=f"position in rows of {max(x):,}")
        if len(models) > 1:
            by_length.legend(fontsize=8)
        for axes in (by_length, by_position):
            _lighten(axes)


class Range(NamedTuple):
    """A figure and its interval."""

    name: str
    value: float
    ends: Sequence[float] | None
    """The lowest and the highest value of the interval, if there is one."""
    ours: bool
    """Whether it is the model's; a baseline's is drawn in another colour."""


def draw_ranges(ranges: Sequence[Range], *, axis_name: str, shares: bool) -> bytes:
    """Draw figures below each other with their intervals, the first on top: SVG."""
    with _page(width=6, height=0.7 + 0.38 * len(ranges)) as figure:
        axes = figure.subplots()
        for row, (_, value, ends, ours) in enumerate(ranges):
            colour = _TRAINING if ours else _OTHER
            if ends is not None:
                axes.plot(ends, [row, row], color=colour, linewidth=5, alpha=0.35)
            axes.plot(value, row, "o", color=colour)
        axes.set_yticks(range(len(ranges)), [one.name for one in ranges])
        axes.set_ylim(len(ranges) - 0.5, -0.5)
        axes.set_xlabel(axis_name)
        if shares:
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        _lighten(axes)
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
    """Draw one of the values that lines hold, by their `step`, both under these names: SVG."""
    with _page(width=4.4, height=3) as figure:
        axes = figure.subplots()
        if held_out:
            axes.plot(*_curve(lines, key), "o-", color=_HELD_OUT, markersize=4)
        else:
            axes.plot(*_curve(lines, key), color=_TRAINING, linewidth=1)
        axes.set(xlabel=step, ylabel=axis_name)
        if shares:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        _lighten(axes)
        return _svg(figure)


def draw_calibration(
    bins: Sequence[Mapping[str, Any]], *, probability: str, frequency: str, count: str
) -> bytes:
    """Draw a reliability diagram, and below how many predictions each point stands for: SVG.

    The bins are those of `tasks.scoring.calibration`, the words the names of the axes.
    """
    with _page(width=4.6, height=4.6) as figure:
        shares, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        shares.plot([0, 1], [0, 1], "--", color=_OTHER, linewidth=1)
        said, right = [one["probability"] for one in bins], [one["right"] for one in bins]
        shares.plot(said, right, "o-", color=_TRAINING)
        shares.set(ylabel=frequency, ylim=(-0.03, 1.03), xlim=(-0.03, 1.03))
        shares.yaxis.set_major_formatter(PercentFormatter(1))
        edges = [one["from"] for one in bins]
        widths = [one["to"] - one["from"] for one in bins]
        counts.bar(edges, [one["count"] for one in bins], widths, align="edge", edgecolor="white")
        counts.set(xlabel=probability, ylabel=count)
        counts.xaxis.set_major_formatter(PercentFormatter(1))
        for axes in (shares, counts):
            _lighten(axes)
        return _svg(figure)


def draw_numbers(points: Sequence[Sequence[float]], *, true: str, predicted: str) -> bytes:
    """Draw a regression's points (true value, predicted value) around the diagonal: SVG."""
    with _page(width=4.6, height=4.6) as figure:
        axes = figure.subplots()
        ends = [min(map(min, points)), max(map(max, points))]
        axes.plot(ends, ends, "--", color=_OTHER, linewidth=1)
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=12, alpha=0.5, linewidths=0, color=_TRAINING)
        axes.set(xlabel=true, ylabel=predicted)
        _lighten(axes)
        return _svg(figure)


def draw_histograms(
    edges: Sequence[float], counts: Sequence[Sequence[int]], *, names: Sequence[str], axis_name: str
) -> bytes:
    """Draw shares of several kinds of values between edges, over each other: SVG."""
    with _page(width=5.2, height=3) as figure:
        axes = figure.subplots()
        for name, found, colour in zip(names, counts, (_TRAINING, _HELD_OUT), strict=True):
            shares = [one / max(1, sum(found)) for one in found]
            axes.stairs(shares, edges, fill=True, alpha=0.45, color=colour, label=name)
        axes.set_xlabel(axis_name)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.legend()
        _lighten(axes)
        return _svg(figure)


def _lighten(axes: Any) -> None:
    """Leave only what helps reading."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have the key and a value."""
    having = [line for line in lines if line.get(key) is not None]
    return [line["step"] for line in having], [line[key] for line in having]


def _smoothed(curve: tuple[list[int], list[float]]) -> tuple[list[float], list[float]]:
    """Steps and values as means over each hundredth of them."""
    several = max(1, len(curve[0]) // 100)
    steps, values = (
        [fmean(numbers[i : i + several]) for i in range(0, len(numbers), several)]
        for numbers in curve
    )
    return steps, values


@contextmanager
def _drawing(target: Path, *, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, its size in inches, that is written to `target` when the block ends well."""
    with _page(width=width, height=height) as figure:
        yield figure
        with file_beside(target) as beside:
            figure.savefig(beside, format="png")


@contextmanager
def _page(*, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, its size in inches; it has to be saved before the block ends."""
    with matplotlib.rc_context(
        {
            "font.family": [_chinese_font(), "DejaVu Sans"],  # the second for what the first lacks
            "text.parse_math": False,  # a review may hold dollar signs
            "svg.fonttype": "path",  # glyphs as shapes: no font is needed to see them
            "svg.hashsalt": "roformer_tf",  # the same picture is the same bytes
        }
    ):
        yield Figure(figsize=(width, height), dpi=150, layout="constrained")


def _svg(figure: Figure) -> bytes:
    """The picture as a file for pages, sharp at every size."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


@cache
def _chinese_font() -> str:
    """Make the packaged Noto Sans SC known to matplotlib, once, and return its name."""
    path = pylopdf_fonts_zh_cn.sans_path()
    fontManager.addfont(path)
    return get_font(path).family_name
