"""Figures that measure predictions, and their confidence intervals.

A metric is a function of weights (R, N): how often each of N examples counts in each of R samples.
Weights of 1 give the metric; the draws of a bootstrap give its interval. So one function computes
both, and a sample is a fast product of weights and counts instead of a list of examples. SciPy and
scikit-learn compute one sample at a time.

An undefined metric is NaN inside this module and None outside: a correlation with a constant,
recall without an entity, macro F1 if a label of the training set has no example.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.translation import Message

# By metric, its value (R,) in each of R samples.
Figures: TypeAlias = dict[str, np.ndarray]
# By metric, its value; None if it is undefined for the data.
Scores: TypeAlias = dict[str, float | None]
# Lower and upper end of an interval.
Ends: TypeAlias = tuple[float, float]
# A metric as a function of weights (R, N), and all metrics of a task as one.
Function: TypeAlias = Callable[[np.ndarray], np.ndarray]
Measure: TypeAlias = Callable[[np.ndarray], Figures]
# What can be right or wrong on its own in a prediction; its first element is its kind.
LabelItem: TypeAlias = tuple[Any, ...]

# A relative width of an interval up to this is the rounding error of equal values.
ROUNDING = 1e-9
NUMBERS_AT_ONCE = 2_000_000  # of the weights, float64: 16 MB


class Metric(NamedTuple):
    """A figure that measures predictions."""

    name: str
    """The key in report.json and metrics.jsonl."""
    title: Message
    """The name on the pages of a report."""
    kind: Literal["share", "coefficient", "distance"] = "share"
    """A share is written in per cent, a coefficient with three digits, a distance as the labels."""
    falls: bool = False
    """Whether less is better."""
    meaning: Message | None = None
    """An explanation for the report."""
    undefined: Message | None = None
    """Why these predictions may have no value, although the labels allow one."""
    needs: Literal["", "a label", "every label", "an entity"] = ""
    """Without what in the data it is undefined, for any predictions. For numbers: several."""
    by_example: bool = False
    """Whether it is the fraction of examples that are right, independent trials."""

    def goodness(self, scores: Mapping[str, Any]) -> float:
        """The metric's value, negated if less is better; −∞ without a value."""
        value = scores[self.name]
        if value is None:
            return -math.inf
        return -float(value) if self.falls else float(value)


ACCURACY = Metric(
    "accuracy",
    Message("accuracy"),
    meaning=Message("fraction of correct predictions"),
    by_example=True,
)
MACRO_F1 = Metric(
    "macro_f1",
    Message("macro F1"),
    meaning=Message(
        "mean over the labels of F1, which combines precision and recall: a rare label counts as "
        "much as a frequent one"
    ),
    needs="every label",
)
ROC_AUC = Metric(
    "roc_auc",
    Message("ROC AUC"),
    "coefficient",
    meaning=Message("how well probabilities separate the two labels: 1 is perfect, 0.5 is chance"),
    needs="every label",
)
MICRO_F1 = Metric(
    "micro_f1",
    Message("micro F1"),
    meaning=Message("F1, which combines precision and recall, over all labels of all texts"),
    needs="a label",
)
EXACT_MATCH = Metric(
    "exact_match",
    Message("exact match"),
    meaning=Message("fraction of texts with exactly the right set of labels"),
    by_example=True,
)
F1 = Metric(
    "f1",
    Message("F1"),
    meaning=Message("harmonic mean of precision and recall; an entity counts only as a whole"),
    needs="an entity",
)
PRECISION = Metric(
    "precision",
    Message("precision"),
    meaning=Message("fraction of the predicted entities that are correct"),
    undefined=Message("no entity is predicted"),
)
RECALL = Metric(
    "recall",
    Message("recall"),
    meaning=Message("fraction of the labelled entities that are predicted"),
    needs="an entity",
)
SAME_PREDICTIONS = Message("all predictions are the same number")
PEARSON = Metric(
    "pearson",
    Message("Pearson r"),
    "coefficient",
    meaning=Message("linear correlation of predicted and true values: 1 is perfect, 0 is none"),
    undefined=SAME_PREDICTIONS,
    needs="every label",
)
SPEARMAN = Metric(
    "spearman",
    Message("Spearman ρ"),
    "coefficient",
    meaning=Message("correlation of their ranks: whether the order is right"),
    undefined=SAME_PREDICTIONS,
    needs="every label",
)
MAE = Metric(
    "mae",
    Message("mean absolute error"),
    "distance",
    falls=True,
    meaning=Message("mean distance between predicted and true values"),
)
RMSE = Metric(
    "rmse",
    Message("root mean square error"),
    "distance",
    falls=True,
    meaning=Message("similar, with more weight on large errors"),
)
SAME_LABELS = Message("all labels are the same number")
NO_ENTITY = Message("the data have no entity")


