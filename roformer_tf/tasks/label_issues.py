"""Labels that are probably wrong: confident learning, from predictions for unseen examples.

Northcutt, Jiang and Chuang (2021), "Confident Learning: Estimating Uncertainty in Dataset Labels":
the off-diagonal examples of the confident joint, equation (1), most doubtful first. cleanlab finds
the same; it would bring pandas for what is a dozen lines of NumPy.
"""

from typing import NamedTuple

import numpy as np


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
    another label, and finds it more probable than the given one. The order is by the difference of
    the two probabilities. second_opinion (N, C): probabilities of another model; an example is
    doubtful only if its most probable label is the suggested one too, and the order is by the mean
    of both differences.
    """
    suggested = confident_labels(labels, probabilities)
    rows = np.arange(len(labels))
    ours, given = probabilities[rows, suggested], probabilities[rows, labels]
    is_doubtful = (suggested >= 0) & (suggested != labels) & (ours > given)
    difference = ours - given
    if second_opinion is not None:
        is_doubtful &= second_opinion.argmax(axis=1) == suggested
        difference = difference + second_opinion[rows, suggested] - second_opinion[rows, labels]
    doubtful = np.flatnonzero(is_doubtful)
    order = doubtful[np.argsort(-difference[doubtful], kind="stable")]
    return [LabelIssue(int(i), int(suggested[i]), float(ours[i]), float(given[i])) for i in order]


def confident_labels(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The label that the model is confident of (N,) int; −1 where it is of none.

    It is confident of a label whose probability is at least as high as it is, on average, where
    that label is given; of several the likeliest counts.
    """
    thresholds = confident_thresholds(labels, probabilities)
    confident = np.where(probabilities >= thresholds, probabilities, np.float32(-1))
    return np.where(confident.max(axis=1) < 0, -1, confident.argmax(axis=1))


def confident_thresholds(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Mean probability (C,) of each label over the examples that have it; ∞ for one without."""
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    of_given = probabilities[np.arange(len(labels)), labels]
    sums = np.bincount(labels, weights=of_given, minlength=classes)
    return np.divide(sums, counts, out=np.full(len(counts), np.inf), where=counts > 0)
