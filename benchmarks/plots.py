"""Plots of the measurements, as PNG."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases import LIMIT
from benchmarks.results import Record, Results, median
from roformer_tf.files import temporary_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "length": "tokens in a row (4,096 a step)",
    "batch": "rows of 512 tokens",
    "num_hidden_layers": "layers",
    "vocab_size": "vocabulary",
}


def draw(results: Results, folder: Path) -> None:
    """Draw the plot of each case that has measurements."""
    for case, plot in DRAWN.items():
        records = results.of(case)
        if records:
            with temporary_file(folder / f"{case}.png") as temporary:
                plot(records).savefig(temporary, format="png", dpi=100)


def ratios(records: list[Record]) -> "Figure":
    """Plot the time of each contender divided by ours, by shape."""
    names = list(dict.fromkeys(row["name"] for r in records for row in r["rows"][1:]))
    names.sort(key=LIMIT.__eq__)  # the limit comes last
    figure, (axis,) = _figure(1, height=0.8 * len(records) + 1)
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        actual = [(i, median(r, name), median(r, "ours")) for i, r in enumerate(records)]
        bars = [(i + number * height, its / our) for i, its, our in actual if its and our]
        if bars:
            axis.barh(*zip(*bars, strict=True), height=height, label=name)
    axis.axvline(1, color="black", linewidth=0.8)
    middles = [i + 0.4 - height / 2 for i in range(len(records))]
    axis.set_yticks(middles, [" ".join(map(str, r["shape"].values())) for r in records])
    axis.invert_yaxis()
    axis.set_xlabel("its time ÷ ours")
    axis.set_ylabel("size, length, dropout")
    if axis.patches:
        figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    return figure


def growth_of_step(records: list[Record]) -> "Figure":
    """Plot tokens/s against length, batch size, layers and vocabulary size."""
    figure, axes = _figure(len(records), height=3)
    for axis, record in zip(axes, records, strict=True):
        rows = [row for row in record["rows"] if row["seconds"]]
        sizes = [int(row["name"]) for row in rows]
        rates = [row["facts"]["tokens_a_step"] / statistics.median(row["seconds"]) for row in rows]
        axis.semilogx(sizes, rates, "o-", base=2)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize="x-small")
        axis.set_ylim(0, 1.1 * max(rates, default=1))
        axis.set_xlabel(NAMES[record["shape"]["by"]])
    axes[0].set_ylabel("tokens/s")
    return figure


def growth_of_preparation(records: list[Record]) -> "Figure":
    """Plot seconds and memory against the size of the corpus."""
    figure, axes = _figure(2, height=3.5)
    sizes = [r["shape"]["megabytes"] for r in records]
    memory = [r["rows"][0]["facts"].get("peak_memory", 0) / 1e6 for r in records]
    axes[0].loglog(sizes, [median(r, "ours") or float("nan") for r in records], "o-")
    axes[0].set_ylabel("seconds")
    axes[1].semilogx(sizes, memory, "o-")
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("largest process, MB")
    for axis in axes:
        axis.set_xlabel("corpus, MB")
    return figure


DRAWN = {
    "mlm_step": ratios,
    "scaling": growth_of_step,
    "corpus_scaling": growth_of_preparation,
}


def _figure(columns: int, height: float) -> "tuple[Figure, list[Any]]":
    """Return a figure (without a window) and its axes, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])
