"""How a report spells its figures."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from roformer_tf.finetuning.report import phrases
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.wording import Wording, Words

Report: TypeAlias = Mapping[str, Any]
"""The dictionary that report.json is, as `analysis.analyse` makes it."""

ABSENT = "—"
"""In the place of a figure that the data cannot give."""
FORMATS = {"share": ".1%", "coefficient": ".3f", "distance": ".4g"}


def figure(metric: Metric, value: float | None) -> str:
    """A share as 93.5%, a coefficient as 0.935, a distance in four digits; "—" without a value."""
    return ABSENT if value is None else f"{value:{FORMATS[metric.kind]}}"


def is_share(metric: Metric) -> bool:
    """Whether a metric is spelled in per cent."""
    return metric.kind == "share"


def interval(metric: Metric, ends: Sequence[float] | None) -> str:
    """[92.4%, 94.5%]; "—" where there is none."""
    return ABSENT if ends is None else f"[{', '.join(figure(metric, end) for end in ends)}]"


def of_set(name: str) -> Words:
    """Name of a set of examples: test set, or new texts of the test set for test_unseen."""
    part, _, unseen = name.partition("_")
    return phrases.NEW_TEXTS.format(set=phrases.SETS[part]) if unseen else phrases.SETS[part]


def several(number: int, noun: str) -> str:
    """1 text, 1,200 texts."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def duration(seconds: float) -> Words:
    """3.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return phrases.SECONDS.format(seconds=seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return phrases.HOURS.format(hours=hours, minutes=minutes)
    return phrases.MINUTES.format(minutes=minutes, seconds=rest)


def setting(value: Any) -> Wording:
    """As a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or phrases.UNSET
    return phrases.UNSET if value is None else str(value)
