"""Logits → probabilities, and how a number is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np

MANY_LABELS = 20
"""More labels than these have no cell each, unless it is said how many to list."""
LISTED = 5
"""The likeliest, which are listed then."""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64, given as float32."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ˣ), in float64, given as float32."""
    return (0.5 * (1 + np.tanh(logits.astype(np.float64) / 2))).astype(np.float32)


def shortest(number: Any) -> float:
    """A float32 in as many digits as tell it from its neighbours: 0.1, not 0.10000000149."""
    return float(str(np.float32(number)))


def named_probabilities(labels: Sequence[str], scores: np.ndarray) -> dict[str, float]:
    """The probability of each label, in as few digits as tell them apart."""
    return dict(zip(labels, map(shortest, scores), strict=True))


def likeliest(scores: np.ndarray, number: int) -> list[int]:
    """Places of the highest scores (C,), the highest first; of equal ones the first."""
    places: list[int] = np.argsort(-scores, kind="stable")[:number].tolist()
    return places


def named_cells(answer: str, labels: Sequence[str]) -> list[str]:
    """Names of the cells of an answer: `answer`, p(…) of each label."""
    return [answer, *(f"p({label})" for label in labels)]


def listed_cells(numbers: Sequence[int]) -> list[str]:
    """Names of the cells of the listed labels: label_2, probability_2, label_3, …."""
    return [f"{name}_{number}" for number in numbers for name in ("label", "probability")]


def listed_labels(labels: Sequence[str], scores: np.ndarray, places: Sequence[int]) -> list[Any]:
    """The cells under these names: each label and its probability."""
    return [cell for i in places for cell in (labels[i], shortest(scores[i]))]
