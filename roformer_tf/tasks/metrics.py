"""How good answers are, in figures, and how far chance may move them.

A metric is computed from weights (R, N): how often each of N examples counts in each of R
samples. All ones give the score, a bootstrap's draws its interval: the same lines for both, and
fast, since a sample is a product of weights and counts, never a list of examples.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.labelled.task import RANKED, Label, Prediction, Task, TaskName, spans

Figures: TypeAlias = dict[str, np.ndarray]
"""Of each metric its value (R,) in each of R samples."""

METRICS: dict[TaskName, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "roc_auc"),
    "pair": ("accuracy", "macro_f1", "roc_auc"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "regression": ("pearson", "spearman", "mae", "rmse"),
    "ranking": ("accuracy",),
    "tagging": ("f1", "precision", "recall", "accuracy"),
}
"""By task, the usual one first; roc_auc between two labels only."""
FALLING = ("mae", "rmse")
"""Metrics of which less is better."""

NUMBERS_AT_ONCE = 2_000_000  # of the weights, float64: 16 MB


class Counts(NamedTuple):
    """How many items of each of K kinds the N examples have, as sparse matrices (N, K).

    An item is a label or, for tagging, an entity; its kind is the label, or the entity's type.
    """

    kinds: tuple[str, ...]
    right: Any
    """Items both in the data and answered."""
    gold: Any
    """Items in the data."""
    predicted: Any
    """Items answered."""


def score(task: Task, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, float]:
    """Compare answers with the labels in the data.

    classification, pair: accuracy, macro_f1 and, between two labels, roc_auc.
    multilabel: micro_f1, macro_f1, exact_match (share of examples with every label right).
    regression: pearson, spearman, mae, rmse. ranking: accuracy by the triple.
    tagging: f1, precision, recall of whole entities, accuracy by the unit.

    Never NaN: a correlation with a constant is 0, so is precision where nothing is predicted.
    A macro average leaves out labels that are neither in the data nor predicted.
    """
    figures = _measure(task, gold, predictions)(np.ones((1, len(gold))))
    return {name: float(values[0]) for name, values in figures.items()}


def intervals(
    task: Task,
    gold: Sequence[Label],
    predictions: Sequence[Prediction],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """The 95 % bootstrap interval of each metric of `score`, by drawing examples anew.

    Of tagging, sentences are drawn: the units of one are not independent.
    """
    measure = _measure(task, gold, predictions)
    rng = np.random.default_rng(seed)
    at_once = max(1, NUMBERS_AT_ONCE // len(gold))
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    parts = [measure(_draws(rng, len(gold), size)) for size in sizes]
    return {name: _middle(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def by_kind(
    task: Task, gold: Sequence[Label], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each label, or each type of entity.

    → [{"label": "LOC", "precision": 0.9, "recall": 0.8, "f1": 0.85, "gold": 50, "predicted": 44}]
    """
    counts = count(task, gold, predictions)
    right, golden, predicted = (np.asarray(x.sum(axis=0)).ravel() for x in counts[1:])
    columns = {
        "label": counts.kinds,
        "precision": _ratio(right, predicted).tolist(),
        "recall": _ratio(right, golden).tolist(),
        "f1": _f1(right, golden, predicted).tolist(),
        "gold": golden.astype(int).tolist(),
        "predicted": predicted.astype(int).tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def count(task: Task, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Counts:
    """Count what is in the data, what is answered, and what is both."""
    expected = [_items(task, label) for label in gold]
    answered = [_items(task, prediction.label) for prediction in predictions]
    both = [one & other for one, other in zip(expected, answered, strict=True)]
    kinds = _kinds(task)
    return Counts(kinds, *(_matrix(items, kinds) for items in (both, expected, answered)))


def tally(task: Task, labels: Sequence[Label]) -> dict[str, int]:
    """How often each label stands in the data, or entities of each type."""
    found = Counter(item[0] for label in labels for item in _items(task, label))
    return {kind: found[kind] for kind in _kinds(task)}


def is_right(task: Task, label: Label, prediction: Prediction) -> bool:
    """Whether a whole example is answered as the data say.

    A triple with equal scores is not answered, whichever of the two comes first.
    """
    if task.name == "ranking" and prediction.scores[0] == prediction.scores[1]:
        return False
    if task.name == "multilabel":
        return set(label) == set(prediction.label)  # type: ignore[arg-type]
    return label == prediction.label


def _measure(
    task: Task, gold: Sequence[Label], predictions: Sequence[Prediction]
) -> Callable[[np.ndarray], Figures]:
    """The task's metrics as a function of weights (R, N)."""
    if task.name == "regression":
        answers = np.array([prediction.label for prediction in predictions], np.float64)
        return partial(_numbers, np.array(gold, np.float64), answers)
    right = np.array([is_right(task, *pair) for pair in zip(gold, predictions, strict=True)])
    if task.name == "ranking":
        return lambda weights: {"accuracy": _mean(right, weights)}
    counts = count(task, gold, predictions)
    if task.name == "multilabel":
        return partial(_several_labels, counts, right)
    if task.name == "tagging":
        return partial(_entities, counts, *_units(gold, predictions))
    if len(task.labels) != 2:
        return partial(_one_label, counts, right)
    second = np.array([label == task.labels[1] for label in gold])
    likelihood = np.array([prediction.scores[1] for prediction in predictions])
    return partial(_one_of_two, counts, right, second, likelihood)


def _one_label(counts: Counts, right: np.ndarray, weights: np.ndarray) -> Figures:
    """Metrics of classification."""
    return {"accuracy": _mean(right, weights), "macro_f1": _macro_f1(counts, weights)}


def _one_of_two(
    counts: Counts,
    right: np.ndarray,
    second: np.ndarray,
    likelihood: np.ndarray,
    weights: np.ndarray,
) -> Figures:
    """Metrics where there are two labels: which examples have the second, and how likely it is."""
    auc = _roc_auc(second, likelihood, weights)
    return _one_label(counts, right, weights) | {"roc_auc": auc}


def _several_labels(counts: Counts, right: np.ndarray, weights: np.ndarray) -> Figures:
    """Metrics of multilabel examples."""
    return {
        "micro_f1": _f1(*_totals(counts, weights)),
        "macro_f1": _macro_f1(counts, weights),
        "exact_match": _mean(right, weights),
    }


def _entities(
    counts: Counts, right_units: np.ndarray, units: np.ndarray, weights: np.ndarray
) -> Figures:
    """Metrics of tagged sentences."""
    right, gold, predicted = _totals(counts, weights)
    return {
        "f1": _f1(right, gold, predicted),
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, gold),
        "accuracy": _ratio(weights @ right_units, weights @ units),
    }


def _numbers(gold: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> Figures:
    """Metrics of regression."""
    error = answers - gold
    return {
        "pearson": _correlation(gold, answers, weights),
        "spearman": _correlation(_ranks(gold, weights), _ranks(answers, weights), weights),
        "mae": _mean(np.abs(error), weights),
        "rmse": np.sqrt(_mean(error**2, weights)),
    }


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """values (N,), weights (R, N) → (R,)."""
    return weights @ values / weights.sum(axis=1)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Quotient of equal shapes, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0)


def _f1(right: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Harmonic mean of precision and recall: their denominators add up."""
    return _ratio(2 * right, gold + predicted)


def _totals(counts: Counts, weights: np.ndarray) -> list[np.ndarray]:
    """Items (R,) of all kinds together: right, gold, predicted."""
    return [weights @ np.asarray(matrix.sum(axis=1)).ravel() for matrix in counts[1:]]


def _macro_f1(counts: Counts, weights: np.ndarray) -> np.ndarray:
    """Mean (R,) over the kinds that a sample holds or is answered with."""
    right, gold, predicted = (weights @ matrix for matrix in counts[1:])
    return _ratio(_f1(right, gold, predicted).sum(axis=1), np.sum(gold + predicted > 0, axis=1))


def _roc_auc(second: np.ndarray, likelihood: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How often an example of the second label is the likelier one (R,), ties counting half.

    From the ranks, as Mann and Whitney's U; 0.5 where a sample lacks one of the labels.
    """
    positive = weights * second
    positives = positive.sum(axis=1)
    pairs = positives * (weights.sum(axis=1) - positives)
    ranks = np.sum(positive * _ranks(likelihood, weights), axis=1)
    return 0.5 + _ratio(ranks - positives * (positives + 1) / 2 - pairs / 2, pairs)


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pearson's r (R,) of x and y, (N,) or (R, N); 0 where one of them is constant."""
    x, y = _deviations(x, weights), _deviations(y, weights)
    together, of_x, of_y = ((weights * z).sum(axis=1) for z in (x * y, x**2, y**2))
    return np.clip(_ratio(together, np.sqrt(of_x * of_y)), -1, 1)


def _deviations(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Deviation (R, N) from each sample's mean; what is mere rounding is 0."""
    means = np.sum(weights * values, axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    deviations = values - means
    return np.where(np.abs(deviations) > 1e-12 * np.abs(values).max(), deviations, 0)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rank (R, N) of each value in samples that hold it as often as the weights say.

    Equal values share the mean of their ranks.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan))  # NaN differs from any
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (R, distinct values)
    group = np.empty(len(values), np.int64)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]


def _draws(rng: np.random.Generator, examples: int, resamples: int) -> np.ndarray:
    """How often each example is drawn (R, N) when as many are drawn as there are."""
    drawn = rng.integers(0, examples, (resamples, examples))
    return np.array([np.bincount(row, minlength=examples) for row in drawn], np.float64)


def _middle(values: np.ndarray) -> tuple[float, float]:
    """What 95 % of the values lie between."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _items(task: Task, label: Label) -> set[tuple[Any, ...]]:
    """What can be right or wrong by itself in an answer, each beginning with its kind."""
    if task.name == "tagging":
        return set(spans(label))  # type: ignore[arg-type]
    return {(one,) for one in (label if task.name == "multilabel" else (label,))}  # type: ignore[union-attr]


def _kinds(task: Task) -> tuple[str, ...]:
    """Labels of the task, or types of its entities."""
    if task.name == "ranking":
        return RANKED
    if task.name != "tagging":
        return task.labels
    return tuple(sorted({kind for label in task.labels for kind, _, _ in spans([label])}))


def _matrix(items: Sequence[Iterable[tuple[Any, ...]]], kinds: tuple[str, ...]) -> Any:
    """Count the items of each kind: sparse (N, K)."""
    from scipy.sparse import csr_matrix

    number = {kind: column for column, kind in enumerate(kinds)}
    rows = [row for row, found in enumerate(items) for _ in found]
    columns = [number[item[0]] for found in items for item in found]
    shape = (len(items), len(kinds))
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape)  # equal places add up


def _units(gold: Sequence[Label], predictions: Sequence[Prediction]) -> tuple[np.ndarray, ...]:
    """Units rightly labelled, and units, of each sentence (N,)."""
    right = [
        sum(one == other for one, other in zip(label, prediction.label, strict=True))  # type: ignore[arg-type]
        for label, prediction in zip(gold, predictions, strict=True)
    ]
    return np.array(right, np.float64), np.array([len(label) for label in gold], np.float64)  # type: ignore[arg-type]
