"""Loss curves of the demo's model in float32 and in bfloat16, with several seeds each.

    python -m benchmarks.precision                 300 steps, three seeds, about ten minutes
    python -m benchmarks.precision --steps 40      quicker

Writes plots/precision.png and prints the table. bfloat16 is as good as float32 if the two differ
by less than the seeds do.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.environments import HERE
from pretrain.demo.__main__ import Demo
from pretrain.demo.corpus import write_corpus
from roformer_tf.files import temporary_file
from roformer_tf.training.run_files import read_metrics

PLOT = HERE / "plots" / "precision.png"
LINES: dict[str, dict[str, Any]] = {  # the thin line is visible on top of the broad one
    "float32": {"color": "tab:blue", "linewidth": 3.5, "alpha": 0.4},
    "mixed_bfloat16": {"color": "black", "linewidth": 0.8},
}
# Fraction of the steps, at the end, over which the training loss is averaged.
AVERAGED = 0.2


class Curve(NamedTuple):
    """Losses of one run."""

    steps: list[int]
    losses: list[float]
    held_out: float
    """Held-out loss after the last step."""

    @property
    def end(self) -> float:
        """Mean training loss of the last steps."""
        return statistics.fmean(self.losses[-max(1, int(AVERAGED * len(self.losses))) :])


def train(rows: Path, output: Path, precision: str, seed: int, steps: int) -> Curve:
    """Run `pretrain` with the demo's settings and return its losses."""
    settings = {"precision": precision, "seed": seed, "steps": steps, "log-every": 5}
    arguments = {"config": Demo.config, "rows": rows, "output": output} | settings
    _run("pretrain", arguments)
    lines = list(read_metrics(output / "metrics.jsonl"))
    held_out = list(read_metrics(output / "evaluations.jsonl"))[-1]["held_out_loss"]
    return Curve([line["step"] for line in lines], [line["loss"] for line in lines], held_out)


def _run(command: str, flags: dict[str, object]) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    subprocess.run(
        [sys.executable, "-m", "roformer_tf", command, *words],
        check=True,
        cwd=HERE.parent,
        stdout=subprocess.DEVNULL,
    )


def table(curves: dict[str, list[Curve]]) -> str:
    """Return a Markdown table of means and standard deviations over the seeds."""
    lines = ["| | training loss, last fifth | held-out loss |", "| --- | --- | --- |"]
    figures = {
        precision: [[curve.end for curve in each], [curve.held_out for curve in each]]
        for precision, each in curves.items()
    }
    for precision, columns in figures.items():
        cells = (f"{np.mean(column):.4f} ± {np.std(column, ddof=1):.4f}" for column in columns)
        lines.append(f"| {precision} | {' | '.join(cells)} |")
    differences = np.subtract(figures["mixed_bfloat16"], figures["float32"])  # (2, seeds)
    cells = (f"{np.mean(each):+.4f} ± {np.std(each, ddof=1):.4f}" for each in differences)
    lines.append(f"| bfloat16 − float32, seed by seed | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(curves: dict[str, list[Curve]], target: Path) -> None:
    """Plot the training loss of every run: float32 as broad lines, bfloat16 as thin ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axis = figure.subplots()
    for precision, each in curves.items():
        for number, curve in enumerate(each):
            axis.plot(
                curve.steps,
                curve.losses,
                label=precision if number == 0 else None,
                **LINES[precision],
            )
    axis.set(xlabel="step", ylabel="training loss (nats per masked token)")
    axis.grid(alpha=0.3)
    axis.legend()
    with temporary_file(target) as temporary:
        figure.savefig(temporary, format="png", dpi=100)


def main() -> None:
    """Train all runs, draw the plot and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="roformer-precision-") as name:
        folder = Path(name)
        write_corpus(folder / "corpus.jsonl")
        rows = folder / "rows"
        flags: dict[str, Any] = {
            "vocab-size": Demo.vocab_size,
            "length": Demo.length,
            "held-out": Demo.held_out,
        }
        _run("prepare", {"corpus": folder / "corpus.jsonl", "output": rows} | flags)
        curves: dict[str, list[Curve]] = {precision: [] for precision in LINES}
        for seed, precision in itertools.product(args.seeds, LINES):
            output = folder / f"{precision}-{seed}"
            curves[precision].append(train(rows, output, precision, seed, args.steps))
    draw(curves, PLOT)
    print(table(curves))


if __name__ == "__main__":
    main()
