"""Metrics of tagged units: whole entities, or single units if tags mark no entities."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import metrics
from roformer_tf.tasks.baselines import known_entities
from roformer_tf.tasks.metrics import Figures, LabelItem, Measure, Metric
from roformer_tf.tasks.scoring import CHARACTERS, JsonObject, Metrics, NamedPredictions, calibration
from roformer_tf.tasks.tags.schemes import mark, spans
from roformer_tf.tasks.task_settings import Examples, Gold, Prediction, Predictions, TaskSettings
from roformer_tf.translation import Message

NO_ENTITY = Message("the data have no entity")
LONGEST_MATCH = Message("longest match with the entities of the training set")
# Units of a sentence that a report shows before its first mistake.
BEFORE = 60


class TaggingMetrics(Metrics):
    """F1, precision and recall of whole entities, accuracy of units; without entities macro F1.

    A bootstrap draws sentences: the units of a sentence are not independent.
    """

    all: ClassVar[tuple[Metric, ...]] = (
        metrics.F1,
        metrics.PRECISION,
        metrics.RECALL,
        metrics.ACCURACY,
        metrics.MACRO_F1,
    )

    def usable(self) -> tuple[Metric, ...]:
        """The metrics of whole entities and the accuracy; or accuracy and macro F1 of units."""
        return self.all[:-1] if self.task.has_entities else (metrics.ACCURACY, metrics.MACRO_F1)

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All that is usable."""
        # Counted once; `measure` only multiplies by the weights of the sentences.
        counts = self.count_items(gold, predictions)
        pairs = zip(gold, predictions, strict=True)
        right_units = np.array([np.sum(_agree(x, y.label)) for x, y in pairs], np.float64)
        units = np.array([len(label) for label in gold], np.float64)

        def measure(weights: np.ndarray) -> Figures:
            accuracy = metrics.ratio(weights @ right_units, weights @ units)
            if not self.task.has_entities:
                return {
                    metrics.ACCURACY.name: accuracy,
                    metrics.MACRO_F1.name: metrics.macro_f1(counts, weights),
                }
            right, golden, predicted = metrics.totals(counts, weights)
            return {
                metrics.F1.name: metrics.f1(right, golden, predicted),
                metrics.PRECISION.name: metrics.ratio(right, predicted),
                metrics.RECALL.name: metrics.ratio(right, golden),
                metrics.ACCURACY.name: accuracy,
            }

        return measure

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """The number of sentences, for fractions of 0 or 1, whose samples have no spread.

        Entities and units of a sentence are not independent: other fractions need a bootstrap.
        """
        # Wilson's interval is then a bound from the number of sentences.
        figures = self.compute(gold, predictions)
        sentences = {
            metrics.PRECISION.name: sum(
                bool(spans(prediction.label)) for prediction in predictions
            ),
            metrics.RECALL.name: sum(bool(spans(label)) for label in gold),
            metrics.ACCURACY.name: len(gold),
        }
        return {name: number for name, number in sentences.items() if figures.get(name) in (0, 1)}

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """F1 and recall need an entity, if tags mark entities."""
        if not self.task.has_entities:
            return {}
        has_any = any(spans(label) for label in gold)
        return {} if has_any else {metrics.F1.name: NO_ENTITY, metrics.RECALL.name: NO_ENTITY}

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity, or each unit's label."""
        if self.task.has_entities:
            return set(spans(label))
        return {(tag, index) for index, tag in enumerate(label)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the entities, or the labels."""
        labels = self.task.labels
        if not self.task.has_entities:
            return labels
        # "B-LOC" alone is an entity of the type LOC.
        return tuple(sorted({kind for label in labels for kind, _, _ in spans([label])}))

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The entities of the training set, the longest first, from left to right."""
        numbers = self.task.label_numbers
        # The baseline is certain of every label: probability 1.
        certain = np.eye(len(numbers), dtype=np.float32)
        return LONGEST_MATCH, [
            Prediction(labels, certain[[numbers[label] for label in labels]])
            for labels in known_entities(training, test)
        ]

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Calibration of units, and figures of each type of entity."""
        gold = [example.label for example in examples]
        scores = np.concatenate([predicted_scores(self.task, x) for x in predictions])
        pairs = zip(gold, predictions, strict=True)
        right = np.concatenate([_agree(label, prediction.label) for label, prediction in pairs])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(scores, right),
            "per_class": metrics.by_kind(self.count_items(gold, predictions)),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a unit's wrong label."""
        # Only wrong predictions are asked for, so at least one unit is wrong.
        wrong = ~_agree(label, prediction.label)
        return float(predicted_scores(self.task, prediction)[wrong].max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """A sentence from shortly before its first mistake, with true and predicted entities."""
        labels, predicted = example.label, prediction.label
        # `argmin` of booleans is the first unit whose label is wrong.
        begin = max(0, int(np.argmin(_agree(labels, predicted))) - BEFORE)
        shown = range(begin, min(begin + CHARACTERS, len(predicted)))
        between = " " if self.task.spaced_units else ""
        return {
            "gold": mark(example.units, spans(labels), shown, between),
            "predicted": mark(example.units, spans(predicted), shown, between),
        }


def _agree(labels: Sequence[str], predicted: Sequence[str]) -> np.ndarray:
    """Which units have the predicted label (units,) bool."""
    return np.array([x == y for x, y in zip(labels, predicted, strict=True)], np.bool_)


def predicted_scores(task: TaskSettings, prediction: Prediction) -> np.ndarray:
    """The probability of each unit's predicted label (units,) float32."""
    numbers = np.array([task.label_numbers[label] for label in prediction.label], np.int64)
    return prediction.scores[np.arange(len(numbers)), numbers]
