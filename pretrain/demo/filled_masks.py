"""A plot of masked words: the most probable tokens of each sentence, and the original."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import PercentFormatter

from roformer_tf.training.plots import drawing

PREDICTED, ORIGINAL = "tab:blue", "tab:orange"


class FilledMask(NamedTuple):
    """A model's predictions for the mask of a sentence."""

    # With the mask in the form to show.
    sentence: str
    # (token, probability), most probable first.
    predictions: Sequence[tuple[str, float]]
    answer: str


def plot_fill_masks(examples: Sequence[FilledMask], target: Path, title: str) -> None:
    """Draw the predictions of each sentence as horizontal bars, the most probable on top."""
    rows = [len(example.predictions) for example in examples]
    with drawing(target, width=8, height=0.6 + 0.8 * len(rows) + 0.25 * sum(rows)) as figure:
        figure.suptitle(title)
        panels = figure.subplots(len(rows), squeeze=False, sharex=True, height_ratios=rows)[:, 0]
        for axis, example in zip(panels, examples, strict=True):
            tokens = [token for token, _ in example.predictions]
            shares = [share for _, share in example.predictions]
            colours = [ORIGINAL if token == example.answer else PREDICTED for token in tokens]
            bars = axis.barh(range(len(tokens)), shares, color=colours)
            axis.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3)
            axis.set_yticks(range(len(tokens)), tokens)
            axis.invert_yaxis()
            # Chinese has no spaces; a line may break after any character.
            axis.set_title("\n".join(textwrap.wrap(example.sentence, 40)), loc="left", fontsize=11)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlim(0, 1)
            axis.xaxis.set_major_formatter(PercentFormatter(1))
        panels[-1].set_xlabel("probability (orange: the original token)")