class Counts:
    """How many items of each of K kinds the N examples have, as sparse matrices (N, K).

    An item is a label, whose kind is the label itself; or an entity, whose kind is its type.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        gold: Sequence[set[LabelItem]],
        predicted: Sequence[set[LabelItem]],
    ) -> None:
        self.kinds = kinds
        # Of the items both in the data and predicted, of those in the data, of those predicted.
        both = [x & y for x, y in zip(gold, predicted, strict=True)]
        self.matrices = [_matrix(items, kinds) for items in (both, gold, predicted)]


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

    strata (examples,) int: examples are drawn within these groups, so each sample has as many of
    each group. None instead of an interval if all samples have the same value.
    """
    # In parts, so that the weights of a large set fit into memory.
    rng = np.random.default_rng(seed)
    groups = np.zeros(examples, np.int64) if strata is None else strata
    at_once = max(1, NUMBERS_AT_ONCE // examples)
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    parts = [measure(_draws(rng, groups, size)) for size in sizes]
    return {name: _middle(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def wilson(share: float, trials: int) -> Ends:
    """Wilson's 95 % interval of a fraction of independent trials; 30 of 30 → (0.886, 1)."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * trials), trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def scores_text(scores: Mapping[Any, float | None]) -> str:
    """Metrics for the terminal and logs: accuracy 0.9123, roc_auc —, the sign of no value."""
    return ", ".join(
        f"{name} {'—' if value is None else f'{value:.4f}'}" for name, value in scores.items()
    )


def by_kind(counts: Counts) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each label, or each type of entity; None without items.

    → [{"label": "LOC", "precision": 0.9, "recall": 0.8, "f1": 0.85, "gold": 50, "predicted": 44}]
    """
    right, golden, predicted = (np.asarray(x.sum(axis=0)).ravel() for x in counts.matrices)
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
    """Harmonic mean of precision and recall; NaN where gold is 0."""
    # 2PR / (P + R) for P = right / predicted and R = right / gold: the denominators add up.
    return np.where(gold > 0, ratio(2 * right, gold + predicted), np.nan)


def totals(counts: Counts, weights: np.ndarray) -> list[np.ndarray]:
    """Items (R,) of all kinds together: right, gold, predicted."""
    return [weights @ np.asarray(matrix.sum(axis=1)).ravel() for matrix in counts.matrices]


def micro_f1(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """F1 (R,) of all kinds together."""
    return f1(*totals(counts, weights))


def precision(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """Precision (R,) of all kinds together."""
    right, _, predicted = totals(counts, weights)
    return ratio(right, predicted)


def recall(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """Recall (R,) of all kinds together."""
    right, gold, _ = totals(counts, weights)
    return ratio(right, gold)


def macro_f1(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """Mean (R,) over all kinds; NaN if a sample lacks one of them."""
    each: np.ndarray = f1(*(weights @ matrix for matrix in counts.matrices))
    return each.mean(axis=1)


def roc_auc(second: np.ndarray, likelihood: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Probability (R,) that an example of the second label has the higher likelihood; ties: ½.

    From the ranks, as Mann and Whitney's U; NaN if a sample lacks one of the labels.
    """
    # U = sum of the ranks of the positives − n(n + 1)/2; AUC = U / (n · m).
    positive = weights * second
    positives = positive.sum(axis=1)
    pairs = positives * (weights.sum(axis=1) - positives)
    rank_sum = np.sum(positive * ranks(likelihood, weights), axis=1)
    return 0.5 + ratio(rank_sum - positives * (positives + 1) / 2 - pairs / 2, pairs)


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pearson's r (R,) of x and y, (N,) or (R, N); NaN if one is constant."""
    x, y = _deviations(x, weights), _deviations(y, weights)
    together, of_x, of_y = ((weights * z).sum(axis=1) for z in (x * y, x**2, y**2))
    # Rounding may bring a perfect correlation slightly above 1.
    return np.clip(ratio(together, np.sqrt(of_x * of_y)), -1, 1)


def rank_correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Spearman's ρ (R,) of x and y (N,)."""
    # Pearson's r of the ranks, which depend on how often each example counts.
    return correlation(ranks(x, weights), ranks(y, weights), weights)


def _deviations(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Deviation (R, N) from each sample's mean; rounding errors count as 0."""
    means = np.sum(weights * values, axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    deviations = values - means
    return np.where(np.abs(deviations) > 1e-12 * np.abs(values).max(), deviations, 0)


def ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rank (R, N) of each value in samples that contain it as many times as its weight.

    Equal values share the mean of their ranks.
    """
    # Sorted values form groups of equal ones. A group of weight w after a total weight of c has the
    # ranks c + 1 … c + w, whose mean is c + (w + 1)/2.
    # Values [3, 1, 3] with weights of 1 have the ranks [2.5, 1, 2.5].
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan))  # NaN differs from any
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, distinct values)
    group = np.empty(len(values), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]


def range_of(numbers: Sequence[float]) -> dict[str, float]:
    """The lowest, mean and highest of numbers, and their standard deviation."""
    x = np.array(numbers, np.float64)
    figures = {"lowest": x.min(), "mean": x.mean(), "highest": x.max(), "deviation": x.std()}
    return {name: float(value) for name, value in figures.items()}


def _draws(rng: np.random.Generator, strata: np.ndarray, resamples: int) -> np.ndarray:
    """How often each example is drawn (R, N) when as many are drawn of each stratum as it has."""
    examples = len(strata)
    # Examples in the order of their strata: the draws of a stratum are one range of numbers.
    order = np.argsort(strata, kind="stable")
    sizes = np.bincount(strata)
    size, first = (x[strata[order]] for x in (sizes, np.cumsum(sizes) - sizes))
    # Each example draws from the range of its own stratum, first … first + size − 1.
    drawn = first + (rng.random((resamples, examples)) * size).astype(np.int64)
    # Each sample's numbers are shifted, so that one bincount serves all samples.
    numbered = order[drawn] + examples * np.arange(resamples)[:, None]
    counted = np.bincount(numbered.ravel(), minlength=resamples * examples)
    return counted.reshape(resamples, examples).astype(np.float64)


def _middle(values: np.ndarray) -> Ends | None:
    """The range of the middle 95 % of the values; None if it has no width."""
    # The metric is undefined in some samples, such as precision without a predicted entity.
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
    rows = [row for row, of_example in enumerate(items) for _ in of_example]
    columns = [number[item[0]] for of_example in items for item in of_example]
    shape = (len(items), len(kinds))
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape)  # duplicates add up
