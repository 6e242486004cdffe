"""Fourth part of a task: predictions → figures, intervals, a baseline, the worst mistakes.

This module selects the figures of a task; `metrics` computes them.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from roformer_tf.labelled.cells import ellipsized
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import metrics
from roformer_tf.tasks.metrics import Counts, Ends, Function, LabelItem, Measure, Metric, Scores
from roformer_tf.tasks.parts import Examples, Gold, Part, Prediction, Predictions
from roformer_tf.tasks.tfidf import LinearModel, Setting
from roformer_tf.translation import Message

# Maximum number of mistakes in a report.
MISTAKES = 20
# Maximum number of characters (or units) of a text in a report.
CHARACTERS = 200
# Maximum number of points of a curve or a scatter plot.
POINTS = 1000
BINS = 10  # of calibration: each of 0.1
COSINE_BINS = 20

# A dictionary that can be written as JSON.
JsonObject: TypeAlias = dict[str, Any]
# The name of a baseline, and what it predicts.
NamedPredictions: TypeAlias = tuple[Message, list[Prediction]]
# Probabilities (M,), and whether each is of something true (M,) bool.
Probabilities: TypeAlias = tuple[np.ndarray, np.ndarray]

# Why a figure has no interval.
NO_SPREAD = Message("all samples drawn from the examples have the same value")
FEW_PER_LABEL = Message("there are too few examples of each label to estimate its error")
# Macro F1 has no interval if labels outnumber the mean number of examples of a label by this
# factor. Labels with few examples have a lower F1 in samples: with more labels the interval covers
# the true value too rarely (88 % at this ratio, 55 % at 100), and at last not even the figure.
LABELS_PER_EXAMPLE = 10


class Metrics(Part):
    """How good predictions are: figures, intervals, a baseline, and the worst mistakes."""

    all: ClassVar[tuple[Metric, ...]]
    """The first one is the default: it selects the best weights."""
    linear_model: ClassVar[str] = ""
    """A key of `tfidf.REGRESSIONS`, if TF-IDF and a linear model are the baseline."""
    sureness_kind: ClassVar[Literal["confidence", "error", "lead", "distance"]] = "confidence"
    """What `sureness` measures, for the text of a report."""
    has_probabilities: ClassVar[bool] = False
    """Whether a report shows the calibration of `probabilities`."""
    by_label: ClassVar[bool] = False
    """Whether a report shows the figures of each label."""
    finds_label_errors: ClassVar[bool] = False
    """Whether an example has one of several labels, each with a probability, so that confident
    learning finds labels that are probably wrong."""

    # Figures

    def named(self, name: str) -> Metric:
        """A metric by its name."""
        return next(metric for metric in self.all if metric.name == name)

    def usable(self) -> tuple[Metric, ...]:
        """The metrics that suit the labels."""
        return self.all

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """Each metric as a function of how often each example counts; here those of `is_right`."""
        right = partial(metrics.mean, self.right(gold, predictions))
        return {metric: right for metric in self.all if metric.by_example}

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All that is `usable` as one function."""
        functions = self.functions(gold, predictions)
        return lambda weights: {m.name: functions[m](weights) for m in self.usable()}

    def compute(self, gold: Gold, predictions: Predictions) -> Scores:
        """Compare predictions with the labels in the data: each of `usable` by its name.

        None for a metric that is undefined for these labels and predictions: see `reason`.
        """
        return metrics.once(self.measure(gold, predictions), len(gold))

    def with_choices(self, gold: Gold, predictions: Predictions) -> tuple[Any, Scores]:
        """The task with its choices on these examples, such as thresholds, and its metrics then."""
        chosen = self.task.decoding.with_choices(gold, predictions)
        return chosen, chosen.metrics.compute(gold, list(map(chosen.decoding.reread, predictions)))

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether a prediction has all items of the label, and no other."""
        return self.items(label) == self.items(prediction.label)

    def right(self, gold: Gold, predictions: Predictions) -> np.ndarray:
        """`is_right` of several examples: (N,) bool."""
        return np.array([self.is_right(*pair) for pair in zip(gold, predictions, strict=True)])

    # Why a figure or an interval is undefined

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """For each metric that is undefined for these labels under any predictions: the reason."""
        missing = [kind for kind, number in self.count_kinds(gold).items() if not number]
        no_example = Message("there is no example of {labels}", labels=missing)
        # Nothing correlates with a constant.
        is_constant = bool(gold) and isinstance(gold[0], float) and len(set(gold)) == 1
        is_empty = not any(map(self.items, gold))
        reasons = {
            "every label": no_example if missing else metrics.SAME_LABELS if is_constant else None,
            "a label": no_example if is_empty else None,
            "an entity": metrics.NO_ENTITY if is_empty else None,
        }
        needs = {metric.name: reasons.get(metric.needs) for metric in self.usable()}
        return {name: reason for name, reason in needs.items() if reason}

    def reason(self, metric: Metric, gold: Gold, has_value: bool = False) -> Message:
        """Why a metric has no value for these labels; or, if it has one, no interval."""
        if has_value:
            return FEW_PER_LABEL if self._is_biased(metric.name, gold) else NO_SPREAD
        return self.why_undefined(gold).get(metric.name) or metric.undefined or NO_SPREAD

    # Intervals

    def intervals(self, gold: Gold, predictions: Predictions) -> dict[str, Ends | None]:
        """The 95 % interval of each metric; None if it has no value, no spread, or a bias.

        Wilson's interval for a fraction of independent trials. Else a bootstrap that draws examples
        within their labels: every sample has all labels of the data.
        """
        measure = self.measure(gold, predictions)
        figures = metrics.once(measure, len(gold))
        ends = metrics.bootstrap(measure, len(gold), strata=self._rarest(gold))
        for metric in self.usable():
            fraction = figures[metric.name]
            if metric.by_example and fraction is not None:
                ends[metric.name] = metrics.wilson(fraction, len(gold))
        absent = {x for x in figures if figures[x] is None or self._is_biased(x, gold)}
        return {name: None if name in absent else ends[name] for name in figures}

    def _is_biased(self, name: str, gold: Gold) -> bool:
        """Whether a metric is macro F1 of too many labels for a bootstrap."""
        counts = self.count_kinds(gold)
        limit = LABELS_PER_EXAMPLE * sum(counts.values())
        return name == metrics.MACRO_F1.name and len(counts) ** 2 > limit

    def differences(
        self, gold: Gold, predictions: Predictions, other: Predictions
    ) -> dict[str, tuple[float | None, Ends | None]]:
        """Each metric of predictions minus that of other ones, and its interval.

        The 95 % interval of a paired bootstrap: each sample has the same examples of both. None as
        for `intervals`.
        """
        both = [self.measure(gold, x) for x in (predictions, other)]

        def measure(weights: np.ndarray) -> metrics.Figures:
            ours, theirs = (x(weights) for x in both)
            return {name: ours[name] - theirs[name] for name in ours}

        ends = metrics.bootstrap(measure, len(gold), strata=self._rarest(gold))
        return {name: (x, ends[name]) for name, x in metrics.once(measure, len(gold)).items()}

    def _rarest(self, gold: Gold) -> np.ndarray:
        """The stratum (N,) int64 of each example for the bootstrap: its rarest label.

        An example may have several labels. Grouped by the rarest one, each sample has as many of
        the rare labels as the data. Examples without any label are group 0.
        """
        counts = self.count_kinds(gold)
        rising = sorted(counts, key=counts.__getitem__)
        # The rarest label is 1, so the minimum over an example's labels is its rarest one.
        numbers = {kind: number for number, kind in enumerate(rising, start=1)}
        of_items = [[numbers.get(item[0], 0) for item in self.items(label)] for label in gold]
        return np.array([min(some, default=0) for some in of_items], np.int64)

    # Items: what can be right or wrong on its own in a prediction. The first element is its kind.

    def items(self, label: Label) -> set[LabelItem]:
        """The items of an example's label."""
        return {(label,)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of `items`: labels, or types of entities."""
        return self.task.labels

    def count_items(self, gold: Gold, predictions: Predictions) -> Counts:
        """Count the items in the data, those predicted, and those in both."""
        predicted = [self.items(prediction.label) for prediction in predictions]
        return Counts(self.kinds, [self.items(label) for label in gold], predicted)

    def count_kinds(self, gold: Gold) -> dict[str, int]:
        """How often each label occurs in the data, or entities of each type."""
        counts = Counter(item[0] for label in gold for item in self.items(label))
        return {kind: counts[kind] for kind in self.kinds}

    # Baselines

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """Predict the test set by a rule, if there is no `linear_model`; [] without a rule, too."""
        return Message(""), []

    def fit_linear(self, targets: np.ndarray, features: Any, setting: Setting) -> LinearModel:
        """Fit `linear_model` to features (N, F) and the targets (N, …) of `Labelling.target`."""
        raise NotImplementedError(f"{type(self).__name__} has no linear model")

    def linear_logits(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of `linear_model` → logits (N, C), as the model's."""
        return outputs

    # report.json

    def describe_labels(self, gold: Gold) -> JsonObject:
        """The labels of a set: how often each occurs, or the range of its numbers."""
        numbers = metrics.range_of(gold) if gold and isinstance(gold[0], float) else {}
        return {"labels": self.count_kinds(gold), "numbers": numbers}

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """What a report shows in addition to the metrics."""
        shown: JsonObject = {"mistakes": self.mistakes(examples, predictions)}
        if self.has_probabilities:
            shown["calibration"] = calibration(*self.probabilities(examples, predictions))
        if self.by_label:
            gold = [example.label for example in examples]
            shown["per_class"] = metrics.by_kind(self.count_items(gold, predictions))
        return shown

    def probabilities(self, examples: Examples, predictions: Predictions) -> Probabilities:
        """Those of a report's calibration. Default: of the predicted labels."""
        highest = np.array([prediction.scores.max() for prediction in predictions])
        return highest, self.right([example.label for example in examples], predictions)

    def mistakes(self, examples: Examples, predictions: Predictions) -> list[JsonObject]:
        """The wrong predictions with the highest `sureness`: [{"sureness": 0.98, …}], as `shown`.

        Of equal ones the first of the data.
        """
        wrong = [
            (-self.sureness(example.label, prediction), number)
            for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True))
            if example.label is not None and not self.is_right(example.label, prediction)
        ]
        return [
            {"sureness": -negated} | self.shown(number, examples, predictions)
            for negated, number in sorted(wrong)[:MISTAKES]
        ]

    def shown(self, number: int, examples: Examples, predictions: Predictions) -> JsonObject:
        """An example of a set: {"place": "test.tsv:12", …}, with what `describe` gives."""
        source = {"place": examples[number].source_line}
        return source | self.describe(examples[number], predictions[number])

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How wrong a wrong prediction is. Default: the model's highest probability."""
        return float(prediction.scores.max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """An example, its label and the prediction, as report.json has them."""
        texts = [shortened(text) for text in example.texts]
        return {"gold": example.label, "predicted": prediction.label, "texts": texts}


def calibration(probability: np.ndarray, right: np.ndarray) -> JsonObject:
    """Compare predicted probabilities (M,) with how often they are right, (M,) bool.

    → {"ece": expected calibration error, the mean distance of the two over bins of equal width,
    "chance": its 95 % quantile where the probabilities are perfect,
    "bins": [{"from", "to", "count", "probability": mean, "right": fraction}], no empty ones}.
    """
    # A probability of 1 is in the last bin, not in one of its own.
    number = np.minimum((probability * BINS).astype(int), BINS - 1)
    bins = [_bin(n, probability[number == n], right[number == n]) for n in np.unique(number)]
    distances = [x["count"] * abs(x["probability"] - x["right"]) for x in bins]
    # Of few examples, the fraction that is right differs from any probability.
    counts, means = (np.array([x[key] for x in bins]) for key in ("count", "probability"))
    # A sum of probabilities may be slightly above 1.
    rights = np.random.default_rng(0).binomial(counts, means.clip(0, 1), (1000, len(bins)))
    by_chance = np.abs(rights - counts * means).sum(axis=1) / len(right)
    chance = float(np.quantile(by_chance, 0.95))
    return {"ece": sum(distances) / len(right), "chance": chance, "bins": bins}


def confusion(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> list[JsonObject]:
    """How often each label is predicted for each label, the most frequent pair first.

    → [{"gold": "good", "predicted": "bad", "count": 12}, …], none of them 0.
    """
    counts = Counter(zip(gold, predicted, strict=True))
    return [
        {"gold": label, "predicted": other, "count": number}
        for (label, other), number in counts.most_common()
    ]


def shortened(text: str) -> str:
    """The first `CHARACTERS` of a text."""
    return ellipsized(text, CHARACTERS)


def histograms(near: Sequence[float], far: Sequence[float]) -> JsonObject:
    """Histograms of the cosines of near texts and of other texts, with the same edges."""
    lowest = min((*near, *far), default=0.0)
    # A multiple of 0.05, at most 0.95: bins have a width even if all cosines are 1.
    edges = np.linspace(min(0.95, np.floor(20 * lowest) / 20), 1.0, COSINE_BINS + 1)
    near, far = (np.clip(x, edges[0], 1.0).tolist() for x in (near, far))  # a float32's 1.0000001
    return {
        "edges": edges.tolist(),
        "near": np.histogram(near, edges)[0].tolist(),
        "far": np.histogram(far, edges)[0].tolist(),
    }


def _bin(number: int, probability: np.ndarray, right: np.ndarray) -> JsonObject:
    """A report's entry for the predictions with probabilities in one bin."""
    return {
        "from": number / BINS,
        "to": (number + 1) / BINS,
        "count": len(right),
        "probability": float(probability.mean()),
        "right": float(right.mean()),
    }
