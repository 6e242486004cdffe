"""What a report shows beside the metrics: calibration, confusion, texts cut to what fits."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

MISTAKES = 20
"""That the report shows."""
CHARACTERS = 200
"""Of a text that it shows, or units."""
POINTS = 1000
"""Of a curve or a cloud, at most."""
BINS = 10
COSINE_BINS = 20

JsonObject: TypeAlias = dict[str, Any]
"""A dictionary that JSON knows."""


def calibration(probability: np.ndarray, right: np.ndarray) -> JsonObject:
    """Compare how likely the model said something is with how often it is so.

    probability (M,), right (M,) bool.
    → {"ece": expected calibration error, the mean distance of the two over bins of equal width,
    "bins": [{"from", "to", "count", "probability": mean, "right": share}], without empty ones}.
    """
    number = np.minimum((probability * BINS).astype(int), BINS - 1)
    bins = [_bin(n, probability[number == n], right[number == n]) for n in np.unique(number)]
    distances = [one["count"] * abs(one["probability"] - one["right"]) for one in bins]
    return {"ece": sum(distances) / len(right), "bins": bins}


def confusion(gold: Sequence[Hashable], answers: Sequence[Hashable]) -> list[JsonObject]:
    """How often which label is answered by which, the most frequent first.

    → [{"gold": "good", "predicted": "bad", "count": 12}, …], none of them 0.
    """
    found = Counter(zip(gold, answers, strict=True))
    return [
        {"gold": label, "predicted": answer, "count": number}
        for (label, answer), number in found.most_common()
    ]


def shortened(text: str) -> str:
    """The beginning of a text, as a report shows it."""
    return text[:CHARACTERS] + "…" * (len(text) > CHARACTERS)


def histograms(near: Sequence[float], far: Sequence[float]) -> JsonObject:
    """Count the cosines of near texts, and those of others, between common edges."""
    lowest = min((*near, *far), default=0.0)
    edges = np.linspace(min(0.95, np.floor(20 * lowest) / 20), 1.0, COSINE_BINS + 1)
    near, far = (np.clip(x, edges[0], 1.0).tolist() for x in (near, far))  # a float32's 1.0000001
    return {
        "edges": edges.tolist(),
        "near": np.histogram(near, edges)[0].tolist(),
        "far": np.histogram(far, edges)[0].tolist(),
    }


def _bin(number: int, probability: np.ndarray, right: np.ndarray) -> JsonObject:
    """What a report says of the claims of about the same probability."""
    return {
        "from": number / BINS,
        "to": (number + 1) / BINS,
        "count": len(right),
        "probability": float(probability.mean()),
        "right": float(right.mean()),
    }
