"""One text in units, characters or words, one of several labels for each."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.labelled.encoding import (
    EncodedTexts,
    Rows,
    encode_units,
    first_tokens,
    unit_targets,
)
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task, part
from roformer_tf.tasks.baselines import known_entities
from roformer_tf.tasks.crf import NEVER, Chain, best_paths, log_likelihoods, marginals
from roformer_tf.tasks.metrics import (
    ACCURACY,
    MACRO_F1,
    Figures,
    LabelItem,
    Measure,
    Metric,
    by_kind,
    f1,
    macro_f1,
    ratio,
    totals,
)
from roformer_tf.tasks.parts import Decoding, Labelling, SoftmaxObjective
from roformer_tf.tasks.probabilities import shortest, softmax
from roformer_tf.tasks.scoring import CHARACTERS, JsonObject, Metrics, calibration
from roformer_tf.tasks.tags import (
    as_bioes,
    count_broken,
    entities,
    find_scheme,
    legal,
    mark,
    marks_entities,
    schemes,
    spans,
)
from roformer_tf.tasks.task_settings import Examples, Gold, Predictions
from roformer_tf.tokenizers.huggingface import Units
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.models.pretrained import PretrainedModel

F1 = Metric(
    "f1",
    Message("F1"),
    meaning=Message("harmonic mean of precision and recall; an entity counts only as a whole"),
)
PRECISION = Metric(
    "precision",
    Message("precision"),
    meaning=Message("fraction of the predicted entities that are correct"),
    undefined=Message("no entity is predicted"),
)
RECALL = Metric(
    "recall",
    Message("recall"),
    meaning=Message("fraction of the labelled entities that are predicted"),
)
NO_ENTITY = Message("the data have no entity")
LONGEST_MATCH = Message("longest match with the entities of the training set")
BEFORE = 60
"""Units of a sentence that a report shows before the first mistake."""
ILLEGAL = -100.0
"""Score of labels that may not follow each other in a new conditional random field. e⁻¹⁰⁰ is 0 in
float32, so that neither its likelihoods nor its gradients include them (arXiv 2103.10682)."""

CRF_WEIGHTS = ("crf/start_transitions", "crf/transitions", "crf/end_transitions")
"""Of a model, by the names of `checkpoints.names`."""


class TaggingLabelling(Labelling["Tagging"]):
    """A label for each unit of a text. Target (units,) int32."""

    has_units: ClassVar[bool] = True
    fixed_long_texts: ClassVar[str] = "all is read, in windows."

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """Words are joined by spaces, characters by nothing."""
        if not words_are_units(examples):
            return examples
        return [example._replace(texts=(" ".join(example.units),)) for example in examples]

    def for_prediction(self, example: Example) -> Example:
        """Split a raw text into units, or join the units of a CoNLL sentence as training does.

        A raw text's units are its characters or, under `spaced_units`, what white space separates.
        """
        (text,) = example.texts
        spaced = self.task.spaced_units
        if example.units:
            return example._replace(texts=((" " if spaced else "").join(example.units),))
        return example._replace(units=tuple(text.split() if spaced else text))

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """Those of all units."""
        return set(label)

    @classmethod
    def learned(cls, training: Examples) -> dict[str, Any]:
        """The labels and their scheme, and whether units are words; texts are read in windows."""
        settings = super().learned(training)
        return settings | {
            "spaced_units": words_are_units(training),
            "long_texts": "windows",
            "scheme": find_scheme(settings["labels"], training),
        }

    def notes(self, training: Examples) -> list[str]:
        """The sentences that break the scheme of predictions, or why predictions follow none."""
        labels = self.task.labels
        if not schemes(labels):
            return []
        scheme = self.task.scheme or schemes(labels)[-1]
        broken = count_broken(labels, training, scheme)
        if not broken.sentences:
            return []
        several = f"{broken.sentences:,} of {broken.of:,} sentences with entities are"
        note = f"{several} no {scheme} (first: {broken.first}), "
        if self.task.scheme:
            return [note + "few enough to be mistakes: all predictions are."]
        return [note + "as in IOB1: predictions need not be either."]

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Each unit has tokens of its own, and counts in one window."""
        return encode_units(examples, tokenizer, self.task.max_length)

    def target(self, example: Example) -> np.ndarray:
        """(units,) int32."""
        labels = example.label or ()
        return np.array([self.number_of(label, example) for label in labels], np.int32)

    def row_targets(self, encoded: EncodedTexts, examples: Examples) -> tuple[Rows, Rows]:
        """(T,) int32 of each row, and weights of 1 where a unit begins that counts there.

        A conditional random field scores the beginning and the end of a text as well, but a row is
        a window of it. So [CLS] has the target C where the row has the text's first unit, and
        [SEP] the target C + 1 where it has the last one.
        """
        targets, weights = unit_targets(encoded, [self.target(example) for example in examples])
        if self.task.crf:
            outputs = self.task.outputs
            of_text = encoded.units[encoded.example]
            for target, units, count in zip(targets, encoded.first_units, of_text, strict=True):
                target[0] = outputs * (units == 0).any()
                target[-1] = (outputs + 1) * (units == count - 1).any()
        return targets, weights


