"""Compare rotary positions with learned, sinusoidal, T5's and no positions, all else equal.

    python -m benchmarks.positions --corpus 'data/*.jsonl' --output runs/positions --seeds 3

OUTPUT/rows/              the text, prepared once for all runs
OUTPUT/settings.yaml      every setting; usable as --config
OUTPUT/architectures/     rotary.json, learned.json, …
OUTPUT/runs/rotary-0/     … one run of `pretrain` for each kind of positions and each seed
OUTPUT/comparison.json    the figures, also as comparison.md, comparison.html and comparison.png
"""

import base64
import dataclasses
import html
import json
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from safetensors import safe_open
from scipy.stats import ttest_1samp

from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.objectives import MaskingConfig, ObjectiveName
from roformer_tf.corpus.preparation import PreparationConfig, prepare
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.files import find_recipe, locked, remove, temporary_file, write_text
from roformer_tf.pretraining.settings import MAY_CHANGE, PretrainConfig
from roformer_tf.training.devices import describe_machine
from roformer_tf.training.run_files import (
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL,
    RESULT,
    SETTINGS,
    plain,
    read_metrics,
    read_settings,
    settle_precision,
    write_settings,
)
from roformer_tf.training.settings import OptimizerConfig, Precision
from roformer_tf.usage import from_words

PROGRAM = "python -m benchmarks.positions"

