"""One text, one of several labels."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import without_nan
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import (
    BaselineSets,
    check_size,
    logistic_probabilities,
    tfidf_baseline,
)
from roformer_tf.tasks.details import JsonObject, calibration, confusion
from roformer_tf.tasks.label_issues import LabelIssue, find_label_issues
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
from roformer_tf.tasks.probabilities import (
    at_temperature,
    fit_temperature,
    likeliest,
    listed_cells,
    listed_labels,
    named_cells,
    named_probabilities,
    shortest,
    softmax,
)
from roformer_tf.translation import Message

ROC_AUC = Metric(
    "roc_auc",
    Message("ROC AUC"),
    "coefficient",
    meaning=Message("how well probabilities separate the two labels: 1 is perfect, 0.5 is chance"),
)


class Classification(Task):
    """One text, one of the labels. Logits (C,), target () int32, scores (C,) probabilities."""

    name: ClassVar[str] = "classification"
    title: ClassVar[str] = "文本分类 · Classification"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, MACRO_F1, ROC_AUC)
    lists_labels: ClassVar[bool] = True

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
        """() int32: the label's place among the logits."""
        return np.array(self.number_of(example.label, example), np.int32)

    def answer(self, logits: np.ndarray) -> Prediction:
        """The likeliest label."""
        return Prediction(self.labels[int(np.argmax(logits))], softmax(logits))

    def usable_metrics(self) -> tuple[Metric, ...]:
        """ROC AUC between two labels only."""
        two = len(self.labels) == 2
        return tuple(metric for metric in self.metrics if two or metric != ROC_AUC)

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """Accuracy, macro F1 and, between two labels, ROC AUC of the second one's probability."""
        right = np.array([self.is_right(*pair) for pair in zip(gold, predictions, strict=True)])
        counts = self.count_items(gold, predictions)
        if len(self.labels) != 2:
            return partial(_of_labels, counts, right)
        second = np.array([label == self.labels[1] for label in gold])
        likelihood = np.array([prediction.scores[1] for prediction in predictions])

        def of_two_labels(weights: np.ndarray) -> Figures:
            auc = roc_auc(second, likelihood, weights)
            return _of_labels(counts, right, weights) | {ROC_AUC.name: auc}

        return of_two_labels

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Each example is right or wrong."""
        return {ACCURACY.name: len(gold)}

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """Macro F1 and ROC AUC need an example of every label."""
        return self._without_missing(gold, MACRO_F1, ROC_AUC)

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """TF-IDF and logistic regression."""
        return tfidf_baseline(self, "logistic", BaselineSets(training, test, valid), metric)

    def fit_linear(
        self, examples: Sequence[Example], features: Any, others: Any, strength: float
    ) -> list[Prediction]:
        """The likeliest of the labels, each of them against the rest."""
        check_size(features, len(self.labels))
        targets = np.eye(len(self.labels), dtype=bool)[[self.target(one) for one in examples]]
        if len(self.labels) == 2:
            second = logistic_probabilities(features, targets[:, 1:], others, strength)
            scores = np.hstack([1 - second, second])
        else:
            scores = logistic_probabilities(features, targets, others, strength)
            scores /= scores.sum(axis=1, keepdims=True)
        return [Prediction(self.labels[int(np.argmax(x))], x) for x in scores]

    def calibrated(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """By temperature scaling."""
        if not examples:
            return []
        labels, scores = self._arrays(examples, predictions)
        scaled = at_temperature(scores, fit_temperature(labels, scores))
        return [one._replace(scores=row) for one, row in zip(predictions, scaled, strict=True)]

    def label_issues(
        self,
        examples: Sequence[Example],
        predictions: Sequence[Prediction],
        second_opinion: Sequence[Prediction] = (),
    ) -> list[LabelIssue] | None:
        """By confident learning."""
        if not examples:
            return []
        labels, scores = self._arrays(examples, predictions)
        others = np.array([one.scores for one in second_opinion]) if second_opinion else None
        return find_label_issues(labels, scores, others)

    def _arrays(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the labels (N,) int, and probabilities (N, C)."""
        labels = np.array([self.number_of(example.label, example) for example in examples])
        return labels, np.array([prediction.scores for prediction in predictions])

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Calibration, figures of each label, and which is taken for which."""
        gold = [example.label for example in examples]
        answers = [prediction.label for prediction in predictions]
        likeliest = np.array([prediction.scores.max() for prediction in predictions])
        right = np.array([one == other for one, other in zip(gold, answers, strict=True)])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(likeliest, right),
            "per_class": by_kind(self.count_items(gold, predictions)),
            "confusion": confusion(gold, answers),
        }

    def cell_names(self) -> list[str]:
        """label, p(…) of each label; where some are listed, label, probability, label_2, …."""
        if self.listed is None:
            return named_cells("label", self.labels)
        return ["label", "probability", *listed_cells(range(2, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The label and the probabilities of all, or the likeliest, each with its probability."""
        label, scores = prediction
        if self.listed is None:
            return [label, *map(shortest, scores)]
        return listed_labels(self.labels, scores, likeliest(scores, self.listed))

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label, probabilities: of all labels, or of those listed, the likeliest first."""
        probabilities = named_probabilities(self.labels, prediction.scores)
        if self.listed is not None:
            places = likeliest(prediction.scores, self.listed)
            probabilities = {self.labels[i]: probabilities[self.labels[i]] for i in places}
        return {"label": prediction.label, "probabilities": probabilities}


def _of_labels(counts: Counts, right: np.ndarray, weights: np.ndarray) -> Figures:
    return {ACCURACY.name: mean(right, weights), MACRO_F1.name: macro_f1(counts, weights)}
