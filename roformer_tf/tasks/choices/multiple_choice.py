"""A text and several candidates, of which one is right.

Candidates are pairs with the text, or fill its gap: see `cloze`. Axes: B examples, C candidates.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.cells import BadCellError, read_label, read_text, read_texts, to_number
from roformer_tf.labelled.choices import GAP, ChoiceBatches, EncodedChoices, encode_choices
from roformer_tf.labelled.column_names import CHOICES, folded
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import EncodedTexts, rows_side_by_side
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.readers.records import Row, text_key
from roformer_tf.tasks import keras_ops as ops
from roformer_tf.tasks.base import Examples, Prediction, Task, part
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.losses import Tensor, listwise_softmax, softmax_distillation
from roformer_tf.tasks.metrics import ACCURACY, Metric
from roformer_tf.tasks.objective import OF_LABELS, TrainingObjective
from roformer_tf.tasks.probabilities import shortest, softmax
from roformer_tf.tasks.scoring import JsonObject, Metrics, NamedPredictions, shortened
from roformer_tf.tasks.tfidf import overlap
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

CHARACTER_OVERLAP = Message("character overlap (Jaccard)")
# Candidates that a message names.
SHOWN = 5


class ListLabelling(Labelling):
    """Rows with a text and a list of texts, of any length: (text, candidate, candidate, …)."""

    text_counts: ClassVar[tuple[int, ...]] = (2,)
    lists_texts: ClassVar[bool] = True
    min_labels: ClassVar[int] = 0
    known_columns: ClassVar[tuple[tuple[str, ...], ...]]
    """Well-known names of the columns, normalized by `folded`."""

    def guess(self, sample: LabelSample) -> str:
        """Columns with well-known names."""
        if tuple(map(folded, sample.texts)) not in self.known_columns:
            return ""
        return Message("there is a column {name}", name=sample.texts[-1])

    def read_list(self, cells: dict[str, Any], column: str, least: int) -> tuple[str, ...]:
        """The texts in a column. Raises BadCellError for fewer than `least`."""
        listed = read_texts(cells, column)
        if len(listed) < least:
            raise BadCellError(
                f"has too few texts in {column!r}: {len(listed)}, not {least} or more"
            )
        return listed

    def split_keys(self, example: Example) -> Sequence[bytes]:
        """The text: with other candidates it stays in the same set."""
        return [text_key(example.texts[:1])]

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedChoices:
        """A row for each candidate."""
        return encode_choices(examples, tokenizer, self.task.max_length)

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Batches of whole examples."""
        targets = [self.target(example) for example in examples]
        return ChoiceBatches(self.encode(examples, tokenizer), targets)


class ChoiceLabelling(ListLabelling):
    """Target (C,) float32: 1 for the right candidate."""

    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = CHOICES

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """The text and its candidates; the label is the index of the right one.

        Raises InputError for a label that counts from 1, or may be an index or a text.
        """
        text, candidates = texts
        listed, right = self.read_list(row.cells, candidates, 2), None
        if label is not None:
            value = row.cells.get(label)
            if value not in listed and to_number(value) == len(listed):
                raise InputError(
                    f"{row.source_line} has the label {value!r}, but the {len(listed)} choices "
                    "count from 0. If the labels count from 1, subtract 1 from all of them."
                )
            right, *other = indices_of(value, listed)
            if other:
                raise InputError(
                    f"{row.source_line} has the label {value!r}, which may be an index or a "
                    "choice. Write the indices as numbers in a .jsonl file."
                )
        return Example((read_text(row.cells, text), *listed), right, row.source_line)

    def learned(self, training: Examples) -> dict[str, Any]:
        """Whether every text has a gap."""
        return {"gaps": all(GAP.search(example.texts[0]) for example in training)}

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32."""
        target = np.zeros(len(example.texts) - 1, np.float32)
        target[example.label] = 1
        return target


def indices_of(value: Any, candidates: Sequence[str]) -> set[int]:
    """The right candidate by its index, letter or text; two if the label may be index and text.

    The letter A is the index 0, as in RACE and C-Eval, unless a candidate is called so.
    Raises BadCellError for any other label.
    """
    name = read_label(value)
    number = to_number(name)
    if name in tuple(ascii_uppercase) and name not in candidates:
        number = ascii_uppercase.index(name)
    indices = {x for x in range(len(candidates)) if x == number}
    # A number of JSON or Parquet is an index; pandas writes 1.0 next to missing labels.
    if name in candidates and not isinstance(value, int | float):
        indices.add(candidates.index(name))
    if not indices:
        shown = "、".join(candidates[:SHOWN]) + ("…" if len(candidates) > SHOWN else "")
        raise BadCellError(
            f"has the label {name!r}, but it is an index from 0 to {len(candidates) - 1}, or "
            f"one of {shown}"
        )
    for right in (candidates[x] for x in indices):
        if candidates.count(right) > 1:  # their scores are equal
            raise BadCellError(f"has the right candidate {right!r} twice")
    return indices


class ListObjective(TrainingObjective):
    """A softmax over the scores of an example's candidates."""

    refused_settings: ClassVar[Mapping[str, str]] = OF_LABELS
    soft_losses = staticmethod(softmax_distillation)

    def batch_loss(self, targets: Tensor, outputs: Any, weights: Tensor, inputs: Any) -> Tensor:
        """`listwise_softmax` of targets (B, C) and the `scores` of the outputs."""
        return listwise_softmax(targets, self.scores(outputs, inputs), weights)

    def scores(self, outputs: Tensor, inputs: Any) -> Tensor:
        """Logits of rows (D, 1) → scores of candidates (B, C)."""
        # row_index (B, C, R): which of the D rows a candidate has; R is 1 for pairs.
        return ops.take(outputs[:, 0], inputs["row_index"][..., 0])


