"""Recipes of `pretrain` → their estimated cost: parameters, tokens, operations, days and money.

    days = operations / (devices · peak · utilisation · 86,400)

A recipe is read as by `pretrain --config`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import find_recipe
from roformer_tf.flags import parsed, yaml_values
from roformer_tf.pretraining.settings import PretrainConfig, read_architecture, stage_flops
from roformer_tf.terminal import show
from roformer_tf.tokenizers.padding import check_length

DAY = 86_400  # seconds


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Estimate the cost of pretraining with recipes, such as `base`.

    The time is estimated from the number of operations and the utilization of the devices. A run
    with --peak-flops reports its measured utilization as `mfu` in metrics.jsonl.

    Examples:
        roformer-tf cost base
        roformer-tf cost base small --devices 1 8 64 --price 2.5
    """

    recipe: tuple[Path, ...]
    """Recipes of `pretrain`: names, or paths to YAML files."""
    architecture: Path | None = None
    """A bert_config.json or the name of a recipe's architecture, for recipes that start from a
    checkpoint and have none."""
    peak_flops: float = 989e12
    """Peak floating-point operations per second of one device. Default: an H100 in bfloat16."""
    utilisation: float = 0.33
    """Fraction of the peak that a run on one device reaches. Default: `base` on an H200."""
    efficiency: float = 0.9
    """Speed per device on several devices, relative to a single device."""
    devices: tuple[int, ...] = (1, 8)
    """Numbers of devices to estimate days and money for."""
    price: float = 3.0
    """US$ per hour and device."""

    def __post_init__(self) -> None:
        check_numbers(self, "peak_flops", above=0, example="312e12")
        check_numbers(self, "utilisation", "efficiency", above=0, at_most=1)
        if not self.devices or min(self.devices) < 1:
            raise InputError(f"devices is {self.devices}, but must be numbers of at least 1.")
        check_numbers(self, "price", at_least=0)


def cost(config: CostConfig) -> None:
    """Print the cost of the recipes as a Markdown table.

    Raises InputError for a recipe that `pretrain` would refuse, and for an architecture that no
    recipe needs.
    """
    recipes = [read_recipe(path, config.architecture) for path in config.recipe]
    if config.architecture and all(settings.architecture for _, settings, _ in recipes):
        raise InputError("the recipes have an architecture already. Remove --architecture.")
    lines = [line for recipe in recipes for line in costs(*recipe)]
    show("\n".join(rendered(lines, config)))


def read_recipe(
    path: Path, architecture: Path | None
) -> tuple[str, PretrainConfig, RoFormerConfig]:
    """Read a recipe: its name, its settings as for `pretrain`, and the model's architecture.

    The data and --output, which do not count, get placeholders. `architecture` is for a
    recipe without one. Raises InputError if neither has one.
    """
    path = find_recipe(path)
    yaml_values(path, PretrainConfig)  # raises errors that name the file already
    try:
        words = ["--config", str(path), "--rows", "-", "--output", "-"]
        settings = parsed(PretrainConfig, words)
        for stage in settings.plan():
            check_length(stage.length)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    name, shape = path.stem, settings.architecture or architecture
    if architecture and not settings.architecture:
        name = f"{name} ({architecture.stem})"
    if not shape and (settings.init_from or not settings.vocab_size):
        raise InputError(
            f"{path} has no architecture, because it starts from a checkpoint. Give its "
            "bert_config.json with --architecture, such as --architecture base."
        )
    config = read_architecture(shape, settings.vocab_size)
    return name, settings, config.replace(vocab_size=settings.vocab_size or config.vocab_size)


def costs(
    name: str, settings: PretrainConfig, architecture: RoFormerConfig
) -> list[dict[str, Any]]:
    """The cost of a run with these settings of `pretrain`, then of each stage if it has several.

    {"recipe", "parameters", "rows", "tokens", "flops"}: rows are the sequences of all batches,
    repeated ones included.
    """
    count, stages = parameters(architecture), settings.plan()
    lines: list[dict[str, Any]] = [
        {
            "recipe": f"{name}, stage {number}: {stage.steps:,} steps of {stage.batch_size} × "
            f"{stage.length}",
            "parameters": count,
            "rows": stage.rows,
            "tokens": stage.rows * stage.length,
            "flops": stage.steps * stage_flops(settings, stage, architecture),
        }
        for number, stage in enumerate(stages, start=1)
    ]
    sums = {key: sum(line[key] for line in lines) for key in ("rows", "tokens", "flops")}
    return [{"recipe": name, "parameters": count, **sums}, *(lines if len(lines) > 1 else [])]


def rendered(lines: Sequence[dict[str, Any]], config: CostConfig) -> Iterator[str]:
    """The lines of `costs` as a Markdown table with days and US$, and the assumptions.

    | recipe | parameters | sequences | tokens | FLOPs | days on 1 | on 8 | US$ on 1 | on 8 |
    """
    numbers = [f"{count:,}" for count in config.devices]
    heads = [f"{unit} on {' | on '.join(numbers)}" for unit in ("days", "US$")]
    yield f"| recipe | parameters | sequences | tokens | FLOPs | {' | '.join(heads)} |"
    yield "| --- " + "| --: " * (4 + 2 * len(numbers)) + "|"
    for line in lines:
        counts = [f"{line['parameters'] / 1e6:,.1f} M"]
        counts += [_power(line[key]) for key in ("rows", "tokens", "flops")]
        days = [line["flops"] / _speed(count, config) / DAY for count in config.devices]
        hours = [24 * time * count for time, count in zip(days, config.devices, strict=True)]
        prices = [_short(x) for x in (*days, *(time * config.price for time in hours))]
        yield f"| {' | '.join([line['recipe'], *counts, *prices])} |"
    several = f", {config.efficiency:.0%} of that on each of several"
    yield ""
    yield (
        f"Estimates, not measurements: {config.utilisation:.0%} of {config.peak_flops / 1e12:g} "
        f"TFLOP/s per device{several if max(config.devices) > 1 else ''}; {config.price:g} US$ an "
        "hour and device."
    )


def _speed(devices: int, config: CostConfig) -> float:
    """Operations per second of a number of devices together."""
    share = config.utilisation * (config.efficiency if devices > 1 else 1)
    return devices * config.peak_flops * share


def _power(value: float) -> str:
    """Three digits and a power of ten: 2.62e10."""
    return f"{value:.2e}".replace("e+", "e").replace("e0", "e")


def _short(value: float) -> str:
    """Two digits, or all those before the point: 0.46, 674."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def parameters(config: RoFormerConfig) -> int:
    """Count the weights of a language model: encoder, and the head that scores the vocabulary."""
    # By name, since tied weights are in the table several times.
    sizes = {
        weight.name: weight.shape for weight in table(config) if weight.part in ("encoder", "mlm")
    }
    return sum(math.prod(shape) for shape in sizes.values())
