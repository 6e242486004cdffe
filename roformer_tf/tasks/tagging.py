"""One text in units, characters or words, one of several labels for each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.labelled.encoding import (
    EncodedTexts,
    Rows,
    encode_units,
    first_tokens,
    unit_targets,
)
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import wording
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import known_entities
from roformer_tf.tasks.blocks import Mistake
from roformer_tf.tasks.details import CHARACTERS, JsonObject, calibration
from roformer_tf.tasks.entities import as_bioes, entities, mark, marks_entities, spans
from roformer_tf.tasks.metrics import (
    ACCURACY,
    Figures,
    LabelItem,
    Measure,
    Metric,
    by_kind,
    f1,
    ratio,
    totals,
)
from roformer_tf.tasks.probabilities import shortest, softmax
from roformer_tf.tasks.wording import GIVEN, PREDICTED, Words
from roformer_tf.tokenizers.huggingface import Units
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.models.pretrained import PretrainedModel

F1 = Metric(
    "f1",
    wording.F1,
    meaning=Words(
        "precision and recall in one figure, their harmonic mean; only whole entities count",
        "精确率与召回率的调和平均，实体的边界和类型全对才算对",
    ),
)
PRECISION = Metric(
    "precision",
    wording.PRECISION,
    meaning=Words("the share of predicted entities that are right", "预测出的实体中正确的比例"),
)
RECALL = Metric(
    "recall",
    wording.RECALL,
    meaning=Words("the share of labelled entities that are found", "标注的实体中被找出的比例"),
)
LONGEST_MATCH = Words("longest match of the entities in training", "训练集实体的最长匹配")
BEFORE = 60
"""Units that a report shows before a sentence's first mistake."""


