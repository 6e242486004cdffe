"""Learning rates, usual and found by a search, and for how many epochs they are usual."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roformer_tf.config import RoFormerConfig

SERIES = (1.0, 2.0, 5.0)
"""Digits of the rates that are tried, times powers of ten."""
BASE_RATE, BASE_WIDTH, BASE_DEPTH = 3e-5, 768, 12
"""The field's rate for released base models, 2e-5 to 5e-5, their hidden size and layers."""
HIGHEST = 1e-3
"""Of a model's usual rate: with the next one, what a tiny model still bears."""
FROM_SCRATCH = 2.0
"""How much higher the rate is for weights that have learnt nothing yet."""
MOST_EPOCHS = 3
"""Passes over the examples of who gives no number, if they are not many."""
ENOUGH = 0.25
"""Learning rate times steps beyond which no further pass is begun: at 5e-4, 500 steps."""


@dataclass(frozen=True)
class FoundRate:
    """A learning rate that nobody gave, and where it comes from."""

    learning_rate: float
    usual: float
    """By the model's size."""
    reason: str = ""
    """Why none was tried: "few-steps", "sweep"; "" where some were."""
    batches: int = 0
    """Of each short training."""
    of: int = 0
    """Batches of the training itself."""
    examples: int = 0
    """That the short trainings were judged by."""
    tried: tuple[Mapping[str, Any], ...] = ()
    """For each rate {"learning_rate": …, "loss": …, "metrics": {…}}; of one that diverged, none."""
    seconds: float = 0.0


def usual_rate(architecture: RoFormerConfig, from_scratch: bool = False) -> float:
    """What the field takes for a model of this size: 2e-5 for a base model, more for smaller ones.

    It falls with the square of the width and the root of the depth, which leads from base models
    to what was measured on 2 layers of 256: 5e-4 (docs/LOG.md).
    """
    wide, deep = architecture.hidden_size / BASE_WIDTH, architecture.num_hidden_layers / BASE_DEPTH
    rate = BASE_RATE / wide**2 / math.sqrt(max(deep, 1 / BASE_DEPTH))
    return nearest(min(HIGHEST, rate * (FROM_SCRATCH if from_scratch else 1.0)))


def usual_epochs(rate: float, steps: int) -> int:
    """How many passes of so many steps to take at a learning rate: 3, fewer of many examples.

    A pass too many costs the more, the higher the rate: Adam moves the embedding of a rare word by
    some thirty times the rate wherever it stands, so that at 5e-4 examples are known by heart when
    they are met again (docs/LOG.md). At a base model's rate that takes a hundred thousand of them.
    """
    return max(1, min(MOST_EPOCHS, math.ceil(ENOUGH / (rate * steps))))


def nearest(rate: float) -> float:
    """The rate of the series (1, 2, 5) · 10ⁿ that is nearest by ratio."""
    power = math.floor(math.log10(rate))
    known = [float(f"{digit:g}e{n}") for n in range(power - 1, power + 2) for digit in SERIES]
    return min(known, key=lambda one: abs(math.log(one / rate)))


def beside(rate: float, up: bool) -> float:
    """The next rate of the series above or below one."""
    return nearest(rate * 2.2 if up else rate / 2.2)


def spelled(rate: float) -> str:
    """As people type a rate: 2e-4, 1.5e-5."""
    digits, _, power = f"{rate:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
