"""Metrics of entities that may overlap: precision, recall and F1 of whole spans."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from typing import ClassVar

import numpy as np

from roformer_tf.labelled.examples import Example, Label, Span, ordered
from roformer_tf.tasks import metrics
from roformer_tf.tasks.metrics import LabelItem, Metric
from roformer_tf.tasks.scoring import NamedPredictions
from roformer_tf.tasks.tags.entity_scoring import EntityMetrics
from roformer_tf.tasks.task_settings import Examples, Gold, Prediction
from roformer_tf.translation import Message

USUAL_ENTITIES = Message(
    "every occurrence of the entities of the training set that are usually entities there"
)


class SpanMetrics(EntityMetrics):
    """Figures of entities that may overlap."""

    all: ClassVar[tuple[Metric, ...]] = (
        metrics.F1,
        metrics.PRECISION,
        metrics.RECALL,
        metrics.MACRO_F1,
    )

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """F1 and recall need an entity, macro F1 one of every label."""
        return self._without_missing(gold, metrics.MACRO_F1) | super().why_undefined(gold)

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether all entities are predicted and no other."""
        return set(label) == set(prediction.label)

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity."""
        return set(label)

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
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
            if start + length > len(text):
                break
            if text[start : start + length] in known:
                yield start, start + length
