"""One text in units, characters or words, one of several labels for each."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import Meaning, Part
from roformer_tf.labelled.encoding import (
    EncodedTexts,
    Rows,
    encode_units,
    first_tokens,
    unit_targets,
)
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import known_entities
from roformer_tf.tasks.decoding import NEVER, Chain, best_paths, log_likelihoods, marginals
from roformer_tf.tasks.details import CHARACTERS, JsonObject, calibration
from roformer_tf.tasks.entities import as_bioes, entities, mark, marks_entities, spans
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
from roformer_tf.tasks.probabilities import shortest, softmax
from roformer_tf.tasks.schemes import count_broken, find_scheme, legal, schemes
from roformer_tf.tokenizers.huggingface import Units
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

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
"""Units that a report shows before a sentence's first mistake."""
ILLEGAL = -100.0
"""What a new conditional random field scores for labels that may not follow each other: e⁻¹⁰⁰ is 0
in float32, so that neither its likelihoods nor its gradients have them (arXiv 2103.10682)."""


CRF_WEIGHTS = ("crf/start_transitions", "crf/transitions", "crf/end_transitions")
"""Of a model, by the names of `checkpoints.names`."""


class Tagging(Task):
    """One text in units, one of the labels for each.

    Labels that mark entities, or words, are judged by whole ones; others, such as parts of speech,
    by the unit.

    Logits of tokens (T, C), of which a unit's are its first token's: (units, C). Target (units,)
    int32, scores (units, C) probabilities.
    """

    name: ClassVar[str] = "tagging"
    title: ClassVar[str] = "序列标注 · Sequence tagging"
    metrics: ClassVar[tuple[Metric, ...]] = (F1, PRECISION, RECALL, ACCURACY, MACRO_F1)
    has_units: ClassVar[bool] = True
    graph_part: ClassVar[Part] = "token_classifier"
    released: ClassVar[str] = "chinese_roformer-char-base"
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
        task = super().from_examples(training, **settings | of_units)
        return dataclasses.replace(task, scheme=find_scheme(task.labels, training))

    def remarks(self, training: Sequence[Example]) -> list[str]:
        """Which sentences are against the scheme that answers follow, or why they follow none."""
        if not schemes(self.labels):
            return []
        scheme = self.scheme or schemes(self.labels)[-1]
        broken = count_broken(self.labels, training, scheme)
        if not broken.sentences:
            return []
        several = f"{broken.sentences:,} of {broken.of:,} sentences with entities are"
        said = f"{several} no {scheme} (first: {broken.first}), "
        if self.scheme:
            return [said + "and few enough to be mistakes: all answers are."]
        return [said + "as in IOB1: neither need answers be."]

    def encode(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Each unit has tokens of its own, and is judged in one window."""
        return encode_units(examples, tokenizer, self.max_length)

    def target(self, example: Example) -> np.ndarray:
        """(units,) int32."""
        labels = example.label or ()
        return np.array([self.number_of(one, example) for one in labels], np.int32)

    def row_targets(self, encoded: EncodedTexts, examples: Sequence[Example]) -> tuple[Rows, Rows]:
        """(T,) int32 of each row, and weights of 1 where a unit begins that is judged there.

        With a conditional random field also C at [CLS] where the first unit is judged in the row,
        and C + 1 at [SEP] where the last one is.
        """
        targets, weights = unit_targets(encoded, [self.target(example) for example in examples])
        if self.crf:
            of_text = encoded.units[encoded.example]
            for target, judged, count in zip(targets, encoded.first_units, of_text, strict=True):
                target[0] = self.outputs * (judged == 0).any()
                target[-1] = (self.outputs + 1) * (judged == count - 1).any()
        return targets, weights

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

    def first_weights(self) -> dict[str, np.ndarray]:
        """Those of a conditional random field, in which what the scheme forbids is ILLEGAL."""
        if not self.crf:
            return {}
        chain = legal(self.labels, self.scheme)
        scores = [np.where(one <= NEVER, ILLEGAL, 0).astype(np.float32) for one in chain]
        return dict(zip(CRF_WEIGHTS, scores, strict=True))

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of tokens (T, C) → of units (units, C)."""
        return first_tokens(row_logits, encoded, self.outputs)

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> "Self":
        """What a conditional random field scores."""
        if not self.crf:
            return self
        rows = np.vstack([np.asarray(arrays[name]) for name in CRF_WEIGHTS])
        return dataclasses.replace(self, transitions=tuple(map(tuple, rows.tolist())))

    @property
    def chain(self) -> Chain:
        """What labels score for their order: what is learnt, and NEVER for what is illegal."""
        chain = legal(self.labels, self.scheme)
        return chain + self._learnt if self.crf else chain

    @property
    def _learnt(self) -> Chain:
        """What a conditional random field scores for the order."""
        start, *steps, end = np.array(self.transitions)
        return Chain(start, np.array(steps), end)

    def sequence_losses(
        self, logits: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> np.ndarray:
        """Negative log-likelihoods, over all sequences: the data may hold an illegal one."""
        targets = [self.target(example) for example in examples]
        losses = -log_likelihoods(logits, targets, self._learnt)
        return losses * len(targets) / max(1, sum(map(len, targets)))

    def order_scores(self) -> dict[str, list[Any]]:
        """Those of `chain`, where anything is illegal or learnt."""
        if not (self.scheme or self.crf):
            return {}
        names = ("start", "transitions", "end")
        return dict(zip(names, (scores.tolist() for scores in self.chain), strict=True))

    def answer(self, logits: np.ndarray) -> Prediction:
        """The labels of the units that are likeliest together, as below."""
        return self.answers([logits])[0]

    def answers(self, logits: Sequence[np.ndarray]) -> list[Prediction]:
        """Of each example (units, C) the likeliest labels that may follow each other: Viterbi.

        Probabilities are each unit's own or, with a conditional random field, say how likely all
        sequences are together in which the unit has the label.
        """
        if self.crf:
            paths, scores = best_paths(logits, self.chain), marginals(logits, self.chain)
        else:
            paths, scores = self._legal_paths(logits), [softmax(one) for one in logits]
        return [
            Prediction(tuple(self.labels[i] for i in path), one)
            for path, one in zip(paths, scores, strict=True)
        ]

    def _legal_paths(self, logits: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The likeliest labels of the units, where they may not follow each other by Viterbi."""
        paths = [np.argmax(one, axis=-1) for one in logits]
        if not self.scheme:
            return paths
        chain = self.chain
        wrong = [i for i, path in enumerate(paths) if chain.first_illegal(path) is not None]
        better = best_paths([logits[i] for i in wrong], chain)
        for i, path in zip(wrong, better, strict=True):
            paths[i] = path
        return paths

    def graph_meaning(self) -> Meaning | None:
        """Probabilities, but where logits alone do not tell them."""
        return None if self.crf else super().graph_meaning()

    @property
    def _entities(self) -> bool:
        """Whether the labels mark entities, or words."""
        return marks_entities(self.labels)

    def usable_metrics(self) -> tuple[Metric, ...]:
        """Those of whole entities and the accuracy, or accuracy and macro F1 of the units."""
        return self.metrics[:-1] if self._entities else (ACCURACY, MACRO_F1)

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """F1, precision and recall of whole entities, accuracy by the unit; else also macro F1.

        Sentences are what counts once or several times: the units of one are not independent.
        """
        counts = self.count_items(gold, predictions)
        pairs = zip(gold, predictions, strict=True)
        right_units = np.array([np.sum(_agree(x, y.label)) for x, y in pairs], np.float64)
        units = np.array([len(label) for label in gold], np.float64)

        def measure(weights: np.ndarray) -> Figures:
            accuracy = ratio(weights @ right_units, weights @ units)
            if not self._entities:
                return {ACCURACY.name: accuracy, MACRO_F1.name: macro_f1(counts, weights)}
            right, golden, predicted = totals(counts, weights)
            return {
                F1.name: f1(right, golden, predicted),
                PRECISION.name: ratio(right, predicted),
                RECALL.name: ratio(right, golden),
                ACCURACY.name: accuracy,
            }

        return measure

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Sentences, for shares of 0 or 1, of which drawn samples show no spread.

        Entities and units of one sentence are not independent: other shares have a bootstrap.
        """
        figures = self.compute_metrics(gold, predictions)
        spans_of = (spans(label) for label in gold), (spans(one.label) for one in predictions)
        with_entities, with_predicted = (sum(map(bool, some)) for some in spans_of)
        sentences = {
            PRECISION.name: with_predicted,
            RECALL.name: with_entities,
            ACCURACY.name: len(gold),
        }
        return {name: number for name, number in sentences.items() if figures.get(name) in (0, 1)}

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """F1 and recall need an entity, if entities are what is marked."""
        if not self._entities:
            return {}
        has_any = any(spans(label) for label in gold)
        return {} if has_any else {F1.name: NO_ENTITY, RECALL.name: NO_ENTITY}

    def items(self, label: Label) -> set[LabelItem]:
        """Each entity, or each unit's label."""
        if self._entities:
            return set(spans(label))
        return {(one, at) for at, one in enumerate(label)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the entities, or the labels."""
        if not self._entities:
            return self.labels
        return tuple(sorted({kind for label in self.labels for kind, _, _ in spans([label])}))

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """What stands in training as an entity, the longest first, from left to right."""
        certain = np.eye(len(self.labels), dtype=np.float32)
        return LONGEST_MATCH, [
            Prediction(labels, certain[[self.label_numbers[label] for label in labels]])
            for labels in known_entities(training, test)
        ]

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Calibration by the unit, and figures of each type of entity."""
        gold = [example.label for example in examples]
        likeliest = np.concatenate([self._answered(answer) for answer in predictions])
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
        return float(self._answered(prediction)[wrong].max())

    def _answered(self, prediction: Prediction) -> np.ndarray:
        """The probability of each unit's label (units,) float32."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        answered = np.array([numbers[label] for label in prediction.label], np.int64)
        return prediction.scores[np.arange(len(answered)), answered]

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
        likeliest = map(shortest, self._answered(prediction))
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
