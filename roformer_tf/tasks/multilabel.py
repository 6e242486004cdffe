"""One text, any of several labels, or none."""

import dataclasses
from collections import Counter
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.labelled.cells import read_labels
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import metrics
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.decoding import LabelDecoding, listed_cells
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.metrics import Function, LabelItem, Metric
from roformer_tf.tasks.objective import SigmoidObjective
from roformer_tf.tasks.probabilities import shortest, sigmoid
from roformer_tf.tasks.scoring import Metrics, Probabilities
from roformer_tf.tasks.tfidf import LinearModel, Setting, fit_logistic
from roformer_tf.top_k import top_k

# Thresholds to try, 0.05 to 0.95. The nearest to ½ is first: of equally good ones it wins.
STEPS = np.array(sorted(np.arange(1, 20) / 20, key=lambda step: abs(step - 0.5)))
# Measured with TF-IDF on 6,000 newspaper sentences: one threshold for all labels gains 2.5 to 4
# points of micro F1. A threshold for each label gains another 0.3 where sentences are split at
# random and the validation set has 500 or more, and costs a point where they are split by document
# (docs/LOG.md).


class MultilabelLabelling(Labelling):
    """Several labels between separators. Target (C,) float32: 1 for each label of the example."""

    separates_labels: ClassVar[bool] = True
    min_labels: ClassVar[int] = 1

    def guess(self, sample: LabelSample) -> str:
        """Lists, a column called labels, or cells with a separator between labels."""
        return sample.why_several

    def read_label(self, value: Any, sep: str) -> Label:
        """An empty cell has no label."""
        return read_labels(value, sep)

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32."""
        target = np.zeros(len(self.task.labels), np.float32)
        target[[self.number_of(label, example) for label in example.label or ()]] = 1
        return target


class MultilabelObjective(SigmoidObjective):
    """Yes or no for each label; most texts lack most labels."""

    # Measured on dialogue acts and kinds of names with our small checkpoint (docs/LOG.md).
    epochs: ClassVar[int] = 6

    def first_weights(self, train: Examples) -> dict[str, np.ndarray]:
        """The bias of the head: the log-odds of each label (arXiv 1708.02002, section 4.1).

        With a bias of 0, each text has every label with the probability ½ at first, and learning
        that most labels are rare takes the first epochs.
        """
        counts = Counter(label for example in train for label in example.label or ())
        # One more example with every label, and one without any: no odds are 0 or infinite.
        having = 1 + np.array([counts[label] for label in self.task.labels])
        return {"classifier/out_proj/bias": np.log(having / (len(train) + 2 - having))}


class MultilabelDecoding(LabelDecoding):
    """Logits (C,) → all labels above their thresholds. Scores (C,): a probability of each label."""

    activation = "sigmoid"

    def predict(self, logits: np.ndarray) -> Prediction:
        """All labels above their thresholds."""
        return self.reread(Prediction((), sigmoid(logits)))

    def with_choices(self, gold: Gold, predictions: Predictions) -> Task:
        """The threshold of all labels with the highest micro F1; of equal ones nearest to ½."""
        if not len(predictions):
            return self.task
        scores = np.array([prediction.scores for prediction in predictions])
        wanted = has_label(self.task, gold)
        threshold = f1_threshold(scores, wanted, wanted.sum())
        return dataclasses.replace(self.task, thresholds=(threshold,) * len(self.task.labels))

    def reread(self, prediction: Prediction) -> Prediction:
        """The labels above the current thresholds."""
        # (C,), or one threshold for all
        thresholds = np.array(self.task.thresholds) if self.task.thresholds else 0.5
        above = np.flatnonzero(prediction.scores > thresholds)
        return prediction._replace(label=tuple(self.task.labels[i] for i in above))

    def config_values(self) -> dict[str, Any]:
        """Every label has a probability of its own."""
        return super().config_values() | {"problem_type": "multi_label_classification"}

    def cell_names(self) -> list[str]:
        """labels, p(…) of each label; if only some are listed: labels and their scores.

        After these label_1, score_1, label_2, …: the most probable, predicted or not.
        """
        if self.listed is None:
            return ["labels", *super().cell_names()[1:]]
        return ["labels", "scores", *listed_cells(range(1, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The labels and all probabilities; or their own, and then the most probable labels."""
        label, scores, _ = prediction
        if self.listed is None:
            return super().cells(example, prediction)
        predicted = tuple(shortest(scores[self.task.label_numbers[name]]) for name in label)
        return [label, predicted, *super().cells(example, prediction)]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """labels, scores: of all labels, or of those predicted or listed, in order."""
        label, scores, _ = prediction
        probabilities = self.probabilities(scores)
        if self.listed is not None:
            # A predicted label may be less probable than those listed: thresholds differ.
            kept = {*label, *probabilities}
            order = top_k(scores, len(scores))
            probabilities = {
                self.names[i]: shortest(scores[i]) for i in order if self.names[i] in kept
            }
        return {"labels": list(label), "scores": probabilities}