class TaggingObjective(SoftmaxObjective["Tagging"]):
    """Cross-entropy of each unit, or the likelihood of all by a conditional random field."""

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """A label for every token."""
        from roformer_tf.models.heads import RoFormerForTokenClassification

        return RoFormerForTokenClassification

    def first_weights(self) -> dict[str, np.ndarray]:
        """Those of a conditional random field, in which what the scheme forbids is ILLEGAL."""
        if not self.task.crf:
            return {}
        chain = legal(self.task.labels, self.task.scheme)
        scores = [np.where(one <= NEVER, ILLEGAL, 0).astype(np.float32) for one in chain]
        return dict(zip(CRF_WEIGHTS, scores, strict=True))

    def example_losses(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts, examples: Examples
    ) -> np.ndarray | None:
        """Of a conditional random field, in nats by the unit: their mean is the loss of all.

        Negative log-likelihoods over all sequences of labels, since the data may have an illegal
        one.
        """
        if not self.task.crf:
            return None
        logits = self.task.decoding.combine(row_logits, encoded)
        targets = [self.task.labelling.target(example) for example in examples]
        losses = -log_likelihoods(logits, targets, self.task.learned_chain)
        return losses * len(targets) / max(1, sum(map(len, targets)))


class TaggingDecoding(Decoding["Tagging"]):
    """Logits of a unit, which are its first token's, → its label. Scores (units, C)."""

    graph_part: ClassVar[NetworkPart] = "token_classifier"
    joined_by: ClassVar[str] = " "

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of tokens (T, C) → of units (units, C)."""
        return first_tokens(row_logits, encoded, self.task.outputs)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The labels of the units that are most probable together, as below."""
        return self.predict_all([logits])[0]

    def predict_all(self, logits: Sequence[np.ndarray]) -> list[Prediction]:
        """Of each example (units, C) the most probable labels that may follow each other: Viterbi.

        Probabilities are each unit's own. With a conditional random field, that of a unit's label
        sums over all sequences in which the unit has it.
        """
        chain = self.task.chain
        if self.task.crf:
            paths, scores = best_paths(logits, chain), marginals(logits, chain)
        else:
            paths, scores = self._legal_paths(logits, chain), [softmax(one) for one in logits]
        return [
            Prediction(tuple(self.task.labels[i] for i in path), one)
            for path, one in zip(paths, scores, strict=True)
        ]

    def _legal_paths(self, logits: Sequence[np.ndarray], chain: Chain) -> list[np.ndarray]:
        """The most probable labels of the units; Viterbi only where these are not legal.

        Where the most probable label of every unit makes a legal sequence, no other one is better.
        """
        paths = [np.argmax(one, axis=-1) for one in logits]
        if not self.task.scheme:
            return paths
        illegal = [i for i, path in enumerate(paths) if chain.first_illegal(path) is not None]
        legal_paths = best_paths([logits[i] for i in illegal], chain)
        for i, path in zip(illegal, legal_paths, strict=True):
            paths[i] = path
        return paths

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> "Tagging":
        """With the scores of a conditional random field."""
        if not self.task.crf:
            return self.task
        rows = np.vstack([np.asarray(arrays[name]) for name in CRF_WEIGHTS])
        return dataclasses.replace(self.task, transitions=tuple(map(tuple, rows.tolist())))

    def outside_labels(self) -> tuple[str, ...]:
        """In BIO, all that pipelines know: M-LOC and E-LOC are I-LOC, S-LOC is B-LOC.

        They begin an entity at B, or where the type changes, as we do, except for E-LOC E-LOC and
        the like, which no correct tagging has: two entities for us, one for them.
        """
        if not self.task.has_entities:
            return self.task.labels
        return tuple(_as_bio(as_bioes(label) or label) for label in self.task.labels)

    def order_scores(self) -> dict[str, list[Any]]:
        """Those of `chain`, where anything is illegal or learned."""
        if not (self.task.scheme or self.task.crf):
            return {}
        names = ("start", "transitions", "end")
        return dict(zip(names, (scores.tolist() for scores in self.task.chain), strict=True))

    def graph_meaning(self) -> OutputKind | None:
        """Probabilities, except where they depend on more than logits."""
        return None if self.task.crf else super().graph_meaning()

    def cell_names(self) -> list[str]:
        """tags, and entities where the tags mark any."""
        return ["tags", *(["entities"] if self.task.has_entities else [])]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The tags, and entities as lists."""
        label = prediction.label
        if not self.task.has_entities:
            return [label]
        return [label, entities(example.texts[0], example.units, label)]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """tags, a label and its probability for each unit; entities with their place in the text.

        Entities only where the labels mark any.
        """
        labels = prediction.label
        probabilities = map(shortest, predicted_scores(self.task, prediction))
        answer: dict[str, Any] = {
            "tags": [
                {"unit": unit, "label": label, "probability": probability}
                for unit, label, probability in zip(
                    example.units, labels, probabilities, strict=True
                )
            ]
        }
        if self.task.has_entities:
            names = ("start", "end", "label", "text")
            marked = entities(example.texts[0], example.units, labels)
            answer["entities"] = [dict(zip(names, one, strict=True)) for one in marked]
        return answer


class TaggingMetrics(Metrics["Tagging"]):
    """F1, precision and recall of whole entities, accuracy by the unit; without entities macro F1.

    A bootstrap draws sentences: the units of one are not independent.
    """

    all: ClassVar[tuple[Metric, ...]] = (F1, PRECISION, RECALL, ACCURACY, MACRO_F1)

    def usable(self) -> tuple[Metric, ...]:
        """Those of whole entities and the accuracy, or accuracy and macro F1 of the units."""
        return self.all[:-1] if self.task.has_entities else (ACCURACY, MACRO_F1)

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All that is usable."""
        counts = self.count_items(gold, predictions)
        pairs = zip(gold, predictions, strict=True)
        right_units = np.array([np.sum(_agree(x, y.label)) for x, y in pairs], np.float64)
        units = np.array([len(label) for label in gold], np.float64)

        def measure(weights: np.ndarray) -> Figures:
            accuracy = ratio(weights @ right_units, weights @ units)
            if not self.task.has_entities:
                return {ACCURACY.name: accuracy, MACRO_F1.name: macro_f1(counts, weights)}
            right, golden, predicted = totals(counts, weights)
            return {
                F1.name: f1(right, golden, predicted),
                PRECISION.name: ratio(right, predicted),
                RECALL.name: ratio(right, golden),
                ACCURACY.name: accuracy,
            }

        return measure

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """Sentences, for shares of 0 or 1, of which drawn samples show no spread.

        Entities and units of one sentence are not independent: other shares have a bootstrap.
        """
        figures = self.compute(gold, predictions)
        sentences = {
            PRECISION.name: sum(bool(spans(prediction.label)) for prediction in predictions),
            RECALL.name: sum(bool(spans(label)) for label in gold),
            ACCURACY.name: len(gold),
        }
        return {name: number for name, number in sentences.items() if figures.get(name) in (0, 1)}

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """F1 and recall need an entity, if entities are what is marked."""
        if not self.task.has_entities:
            return {}
        has_any = any(spans(label) for label in gold)
        return {} if has_any else {F1.name: NO_ENTITY, RECALL.name: NO_ENTITY}

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity, or each unit's label."""
        if self.task.has_entities:
            return set(spans(label))
        return {(one, at) for at, one in enumerate(label)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the entities, or the labels."""
        labels = self.task.labels
        if not self.task.has_entities:
            return labels
        return tuple(sorted({kind for label in labels for kind, _, _ in spans([label])}))

    def baseline(
        self,
        training: Examples,
        test: Examples,
        valid: Examples = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """The entities of training, the longest first, from left to right."""
        numbers = self.task.label_numbers
        certain = np.eye(len(numbers), dtype=np.float32)
        return LONGEST_MATCH, [
            Prediction(labels, certain[[numbers[label] for label in labels]])
            for labels in known_entities(training, test)
        ]

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Calibration by the unit, and figures of each type of entity."""
        gold = [example.label for example in examples]
        scores = np.concatenate([predicted_scores(self.task, one) for one in predictions])
        pairs = zip(gold, predictions, strict=True)
        right = np.concatenate([_agree(label, prediction.label) for label, prediction in pairs])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(scores, right),
            "per_class": by_kind(self.count_items(gold, predictions)),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The highest probability of a unit's wrong label."""
        wrong = ~_agree(label, prediction.label)
        return float(predicted_scores(self.task, prediction)[wrong].max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """A sentence from shortly before its first mistake, once with either kind of entities."""
        labels, predicted = example.label, prediction.label
        begin = max(0, int(np.argmin(_agree(labels, predicted))) - BEFORE)
        shown = range(begin, min(begin + CHARACTERS, len(predicted)))
        between = " " if self.task.spaced_units else ""
        return {
            "gold": mark(example.units, spans(labels), shown, between),
            "predicted": mark(example.units, spans(predicted), shown, between),
        }


class Tagging(Task):
    """One text in units, one of the labels for each.

    Labels that mark entities, or words, are evaluated by whole ones; others, such as parts of
    speech, by the unit.
    """

    name: ClassVar[str] = "tagging"
    title: ClassVar[str] = "序列标注 · Sequence tagging"
    pipeline_tag: ClassVar[str] = "token-classification"
    labelling = part(TaggingLabelling)
    objective = part(TaggingObjective)
    decoding = part(TaggingDecoding)
    metrics = part(TaggingMetrics)

    @property
    def units(self) -> Units:
        """Characters, or the words of texts whose units white space separates."""
        return "words" if self.spaced_units else "characters"

    @property
    def has_entities(self) -> bool:
        """Whether the labels mark entities, or words."""
        return marks_entities(self.labels)

    @property
    def chain(self) -> Chain:
        """Scores of labels by their order: what is learned, and NEVER for what is illegal."""
        chain = legal(self.labels, self.scheme)
        return chain + self.learned_chain if self.crf else chain

    @property
    def learned_chain(self) -> Chain:
        """The scores of a conditional random field alone."""
        start, *steps, end = np.array(self.transitions)
        return Chain(start, np.array(steps), end)


def words_are_units(examples: Iterable[Example]) -> bool:
    """Whether the units of examples are words: a fifth of them has several characters.

    Of Chinese in characters few have, such as numbers; of Chinese words about half.
    """
    lengths = [len(unit) for example in examples for unit in example.units]
    return 5 * sum(length > 1 for length in lengths) > len(lengths)


def _as_bio(tag: str) -> str:
    """A tag of BIOES in BIO."""
    mark, dash, kind = tag.partition("-")
    return {"E": "I", "S": "B"}.get(mark, mark) + dash + kind


def _agree(labels: Sequence[str], predicted: Sequence[str]) -> np.ndarray:
    """Which units are predicted as the data have them (units,) bool."""
    return np.array([x == y for x, y in zip(labels, predicted, strict=True)], np.bool_)


def predicted_scores(task: Task, prediction: Prediction) -> np.ndarray:
    """The probability of each unit's predicted label (units,) float32."""
    numbers = np.array([task.label_numbers[label] for label in prediction.label], np.int64)
    return prediction.scores[np.arange(len(numbers)), numbers]
