"""Metrics of entities, tagged or nested, and of single units if tags mark no entities."""

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.labelled.examples import Example, Label, Span, ordered
from roformer_tf.tasks import metrics, scoring
from roformer_tf.tasks.metrics import Function, LabelItem, Metric
from roformer_tf.tasks.parts import Examples, Gold, Prediction, Predictions
from roformer_tf.tasks.tags.schemes import character_spans, marked, spans
from roformer_tf.translation import Message

# Units of a text are not independent, so they are no trials.
UNIT_ACCURACY = metrics.ACCURACY._replace(by_example=False)
LONGEST_MATCH = Message("longest match with the entities of the training set")
USUAL_ENTITIES = Message(
    "every occurrence of the entities of the training set that are usually entities there"
)
# Units of a sentence that a report shows before its first mistake.
BEFORE = 60


class EntityMetrics(scoring.Metrics):
    """F1, precision and recall of whole entities, macro F1 over their types.

    A bootstrap draws texts: the entities of a text are not independent.
    """

    by_label: ClassVar[bool] = True

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """All four."""
        counts = self.count_items(gold, predictions)
        return {
            metrics.F1: partial(metrics.micro_f1, counts),
            metrics.PRECISION: partial(metrics.precision, counts),
            metrics.RECALL: partial(metrics.recall, counts),
            metrics.MACRO_F1: partial(metrics.macro_f1, counts),
        }

    @abstractmethod
    def in_characters(self, example: Example, label: Label) -> list[Span]:
        """The entities of a label, in characters of the example's text."""

    def describe(self, example: Example, prediction: Prediction) -> scoring.JsonObject:
        """A text from shortly before its first mistake, with true and predicted entities."""
        text = example.texts[0]
        gold, predicted = (
            self.in_characters(example, x) for x in (example.label, prediction.label)
        )
        first = min((start for _, start, _ in {*gold} ^ {*predicted}), default=0)
        begin = max(0, first - BEFORE)
        shown = range(begin, min(begin + scoring.CHARACTERS, len(text)))
        return {"gold": marked(text, gold, shown), "predicted": marked(text, predicted, shown)}


class TaggingMetrics(EntityMetrics):
    """The same and the accuracy of units; or, if tags mark no entities, accuracy and macro F1."""

    all = (metrics.F1, metrics.PRECISION, metrics.RECALL, UNIT_ACCURACY, metrics.MACRO_F1)
    has_probabilities: ClassVar[bool] = True

    def usable(self) -> tuple[Metric, ...]:
        """The metrics of whole entities and the accuracy; or accuracy and macro F1 of units."""
        return self.all[:-1] if self.task.has_entities else (UNIT_ACCURACY, metrics.MACRO_F1)

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """Those of entities, or of units, and the accuracy of units."""
        pairs = zip(gold, predictions, strict=True)
        right = np.array([np.sum(_agree(x, y.label)) for x, y in pairs], np.float64)
        units = np.array([len(label) for label in gold], np.float64)

        def accuracy(weights: np.ndarray) -> np.ndarray:
            return metrics.ratio(weights @ right, weights @ units)

        return super().functions(gold, predictions) | {UNIT_ACCURACY: accuracy}

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

    def rule(self, training: Examples, test: Examples, valid: Examples) -> scoring.NamedPredictions:
        """The entities of the training set, the longest first, from left to right."""
        numbers = self.task.label_numbers
        # The baseline is certain of every label: probability 1.
        certain = np.eye(len(numbers), dtype=np.float32)
        return LONGEST_MATCH, [
            Prediction(labels, certain[[numbers[label] for label in labels]])
            for labels in known_entities(training, test)
        ]

    def probabilities(self, examples: Examples, predictions: Predictions) -> scoring.Probabilities:
        """Of each unit's predicted label."""
        pairs = zip(examples, predictions, strict=True)
        right = [_agree(example.label, prediction.label) for example, prediction in pairs]
        scores = [predicted_scores(self.task, prediction) for prediction in predictions]
        return np.concatenate(scores), np.concatenate(right)

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a unit's wrong label."""
        # Only wrong predictions are asked for, so at least one unit is wrong.
        wrong = ~_agree(label, prediction.label)
        return float(predicted_scores(self.task, prediction)[wrong].max())

    def in_characters(self, example: Example, label: Label) -> list[Span]:
        """The entities that the tags mark."""
        return character_spans(example.texts[0], example.units, label)