class MultilabelMetrics(Metrics):
    """Micro and macro F1, and the fraction of examples with every label right."""

    all: ClassVar[tuple[Metric, ...]] = (metrics.MICRO_F1, metrics.MACRO_F1, metrics.EXACT_MATCH)
    linear_model: ClassVar[str] = "logistic"
    has_probabilities: ClassVar[bool] = True
    by_label: ClassVar[bool] = True

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """All three."""
        counts = self.count_items(gold, predictions)
        return super().functions(gold, predictions) | {
            metrics.MICRO_F1: partial(metrics.micro_f1, counts),
            metrics.MACRO_F1: partial(metrics.macro_f1, counts),
        }

    def items(self, label: Label) -> set[LabelItem]:
        """Each label."""
        return {(name,) for name in label}

    def fit_linear(self, targets: np.ndarray, features: Any, setting: Setting) -> LinearModel:
        """A model of each label."""
        return fit_logistic(targets > 0, features, setting)

    def probabilities(self, examples: Examples, predictions: Predictions) -> Probabilities:
        """Of every label of every example."""
        scores = np.array([prediction.scores for prediction in predictions])
        labels = has_label(self.task, [example.label for example in examples])
        return scores.ravel(), labels.ravel()

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a wrong label, or of the absence of a missing label."""
        wrong = set(label) ^ set(prediction.label)
        scores = {name: float(prediction.scores[self.task.label_numbers[name]]) for name in wrong}
        return max(x if name in prediction.label else 1 - x for name, x in scores.items())


class Multilabel(Task):
    """One text, any of several labels, or none."""

    name: ClassVar[str] = "multilabel"
    title: ClassVar[str] = "多标签分类 · Multi-label classification"
    labelling = part(MultilabelLabelling)
    objective = part(MultilabelObjective)
    decoding = part(MultilabelDecoding)
    metrics = part(MultilabelMetrics)


def has_label(task: Task, gold: Gold) -> np.ndarray:
    """Whether an example has a label: (N, C) bool."""
    table = np.zeros((len(gold), len(task.labels)), np.bool_)
    for row, labels in zip(table, gold, strict=True):
        row[[task.label_numbers[label] for label in labels]] = True
    return table


def f1_threshold(scores: np.ndarray, wanted: np.ndarray, gold: int) -> float:
    """The threshold of the scores that gives the highest micro F1.

    wanted: whether each is of something in the data (bool), which has `gold` things in all.
    """
    predicted = np.array([np.sum(scores > step) for step in STEPS])
    right = np.array([np.sum(scores[wanted] > step) for step in STEPS])
    # F1 = 2 · right / (gold + predicted): the 2 does not change which step is best.
    return float(STEPS[np.argmax(right / np.maximum(gold + predicted, 1))])
