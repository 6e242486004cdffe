"""Draw the four figures of docs/ROTARY.md and docs/zh/ROTARY.md.

    python docs/rotary_figures.py

Every number comes from the functions that the models run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from keras import ops
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font
from pylopdf_fonts_zh_cn import sans_path

from roformer_tf.layers.axes import axial_angles
from roformer_tf.layers.rotary import angles
from roformer_tf.layers.scaling import frequencies

FOLDER = Path(__file__).parent / "figures"
HEAD, TRAINED, LONGEST = 64, 512, 2048
BLOCK = 64
"""Distances of which one mean is drawn, where single ones would hide each other."""
WORDS = {
    "position": "位置",
    "pair of features": "特征对",
    "angle / π": "角度 / π",
    "pair {}": "第 {} 对",
    "wavelength in tokens": "波长（词数）",
    "trained length": "训练长度",
    "distance": "距离",
    "upper bound of the score": "得分上界",
    "base {}": "底数 {}",
    "speed relative to no scaling": "与不缩放时的速度之比",
    "none": "不缩放",
    "linear": "线性",
    "dynamic NTK": "动态 NTK",
    "YaRN": "YaRN",
    "one axis: patches in a line": "一个轴：图块排成一行",
    "two axes: row and column": "两个轴：行与列",
    "column": "列",
    "row": "行",
}
"""Texts in the figures, with their Chinese translation."""


def array(x: Any) -> np.ndarray:
    """A tensor as NumPy's float64."""
    return np.asarray(ops.convert_to_numpy(x), "float64")


def bound(distances: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Equation 37: the mean of |S_j|, S_j = Σ_{i<j} e^{i·d·θ_i}, relative to that at distance 0.

    distances (D,), speeds θ (P,) → (D,).
    """
    sums = np.abs(np.cumsum(np.exp(1j * np.outer(distances, speeds)), axis=1)).mean(axis=1)
    return np.asarray(sums / sums[0])


def draw_angles(figure: Figure, word: Callable[[str], str]) -> None:
    """How fast each pair turns: θ_i = 10000^(−2i/d), equation 15."""
    turning, waves = figure.subplots(1, 2)
    positions = np.arange(129)
    theta = array(angles(positions, HEAD))  # (T, P)
    for pair in (0, 4, 8, 12, 16):
        turning.plot(positions, theta[:, pair] / np.pi, label=word("pair {}").format(pair))
    turning.set(xlabel=word("position"), ylabel=word("angle / π"), ylim=(0, 8))
    turning.legend(fontsize=8)
    for base in (10_000.0, 1_000_000.0):
        speeds, _ = frequencies(HEAD, base)
        waves.semilogy(2 * np.pi / array(speeds), label=word("base {}").format(f"{base:,.0f}"))
    waves.axhline(TRAINED, color="tab:gray", linestyle="--", label=f"{TRAINED}")
    waves.set(xlabel=word("pair of features"), ylabel=word("wavelength in tokens"))
    waves.legend(fontsize=8)


def draw_decay(figure: Figure, word: Callable[[str], str]) -> None:
    """How large a score can be at each distance: section 3.4.3."""
    axes = figure.subplots()
    distances = np.arange(513)
    for base in (100.0, 10_000.0, 1_000_000.0):
        speeds, _ = frequencies(HEAD, base)
        label = word("base {}").format(f"{base:,.0f}")
        axes.plot(distances, bound(distances, array(speeds)), label=label)
    axes.set(xlabel=word("distance"), ylabel=word("upper bound of the score"), ylim=(0, 1))
    axes.legend(fontsize=8)


def draw_scaling(figure: Figure, word: Callable[[str], str]) -> None:
    """What scaling from 512 to 2,048 does to the angles, and to the decay."""
    speed, decay = figure.subplots(1, 2)
    factor = LONGEST / TRAINED
    kinds = {"none": None, "linear": "linear", "dynamic NTK": "dynamic", "YaRN": "yarn"}
    plain = array(frequencies(HEAD, 10_000.0)[0])
    distances = np.arange(LONGEST)
    middles = distances.reshape(-1, BLOCK).mean(axis=1)
    for name, kind in kinds.items():
        parameters = None if kind is None else {"rope_type": kind, "factor": factor}
        speeds = array(frequencies(HEAD, 10_000.0, parameters, TRAINED, LONGEST)[0])
        speed.plot(speeds / plain, label=word(name))
        means = bound(distances, speeds).reshape(-1, BLOCK).mean(axis=1)
        decay.plot(middles, means, label=word(name))
    speed.set(xlabel=word("pair of features"), ylabel=word("speed relative to no scaling"))
    decay.axvline(TRAINED, color="tab:gray", linestyle="--", label=word("trained length"))
    decay.set(xlabel=word("distance"), ylabel=word("upper bound of the score"), ylim=(0, 0.6))
    speed.set_ylim(0, 1.05)
    decay.legend(fontsize=8)


def draw_axes(figure: Figure, word: Callable[[str], str]) -> None:
    """The score of equal features for a query in the middle of 17 × 17 patches."""
    side, head, base = 17, 32, 100.0
    line = np.arange(side * side)
    grid = np.stack([line // side, line % side], axis=1)  # (T, 2)
    places = {"one axis: patches in a line": line[:, None], "two axes: row and column": grid}
    for axes, (name, positions) in zip(figure.subplots(1, 2), places.items(), strict=True):
        theta = array(axial_angles(positions, head, base))  # (T, P)
        # the product of two vectors of ones, turned: Σ cos(θ_n − θ_m)
        scores = np.cos(theta - theta[side * side // 2]).mean(axis=1).reshape(side, side)
        picture = axes.imshow(scores, cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set(title=word(name), xlabel=word("column"), ylabel=word("row"))
    figure.colorbar(picture, ax=figure.axes, shrink=0.8)


FIGURES: dict[str, tuple[Callable[[Figure, Callable[[str], str]], None], float]] = {
    "angles": (draw_angles, 9),
    "decay": (draw_decay, 5.5),
    "scaling": (draw_scaling, 9),
    "axes": (draw_axes, 9),
}
"""By name, what draws it and its width in inches."""


@contextmanager
def drawing(target: Path, width: float) -> Iterator[Figure]:
    """Yield a figure, and save it."""
    fontManager.addfont(sans_path())
    fonts = ["DejaVu Sans", get_font(sans_path()).family_name]
    with matplotlib.rc_context({"font.family": fonts}):
        figure = Figure(figsize=(width, 3.4), dpi=90, layout="constrained")
        yield figure
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(target, metadata={"Software": None})


def main() -> None:
    """Draw all of them, in both languages."""
    FOLDER.mkdir(exist_ok=True)
    for name, (draw, width) in FIGURES.items():
        for language, word in (("", str), ("_zh", WORDS.__getitem__)):
            with drawing(FOLDER / f"{name}{language}.png", width) as figure:
                draw(figure, word)


if __name__ == "__main__":
    main()
