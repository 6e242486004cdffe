"""One text, any of several labels, or none."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.labelled.cells import read_labels
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task, part
from roformer_tf.tasks.baselines import check_size, logistic_probabilities
from roformer_tf.tasks.metrics import (
    MACRO_F1,
    Figures,
    LabelItem,
    Measure,
    Metric,
    by_kind,
    f1,
    macro_f1,
    mean,
    totals,
)
from roformer_tf.tasks.parts import Decoding, Labelling, SigmoidObjective
from roformer_tf.tasks.probabilities import (
    likeliest,
    listed_cells,
    listed_labels,
    named_cells,
    named_probabilities,
    shortest,
    sigmoid,
)
from roformer_tf.tasks.scoring import JsonObject, Metrics, calibration
from roformer_tf.tasks.task_settings import Examples, Gold, Predictions
from roformer_tf.translation import Message

MICRO_F1 = Metric(
    "micro_f1",
    Message("micro F1"),
    meaning=Message("F1, which combines precision and recall, over all labels of all texts"),
)
EXACT_MATCH = Metric(
    "exact_match",
    Message("exact match"),
    meaning=Message("fraction of texts with exactly the right set of labels"),
)
STEPS = np.array(sorted(np.arange(1, 20) / 20, key=lambda step: abs(step - 0.5)))
"""Thresholds that are tried, 0.05 to 0.95, the nearest to ½ first: of equally good ones it wins."""
ENOUGH = 300
"""Examples in the validation set from which on a label has a threshold of its own."""
# Measured with TF-IDF on 6,000 newspaper sentences: one threshold for all labels gains 2.5 to 4
# points of micro F1. A threshold for each label gains another 0.3 where sentences are split at
# random and a label has 100 examples or more. Where they are split by document, with 130 to 209
# examples a label, it costs a point: hence 300.


class MultilabelLabelling(Labelling[Task]):
    """Several labels between separators. Target (C,) float32: 1 for each label that there is."""

    min_labels: ClassVar[int] = 1

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Lists, a column called labels, or cells in which a separator repeats."""
        return sample.why_several

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """An empty cell has no label."""
        return read_labels(value, separator)

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """Each of several."""
        return set(label)

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32."""
        target = np.zeros(len(self.task.labels), np.float32)
        target[[self.number_of(label, example) for label in example.label or ()]] = 1
        return target


class MultilabelDecoding(Decoding[Task]):
    """Logits (C,) → all labels above their thresholds. Scores (C,): a probability of each label."""

    lists_labels: ClassVar[bool] = True
    chosen_fields: ClassVar[tuple[str, ...]] = ("thresholds",)

    def predict(self, logits: np.ndarray) -> Prediction:
        """All labels above their thresholds."""
        scores = sigmoid(logits)
        return Prediction(self._above(scores), scores)

    def _above(self, probabilities: np.ndarray) -> tuple[str, ...]:
        """The labels whose probabilities (C,) are above the thresholds."""
        thresholds = np.array(self.task.thresholds) if self.task.thresholds else 0.5
        return tuple(self.task.labels[i] for i in np.flatnonzero(probabilities > thresholds))

    def with_choices(self, gold: Gold, predictions: Predictions) -> Task:
        """The thresholds of the highest micro F1; only the predictions' probabilities count."""
        if not len(predictions):
            return self.task
        scores = np.array([prediction.scores for prediction in predictions])
        thresholds = best_thresholds(has_label(self.task, gold), scores)
        return dataclasses.replace(self.task, thresholds=thresholds)

    def reread(self, prediction: Prediction) -> Prediction:
        """By the thresholds as they are now."""
        return prediction._replace(label=self._above(prediction.scores))

    def config_values(self) -> dict[str, Any]:
        """And that every label has a probability of its own."""
        return super().config_values() | {"problem_type": "multi_label_classification"}

    def graph_meaning(self) -> OutputKind:
        """The probability of each label."""
        return OutputKind("probabilities", "sigmoid")

    def cell_names(self) -> list[str]:
        """labels, p(…) of each label; where some are listed, labels and their probabilities.

        After these label_1, probability_1, label_2, …: the most probable, predicted or not.
        """
        if self.listed is None:
            return named_cells("labels", self.task.labels)
        return ["labels", "probabilities", *listed_cells(range(1, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The labels and all probabilities, or theirs, and the most probable labels."""
        label, scores = prediction
        if self.listed is None:
            return [label, *map(shortest, scores)]
        predicted = tuple(shortest(scores[self.task.label_numbers[one]]) for one in label)
        best = listed_labels(self.task.labels, scores, likeliest(scores, self.listed))
        return [label, predicted, *best]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """labels, probabilities: of all labels, or of those predicted or listed, in order."""
        label, scores = prediction
        probabilities = named_probabilities(self.task.labels, scores)
        if self.listed is not None:
            ordered = [self.task.labels[i] for i in likeliest(scores, len(scores))]
            kept = {*label, *ordered[: self.listed]}
            probabilities = {name: probabilities[name] for name in ordered if name in kept}
        return {"labels": prediction.label, "probabilities": probabilities}


class MultilabelMetrics(Metrics[Task]):
    """Micro and macro F1, and the share of examples with every label right."""

    all: ClassVar[tuple[Metric, ...]] = (MICRO_F1, MACRO_F1, EXACT_MATCH)
    linear_model: ClassVar[str] = "logistic"

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All three."""
        right, counts = self.right(gold, predictions), self.count_items(gold, predictions)

        def measure(weights: np.ndarray) -> Figures:
            return {
                MICRO_F1.name: f1(*totals(counts, weights)),
                MACRO_F1.name: macro_f1(counts, weights),
                EXACT_MATCH.name: mean(right, weights),
            }

        return measure

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """Each example has all labels right, or has not."""
        return {EXACT_MATCH.name: len(gold)}

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """Macro F1 needs an example of every label, micro F1 one of any."""
        without_any = {} if any(gold) else self._without_missing(gold, MICRO_F1)
        return self._without_missing(gold, MACRO_F1) | without_any

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether all labels are predicted and no other, in any order."""
        return set(label) == set(prediction.label)

    def items(self, label: Label) -> set[LabelItem]:
        """Each label."""
        return {(one,) for one in label}

    def fit_linear(
        self, examples: Examples, features: Any, new_features: Any, strength: float
    ) -> list[Prediction]:
        """The probability of each label, as a model of its own; `reread` makes labels of them."""
        check_size(features, len(self.task.labels))
        targets = np.array([self.task.labelling.target(example) for example in examples]) > 0
        scores = logistic_probabilities(features, targets, new_features, strength)
        return [Prediction((), row) for row in scores]

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Calibration of every label's probability, and figures of each label."""
        gold = [example.label for example in examples]
        scores = np.array([prediction.scores for prediction in predictions])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(scores.ravel(), has_label(self.task, gold).ravel()),
            "per_class": by_kind(self.count_items(gold, predictions)),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a wrong label, or of the absence of one that is missing."""
        wrong = set(label) ^ set(prediction.label)
        scores = {name: float(prediction.scores[self.task.label_numbers[name]]) for name in wrong}
        return max(x if name in prediction.label else 1 - x for name, x in scores.items())


class Multilabel(Task):
    """One text, any of several labels, or none."""

    name: ClassVar[str] = "multilabel"
    title: ClassVar[str] = "多标签分类 · Multi-label classification"
    labelling = part(MultilabelLabelling)
    objective = part(SigmoidObjective[Task])
    decoding = part(MultilabelDecoding)
    metrics = part(MultilabelMetrics)


def has_label(task: Task, gold: Gold) -> np.ndarray:
    """Whether an example has a label: (N, C) bool."""
    table = np.zeros((len(gold), len(task.labels)), np.bool_)
    for row, labels in zip(table, gold, strict=True):
        row[[task.label_numbers[label] for label in labels]] = True
    return table


def best_thresholds(wanted: np.ndarray, scores: np.ndarray) -> tuple[float, ...]:
    """The thresholds (C,) that give the highest micro F1.

    wanted: whether an example has a label (N, C) bool; scores: its probability (N, C). First one
    for all labels; then, with the rest held, one for each label of at least `ENOUGH` examples.
    """
    predicted = np.array([np.sum(scores > step, axis=0) for step in STEPS])  # (steps, C)
    right = np.array([np.sum((scores > step) & wanted, axis=0) for step in STEPS])
    gold = wanted.sum(axis=0)  # (C,)

    def best(right: np.ndarray, predicted: np.ndarray) -> int:
        """The step of the highest micro F1, by the items (steps,) of all labels together.

        F1 = 2 · right / (gold + predicted): the 2 does not change which step is best.
        """
        return int(np.argmax(right / np.maximum(gold.sum() + predicted, 1)))

    chosen = np.full(len(gold), best(right.sum(axis=1), predicted.sum(axis=1)))
    for label in np.flatnonzero(gold >= ENOUGH):
        rest = np.flatnonzero(np.arange(len(chosen)) != label)
        steps = chosen[rest]
        chosen[label] = best(
            right[:, label] + right[steps, rest].sum(),
            predicted[:, label] + predicted[steps, rest].sum(),
        )
    thresholds: list[float] = STEPS[chosen].tolist()
    return tuple(thresholds)
