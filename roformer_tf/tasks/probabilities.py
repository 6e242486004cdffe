"""Logits → probabilities, and how a number is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np

MANY_LABELS = 20
"""More labels than these have no cell each, unless it is said how many to list."""
LISTED = 5
"""The likeliest, which are listed then."""

TEMPERATURES = (0.1, 100.0)
"""Least and most that is fitted: a model that is always right would have 0."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""A probability of which there is a logarithm."""
NUMBERS_TO_FIT = 5_000_000
"""Probabilities that a temperature is fitted to at most."""


# In NumPy, because importing scipy.special takes 0.15 s: a fifth of the time in which `predict`
# starts with an ONNX graph.
def softmax(logits: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """Over the last axis, computed in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(dtype)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ˣ), computed in float64, returned as float32."""
    return (0.5 * (1 + np.tanh(logits.astype(np.float64) / 2))).astype(np.float32)


def fit_temperature(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Temperature at which probabilities have the lowest cross-entropy (Guo et al., 2017).

    labels (N,) int, probabilities (N, C) → above 1 for a model that is too confident. Of very many
    numbers every n-th example is used.
    """
    from scipy.optimize import minimize_scalar

    step = -(-probabilities.size // NUMBERS_TO_FIT) or 1
    labels, probabilities = labels[::step], probabilities[::step]

    def cross_entropy(log_temperature: float) -> float:
        scaled = at_temperature(probabilities, np.exp(log_temperature))
        of_label = scaled[np.arange(len(labels)), labels]
        return -float(np.mean(np.log(np.maximum(of_label, SMALLEST))))

    found = minimize_scalar(cross_entropy, bounds=np.log(TEMPERATURES), method="bounded")
    return float(np.exp(found.x))


def at_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities (N, C) as if their logits had been divided by the temperature; float32."""
    return softmax(np.log(np.maximum(probabilities, SMALLEST)) / np.float32(temperature))


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