class Tagging(Task):
    """One text in units, one of the labels for each.

    Logits of tokens (T, C), of which a unit's are its first token's: (units, C). Target (units,)
    int32, scores (units, C) probabilities.
    """

    name: ClassVar[str] = "tagging"
    title: ClassVar[str] = "序列标注 · Sequence tagging"
    metrics: ClassVar[tuple[Metric, ...]] = (F1, PRECISION, RECALL, ACCURACY)
    has_units: ClassVar[bool] = True
    pipeline_tag: ClassVar[str] = "token-classification"
    long_texts_fixed: ClassVar[str] = "all is read, in windows."
    joined_by: ClassVar[str] = " "

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """Words are joined by spaces, characters by nothing."""
        if not words_are_units(examples):
            return examples
        return [one._replace(texts=(" ".join(one.units),)) for one in examples]

    def for_prediction(self, example: Example) -> Example:
        """Cut a raw text into units, or join the units of a CoNLL sentence as training does.

        A raw text's units are its characters or, under `spaced_units`, what white space separates.
        """
        (text,) = example.texts
        if example.units:
            return example._replace(texts=((" " if self.spaced_units else "").join(example.units),))
        return example._replace(units=tuple(text.split() if self.spaced_units else text))

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """Those of all units."""
        return set(label)

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """The labels, and whether units are words; all of a text is read, in windows."""
        of_units = {"spaced_units": words_are_units(training), "long_texts": "windows"}
        return super().from_examples(training, **settings | of_units)

    def encode(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Each unit has tokens of its own, and is judged in one window."""
        return encode_units(examples, tokenizer, self.max_length)

    def target(self, example: Example) -> np.ndarray:
        """(units,) int32."""
        labels = example.label or ()
        return np.array([self.number_of(one, example) for one in labels], np.int32)

    def row_targets(self, encoded: EncodedTexts, examples: Sequence[Example]) -> tuple[Rows, Rows]:
        """(T,) int32 of each row, and weights of 1 where a unit begins that is judged there."""
        return unit_targets(encoded, [self.target(example) for example in examples])

    @property
    def units(self) -> Units:
        """Characters, or the words of texts whose units white space separates."""
        return "words" if self.spaced_units else "characters"

    def labels_outside(self) -> tuple[str, ...]:
        """In BIO, all that pipelines know: M-LOC and E-LOC are I-LOC, S-LOC is B-LOC.

        They read an entity from B on, or where the type changes, as we do, but for E-LOC E-LOC and
        the like, which no right tagging has: two entities to us, one to them.
        """
        if not marks_entities(self.labels):
            return self.labels
        return tuple(_as_bio(as_bioes(label) or label) for label in self.labels)

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """A label for every token."""
        from roformer_tf.models.heads import RoFormerForTokenClassification

        return RoFormerForTokenClassification

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of tokens (T, C) → of units (units, C)."""
        return first_tokens(row_logits, encoded, self.outputs)

    def answer(self, logits: np.ndarray) -> Prediction:
        """The likeliest label of each unit."""
        best = np.argmax(logits, axis=-1)
        return Prediction(tuple(self.labels[i] for i in best), softmax(logits))

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """F1, precision and recall of whole entities, accuracy by the unit.

        Sentences are what counts once or several times: the units of one are not independent.
        """
        counts = self.count_items(gold, predictions)
        pairs = zip(gold, predictions, strict=True)
        right_units = np.array([np.sum(_agree(x, y.label)) for x, y in pairs], np.float64)
        units = np.array([len(label) for label in gold], np.float64)

        def measure(weights: np.ndarray) -> Figures:
            right, golden, predicted = totals(counts, weights)
            return {
                F1.name: f1(right, golden, predicted),
                PRECISION.name: ratio(right, predicted),
                RECALL.name: ratio(right, golden),
                ACCURACY.name: ratio(weights @ right_units, weights @ units),
            }

        return measure

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity."""
        return set(spans(label))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the entities."""
        return tuple(sorted({kind for label in self.labels for kind, _, _ in spans([label])}))

    def baseline(
        self, training: Sequence[Example], test: Sequence[Example], valid: Sequence[Example] = ()
    ) -> tuple[Words, list[Prediction]]:
        """What stands in training as an entity, the longest first, from left to right."""
        certain = np.eye(len(self.labels), dtype=np.float32)
        return LONGEST_MATCH, [
            Prediction(labels, certain[[self.labels.index(label) for label in labels]])
            for labels in known_entities(training, test)
        ]

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Calibration by the unit, and figures of each type of entity."""
        gold = [example.label for example in examples]
        likeliest = np.concatenate([answer.scores.max(axis=-1) for answer in predictions])
        pairs = zip(gold, predictions, strict=True)
        right = np.concatenate([_agree(label, answer.label) for label, answer in pairs])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(likeliest, right),
            "per_class": by_kind(self.count_items(gold, predictions)),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a unit's wrong label."""
        wrong = ~_agree(label, prediction.label)
        return float(prediction.scores.max(axis=-1)[wrong].max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """A sentence around its first mistake, its entities marked twice."""
        labels, answers = example.label, prediction.label
        begin = max(0, int(np.argmin(_agree(labels, answers))) - BEFORE)
        shown = range(begin, min(begin + CHARACTERS, len(answers)))
        between = " " if self.spaced_units else ""
        return {
            "gold": mark(example.units, spans(labels), shown, between),
            "predicted": mark(example.units, spans(answers), shown, between),
        }

    @classmethod
    def mistake(cls, found: Mapping[str, Any], text_columns: Sequence[str]) -> Mistake:
        """Both marked sentences."""
        facts = [("", cls.sureness_format.format(value=found["sureness"]))]
        texts = [(GIVEN, found["gold"]), (PREDICTED, found["predicted"])]
        return Mistake(found["place"], facts, texts)

    def cell_names(self) -> list[str]:
        """tags, and entities where the tags mark any."""
        return ["tags", *(["entities"] if marks_entities(self.labels) else [])]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The tags, and entities as lists."""
        label = prediction.label
        if not marks_entities(self.labels):
            return [label]
        return [label, entities(example.texts[0], example.units, label)]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """tags, a label and its probability for each unit; entities with their place in the text.

        Entities only where the labels mark any.
        """
        likeliest = map(shortest, prediction.scores.max(axis=-1))
        found: dict[str, Any] = {
            "tags": [
                {"unit": unit, "label": label, "probability": probability}
                for unit, label, probability in zip(
                    example.units, prediction.label, likeliest, strict=True
                )
            ]
        }
        if marks_entities(self.labels):
            names = ("start", "end", "label", "text")
            marked = entities(example.texts[0], example.units, prediction.label)
            found["entities"] = [dict(zip(names, one, strict=True)) for one in marked]
        return found


def words_are_units(examples: Iterable[Example]) -> bool:
    """Tell whether the units of examples are words: a fifth has several characters.

    In Chinese cut into characters few have, such as numbers; in Chinese words about half.
    """
    lengths = [len(unit) for example in examples for unit in example.units]
    return 5 * sum(length > 1 for length in lengths) > len(lengths)


def _as_bio(tag: str) -> str:
    """A tag of BIOES in BIO."""
    mark, dash, kind = tag.partition("-")
    return {"E": "I", "S": "B"}.get(mark, mark) + dash + kind


def _agree(labels: Sequence[str], answers: Sequence[str]) -> np.ndarray:
    """Which units are answered as the data say (units,) bool."""
    return np.array([one == other for one, other in zip(labels, answers, strict=True)], np.bool_)
