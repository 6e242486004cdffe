"""Pictures of a run as PNG files, with Chinese drawn as characters.

No pyplot: nothing global is left behind, and no display is needed.
"""

import textwrap
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

from roformer_tf.files import file_beside

_TRAINING, _HELD_OUT = "tab:blue", "tab:orange"


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
        axes[0].set(xlabel="step", ylabel="loss (nats per masked token)")
        if accuracies[0]:
            axes[1].plot(*accuracies, "o-", color=_HELD_OUT, markersize=4)
            axes[1].set(xlabel="step", ylabel="held-out accuracy on masked tokens")
            axes[1].yaxis.set_major_formatter(PercentFormatter(1))
        for axis in axes:
            axis.grid(alpha=0.3)


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


def _curve(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have the key."""
    having = [line for line in lines if key in line]
    return [line["step"] for line in having], [line[key] for line in having]


@contextmanager
def _drawing(target: Path, *, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, its size in inches, that is written to `target` when the block ends well."""
    with matplotlib.rc_context(
        {
            "font.family": [_chinese_font(), "DejaVu Sans"],  # the second for what the first lacks
            "text.parse_math": False,  # a review may hold dollar signs
        }
    ):
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        with file_beside(target) as beside:
            figure.savefig(beside, format="png")


@cache
def _chinese_font() -> str:
    """Make the packaged Noto Sans SC known to matplotlib, once, and return its name."""
    path = pylopdf_fonts_zh_cn.sans_path()
    fontManager.addfont(path)
    return get_font(path).family_name
