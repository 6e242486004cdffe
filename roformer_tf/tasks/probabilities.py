"""Logits → probabilities, and how a number is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np

MANY_LABELS = 20
"""More labels than these have no cell each."""


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


def named_cells(answer: str, probability: str, labels: Sequence[str]) -> list[str]:
    """Names of the cells of an answer: `answer`, p(…) of each label.

    Of many labels only those answered have a probability, in a cell called `probability`.
    """
    if len(labels) > MANY_LABELS:
        return [answer, probability]
    return [answer, *(f"p({label})" for label in labels)]
