"""Recipes of `pretrain` → what they would cost: parameters, tokens, operations, days and money.

    days = operations / (devices · peak · utilisation · 86,400)

A recipe is read as `pretrain --config` reads it, which loads Keras: only when the command runs.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig, block_length
from roformer_tf.corpus.masking import predictions_per_row
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import check_writable, is_folder, write_text
from roformer_tf.flags import parsed, yaml_flags
from roformer_tf.pretraining.settings import Stage
from roformer_tf.recipes import find_recipe
from roformer_tf.tokenizers.padding import check_length

DAY = 86_400  # seconds
HOURS = 24


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Estimate what pretraining by recipes costs, such as `base`.

    The time is what the operations take at a share of the devices' best: an estimate, no
    measurement. `mfu` in a run's metrics.jsonl is the share that it reaches.
    """

    recipe: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="CONFIG [CONFIG ...]", help_behavior_hint="(required)"),
    ]
    """Recipes of `pretrain`: names, or paths to YAML files."""
    architecture: Path | None = None
    """A bert_config.json or the name of a recipe's architecture, for recipes that continue from a
    checkpoint and have none."""
    peak_flops: float = 989e12
    """Floating-point operations a second of one device at its best; an H100's in bfloat16."""
    utilisation: float = 0.4
    """Share of that which a run on one device reaches."""
    efficiency: float = 0.9
    """On several devices, what each of them reaches of what it would reach alone."""
    devices: tuple[int, ...] = (1, 8)
    """Numbers of devices to tell days and money for."""
    price: float = 3.0
    """US$ for an hour of one device."""
    json: Path | None = None
    """File to write the same figures into, for programs."""

    def __post_init__(self) -> None:
        if not self.recipe:
            raise InputError("give recipes, such as base or my_recipe.yaml.")
        check_numbers(self, "peak_flops", above=0, hint="such as 312e12")
        check_numbers(self, "utilisation", "efficiency", above=0, at_most=1)
        if not self.devices or min(self.devices) < 1:
            raise InputError(f"devices is {self.devices}, but must be numbers of at least 1.")
        check_numbers(self, "price", at_least=0)
        if self.json and is_folder(self.json):
            raise InputError(f"--json {self.json} is a folder. Name a file.")


@dataclass(frozen=True)
class Cost:
    """What a recipe, or a stage of it, takes on any device."""

    name: str
    parameters: int
    rows: int
    """That are trained on, each as often as its turn comes."""
    tokens: int
    flops: float


def cost(config: CostConfig) -> None:
    """Print what the recipes cost as a Markdown table, and write what is asked for.

    Raises InputError for a recipe that `pretrain` would not take; for one with a wrong value the
    process exits with code 2 and that message.
    """
    if config.json:
        check_writable(config.json)
    estimates = [
        priced(line, config)
        for path in config.recipe
        for line in costs(*read_recipe(path, config.architecture))
    ]
    if config.json:
        text = json.dumps(estimates, ensure_ascii=False, indent=2)
        try:
            write_text(config.json, f"{text}\n")
        except OSError as error:
            raise InputError(f"cannot write {config.json}: {error.strerror}.") from None
    print("\n".join(rendered(estimates, config)))


def read_recipe(path: Path, architecture: Path | None) -> tuple[str, Any, RoFormerConfig]:
    """Read a recipe: its name, its settings as `pretrain` has them, and what model it trains.

    What a recipe leaves open, text and --output, is made up. `architecture` is for one that
    names none. Raises InputError where neither does.
    """
    from roformer_tf.pretraining.initialization import SMALL
    from roformer_tf.pretraining.settings import PretrainConfig

    path = find_recipe(path)
    flags = yaml_flags(path, PretrainConfig)
    source = "--corpus" if "--vocab" in flags else "--rows"
    open_ones = ["--output", "-", *([] if {"--corpus", "--rows"} & {*flags} else [source, "-"])]
    program = f"roformer-tf pretrain --config {path}"
    settings = parsed(PretrainConfig, [*open_ones, *flags], program)
    for stage in settings.plan():
        try:
            check_length(stage.length)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    name, shape = path.stem, SMALL
    if settings.architecture:
        shape = RoFormerConfig.from_file(find_recipe(settings.architecture, ".json"))
    elif architecture:
        shape = RoFormerConfig.from_file(find_recipe(architecture, ".json"))
        name = f"{name} ({architecture.stem})"
    elif settings.init_from or not settings.vocab_size:
        raise InputError(
            f"{path} names no architecture: that of its checkpoint counts. Give the "
            "bert_config.json with --architecture, such as --architecture base."
        )
    return name, settings, shape.replace(vocab_size=settings.vocab_size or shape.vocab_size)


def costs(name: str, settings: Any, architecture: RoFormerConfig) -> list[Cost]:
    """Count what a run with these settings of `pretrain` takes: all of it, then of each stage.

    Of a run in one stage, all of it alone.
    """
    count, stages = parameters(architecture), settings.plan()
    lines = [
        Cost(
            f"{name}, stage {number}: {stage.steps:,} steps of {stage.batch_size} × {stage.length}",
            count,
            stage.rows,
            stage.rows * stage.length,
            stage.steps * stage_flops(settings, stage, architecture),
        )
        for number, stage in enumerate(stages, start=1)
    ]
    rows, tokens = sum(line.rows for line in lines), sum(line.tokens for line in lines)
    whole = Cost(name, count, rows, tokens, sum(line.flops for line in lines))
    return [whole, *(lines if len(lines) > 1 else [])]


