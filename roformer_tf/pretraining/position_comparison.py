"""The body of `compare-positions`: rotary positions beside their rivals, equal in all else.

OUTPUT/rows/              the text, prepared once for all runs
OUTPUT/settings.yaml      every setting; usable as --config
OUTPUT/architectures/     rotary.json, learned.json, …
OUTPUT/runs/rotary-0/     a run of `pretrain` for each kind of positions and each seed, …
OUTPUT/comparison.json    the figures; comparison.md, comparison.html, comparison.png show them
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.masking import MaskingConfig
from roformer_tf.corpus.objectives import ObjectiveName
from roformer_tf.corpus.preparation import PreparationConfig, prepare_with
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import file_beside, locked, write_text
from roformer_tf.pretraining.compared_run import (
    RunResult,
    in_own_process,
    row_losses,
    train_and_judge,
)
from roformer_tf.pretraining.position_page import html_page, lines, markdown_page
from roformer_tf.pretraining.settings import MAY_CHANGE, PretrainConfig
from roformer_tf.runs.devices import describe_machine
from roformer_tf.runs.optimizers.settings import OptimizerConfig
from roformer_tf.runs.plots import plot_positions
from roformer_tf.runs.run_files import COMPARED, check_output, settle_precision, write_settings
from roformer_tf.runs.settings import Precision
from roformer_tf.terminal import FALLBACK

PositionName: TypeAlias = Literal["rotary", "partial-rotary", "learned", "sinusoidal", "t5", "none"]
POSITIONS: Mapping[PositionName, Mapping[str, Any]] = {
    "rotary": {},
    "partial-rotary": {"rotary_share": 0.25},  # as in GPT-NeoX
    "learned": {"position_embedding_type": "learned"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "t5": {"position_embedding_type": "t5"},
    "none": {"position_embedding_type": "none"},
}
"""What each kind changes in the architecture."""

DEMO = RoFormerConfig(
    vocab_size=20_000,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=1024,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.05,
    max_position_embeddings=512,
)
"""The architecture of `make demo`, taken where none is given."""

MASKING = MaskingConfig(mask_rate=0.2)
"""How words are masked where nothing is said of it: as the demo masks them."""
RESAMPLES = 2000
Figures: TypeAlias = dict[str, Any]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class ComparePositionsConfig(PreparationConfig):
    """Train the same small model with rotary positions and with their rivals, and compare.

    All see the same text in the same order under the same masks, with the same seeds. Killed, the
    same command continues; more --seeds or --positions later add to what is there.
    """

    positions: tuple[PositionName, ...] = ("rotary", "learned", "sinusoidal", "t5", "none")
    """How tokens know their places; all others are compared with the first. "learned" is BERT's
    table, "t5" a bias by distance, "partial-rotary" turns a quarter of each head."""
    seeds: int = 3
    """How many seeds, from 0 on; each trains every kind once."""
    steps: int = 1000
    """Steps of each training."""
    architecture: str | None = None
    """A bert_config.json; unset, the demo's: 2 layers of 256."""
    objective: ObjectiveName = "masked"
    """What is learned: "masked" words, or "causal", each next token."""
    length: int = 128
    """Tokens in a row, with [CLS] and [SEP]."""
    batch_size: int = 32
    """Rows a step."""
    held_out: float = 0.02
    """Share of documents kept for evaluation."""
    evaluations: int = 10
    """How often a training is evaluated and saved."""
    embeddings: Literal["random", "neighbours"] = "neighbours"
    """Initial word embeddings, as `pretrain` has them."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(optimizer="muon", learning_rate=1e-3)
    )
    masking: MaskingConfig = MASKING
    precision: Precision = "auto"
    """Keras dtype policy; "auto" takes bfloat16 products where the device is fast at them."""

    def __post_init__(self) -> None:
        if self.vocab is None and self.vocab_size is None:
            object.__setattr__(self, "vocab_size", DEMO.vocab_size)
        super().__post_init__()
        if self.objective == "causal":
            if self.masking not in (MASKING, MaskingConfig()):
                raise InputError(
                    "--mask-rate, --mask-replace-rate and --random-replace-rate are of masked "
                    "words, but --objective causal masks none. Leave them out."
                )
            object.__setattr__(self, "masking", MaskingConfig())  # as `pretrain` has it then
        if len(set(self.positions)) < len(self.positions) or len(self.positions) < 2:
            raise InputError(
                f"--positions {' '.join(self.positions)} compares nothing: give two different "
                "ones or more."
            )
        check_numbers(self, "seeds", "steps", "batch_size", "evaluations", at_least=1)

    def variants(self) -> dict[str, Mapping[str, Any]]:
        """By the name of each kind, what it changes in the architecture."""
        return {name: POSITIONS[name] for name in self.positions}


MAY_GROW = ("positions", "seeds", *MAY_CHANGE)
"""Settings that may differ when a comparison continues: no run that is done depends on them."""


def compare_positions(config: ComparePositionsConfig) -> None:
    """Train every kind with every seed, and write how they compare."""
    output = Path(config.output)
    config = settle_precision(config)
    check_output(config, MAY_GROW)
    architecture = RoFormerConfig.from_file(config.architecture) if config.architecture else DEMO
    if config.objective == "causal":
        architecture = architecture.replace(attention_type="causal")
    variants = {name: architecture.replace(**x) for name, x in config.variants().items()}
    with locked(output):
        rows = prepare_with(_preparation(config), None)
        if not len(PreparedRows.open(rows, "held_out")):
            raise InputError(
                "no document is held out, so there is nothing to compare by. Give a larger corpus, "
                "or a larger --held-out."
            )
        write_settings(config)
        results: dict[str, list[RunResult]] = {name: [] for name in variants}
        began, done, total = time.monotonic(), 0, config.seeds * len(variants)
        for seed in range(config.seeds):
            for name, variant in variants.items():
                run = _run_config(config, name, variant, seed, rows)
                print(f"\n{name}, seed {seed} ({done + 1} of {total}): {run.output}", flush=True)
                results[name].append(in_own_process(train_and_judge, run))
                done += 1
                if seed or name == config.positions[-1]:
                    report = compared(config, results)
                    write_report(output, report)
                left = (time.monotonic() - began) / done * (total - done) / 60
                print(f"about {left:,.0f} minutes to go" if total > done else "", flush=True)
    print("\n".join(lines(report, shutil.get_terminal_size(FALLBACK).columns)))
    print(f"\n{output / 'comparison.html'}, comparison.md, comparison.json, comparison.png")


def _preparation(config: ComparePositionsConfig) -> PreparationConfig:
    """What `prepare` has to do first."""
    names = [one.name for one in dataclasses.fields(PreparationConfig)]
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    return PreparationConfig(**settings | {"output": str(Path(config.output, "rows"))})


def _run_config(
    config: ComparePositionsConfig, name: str, variant: RoFormerConfig, seed: int, rows: Path
) -> PretrainConfig:
    """The settings of one training; its architecture is written for it."""
    output = Path(config.output)
    architecture = output / "architectures" / f"{name}.json"
    architecture.parent.mkdir(exist_ok=True)
    write_text(architecture, json.dumps(variant.to_dict(), indent=2) + "\n")
    return PretrainConfig(
        rows=str(rows),
        output=str(output / COMPARED / f"{name}-{seed}"),
        architecture=str(architecture),
        seed=seed,
        save_every=-(-config.steps // config.evaluations),
        keep_checkpoints=1,
        **{
            key: getattr(config, key)
            for key in (
                *("steps", "batch_size", "objective", "embeddings"),
                *("optimizer", "masking", "precision"),
            )
        },
    )


def compared(config: ComparePositionsConfig, results: Mapping[str, Sequence[RunResult]]) -> Figures:
    """What the runs say, of the seeds that every kind has: comparison.json.

    {"baseline": "rotary", "steps": …, "seeds": 3, "positions": {"rotary": {"held_out_loss": …,
    "held_out_accuracy": …, "by_seed": […], "curve": [[0, 9.9], …], "seconds_per_step": …,
    "peak_memory": …, "parameters": …}, "learned": {…, "difference": …, "interval": […, …]}}}

    A difference is that of the held-out losses from the baseline's, the first kind's.
    """
    seeds = min(map(len, results.values()))
    baseline = next(iter(results))
    runs = Path(config.output, COMPARED)
    positions: dict[str, Figures] = {}
    for name, of_name in results.items():
        done = of_name[:seeds]
        peaks = [one.peak_memory for one in done if one.peak_memory is not None]
        steps = [step for step, _ in done[0].curve]
        positions[name] = {
            "held_out_loss": fmean(one.held_out_loss for one in done),
            "held_out_accuracy": fmean(one.held_out_accuracy for one in done),
            "by_seed": [one.held_out_loss for one in done],
            "curve": [
                [step, fmean(one.curve[number][1] for one in done)]
                for number, step in enumerate(steps)
            ],
            "seconds_per_step": median(one.seconds_per_step for one in done),
            "peak_memory": max(peaks, default=None),
            "parameters": done[0].parameters,
        }
        if name != baseline:
            gaps = np.subtract(positions[name]["by_seed"], positions[baseline]["by_seed"])
            ends = (
                seed_interval(gaps)
                if seeds > 1
                else row_interval(
                    row_losses(runs / f"{name}-0"), row_losses(runs / f"{baseline}-0")
                )
            )
            positions[name] |= {"difference": float(gaps.mean()), "interval": ends}
    return {
        "baseline": baseline,
        "corpus": list(config.corpus),
        "objective": config.objective,
        "architecture": config.architecture or "the demo's",
        "steps": config.steps,
        "seeds": seeds,
        "interval_over": "seeds" if seeds > 1 else "held-out rows",
        "length": config.length,
        "batch_size": config.batch_size,
        "precision": config.precision,
        "machine": describe_machine(),
        "positions": positions,
    }


def seed_interval(gaps: Floats) -> list[float]:
    """The 95 % interval of the mean of differences (S,), one of each seed, by Student's t."""
    from scipy.special import stdtrit

    mean, error = gaps.mean(), gaps.std(ddof=1) / np.sqrt(len(gaps))
    reach = stdtrit(len(gaps) - 1, 0.975) * error
    return [float(mean - reach), float(mean + reach)]


def row_interval(rows: tuple[Floats, Floats], baseline: tuple[Floats, Floats]) -> list[float]:
    """The 95 % interval of the difference of two losses by a bootstrap over the rows they share.

    Each gives sums (R,) of losses and how many tokens were told (R,). It says what other rows would
    change, not what another seed would.
    """
    (sums, counts), (others, same) = rows, baseline
    assert (counts == same).all(), "the masks are the same"
    count = len(sums)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return np.quantile(drawn @ (sums - others) / (drawn @ counts), [0.025, 0.975]).tolist()


def write_report(output: Path, report: Figures) -> None:
    """Write the figures, the plot, and the page in both forms, each whole or not at all."""
    write_text(output / "comparison.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    with file_beside(output / "comparison.png") as beside:
        plot_positions(report, beside)
    write_text(output / "comparison.md", markdown_page(report))
    write_text(output / "comparison.html", html_page(report))
