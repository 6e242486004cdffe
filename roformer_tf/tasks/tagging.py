"""One text in units, characters or words, one of several labels for each."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.labelled.annotations import UnitColumns
from roformer_tf.labelled.cells import parsed
from roformer_tf.labelled.encoding import EncodedTexts, Rows, encode_units
from roformer_tf.labelled.examples import Example
from roformer_tf.readers.records import ANY, Row
from roformer_tf.tasks.base import Examples, Prediction, Task, part
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.objective import SoftmaxObjective
from roformer_tf.tasks.probabilities import shortest, softmax
from roformer_tf.tasks.tags import schemes
from roformer_tf.tasks.tags.chain import NEVER, Chain, best_path, marginals
from roformer_tf.tasks.tags.entity_scoring import TaggingMetrics, predicted_scores
from roformer_tf.tokenizers.tokenizer_json import Units

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Initial score of labels that may not follow each other in a conditional random field. e⁻¹⁰⁰ is 0
# in float32, so neither likelihoods nor gradients include such sequences (arXiv 2103.10682).
ILLEGAL = -100.0

# Names of its weights in a checkpoint, as in `checkpoints.names`.
CRF_WEIGHTS = ("crf/start_transitions", "crf/transitions", "crf/end_transitions")


class UnitLabelling(Labelling):
    """Texts in units, or raw ones, of which all is read."""

    has_units: ClassVar[bool] = True
    fixed_long_texts: ClassVar[str] = "all is read, in windows."

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """A text without labels, or its units in a list; labelled ones are read elsewhere."""
        return UnitColumns(texts[0], None, ANY).read(row)

    def learned(self, training: Examples) -> dict[str, Any]:
        """The labels, and whether units are words; texts are read in windows."""
        spaced = words_are_units(training)
        return super().learned(training) | {"spaced_units": spaced, "long_texts": "windows"}


class TaggingLabelling(UnitLabelling):
    """A label for each unit of a text. Target (units,) int32."""

    task: "Tagging"

    def complete(self, examples: list[Example]) -> list[Example]:
        """Words are joined by spaces, characters by nothing."""
        if not words_are_units(examples):
            return examples
        return [example._replace(texts=(" ".join(example.units),)) for example in examples]

    def for_prediction(self, example: Example) -> Example:
        """Split a raw text into units, or join the units of a CoNLL sentence as training does.

        A raw text's units are its characters or, under `spaced_units`, what white space separates,
        or the words of a JSON list: `predict` writes one if a word has a space in it.
        """
        (text,) = example.texts
        spaced = self.task.spaced_units
        words = example.units or (parsed(text) if spaced else text)
        if not words or not isinstance(words, list | tuple):
            return example._replace(units=tuple(text.split() if spaced else text))
        units = tuple(map(str, words))
        return example._replace(units=units, texts=((" " if spaced else "").join(units),))

    def as_cells(self, example: Example) -> tuple[Any, ...]:
        """The text, or its words: a word may have a space in it."""
        return (example.units,) if self.task.spaced_units else example.texts

    def learned(self, training: Examples) -> dict[str, Any]:
        """The scheme of the labels, too."""
        settings = super().learned(training)
        return settings | {"scheme": schemes.find_scheme(settings["labels"], training)}

    def notes(self, training: Examples) -> list[str]:
        """How many sentences break the scheme, or the loosest one if predictions follow none."""
        known = schemes.schemes_of(self.task.labels)
        scheme = self.task.scheme or (known[-1] if known else "")
        mistakes = schemes.broken(self.task.labels, training, scheme)
        if not mistakes:
            return []
        count, of = len(mistakes), schemes.with_entities(training)
        note = f"{count:,} of {of:,} sentences with entities are no {scheme} (first: {mistakes[0]})"
        return [note + ("" if self.task.scheme else ": predictions need not be either.")]

    def encode(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> EncodedTexts:
        """Each unit has tokens of its own, and is predicted in one window."""
        return encode_units(examples, tokenizer, self.task.max_length)

    def target(self, example: Example) -> np.ndarray:
        """(units,) int32."""
        labels = example.label or ()
        return np.array([self.number_of(label, example) for label in labels], np.int32)

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """(T, …) of each sequence, and weights (T,) of 1 at the first token of each unit."""
        targets, weights = [], []
        for number, units in zip(encoded.example, encoded.first_units, strict=True):
            of_units, is_first = arrays[number], units >= 0
            target = np.zeros((len(units), *of_units.shape[1:]), of_units.dtype)
            target[is_first] = of_units[units[is_first]]
            targets.append(target)
            weights.append(is_first.astype(np.float32))
        return targets, weights

    def row_targets(self, encoded: EncodedTexts, examples: Examples) -> tuple[Rows, Rows]:
        """(T,) int32 of each sequence; weights 1 for the first token of units predicted there."""
        targets, weights = super().row_targets(encoded, examples)
        if self.task.crf:
            # The field also scores the beginning and the end of a text, but a sequence may be a
            # window of it. So [CLS] has the target C if the sequence has the text's first unit, and
            # [SEP] the target C + 1 if it has the last one.
            outputs = self.task.outputs
            of_text = encoded.units[encoded.example]
            for target, units, count in zip(targets, encoded.first_units, of_text, strict=True):
                # In other windows both stay 0, and `RowBatches` ignores them: 0 is no mark.
                target[0] = outputs * (units == 0).any()
                target[-1] = (outputs + 1) * (units == count - 1).any()
        return targets, weights


class TaggingObjective(SoftmaxObjective):
    """Cross-entropy of each unit, or the likelihood of all by a conditional random field."""

    model_name: ClassVar[str] = "RoFormerForTokenClassification"
    task: "Tagging"
    # Measured on names in the news with our small checkpoint (docs/LOG.md).
    epochs: ClassVar[int] = 6

    def first_weights(self, train: Examples) -> dict[str, np.ndarray]:
        """Weights of a conditional random field: ILLEGAL for what the scheme forbids."""
        if not self.task.crf:
            return {}
        chain = schemes.legal(self.task.labels, self.task.scheme)
        # Initial values, which training may change: decoding still adds NEVER, see `Tagging.chain`.
        scores = [np.where(x <= NEVER, ILLEGAL, 0).astype(np.float32) for x in chain]
        return dict(zip(CRF_WEIGHTS, scores, strict=True))


class TaggingDecoding(Decoding):
    """Logits of each unit's first token → its label. Scores (units, C)."""

    task: "Tagging"

    graph_part: ClassVar[NetworkPart] = "token_classifier"
    joined_by: ClassVar[str] = " "

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of tokens (T, C) → of units (units, C): those of its first token."""
        logits = [np.zeros((units, self.task.outputs), np.float32) for units in encoded.units]
        for row, units in enumerate(encoded.first_units):
            is_first = units >= 0
            logits[encoded.example[row]][units[is_first]] = row_logits[row][is_first]
        return logits

    def predict(self, logits: np.ndarray) -> Prediction:
        """The most probable legal sequence of labels.

        The scores are independent probabilities of each unit. With a conditional random field they
        are marginals: sums over all sequences in which the unit has the label.
        """
        chain, path = self.task.chain, np.argmax(logits, axis=-1)
        # If the most probable labels of all units are a legal sequence, no other one is better.
        if self.task.crf or chain.first_illegal(path) is not None:
            path = best_path(logits, chain)
        scores = marginals(logits, chain) if self.task.crf else softmax(logits)
        return Prediction(tuple(self.task.labels[i] for i in path), scores)

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> "Tagging":
        """The task with the scores of a conditional random field."""
        if not self.task.crf:
            return self.task
        # (C + 2, C): start, transitions and end below each other, as `transitions` stores them.
        rows = np.vstack([np.asarray(arrays[name]) for name in CRF_WEIGHTS])
        return dataclasses.replace(self.task, transitions=tuple(map(tuple, rows.tolist())))

    def outside_labels(self) -> tuple[str, ...]:
        """The labels in BIO, which pipelines expect: M-LOC and E-LOC → I-LOC, S-LOC → B-LOC."""
        # Pipelines begin an entity at B, or where the type changes, as we do. Only E-LOC E-LOC and
        # the like differ, which no correct tagging has: two entities here, one there.
        if not self.task.has_entities:
            return self.task.labels
        return tuple(_as_bio(schemes.as_bioes(label) or label) for label in self.task.labels)

    def order_scores(self) -> dict[str, list[Any]]:
        """The scores of `chain`, if any sequence is illegal or scores are learned."""
        if not (self.task.scheme or self.task.crf):
            return {}
        names = ("start", "transitions", "end")
        return dict(zip(names, (scores.tolist() for scores in self.task.chain), strict=True))

    def graph_meaning(self) -> OutputKind | None:
        """Probabilities; none with a random field, where they depend on more than logits."""
        return None if self.task.crf else super().graph_meaning()

    def cell_names(self) -> list[str]:
        """tags, and entities if tags mark any."""
        return ["tags", *(["entities"] if self.task.has_entities else [])]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The tags, and entities as lists."""
        label = prediction.label
        if not self.task.has_entities:
            return [label]
        marked = schemes.entities(example.texts[0], example.units, label)
        return [label, [list(entity.values()) for entity in marked]]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """tags, a label and its probability for each unit; entities, if the labels mark any."""
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
            answer["entities"] = schemes.entities(example.texts[0], example.units, labels)
        return answer


