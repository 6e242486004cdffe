"""Figures of how good predictions are, and their confidence intervals.

A metric is computed from weights (R, N): how often each of N examples counts in each of R
samples. All ones give the metric, a bootstrap's draws its interval. So both have the same lines,
and a sample is a fast product of weights and counts, never a list of examples. SciPy and
scikit-learn take one sample at a time.

A metric that a sample cannot give is NaN within this module and None outside of it: a correlation
with a constant, recall without an entity, macro F1 where a label of training has no example.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.translation import Message

Figures: TypeAlias = dict[str, np.ndarray]
"""By metric, its value (R,) in each of R samples."""
Scores: TypeAlias = dict[str, float | None]
"""By metric, its value; None where the data cannot give it."""
Ends: TypeAlias = tuple[float, float]
"""Lower and upper end of an interval."""
Measure: TypeAlias = Callable[[np.ndarray], Figures]
"""A task's metrics as a function of weights (R, N)."""
LabelItem: TypeAlias = tuple[Any, ...]
"""What can be right or wrong by itself in a prediction; it begins with its kind."""

ROUNDING = 1e-9
"""Relative width of an interval up to which it is a rounding error of equal values."""
NUMBERS_AT_ONCE = 2_000_000  # of the weights, float64: 16 MB


class Metric(NamedTuple):
    """A figure of how good predictions are."""

    name: str
    """As report.json and metrics.jsonl have it."""
    title: Message
    """As the pages of a report have it."""
    kind: Literal["share", "coefficient", "distance"] = "share"
    """A share is written in per cent, a coefficient with three digits, a distance as the labels."""
    falls: bool = False
    """Whether less is better."""
    meaning: Message | None = None
    """An explanation for the report."""
    undefined: Message | None = None
    """Why it may have no value although the labels allow one: something about the predictions."""

    def goodness(self, scores: Mapping[str, Any]) -> float:
        """The metric's value, negated where less is better; −∞ where it has none."""
        value = scores[self.name]
        if value is None:
            return -math.inf
        return -float(value) if self.falls else float(value)


ACCURACY = Metric(
    "accuracy",
    Message("accuracy"),
    meaning=Message("fraction of correct predictions"),
)
MACRO_F1 = Metric(
    "macro_f1",
    Message("macro F1"),
    meaning=Message(
        "mean over the labels of F1, which combines precision and recall: a rare label counts as "
        "much as a frequent one"
    ),
)


class Counts(NamedTuple):
    """How many items of each of K kinds the N examples have, as sparse matrices (N, K).

    An item is a label or, for tagging, an entity; its kind is the label, or the entity's type.
    """

    kinds: tuple[str, ...]
    right: Any
    """Items both in the data and predicted."""
    gold: Any
    """Items in the data."""
    predicted: Any
    """Items predicted."""


def once(measure: Measure, examples: int) -> Scores:
    """The metrics of all examples, each counted once."""
    figures = measure(np.ones((1, examples)))
    return {name: _defined(values[0]) for name, values in figures.items()}


