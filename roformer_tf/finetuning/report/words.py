"""How a report spells its figures."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from roformer_tf.tasks.metrics import Metric

Report: TypeAlias = Mapping[str, Any]
"""The dictionary that report.json is, as `analysis.analyse` makes it."""

FORMATS = {"share": ".1%", "coefficient": ".3f", "distance": ".4g"}
CUT = {"head": "what comes after is not read", "head-tail": "their middle is not read"}


def figure(metric: Metric, value: float) -> str:
    """A share as 93.5%, a coefficient as 0.935, a distance in four digits."""
    return f"{value:{FORMATS[metric.kind]}}"


def is_share(metric: Metric) -> bool:
    """Whether a metric is spelled in per cent."""
    return metric.kind == "share"


def interval(metric: Metric, ends: Sequence[float]) -> str:
    """[92.4%, 94.5%]."""
    return f"[{', '.join(figure(metric, end) for end in ends)}]"


def of_set(name: str) -> str:
    """Name of a set of examples: test, or new test texts for test_unseen."""
    part, _, unseen = name.partition("_")
    return f"new {part} texts" if unseen else part


def several(number: int, noun: str) -> str:
    """1 text, 1,200 texts."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """3.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def setting(value: Any) -> str:
    """As a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "unset" if value is None else str(value)