def priced(line: Cost, config: CostConfig) -> dict[str, Any]:
    """A line of the table as JSON knows it: days and US$ in the order of `config.devices`."""
    days = [line.flops / _speed(count, config) / DAY for count in config.devices]
    money = [
        time * HOURS * count * config.price
        for time, count in zip(days, config.devices, strict=True)
    ]
    counted = {key: getattr(line, key) for key in ("parameters", "rows", "tokens", "flops")}
    return {
        "recipe": line.name,
        **counted,
        "devices": [*config.devices],
        "days": days,
        "usd": money,
    }


def rendered(estimates: Sequence[dict[str, Any]], config: CostConfig) -> Iterator[str]:
    """Lay out what `priced` gave as a Markdown table, and say what was assumed.

    | recipe | parameters | rows | tokens | FLOPs | days on 1 | on 8 | US$ on 1 | on 8 |
    """
    numbers = [f"{count:,}" for count in config.devices]
    heads = [f"{unit} on {' | on '.join(numbers)}" for unit in ("days", "US$")]
    yield f"| recipe | parameters | rows | tokens | FLOPs | {' | '.join(heads)} |"
    yield "| --- " + "| --: " * (4 + 2 * len(numbers)) + "|"
    for line in estimates:
        counts = [f"{line['parameters'] / 1e6:,.1f} M"]
        counts += [_power(line[key]) for key in ("rows", "tokens", "flops")]
        prices = [_short(value) for value in (*line["days"], *line["usd"])]
        yield f"| {' | '.join([line['recipe'], *counts, *prices])} |"
    several = f", {config.efficiency:.0%} of that on each of several"
    yield ""
    yield (
        f"Estimates, not measurements: {config.utilisation:.0%} of {config.peak_flops / 1e12:g} "
        f"TFLOP/s a device{several if max(config.devices) > 1 else ''}; {config.price:g} US$ an "
        "hour and device."
    )


def _speed(devices: int, config: CostConfig) -> float:
    """Operations a second of so many devices together."""
    share = config.utilisation * (config.efficiency if devices > 1 else 1)
    return devices * config.peak_flops * share


def _power(value: float) -> str:
    """Three digits and a power of ten: 2.62e10."""
    return f"{value:.2e}".replace("e+", "e").replace("e0", "e")


def _short(value: float) -> str:
    """Two digits, or all those before the point: 0.46, 674."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# Floating-point operations


def step_flops(
    config: RoFormerConfig,
    length: int,
    batch_size: int,
    predictions: int,
    keys: float | None = None,
) -> float:
    """Operations that a step needs at least, a multiplication and an addition counting as two.

    For `batch_size` rows of `length` tokens of which `predictions` are predicted. Forward 2 · P a
    token for the P weights of the layers' matrices, 4 · L · H · T a token for scores and their use;
    backward twice that: 6 · P + 12 · L · H · T. In the last layer only keys and values are counted
    for all tokens; the rest, and the head, for the predicted ones alone, as the model computes
    them. A causal language model predicts all of them: `predictions` is `length` then. What its
    mask hides counts, too, since the products are computed whole, unless `keys` says how many a
    query looks at in the mean, T by itself. A local layer's scores are those of its blocks, and the
    last one, if it is local, attends at all tokens, too. Lookups, norms, activations and what
    rematerialisation computes again do not count.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    projection = 6 * embedding * hidden if embedding != hidden else 0
    transform = 0 if config.is_v2 else 6 * hidden * embedding
    row = float(length * projection)
    row += predictions * (transform + 6 * embedding * config.vocab_size)
    for layer in range(config.num_hidden_layers):
        answers = length if layer < config.num_hidden_layers - 1 else predictions
        if local := config.is_local(layer):
            seen, queries = _keys_in_blocks(config, length), length
        else:
            seen, queries = float(length), answers
        if keys is not None:
            seen = min(keys, 2 * config.window + 1) if local else keys
        row += 6 * 2 * hidden**2 * length  # keys and values
        row += (6 * 2 * hidden**2 + 12 * hidden * seen) * queries
        row += 6 * 2 * hidden * config.intermediate_size * answers
    return batch_size * row


def _keys_in_blocks(config: RoFormerConfig, length: int) -> float:
    """Keys that a local layer multiplies a query by: `kernels/local_attention.py` fills blocks."""
    block = block_length(config.window)
    beside = 2 if config.attention_type == "causal" else 3
    return math.ceil(length / block) * block * beside * block / length


def stage_flops(settings: Any, stage: Stage, architecture: RoFormerConfig) -> float:
    """Operations of one step of a stage; `settings` are those of `pretrain`."""
    predicted = stage.length
    if settings.objective == "masked":
        predicted = predictions_per_row(stage.length, settings.masking.mask_rate)
    else:
        architecture = architecture.replace(attention_type="causal")
    return step_flops(architecture, stage.length, stage.batch_size, predicted)


def parameters(config: RoFormerConfig) -> int:
    """Count the weights of a language model: encoder, and the head that scores the vocabulary."""
    sizes = {weight.name: weight.shape for weight in table(config) if weight.part in _PARTS}
    return sum(math.prod(shape) for shape in sizes.values())


_PARTS = ("encoder", "mlm")
