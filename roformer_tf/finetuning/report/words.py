"""How a report spells its figures."""

from collections.abc import Sequence
from typing import Any

METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "roc_auc": "ROC AUC",
    "exact_match": "all labels right",
    "pearson": "Pearson r",
    "spearman": "Spearman ρ",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
}
CUT = {"head": "what comes after is not read", "head-tail": "their middle is not read"}
WORST = {
    "regression": "The answers farthest from the data.",
    "ranking": "The wrong answers in which the wrong text is farthest ahead.",
}
SURENESS = {"regression": "off by {:.4g}", "ranking": "ahead by {:.3f}"}
AS_NUMBERS = ("roc_auc", "pearson", "spearman")
AS_SPELLED = ("mae", "rmse")  # in the unit of the labels


def figure(metric: str, value: float) -> str:
    """A share as 93.5%, a coefficient as 0.935, an error in four digits."""
    if metric in AS_SPELLED:
        return f"{value:.4g}"
    return f"{value:.1%}" if is_share(metric) else f"{value:.3f}"


def is_share(metric: str) -> bool:
    """Whether a metric is spelled in per cent."""
    return metric not in (*AS_NUMBERS, *AS_SPELLED)


def interval(metric: str, ends: Sequence[float]) -> str:
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


def label(value: Any) -> str:
    """A label, several of them, or a number."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, str) else ", ".join(value) or "none"


def setting(value: Any) -> str:
    """As a user would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "unset" if value is None else str(value)
