"""The fourth part of a task, as base class: predictions → figures, intervals, baseline, mistakes.

How figures are computed is in `metrics`; here is which of them a task has, and of what.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.baselines import BaselineSets, tfidf_baseline
from roformer_tf.tasks.metrics import (
    Counts,
    Ends,
    LabelItem,
    Measure,
    Metric,
    Scores,
    bootstrap,
    count,
    once,
    wilson,
)
from roformer_tf.tasks.probabilities import LabelIssue
from roformer_tf.tasks.task_settings import Examples, Gold, Part, Prediction, Predictions, TaskT
from roformer_tf.translation import Message

MISTAKES = 20
"""Most mistakes that a report shows."""
CHARACTERS = 200
"""Most characters of a text that it shows, or units."""
POINTS = 1000
"""Most points of a curve or a scatter plot."""
BINS = 10
COSINE_BINS = 20

JsonObject: TypeAlias = dict[str, Any]
"""A dictionary that JSON knows."""

NO_SPREAD = Message("all samples drawn from the examples have the same value")
"""Why a figure has no interval."""


class Metrics(Part[TaskT]):
    """How good predictions are: figures, intervals, a baseline, and the worst mistakes."""

    all: ClassVar[tuple[Metric, ...]]
    """The usual one, by which the best weights are chosen, first."""
    linear_model: ClassVar[str] = ""
    """A key of `baselines.REGRESSIONS`, where TF-IDF and a linear model are the baseline."""
    sureness_kind: ClassVar[Literal["confidence", "error", "lead", "distance"]] = "confidence"
    """What `sureness` measures, for the words of a report."""

    # Figures

    @classmethod
    def named(cls, name: str) -> Metric:
        """A metric by its name."""
        return next(metric for metric in cls.all if metric.name == name)

    def usable(self) -> tuple[Metric, ...]:
        """Those metrics that the labels allow."""
        return self.all

    @abstractmethod
    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """The metrics as a function of how often each example counts."""

    def compute(self, gold: Gold, predictions: Predictions) -> Scores:
        """Compare predictions with the labels in the data: each of `usable` by its name.

        None for one that these labels and predictions cannot give: see `reason`.
        """
        return once(self.measure(gold, predictions), len(gold))

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether a whole example is predicted as the data have it."""
        return bool(label == prediction.label)

    def right(self, gold: Gold, predictions: Predictions) -> np.ndarray:
        """The same of several examples: (N,) bool."""
        return np.array([self.is_right(*pair) for pair in zip(gold, predictions, strict=True)])

    # Where there is no figure

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """For each metric that these labels cannot give, whatever is predicted: why not."""
        return {}

    def reason(self, metric: Metric, gold: Gold, has_value: bool = False) -> Message:
        """Why a metric has no value for a set with these labels, or else no interval."""
        if has_value:
            return NO_SPREAD
        return self.why_undefined(gold).get(metric.name) or metric.undefined or NO_SPREAD

    def _without_missing(self, gold: Gold, *metrics: Metric) -> dict[str, Message]:
        """`why_undefined` for metrics that need an example of every label of training."""
        missing = [kind for kind, number in self.count_kinds(gold).items() if not number]
        if not missing:
            return {}
        reason = Message("there is no example of {labels}", labels=missing)
        return {metric.name: reason for metric in metrics}

    # Intervals

    def intervals(
        self,
        gold: Gold,
        predictions: Predictions,
        resamples: int = 1000,
        seed: int = 0,
    ) -> dict[str, Ends | None]:
        """The 95 % interval of each metric; None where there is no value, or no spread of it.

        Wilson's where a metric is a share of independent trials, else a bootstrap that draws
        examples within their labels: no sample lacks a label that the data have.
        """
        measure = self.measure(gold, predictions)
        figures = once(measure, len(gold))
        ends = bootstrap(measure, len(gold), resamples, seed, self._rarest(gold))
        for name, trials in self.trials(gold, predictions).items():
            share = figures[name]
            ends[name] = None if share is None else wilson(share, trials)
        return {name: None if figures[name] is None else ends[name] for name in figures}

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """Metrics that are shares of independent trials, and how many trials these are."""
        return {}

    def _rarest(self, gold: Gold) -> np.ndarray:
        """The stratum (N,) int64 of each example for the bootstrap: its rarest label.

        An example may have several labels: grouped by the rarest, each sample has as many of the
        rare labels as the data. Those without any label are a group of their own, 0.
        """
        counts = self.count_kinds(gold)
        rising = sorted(counts, key=counts.__getitem__)
        numbers = {kind: number for number, kind in enumerate(rising, start=1)}
        of_items = [[numbers.get(item[0], 0) for item in self.items(label)] for label in gold]
        return np.array([min(some, default=0) for some in of_items], np.int64)

    # Items: what can be right or wrong by itself in a prediction, each beginning with its kind

    def items(self, label: Label) -> set[LabelItem]:
        """The items of an example's label."""
        return {(label,)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of `items`: labels, or types of entities."""
        return self.task.labels

    def count_items(self, gold: Gold, predictions: Predictions) -> Counts:
        """Count what is in the data, what is predicted, and what is both."""
        predicted = [self.items(prediction.label) for prediction in predictions]
        return count(self.kinds, [self.items(label) for label in gold], predicted)

    def count_kinds(self, gold: Gold) -> dict[str, int]:
        """How often each label is in the data, or entities of each type."""
        counts = Counter(item[0] for label in gold for item in self.items(label))
        return {kind: counts[kind] for kind in self.kinds}

    # Compared with the figures of simple methods, and with the labels themselves

    def baseline(
        self,
        training: Examples,
        test: Examples,
        valid: Examples = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """Learn from the training examples by a simple method, and predict the test set.

        → the method in words, and its predictions; none where there is no such method. `valid` is
        for what is tuned and chosen, by `metric` or the task's first one.
        """
        if not self.linear_model:
            return Message(""), []
        sets = BaselineSets(training, test, valid)
        return tfidf_baseline(self.task, self.linear_model, sets, metric or self.usable()[0])

    def fit_linear(
        self, examples: Examples, features: Any, new_features: Any, strength: float
    ) -> list[Prediction]:
        """Fit `linear_model` to features (N, F) of examples, and predict from those of others."""
        raise NotImplementedError(f"{type(self).__name__} has no linear model")

    def calibrated(self, examples: Examples, predictions: Predictions) -> list[Prediction]:
        """The predictions with probabilities that are as often right as they claim.

        Fitted to these labelled examples; the most probable label stays the same.
        """
        return list(predictions)

    def label_issues(
        self,
        examples: Examples,
        predictions: Predictions,
        second_opinion: Predictions = (),
    ) -> list[LabelIssue] | None:
        """Examples whose labels are probably wrong, the most doubtful first.

        Both kinds of predictions are of models that were not trained on the examples; where there
        is a second opinion, it has to agree. None for tasks where an example does not have one of
        several labels, each with a probability.
        """
        return None

    # report.json

    def describe_labels(self, gold: Gold) -> JsonObject:
        """What labels a set has: how often each, or the range of its numbers."""
        return {"labels": self.count_kinds(gold), "numbers": {}}

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """What a report shows besides the metrics."""
        return {"mistakes": self.mistakes(examples, predictions)}

    def mistakes(self, examples: Examples, predictions: Predictions) -> list[JsonObject]:
        """The wrong predictions of which the model was surest.

        → [{"place": "test.tsv:12", "sureness": 0.98, …}], with what `describe` gives.
        """
        wrong = [
            (self.sureness(example.label, prediction), example, prediction)
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label is not None and not self.is_right(example.label, prediction)
        ]
        wrong.sort(key=lambda mistake: -mistake[0])  # stable: equals stay in the data's order
        return [
            {"place": example.place, "sureness": sureness} | self.describe(example, prediction)
            for sureness, example, prediction in wrong[:MISTAKES]
        ]

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How wrong a prediction is: by default, how probable the model took it for."""
        return float(prediction.scores.max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """An example, its label and the prediction, as report.json has them."""
        texts = [shortened(text) for text in example.texts]
        return {"gold": example.label, "predicted": prediction.label, "texts": texts}


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


def confusion(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> list[JsonObject]:
    """How often which label is predicted for which, the most frequent first.

    → [{"gold": "good", "predicted": "bad", "count": 12}, …], none of them 0.
    """
    counts = Counter(zip(gold, predicted, strict=True))
    return [
        {"gold": label, "predicted": other, "count": number}
        for (label, other), number in counts.most_common()
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
