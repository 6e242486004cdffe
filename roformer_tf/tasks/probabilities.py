"""Logits → probabilities, which may be calibrated, compared with the labels, or written.

Confident learning finds labels that are probably wrong: Northcutt, Jiang and Chuang (2021),
"Confident Learning: Estimating Uncertainty in Dataset Labels", the off-diagonal examples of the
confident joint, equation (1). cleanlab computes the same, but needs pandas for a dozen lines of
NumPy.
"""

from typing import Any, NamedTuple

import numpy as np

# With more labels, only some are listed, unless `top_k` asks for more.
MANY_LABELS = 20
# How many of the most probable labels are listed then.
LISTED = 5

# Bounds of the fit: the best temperature of a model that is always right would be 0.
TEMPERATURES = (0.1, 100.0)
# Lower bound of a probability before its logarithm is taken.
SMALLEST = float(np.finfo(np.float32).tiny)


# In NumPy, because importing scipy.special takes 0.15 s: a fifth of the time in which `predict`
# starts with an ONNX graph.
def softmax(logits: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """Over the last axis, computed in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(dtype)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ˣ), computed in float64, returned as float32."""
    # The same function by tanh, which does not overflow for a large negative logit, as e⁻ˣ does.
    return (0.5 * (1 + np.tanh(logits.astype(np.float64) / 2))).astype(np.float32)


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Logits float64 of which these are the softmax."""
    return np.log(np.maximum(probabilities.astype(np.float64), SMALLEST))


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Logits float64 of which these are the sigmoid."""
    # 1 − 2⁻²⁴ is the largest float32 below 1: a probability that was rounded to 1 stays finite.
    clipped = np.clip(probabilities.astype(np.float64), SMALLEST, 1 - 2.0**-24)
    return np.log(clipped / (1 - clipped))


def fit_temperature(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Temperature at which probabilities have the lowest cross-entropy (Guo et al., 2017).

    labels (N,) int, probabilities (N, C) → above 1 for a model that is too confident.
    """
    from scipy.optimize import minimize_scalar

    def cross_entropy(log_temperature: float) -> float:
        scaled = at_temperature(probabilities, np.exp(log_temperature))
        of_label = scaled[np.arange(len(labels)), labels]
        return -float(np.mean(np.log(np.maximum(of_label, SMALLEST))))

    # By the logarithm of the temperature: halving it and doubling it are steps of one size.
    minimum = minimize_scalar(cross_entropy, bounds=np.log(TEMPERATURES), method="bounded")
    return float(np.exp(minimum.x))


def at_temperature(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities (N, C) as if their logits had been divided by the temperature; float32."""
    return softmax(np.log(np.maximum(probabilities, SMALLEST)) / np.float32(temperature))


def best_threshold(scores: np.ndarray, gains: np.ndarray, low: float, high: float) -> float:
    """The threshold for which the `gains` of all scores below it have the highest sum.

    scores and gains (N,). It is halfway between two neighbouring scores, so scores of other texts
    may be a little off; below the first score halfway to `low`, above the last one to `high`. Of
    equally good ones it is the lowest.
    """
    # 0.2 gains 1, 0.5 and 0.9 lose 1: `sums` is [0, 1, 0, −1], the threshold (0.2 + 0.5) / 2.
    order = np.argsort(scores, kind="stable")
    ends = np.array([low, *scores[order], high])
    sums = np.cumsum([0.0, *gains[order]])  # of the first k scores
    sums[1:][np.diff(ends[1:]) <= 0] = -np.inf  # no threshold is between equal scores
    best = int(np.argmax(sums))
    return float((ends[best] + ends[best + 1]) / 2)


def shortest(number: Any) -> float:
    """A float32 with the fewest digits that identify it: 0.1, not 0.10000000149."""
    return float(str(np.float32(number)))


class LabelIssue(NamedTuple):
    """An example whose label is doubtful."""

    example: int
    """Its number."""
    suggested: int
    """Number of the label that it probably has."""
    probability: float
    """Of that label, by the model."""
    of_label: float
    """The probability of the label that it has in the data."""


def find_label_issues(
    labels: np.ndarray, probabilities: np.ndarray, second_opinion: np.ndarray | None = None
) -> list[LabelIssue]:
    """Examples whose labels are probably wrong, by a model that was not trained on them.

    labels (N,) int, probabilities (N, C). An example is doubtful if the model is confident of
    another label, and that label is more probable than the one in the data. The order is by the
    difference of the two probabilities. second_opinion (N, C): probabilities of another model. Then
    an example is doubtful only if the other model predicts the suggested label, too, and the order
    is by the mean of both differences.
    """
    suggested = confident_labels(labels, probabilities)
    rows = np.arange(len(labels))
    ours, of_label = probabilities[rows, suggested], probabilities[rows, labels]
    # A suggested label of −1 means that the model is confident of none.
    is_doubtful = (suggested >= 0) & (suggested != labels) & (ours > of_label)
    difference = ours - of_label
    if second_opinion is not None:
        is_doubtful &= second_opinion.argmax(axis=1) == suggested
        difference = difference + second_opinion[rows, suggested] - second_opinion[rows, labels]
    doubtful = np.flatnonzero(is_doubtful)
    order = doubtful[np.argsort(-difference[doubtful], kind="stable")]
    return [
        LabelIssue(int(i), int(suggested[i]), float(ours[i]), float(of_label[i])) for i in order
    ]


def confident_labels(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The label that the model is confident of (N,) int; −1 where it is of none.

    It is confident of a label whose probability is at least the mean of that probability over the
    examples with the label. Of several such labels the most probable one counts.
    """
    thresholds = confident_thresholds(labels, probabilities)
    confident = np.where(probabilities >= thresholds, probabilities, np.float32(-1))
    return np.where(confident.max(axis=1) < 0, -1, confident.argmax(axis=1))


def confident_thresholds(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Mean probability (C,) of each label over the examples that have it; ∞ for one without."""
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    of_label = probabilities[np.arange(len(labels)), labels]
    sums = np.bincount(labels, weights=of_label, minlength=classes)
    return np.divide(sums, counts, out=np.full(len(counts), np.inf), where=counts > 0)