def bootstrap(
    measure: Measure,
    examples: int,
    resamples: int = 1000,
    seed: int = 0,
    strata: np.ndarray | None = None,
) -> dict[str, Ends | None]:
    """The 95 % bootstrap interval of each metric, by drawing examples with replacement.

    strata (examples,) int: examples are drawn within these groups, so that each sample has as many
    of each. None instead of an interval where all samples give the same value.
    """
    rng = np.random.default_rng(seed)
    groups = np.zeros(examples, np.int64) if strata is None else strata
    at_once = max(1, NUMBERS_AT_ONCE // examples)
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    parts = [measure(_draws(rng, groups, size)) for size in sizes]
    return {name: _middle(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def wilson(share: float, trials: int) -> Ends:
    """Wilson's 95 % interval of a share of independent trials; 30 of 30 → (0.886, 1)."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * trials), trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def score_text(value: float | None) -> str:
    """A metric as the terminal and logs have it: 0.9123, or "—" without a value."""
    return "—" if value is None else f"{value:.4f}"


def count(
    kinds: tuple[str, ...], gold: Sequence[set[LabelItem]], predicted: Sequence[set[LabelItem]]
) -> Counts:
    """Count the items of each example: those in the data, those predicted, and both."""
    both = [one & other for one, other in zip(gold, predicted, strict=True)]
    return Counts(kinds, *(_matrix(items, kinds) for items in (both, gold, predicted)))


def by_kind(counts: Counts) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each label, or each type of entity; None where there are none.

    → [{"label": "LOC", "precision": 0.9, "recall": 0.8, "f1": 0.85, "gold": 50, "predicted": 44}]
    """
    right, golden, predicted = (np.asarray(x.sum(axis=0)).ravel() for x in counts[1:])
    columns = {
        "label": counts.kinds,
        "precision": map(_defined, ratio(right, predicted)),
        "recall": map(_defined, ratio(right, golden)),
        "f1": map(_defined, f1(right, golden, predicted)),
        "gold": golden.astype(int).tolist(),
        "predicted": predicted.astype(int).tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """values (N,), weights (R, N) → (R,)."""
    return weights @ values / weights.sum(axis=1)


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Quotient of equal shapes, NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0)


def f1(right: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Harmonic mean of precision and recall: their denominators add up. NaN where gold is 0."""
    return np.where(gold > 0, ratio(2 * right, gold + predicted), np.nan)


def totals(counts: Counts, weights: np.ndarray) -> list[np.ndarray]:
    """Items (R,) of all kinds together: right, gold, predicted."""
    return [weights @ np.asarray(matrix.sum(axis=1)).ravel() for matrix in counts[1:]]


def macro_f1(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """Mean (R,) over all kinds; NaN where a sample lacks one of them."""
    each: np.ndarray = f1(*(weights @ matrix for matrix in counts[1:]))
    return each.mean(axis=1)


def roc_auc(second: np.ndarray, likelihood: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How often an example of the second label is the likelier one (R,), ties counting half.

    From the ranks, as Mann and Whitney's U; NaN where a sample lacks one of the labels.
    """
    positive = weights * second
    positives = positive.sum(axis=1)
    pairs = positives * (weights.sum(axis=1) - positives)
    rank_sum = np.sum(positive * ranks(likelihood, weights), axis=1)
    return 0.5 + ratio(rank_sum - positives * (positives + 1) / 2 - pairs / 2, pairs)


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pearson's r (R,) of x and y, (N,) or (R, N); NaN where one is constant."""
    x, y = _deviations(x, weights), _deviations(y, weights)
    together, of_x, of_y = ((weights * z).sum(axis=1) for z in (x * y, x**2, y**2))
    return np.clip(ratio(together, np.sqrt(of_x * of_y)), -1, 1)


def _deviations(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Deviation (R, N) from each sample's mean; rounding errors count as 0."""
    means = np.sum(weights * values, axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    deviations = values - means
    return np.where(np.abs(deviations) > 1e-12 * np.abs(values).max(), deviations, 0)


def ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rank (R, N) of each value in samples that contain it as often as its weight.

    Equal values share the mean of their ranks.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan))  # NaN differs from any
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, distinct values)
    group = np.empty(len(values), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]


def _draws(rng: np.random.Generator, strata: np.ndarray, resamples: int) -> np.ndarray:
    """How often each example is drawn (R, N) when as many are drawn of each stratum as it has."""
    examples = len(strata)
    # Examples in the order of their strata: the draws of a stratum are one range of numbers.
    order = np.argsort(strata, kind="stable")
    sizes = np.bincount(strata)
    size, first = (x[strata[order]] for x in (sizes, np.cumsum(sizes) - sizes))
    places = first + (rng.random((resamples, examples)) * size).astype(np.int64)
    # Each sample's numbers are shifted, so that one bincount serves all samples.
    numbered = order[places] + examples * np.arange(resamples)[:, None]
    counted = np.bincount(numbered.ravel(), minlength=resamples * examples)
    return counted.reshape(resamples, examples).astype(np.float64)


def _middle(values: np.ndarray) -> Ends | None:
    """What 95 % of the values lie between; None where that has no width."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return (float(low), float(high)) if high - low > ROUNDING * abs(high) else None


def _defined(value: Any) -> float | None:
    """A number, or None for NaN."""
    return None if np.isnan(value) else float(value)


def _matrix(items: Sequence[Iterable[LabelItem]], kinds: tuple[str, ...]) -> Any:
    """Count the items of each kind: sparse (N, K)."""
    from scipy.sparse import csr_matrix

    number = {kind: column for column, kind in enumerate(kinds)}
    rows = [row for row, found in enumerate(items) for _ in found]
    columns = [number[item[0]] for found in items for item in found]
    shape = (len(items), len(kinds))
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape)  # equal places add up
