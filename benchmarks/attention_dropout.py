"""Effect of attention dropout on the held-out loss of the demo's model.

    python -m benchmarks.attention_dropout                 300 steps, three seeds, both rates
    python -m benchmarks.attention_dropout --steps 40      quicker

Kernels that never store the attention weights are fastest without attention dropout, so the long
recipes set it to 0. This benchmark trains the demo's model with attention dropout 0 and 0.1, and
with the recipes' dropout of 0.1 on hidden states. For one seed, both runs have the same initial
weights, rows and masks. It prints a table; the difference is significant if its interval excludes
0. `--output` keeps the runs, and finished runs are not repeated.
"""

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.environments import HERE
from pretrain.demo.__main__ import Demo
from pretrain.demo.corpus import write_corpus
from roformer_tf.training.run_files import read_metrics

RATES = (0.0, 0.1)
# Dropout on hidden states, as in the recipes. The demo itself uses no dropout at all.
HIDDEN = 0.1
# Student's t of a 95 % interval, by the number of pairs.
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}

# Held-out losses by rate, in the order of the seeds.
Losses = Mapping[float, Sequence[float]]


def held_out_loss(rows: Path, output: Path, rate: float, seed: int, steps: int) -> float:
    """Run `pretrain` with the demo's settings and this dropout; return its last held-out loss."""
    evaluations = output / "evaluations.jsonl"
    dropout = {"dropout": HIDDEN, "attention-dropout": rate}
    arguments = {
        "config": Demo.config,
        "rows": rows,
        "output": output,
        "seed": seed,
        "steps": steps,
    }
    _run("pretrain", arguments | dropout | {"precision": "mixed_bfloat16", "save-every": steps})
    return float(list(read_metrics(evaluations))[-1]["held_out_loss"])


def _run(command: str, flags: Mapping[str, object]) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    subprocess.run(
        [sys.executable, "-m", "roformer_tf", command, *words],
        check=True,
        cwd=HERE.parent,
        stdout=subprocess.DEVNULL,
    )


def table(losses: Losses) -> str:
    """Return a Markdown table of the losses of each rate and their differences by seed."""
    lines = ["| attention dropout | held-out loss, by seed | mean |", "| --- | --- | --: |"]
    for rate, each in losses.items():
        cells = ", ".join(f"{loss:.4f}" for loss in each)
        lines.append(f"| {rate:g} | {cells} | {np.mean(each):.4f} |")
    without, dropped = losses.values()
    differences = np.subtract(without, dropped).tolist()
    cells = ", ".join(f"{x:+.4f}" for x in differences)
    mean, half = difference(differences)
    lines.append(f"| 0 − 0.1 | {cells} | {mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}] |")
    return "\n".join(lines)


def difference(pairs: Sequence[float]) -> tuple[float, float]:
    """Return the mean difference and half the width of its 95 % interval (nan for one pair)."""
    if len(pairs) < min(T_95):
        return float(np.mean(pairs)), math.nan
    error = float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
    return float(np.mean(pairs)), T_95[len(pairs)] * error


def main() -> None:
    """Train with both rates and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, help="folder to keep the runs in")
    args = parser.parse_args()
    if not 1 <= len(args.seeds) <= max(T_95):
        parser.error(f"give 1 to {max(T_95)} seeds")
    with tempfile.TemporaryDirectory(prefix="roformer-dropout-") as name:
        folder = (args.output or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        corpus, rows = folder / "corpus.jsonl", folder / "rows"
        write_corpus(corpus)
        demo = {"vocab-size": Demo.vocab_size, "length": Demo.length, "held-out": Demo.held_out}
        _run("prepare", {"corpus": corpus, "output": rows} | demo)
        losses: dict[float, list[float]] = {rate: [] for rate in RATES}
        for seed, rate in itertools.product(args.seeds, RATES):
            run = folder / f"{rate:g}-{seed}"
            losses[rate].append(held_out_loss(rows, run, rate, seed, args.steps))
            print(f"seed {seed}, attention dropout {rate:g}: {losses[rate][-1]:.4f}", flush=True)
    print(table(losses))


if __name__ == "__main__":
    main()