class Tagging(Task):
    """One text in units, one of the labels for each.

    Labels that mark entities, or words, are evaluated as whole entities; others, such as parts of
    speech, as units.
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
        """Whether the labels mark entities, or words, as BIO and BIOES do."""
        return all(map(schemes.as_bioes, self.labels))

    @property
    def chain(self) -> Chain:
        """Scores of the order of labels: the learned ones, and NEVER for illegal sequences."""
        chain = schemes.legal(self.labels, self.scheme)
        if not self.crf:
            return chain
        # The rows of `with_arrays`: start (C,), C rows of steps, end (C,).
        start, *steps, end = np.array(self.transitions)
        return Chain(chain.start + start, chain.steps + np.array(steps), chain.end + end)


def words_are_units(examples: Iterable[Example]) -> bool:
    """Whether the units of examples are words: at least a fifth has several characters.

    If units are Chinese characters, few have several, such as numbers; of words about half.
    """
    lengths = [len(unit) for example in examples for unit in example.units]
    return 5 * sum(length > 1 for length in lengths) > len(lengths)


def _as_bio(tag: str) -> str:
    """A tag of BIOES as BIO spells it."""
    mark, dash, kind = tag.partition("-")
    return {"E": "I", "S": "B"}.get(mark, mark) + dash + kind
