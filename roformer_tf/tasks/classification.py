"""One text or a pair of texts, one of several labels."""

from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import without_nan
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task, part
from roformer_tf.tasks.baselines import check_size, logistic_probabilities
from roformer_tf.tasks.metrics import (
    ACCURACY,
    MACRO_F1,
    Counts,
    Figures,
    Measure,
    Metric,
    by_kind,
    macro_f1,
    mean,
    roc_auc,
)
from roformer_tf.tasks.parts import Decoding, Labelling, SoftmaxObjective
from roformer_tf.tasks.probabilities import (
    LabelIssue,
    at_temperature,
    find_label_issues,
    fit_temperature,
    likeliest,
    listed_cells,
    listed_labels,
    named_cells,
    named_probabilities,
    shortest,
    softmax,
)
from roformer_tf.tasks.scoring import JsonObject, Metrics, calibration, confusion
from roformer_tf.tasks.task_settings import Examples, Gold, Predictions
from roformer_tf.translation import Message

ROC_AUC = Metric(
    "roc_auc",
    Message("ROC AUC"),
    "coefficient",
    meaning=Message("how well probabilities separate the two labels: 1 is perfect, 0.5 is chance"),
)


class ClassificationLabelling(Labelling[Task]):
    """Labels that repeat in a column. Target () int32: the label's index among the logits."""

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Labels that repeat, and are no numbers with decimals."""
        fits = len(sample.texts) in cls.text_counts and sample.has_few
        if not fits or sample.has_decimals or sample.why_several:
            return ""
        return f"there are {sample.distinct} different labels"

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """Refuse the label "nan" where all others are numbers: it is a missing one."""
        labels = [example.label for example in examples]
        numbers = without_nan(labels)
        if len(numbers) < len(labels):
            bad = next(example for example in examples if example.label not in numbers)
            raise InputError(
                f"{bad.place} has the label {bad.label!r}, but all others are numbers. Correct it, "
                "or take it out of the file."
            )
        return examples

    def target(self, example: Example) -> np.ndarray:
        """() int32."""
        return np.array(self.number_of(example.label, example), np.int32)


class PairLabelling(ClassificationLabelling):
    """The same of two texts, which are in one row."""

    text_counts: ClassVar[tuple[int, ...]] = (2,)


class ClassificationDecoding(Decoding[Task]):
    """Logits (C,) → the most probable label. Scores (C,): probabilities that sum to 1."""

    lists_labels: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """The labels in the order of the logits."""
        return self.task.labels

    def predict(self, logits: np.ndarray) -> Prediction:
        """The most probable label."""
        return Prediction(self.names[int(np.argmax(logits))], softmax(logits))

    def cell_names(self) -> list[str]:
        """label, p(…) of each label; where some are listed, label, probability, label_2, …."""
        if self.listed is None:
            return named_cells("label", self.names)
        return ["label", "probability", *listed_cells(range(2, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The label and all probabilities, or the most probable labels, each with its own."""
        label, scores = prediction
        if self.listed is None:
            return [label, *map(shortest, scores)]
        return listed_labels(self.names, scores, likeliest(scores, self.listed))

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label, probabilities: of all labels, or of those listed, the most probable first."""
        probabilities = named_probabilities(self.names, prediction.scores)
        if self.listed is not None:
            indices = likeliest(prediction.scores, self.listed)
            probabilities = {self.names[i]: probabilities[self.names[i]] for i in indices}
        return {"label": prediction.label, "probabilities": probabilities}


class ClassificationMetrics(Metrics[Task]):
    """Accuracy, macro F1 and, between two labels, ROC AUC."""

    all: ClassVar[tuple[Metric, ...]] = (ACCURACY, MACRO_F1, ROC_AUC)
    linear_model: ClassVar[str] = "logistic"

    def usable(self) -> tuple[Metric, ...]:
        """ROC AUC between two labels only."""
        two = len(self.task.labels) == 2
        return tuple(metric for metric in self.all if two or metric != ROC_AUC)

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """ROC AUC is that of the second label's probability."""
        right, counts = self.right(gold, predictions), self.count_items(gold, predictions)
        labels = self.task.labels
        if len(labels) != 2:
            return partial(_of_labels, counts, right)
        second = np.array([label == labels[1] for label in gold])
        probability = np.array([prediction.scores[1] for prediction in predictions])

        def of_two_labels(weights: np.ndarray) -> Figures:
            auc = roc_auc(second, probability, weights)
            return _of_labels(counts, right, weights) | {ROC_AUC.name: auc}

        return of_two_labels

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """Each example is right or wrong."""
        return {ACCURACY.name: len(gold)}

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """Macro F1 and ROC AUC need an example of every label."""
        return self._without_missing(gold, MACRO_F1, ROC_AUC)

    def fit_linear(
        self, examples: Examples, features: Any, new_features: Any, strength: float
    ) -> list[Prediction]:
        """The most probable label, each of them against the rest."""
        labels = self.task.labels
        check_size(features, len(labels))
        numbers = [self.task.labelling.target(example) for example in examples]
        targets = np.eye(len(labels), dtype=bool)[numbers]
        if len(labels) == 2:
            second = logistic_probabilities(features, targets[:, 1:], new_features, strength)
            scores = np.hstack([1 - second, second])
        else:
            scores = logistic_probabilities(features, targets, new_features, strength)
            scores /= scores.sum(axis=1, keepdims=True)
        return [Prediction(labels[int(np.argmax(row))], row) for row in scores]

    def calibrated(self, examples: Examples, predictions: Predictions) -> list[Prediction]:
        """By temperature scaling: all logits are divided by one number."""
        if not examples:
            return []
        labels, scores = self._arrays(examples, predictions)
        scaled = at_temperature(scores, fit_temperature(labels, scores))
        return [
            prediction._replace(scores=row)
            for prediction, row in zip(predictions, scaled, strict=True)
        ]

    def label_issues(
        self,
        examples: Examples,
        predictions: Predictions,
        second_opinion: Predictions = (),
    ) -> list[LabelIssue] | None:
        """By confident learning."""
        if not examples:
            return []
        labels, scores = self._arrays(examples, predictions)
        second = np.array([one.scores for one in second_opinion]) if second_opinion else None
        return find_label_issues(labels, scores, second)

    def _arrays(
        self, examples: Examples, predictions: Predictions
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the labels (N,) int, and probabilities (N, C)."""
        labels = np.array([self.task.labelling.target(example) for example in examples])
        return labels, np.array([prediction.scores for prediction in predictions])

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Calibration, figures of each label, and which is taken for which."""
        gold = [example.label for example in examples]
        predicted = [prediction.label for prediction in predictions]
        highest = np.array([prediction.scores.max() for prediction in predictions])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(highest, self.right(gold, predictions)),
            "per_class": by_kind(self.count_items(gold, predictions)),
            "confusion": confusion(gold, predicted),
        }


class Classification(Task):
    """One text, one of the labels."""

    name: ClassVar[str] = "classification"
    title: ClassVar[str] = "文本分类 · Classification"
    labelling = part(ClassificationLabelling)
    objective = part(SoftmaxObjective[Task])
    decoding = part(ClassificationDecoding)
    metrics = part(ClassificationMetrics)


class Pair(Classification):
    """Two texts in one row, and one of the labels."""

    name: ClassVar[str] = "pair"
    title: ClassVar[str] = "文本对分类 · Text pair classification"
    labelling = part(PairLabelling)


def _of_labels(counts: Counts, right: np.ndarray, weights: np.ndarray) -> Figures:
    return {ACCURACY.name: mean(right, weights), MACRO_F1.name: macro_f1(counts, weights)}