PositionName: TypeAlias = Literal["rotary", "partial-rotary", "learned", "sinusoidal", "t5", "none"]
# Architecture settings of each kind of positions.
CHANGES: Mapping[PositionName, Mapping[str, Any]] = {
    "rotary": {},
    "partial-rotary": {"rotary_share": 0.25},  # as in GPT-NeoX
    "learned": {"position_embedding_type": "learned"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "t5": {"position_embedding_type": "t5"},
    "none": {"position_embedding_type": "none"},
}


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(PreparationConfig):
    """Train the same small model with each kind of positions, and compare held-out losses.

    All runs of a seed see the same text in the same order under the same masks. The same command
    continues after an interruption; larger --seeds or more --positions add runs.
    """

    positions: tuple[PositionName, ...] = ("rotary", "learned", "sinusoidal", "t5", "none")
    """Kinds of positions; the first is the baseline. "learned" is BERT's table, "t5" a bias by
    distance, "partial-rotary" rotates a quarter of each head."""
    seeds: int = 3
    """Number of seeds: each kind is trained once with each of 0, 1, …"""
    steps: int = 1000
    """Steps of each run."""
    architecture: str = "demo"
    """A bert_config.json, or the name of a recipe's. Default: the demo's, 2 layers of 256."""
    objective: ObjectiveName = "masked"
    """Training objective: "masked" words or "causal" (next token)."""
    vocab_size: int | None = 20_000
    """Size of the vocabulary to build from the corpus, unless --vocab is given."""
    length: int = 128
    """Sequence length, with [CLS] and [SEP]."""
    batch_size: int = 32
    """Sequences a step."""
    held_out: float = 0.02
    """Fraction of documents held out for evaluation."""
    evaluations: int = 10
    """Evaluations of each run."""
    embeddings: Literal["random", "neighbours"] = "neighbours"
    """Initial word embeddings, as for `pretrain`."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(optimizer="muon", learning_rate=1e-3)
    )
    masking: MaskingConfig = field(default_factory=lambda: MaskingConfig(mask_rate=0.2))
    precision: Precision = "auto"
    """Keras dtype policy. auto: bfloat16 products where the device is fast at them."""

    def __post_init__(self) -> None:
        if self.vocab:
            object.__setattr__(self, "vocab_size", None)
        super().__post_init__()
        if len(set(self.positions)) < max(2, len(self.positions)):
            raise InputError("--positions needs at least two different kinds to compare.")
        for name in ("seeds", "steps", "evaluations"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}, but must be at least 1.")


def compare(config: ComparisonConfig) -> None:
    """Train each kind of positions with each seed, and write the report after each seed."""
    config = settle_precision(config)
    _check_same(config)
    output = Path(config.output)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in config.positions}
    with locked(output):
        rows = _prepared_rows(config)
        write_settings(config)
        for seed in range(config.seeds):
            for name in config.positions:
                run = _run_config(config, name, seed, rows)
                print(f"\n{name}, seed {seed} of {config.seeds}: {run.output}", flush=True)
                results[name].append(_result(run))
            _write_report(output, _report(config, results))
    print(f"\n{(output / 'comparison.md').read_text('utf-8')}\nSee {output / 'comparison.html'}.")


def _check_same(config: ComparisonConfig) -> None:
    """Raise InputError if the finished runs of the folder have other settings."""
    output = Path(config.output)
    if (output / SETTINGS).exists():
        started, now = read_settings(output), plain(config)
        free = {"seeds", "positions", *MAY_CHANGE}
        changed = [x for x in now if x not in free and started.get(x) != now[x]]
        if changed:
            raise InputError(
                f"{output} holds a comparison with other settings: {', '.join(changed)}. Give "
                "those, or another --output."
            )


def _prepared_rows(config: ComparisonConfig) -> Path:
    names = [item.name for item in dataclasses.fields(PreparationConfig)]
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    rows = prepare(PreparationConfig(**settings | {"output": f"{config.output}/rows"}))
    if not len(PreparedRows.open(rows, "held_out")):
        raise InputError("No document is held out. Give more text or a larger --held-out.")
    return rows


def _run_config(
    config: ComparisonConfig, name: PositionName, seed: int, rows: Path
) -> PretrainConfig:
    """Return the settings of one run, and write its architecture."""
    architecture = RoFormerConfig.from_file(find_recipe(config.architecture, ".json")).replace(
        **CHANGES[name]
    )
    masking = config.masking
    if config.objective == "causal":
        architecture = architecture.replace(attention_type="causal")
        if masking == MaskingConfig(mask_rate=0.2):  # our default; the user set no flag
            masking = MaskingConfig()
    file = Path(config.output, "architectures", f"{name}.json")
    file.parent.mkdir(exist_ok=True)
    write_text(file, json.dumps(architecture.to_dict(), indent=2) + "\n")
    return PretrainConfig(
        rows=str(rows),
        output=f"{config.output}/runs/{name}-{seed}",
        architecture=str(file),
        seed=seed,
        steps=config.steps,
        batch_size=config.batch_size,
        objective=config.objective,
        embeddings=config.embeddings,
        optimizer=config.optimizer,
        masking=masking,
        precision=config.precision,
        save_every=-(-config.steps // config.evaluations),
        keep_checkpoints=1,
    )


def _result(run: PretrainConfig) -> dict[str, Any]:
    """Train unless the run is finished, and return its figures."""
    output = Path(run.output)
    if (output / RESULT).exists():
        return dict(json.loads((output / RESULT).read_text("utf-8")))
    # A separate process for each run, so that peak memory does not include earlier runs.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            peak = pool.submit(_train, run).result()
        except BrokenProcessPool:
            raise InputError(
                f"{output}: the training process was killed, perhaps because memory ran out. "
                "The same command continues."
            ) from None
    evaluations = read_metrics(output / EVALUATIONS_FILE)
    paces = [line["tokens_per_second"] for line in read_metrics(output / METRICS_FILE)]
    tokens = run.batch_size * PreparedRows.open(str(run.rows)).length
    with safe_open(output / MODEL / "model.safetensors", "numpy") as weights:
        # The layout of transformers includes the constant rotary table, which has no parameters.
        names = [name for name in weights.keys() if "embed_positions" not in name]  # noqa: SIM118
        shapes = [weights.get_slice(name).get_shape() for name in names]
    result = {
        "held_out_loss": evaluations[-1]["held_out_loss"],
        "held_out_accuracy": evaluations[-1]["held_out_accuracy"],
        "curve": [[line["step"], line["held_out_loss"]] for line in evaluations],
        "seconds_per_step": tokens / median(paces),
        "peak_memory": peak,
        "parameters": int(sum(map(np.prod, shapes))),
    }
    write_text(output / RESULT, json.dumps(result) + "\n")
    remove(output / CHECKPOINTS)
    return result


def _train(run: PretrainConfig) -> int | None:
    """Run `pretrain`; return this process's peak memory in bytes, or None except on Linux."""
    from roformer_tf.pretraining.command import pretrain

    pretrain(run)
    status = Path("/proc/self/status")  # getrusage would include the parent's memory
    if not status.exists():
        return None
    lines = status.read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _report(
    config: ComparisonConfig, results: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the content of comparison.json; differences are from the loss of the first kind."""
    positions: dict[str, dict[str, Any]] = {}
    baseline = config.positions[0]
    seeds = len(results[config.positions[-1]])
    for name, runs in results.items():
        losses = [run["held_out_loss"] for run in runs]
        curves = np.array([run["curve"] for run in runs])  # (seeds, evaluations, step and loss)
        peaks = [run["peak_memory"] for run in runs if run["peak_memory"]]
        positions[name] = {
            "held_out_loss": fmean(losses),
            "held_out_accuracy": fmean(run["held_out_accuracy"] for run in runs),
            "by_seed": losses,
            "curve": curves.mean(axis=0).tolist(),
            "seconds_per_step": median(run["seconds_per_step"] for run in runs),
            "peak_memory": max(peaks, default=None),
            "parameters": runs[0]["parameters"],
        }
        if name != baseline:
            gaps = np.subtract(losses, positions[baseline]["by_seed"])
            positions[name] |= {
                "difference": float(gaps.mean()),
                "interval": seed_interval(gaps) if seeds > 1 else None,
            }
    shown = ("objective", "architecture", "steps", "length", "batch_size", "precision")
    return {
        "baseline": baseline,
        "corpus": list(config.corpus),
        "seeds": seeds,
        **{name: getattr(config, name) for name in shown},
        "machine": describe_machine(),
        "positions": positions,
    }


def seed_interval(gaps: Any) -> list[float]:
    """Return the 95 % interval (Student's t) of the mean of paired differences (seeds,)."""
    interval = ttest_1samp(gaps, 0).confidence_interval()
    return [float(interval.low), float(interval.high)]


def _write_report(output: Path, report: dict[str, Any]) -> None:
    write_text(output / "comparison.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    with temporary_file(output / "comparison.png") as picture:
        _plot(report, picture)
    head = [
        "positions",
        "loss",
        "accuracy",
        "difference",
        "95 % interval",
        "result",
        "ms/step",
        "MiB",
        "parameters",
    ]
    rows = [_cells(name, item) for name, item in report["positions"].items()]
    caption = (
        f"Held-out loss (nats, {report['objective']} tokens) after {report['steps']:,} steps of "
        f"{report['batch_size']} sequences of {report['length']} tokens; mean of "
        f"{report['seeds']} seed(s). A difference from {report['baseline']} below 0 is better. "
        "The interval is Student's t over paired seeds and needs at least two."
    )
    markdown = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in markdown)
    write_text(
        output / "comparison.md",
        f"# Positions compared\n\n{caption}\n\n{table}\n\n![Curves](comparison.png)\n",
    )
    page = "".join(
        f"<tr><td>{'<td>'.join(map(html.escape, cells))}</tr>" for cells in [head, *rows]
    )
    picture_url = base64.b64encode((output / "comparison.png").read_bytes()).decode()
    write_text(
        output / "comparison.html",
        f"<!doctype html><meta charset=utf-8><title>Positions compared</title>{STYLE}"
        f"<h1>Positions compared</h1><p>{caption}</p><div><table>{page}</table></div>"
        f"<img alt='Held-out losses by step, and differences' src='data:image/png;base64,"
        f"{picture_url}'>\n",
    )


STYLE = """<meta name=viewport content="width=device-width, initial-scale=1">
<style>
body { max-width: 68rem; margin: 0 auto; padding: 1rem; font: 16px/1.6 system-ui, sans-serif; }
h1 { font-size: 1.6rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #dde3e9; }
td:first-child { text-align: left; }
tr:first-child { color: #5b6875; }
img { max-width: 100%; margin-top: 1rem; }
</style>"""


def _result_in_words(interval: Sequence[float] | None) -> str:
    """Describe the 95 % interval of the difference from the baseline's loss."""
    if interval is None:
        return ""
    low, high = interval
    return "better" if high < 0 else "worse" if low > 0 else "no difference shown"


def _cells(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Return the table row of one kind of positions."""
    interval, memory = figures.get("interval"), figures["peak_memory"]
    return [
        name,
        f"{figures['held_out_loss']:.4f}",
        f"{figures['held_out_accuracy']:.2%}",
        f"{figures['difference']:+.4f}" if "difference" in figures else "",
        "{:+.4f} to {:+.4f}".format(*interval) if interval else "",
        _result_in_words(interval),
        f"{1000 * figures['seconds_per_step']:,.0f}",
        f"{memory / 2**20:,.0f}" if memory else "",
        f"{figures['parameters']:,}",
    ]


def _plot(report: Mapping[str, Any], target: Path) -> None:
    """Draw held-out losses by step, and differences with their intervals."""
    figure = Figure(figsize=(11, 4), dpi=150, layout="constrained")
    curves, differences = figure.subplots(1, 2, width_ratios=(3, 2))
    for row, (name, item) in enumerate(report["positions"].items()):
        curves.plot(
            *zip(*item["curve"], strict=True), "o-", markersize=3, label=name, color=f"C{row}"
        )
        if item.get("interval"):
            differences.plot(item["interval"], [row] * 2, linewidth=5, alpha=0.35, color=f"C{row}")
        differences.plot(item.get("difference", 0), row, "o", color=f"C{row}")
    curves.set(xlabel="step", ylabel="held-out loss (nats per predicted token)")
    curves.legend()
    differences.set_yticks(range(len(report["positions"])), list(report["positions"]))
    differences.invert_yaxis()
    differences.set_xlabel(f"held-out loss, difference from {report['baseline']}")
    figure.savefig(target, format="png")


def main(words: list[str]) -> int:
    """Run the comparison with these flags; return the exit code."""
    try:
        compare(from_words(ComparisonConfig, words, PROGRAM))
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
