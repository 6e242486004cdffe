"""Learning rates as numbers: what is usual for a model, what lies beside it, how it is spelled."""

import math

from roformer_tf.config import RoFormerConfig

SERIES = (1.0, 2.0, 5.0)
"""Digits of the rates that are tried, times powers of ten."""
BASE_RATE, BASE_WIDTH = 3e-5, 768
"""The field's rate for released base models, 2e-5 to 5e-5, and their hidden size."""
HIGHEST = 1e-3
"""Of a model's usual rate: with the next one, what a tiny model still bears."""
FROM_SCRATCH = 2.0
"""How much higher the rate is for weights that have learnt nothing yet."""


def usual_rate(architecture: RoFormerConfig, from_scratch: bool = False) -> float:
    """What the field takes for a model of this width: 2e-5 for 768, and more for smaller ones.

    It falls with the square of the width, from what is usual for base models to what was measured
    on models of 256 (docs/LOG.md).
    """
    rate = BASE_RATE * (BASE_WIDTH / architecture.hidden_size) ** 2
    return nearest(min(HIGHEST, rate * (FROM_SCRATCH if from_scratch else 1.0)))


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
