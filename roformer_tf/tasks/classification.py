"""One text, one of several labels."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import without_nan
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import class_probabilities, tfidf
from roformer_tf.tasks.blocks import MOST_LABELS, Block, ReportTable
from roformer_tf.tasks.details import JsonObject, calibration, confusion
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
from roformer_tf.tasks.probabilities import named_cells, named_probabilities, shortest, softmax

ROC_AUC = Metric("roc_auc", "ROC AUC", "coefficient")
CONFUSED = 15
"""Labels up to which a confusion matrix is shown whole; beyond, its greatest entries."""


class Classification(Task):
    """One text, one of the labels. Logits (C,), target () int32, scores (C,) probabilities."""

    name: ClassVar[str] = "classification"
    title: ClassVar[str] = "文本分类 · Classification"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, MACRO_F1, ROC_AUC)

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

    def baseline(
        self, training: Sequence[Example], test: Sequence[Example], valid: Sequence[Example] = ()
    ) -> tuple[str, list[Prediction]]:
        """TF-IDF of 1 to 3 characters and logistic regression."""
        fitted = tfidf(training, test, "logistic")
        targets = np.array([self.target(example) for example in fitted.training])
        scores = class_probabilities(
            fitted.features, targets, fitted.other_features, len(self.labels)
        )
        return fitted.method, [Prediction(self.labels[int(np.argmax(x))], x) for x in scores]

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

    @classmethod
    def sections(cls, report: Mapping[str, Any]) -> dict[str, list[Block]]:
        """Which labels are taken for which."""
        return {"Confusion": [_confusion_table(report["confusion"], report["per_class"])]}

    def cell_names(self) -> list[str]:
        """label, p(…) of each label; of many, only the answered one has a probability."""
        return named_cells("label", "probability", self.labels)

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The label and its probability, or all."""
        label, scores = prediction
        if len(self.cell_names()) == 1 + len(scores):
            return [label, *map(shortest, scores)]
        return [label, shortest(scores.max())]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label, probabilities."""
        probabilities = named_probabilities(self.labels, prediction.scores)
        return {"label": prediction.label, "probabilities": probabilities}


def _of_labels(counts: Counts, right: np.ndarray, weights: np.ndarray) -> Figures:
    return {ACCURACY.name: mean(right, weights), MACRO_F1.name: macro_f1(counts, weights)}


def _confusion_table(
    found: Sequence[Mapping[str, Any]], per_class: Sequence[Mapping[str, Any]]
) -> ReportTable:
    """A matrix of few labels; of many, the pairs that are taken for each other most often."""
    labels = [row["label"] for row in per_class]
    if len(labels) > CONFUSED:
        wrong = [x for x in found if x["gold"] != x["predicted"]][:MOST_LABELS]
        rows = [[x["gold"], x["predicted"], f"{x['count']:,}"] for x in wrong]
        return ReportTable(["in the data", "answered", "times"], rows, words=2)
    counts = {(x["gold"], x["predicted"]): x["count"] for x in found}
    square = [[counts.get((label, answer), 0) for answer in labels] for label in labels]
    return ReportTable(
        ["in the data ↓, answered →", *labels],
        [[label, *(f"{x:,}" for x in row)] for label, row in zip(labels, square, strict=True)],
        shades=[[x / max(sum(row), 1) for x in row] for row in square],
    )