def _agree(labels: Sequence[str], predicted: Sequence[str]) -> np.ndarray:
    """Which units have the predicted label (units,) bool."""
    return np.array([x == y for x, y in zip(labels, predicted, strict=True)], np.bool_)


def predicted_scores(task: Any, prediction: Prediction) -> np.ndarray:
    """The probability of each unit's predicted label (units,) float32."""
    numbers = np.array([task.label_numbers[label] for label in prediction.label], np.int64)
    return prediction.scores[np.arange(len(numbers)), numbers]


class SpanMetrics(EntityMetrics):
    """Figures of entities that may overlap."""

    all = (metrics.F1, metrics.PRECISION, metrics.RECALL, metrics.MACRO_F1)

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity."""
        return set(label)

    def rule(self, training: Examples, test: Examples, valid: Examples) -> scoring.NamedPredictions:
        """Strings that are an entity at most of their occurrences in the training set."""
        labels: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for example in training:
            for label, start, end in example.label:
                labels[example.texts[0][start:end]][label] += 1
        lengths = sorted({*map(len, labels)})
        occurrences = Counter(
            text[start:end]
            for text in (example.texts[0] for example in training)
            for start, end in _known(text, lengths, labels)
        )
        usual = {
            text: counts.most_common(1)[0][0]
            for text, counts in labels.items()
            # 高峰 may be a name or a peak: it counts if most of its occurrences are entities.
            if 2 * counts.total() > occurrences[text]
        }
        predictions = []
        for example in test:
            (text,) = example.texts
            spans = [(usual[text[a:b]], a, b) for a, b in _known(text, lengths, usual)]
            # The baseline is certain of every entity: probability 1.
            scores = [(a, b, self.task.label_numbers[label], 1) for label, a, b in spans]
            array = np.array(scores, np.float32).reshape(-1, 4)
            predictions.append(Prediction(ordered(spans), array))
        return USUAL_ENTITIES, predictions

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a wrong entity, or of the absence of a missing one."""
        scores, predicted = self.task.scores_of(prediction), set(prediction.label)
        wrong = set(label) ^ predicted
        return max(scores[x] if x in predicted else 1 - scores.get(x, 0.0) for x in wrong)

    def in_characters(self, example: Example, label: Label) -> list[Span]:
        """As they are."""
        return list(label)


def _known(text: str, lengths: list[int], known: Container[str]) -> Iterator[tuple[int, int]]:
    """Start and end of every occurrence of known strings of these lengths."""
    for start in range(len(text)):
        for length in lengths:
            # Lengths rise, so no later one fits either.
            if start + length > len(text):
                break
            if text[start : start + length] in known:
                yield start, start + length


def known_entities(training: Examples, test: Examples) -> list[tuple[str, ...]]:
    """Label the training set's entities wherever they occur: longest match, left to right."""
    counted = Counter(label for example in training for label in example.label)
    # An unknown unit is outside all entities, or, in word segmentation, a word of its own.
    usual = [label for label in ("O", "S") if label in counted]
    other = usual[0] if usual else counted.most_common(1)[0][0]
    counts: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in training:
        for _, first, end in spans(example.label):
            counts[example.units[first:end]][tuple(example.label[first:end])] += 1
    known = {
        units: labels.most_common(1)[0][0]
        for units, labels in counts.items()
        # A single character that was once a name is usually a plain word.
        if other != "O" or len("".join(units)) > 1
    }
    lengths = sorted({*map(len, known)}, reverse=True)

    def labelled(units: tuple[str, ...]) -> tuple[str, ...]:
        labels: list[str] = []
        while (start := len(labels)) < len(units):
            candidates = (units[start : start + length] for length in lengths)
            labels += next((known[entity] for entity in candidates if entity in known), (other,))
        return tuple(labels)

    return [labelled(example.units) for example in test]