class ChoiceDecoding(Decoding):
    """Logits (C,), one a candidate → the index of the best. Scores (C,): their softmax."""

    activation: ClassVar[Literal["softmax", "sigmoid"] | None] = None

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """The logits of an example's rows in one array."""
        return rows_side_by_side(row_logits, encoded)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The candidate with the highest logit."""
        return Prediction(int(np.argmax(logits)), softmax(logits))

    def cell_names(self) -> list[str]:
        """label, choice, scores."""
        return ["label", "choice", "scores"]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The index, the candidate, and the probability of each."""
        chosen = example.texts[1 + prediction.label]
        return [prediction.label, chosen, list(map(shortest, prediction.scores))]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label: the index of a candidate; scores: the probability of each."""
        return {"label": prediction.label, "scores": list(map(shortest, prediction.scores))}


def by_overlap(example: Example) -> Prediction:
    """The candidate that shares most characters with the text: its index.

    Of equal overlaps the first is predicted, and counts as wrong.
    """
    text, *candidates = example.texts
    scores = np.array([overlap(text, candidate) for candidate in candidates], np.float32)
    return Prediction(int(np.argmax(scores)), scores)


class CandidateMetrics(Metrics):
    """Accuracy: the fraction of examples whose right candidate has the highest score."""

    all: ClassVar[tuple[Metric, ...]] = (ACCURACY,)

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether the label is predicted; equal highest scores are wrong, whatever the label."""
        # A model that scores all candidates alike would otherwise be right for every first one.
        highest = prediction.scores == prediction.scores.max()
        return bool(highest.sum() == 1 and label == prediction.label)


class ChoiceMetrics(CandidateMetrics):
    """Figures of labels that are indices."""

    has_probabilities: ClassVar[bool] = True

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The candidate that shares most characters with the text, or the most frequent index.

        The validation set selects one; a text with a gap has the index.
        """
        methods = [self._most_frequent(training, test)]
        if not any(GAP.search(example.texts[0]) for example in training):
            methods.append((CHARACTER_OVERLAP, list(map(by_overlap, test))))
        gold = [example.label for example in valid]
        # `test` begins with the validation set, if there is one.
        return max(methods, key=lambda method: self.right(gold, method[1][: len(gold)]).sum())

    def _most_frequent(self, training: Examples, test: Examples) -> NamedPredictions:
        counts = Counter(example.label for example in training)
        chance = float(np.mean([1 / (len(example.texts) - 1) for example in test]))
        predictions = []
        for example in test:
            scores = np.zeros(len(example.texts) - 1, np.float32)
            # Of the indices that this example has; a Counter has 0 for an index that never was
            # right.
            chosen = max(range(len(scores)), key=counts.__getitem__)
            scores[chosen] = 1
            predictions.append(Prediction(chosen, scores))
        return Message("most frequent index (chance: {chance:.1%})", chance=chance), predictions

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """The right and the predicted candidate, the text, and all candidates."""
        text, *candidates = example.texts
        return {
            "gold": candidates[example.label],
            "predicted": candidates[prediction.label],
            "texts": [shortened(text), shortened(" / ".join(candidates))],
        }


@dataclass(frozen=True, kw_only=True)
class Choices(Task):
    """A text and several candidates, scored as pairs; one is right."""

    name: ClassVar[str] = "multiple-choice"
    title: ClassVar[str] = "多项选择 · Multiple choice"
    compares: ClassVar[bool] = True
    pipeline_tag: ClassVar[str] = "multiple-choice"
    labelling = part(ChoiceLabelling)
    objective = part(ListObjective)
    decoding = part(ChoiceDecoding)
    metrics = part(ChoiceMetrics)

    gaps: bool = False
    """Whether candidates fill a gap of the text."""


# The models of transformers' RoFormerForMultipleChoice. Its linear layer scores one hidden state of
# a candidate, by the `summary_type` of its config. By default that is the last position of the
# batch, which is padding unless all candidates have the same length or the padding is on the left.
# Here it is the last token.


class SummaryObjective(ListObjective):
    """The model whose linear layer has an output for each token."""

    model_name: ClassVar[str] = "RoFormerForTokenClassification"


class SummaryDecoding(ChoiceDecoding):
    """Logits of tokens (T, 1) → of candidates (C,)."""

    graph_part: ClassVar[NetworkPart] = "token_classifier"

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """The logit of each candidate's last token."""
        return super().combine([logits[-1] for logits in row_logits], encoded)


class SummaryChoices(Choices):
    """Pairs of a text and a candidate, scored as in transformers."""

    objective = part(SummaryObjective)
    decoding = part(SummaryDecoding)

    @classmethod
    def of_config(cls, config: RoFormerConfig, length: int, name: str) -> "SummaryChoices":
        """The task of a model saved by transformers, for texts of this length; `name` for messages.

        Raises InputError for a summary that is not supported.
        """
        summary = config.unknown.get("summary_type", "last")
        activation = config.unknown.get("summary_activation")
        if summary != "last" or activation:
            raise InputError(
                f"{name}: its config has summary_type {summary!r} and summary_activation "
                f"{activation!r}, but only the type 'last' without activation is supported."
            )
        return cls(text_columns=("text", "choices"), max_length=length)
