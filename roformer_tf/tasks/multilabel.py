"""One text, any of several labels, or none."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import Meaning
from roformer_tf.labelled.cells import read_labels
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import (
    BaselineSets,
    check_size,
    logistic_probabilities,
    tfidf_baseline,
)
from roformer_tf.tasks.details import JsonObject, calibration
from roformer_tf.tasks.losses import balanced_yes_and_no, sigmoid_divergence, sigmoid_losses
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
from roformer_tf.tasks.probabilities import (
    likeliest,
    listed_cells,
    listed_labels,
    named_cells,
    named_probabilities,
    shortest,
    sigmoid,
)
from roformer_tf.tasks.thresholds import best_thresholds
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.kernels.forms import Tensor

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


class Multilabel(Task):
    """One text, all labels that are likelier than their thresholds.

    Logits (C,), target (C,) float32 of 0 and 1, scores (C,) probabilities, each for itself.
    """

    name: ClassVar[str] = "multilabel"
    title: ClassVar[str] = "多标签分类 · Multi-label classification"
    metrics: ClassVar[tuple[Metric, ...]] = (MICRO_F1, MACRO_F1, EXACT_MATCH)
    fewest_labels: ClassVar[int] = 1
    lists_labels: ClassVar[bool] = True
    chosen_fields: ClassVar[tuple[str, ...]] = ("thresholds",)

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Lists, a column called labels, or cells that a separator parts."""
        return sample.why_several

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """Several labels between separators; an empty cell has none."""
        return read_labels(value, separator)

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """Each of several."""
        return set(label)

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32: 1 for each label that the example has."""
        target = np.zeros(len(self.labels), np.float32)
        target[[self.number_of(one, example) for one in example.label or ()]] = 1
        return target

    def config_values(self) -> dict[str, Any]:
        """And that every label has a probability of its own."""
        return super().config_values() | {"problem_type": "multi_label_classification"}

    @classmethod
    def losses(
        cls,
        targets: "Tensor",
        logits: "Tensor",
        smoothing: float = 0.0,
        focal: float = 0.0,
        class_weights: list[Any] | None = None,
    ) -> "Tensor":
        """Cross-entropy of yes or no, mean over the labels."""
        return sigmoid_losses(targets, logits, smoothing, focal, class_weights)

    @classmethod
    def divergence(cls, logits: "Tensor", others: "Tensor") -> "Tensor":
        """Mean over the labels."""
        return sigmoid_divergence(logits, others)

    def balanced_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Of each label's 0 and 1 (C, 2)."""
        return balanced_yes_and_no(targets)

    def answer(self, logits: np.ndarray) -> Prediction:
        """All labels above their thresholds."""
        scores = sigmoid(logits)
        return Prediction(self.likely(scores), scores)

    def likely(self, probabilities: np.ndarray) -> tuple[str, ...]:
        """The labels whose probabilities (C,) are above the thresholds."""
        above = probabilities > (np.array(self.thresholds) if self.thresholds else 0.5)
        return tuple(self.labels[i] for i in np.flatnonzero(above))

    def with_choices(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> "Self":
        """The thresholds that give the highest micro F1 on the validation set.

        The predicted labels are not read, but only their probabilities.
        """
        if not len(predictions):
            return self
        wanted = self._has_label(gold)
        scores = np.array([prediction.scores for prediction in predictions])
        return dataclasses.replace(self, thresholds=best_thresholds(wanted, scores))

    def _has_label(self, gold: Sequence[Label]) -> np.ndarray:
        """Whether an example has a label (N, C) bool."""
        found = np.zeros((len(gold), len(self.labels)), np.bool_)
        for row, labels in zip(found, gold, strict=True):
            row[[self.label_numbers[label] for label in labels]] = True
        return found

    def reread(self, prediction: Prediction) -> Prediction:
        """An answer by these thresholds."""
        return prediction._replace(label=self.likely(prediction.scores))

    def graph_meaning(self) -> Meaning:
        """The probability of each label."""
        return Meaning("probabilities", "sigmoid")

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """Micro and macro F1, and the share of examples with every label right."""
        right = np.array([self.is_right(*pair) for pair in zip(gold, predictions, strict=True)])
        counts = self.count_items(gold, predictions)

        def measure(weights: np.ndarray) -> Figures:
            return {
                MICRO_F1.name: f1(*totals(counts, weights)),
                MACRO_F1.name: macro_f1(counts, weights),
                EXACT_MATCH.name: mean(right, weights),
            }

        return measure

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Each example has all labels right, or has not."""
        return {EXACT_MATCH.name: len(gold)}

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """Macro F1 needs an example of every label, micro F1 one of any."""
        without_any = {} if any(gold) else self._without_missing(gold, MICRO_F1)
        return self._without_missing(gold, MACRO_F1) | without_any

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether all labels are answered and no other, in any order."""
        return set(label) == set(prediction.label)

    def items(self, label: Label) -> set[LabelItem]:
        """Each label."""
        return {(one,) for one in label}

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """TF-IDF and a logistic regression for each label.

        `valid` also chooses the thresholds, as it does the model's; without it they are 0.5.
        """
        return tfidf_baseline(self, "logistic", BaselineSets(training, test, valid), metric)

    def fit_linear(
        self, examples: Sequence[Example], features: Any, others: Any, strength: float
    ) -> list[Prediction]:
        """The probability of each label; the labels themselves are for `reread`."""
        check_size(features, len(self.labels))
        targets = np.array([self.target(one) for one in examples]) > 0
        scores = logistic_probabilities(features, targets, others, strength)
        return [Prediction((), one) for one in scores]

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Calibration of every label's probability, and figures of each label."""
        gold = [example.label for example in examples]
        scores = np.array([prediction.scores for prediction in predictions])
        there = self._has_label(gold)
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(scores.ravel(), there.ravel()),
            "per_class": by_kind(self.count_items(gold, predictions)),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How likely the model said a label that is not there, or how unlikely one that is."""
        wrong = set(label) ^ set(prediction.label)
        likely = [float(prediction.scores[self.label_numbers[one]]) for one in wrong]
        answered = [one in prediction.label for one in wrong]
        return max(x if said else 1 - x for x, said in zip(likely, answered, strict=True))

    def cell_names(self) -> list[str]:
        """labels, p(…) of each label; where some are listed, the probabilities of those answered.

        Behind these label_1, probability_1, label_2, …: the likeliest, answered or not.
        """
        if self.listed is None:
            return named_cells("labels", self.labels)
        return ["labels", "probabilities", *listed_cells(range(1, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The labels and the probabilities of all, or theirs, and the likeliest ones."""
        label, scores = prediction
        if self.listed is None:
            return [label, *map(shortest, scores)]
        answered = tuple(shortest(scores[self.label_numbers[one]]) for one in label)
        best = listed_labels(self.labels, scores, likeliest(scores, self.listed))
        return [label, answered, *best]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """labels, probabilities: of all labels, or of those answered or listed, likeliest first."""
        label, scores = prediction
        probabilities = named_probabilities(self.labels, scores)
        if self.listed is not None:
            order = likeliest(scores, len(scores))
            kept = {*label, *(self.labels[i] for i in order[: self.listed])}
            ordered = (self.labels[i] for i in order)
            probabilities = {one: probabilities[one] for one in ordered if one in kept}
        return {"labels": prediction.label, "probabilities": probabilities}
