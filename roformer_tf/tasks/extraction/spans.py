"""One text, and its entities: spans of characters with a label, which may be nested or overlap.

Each character is tokenized separately. Long texts are read in overlapping windows.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.encoding import EncodedTexts, Rows, encode_units, in_no_window, rows_of
from roformer_tf.labelled.examples import Example, Label, Span, ordered
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.extraction.global_pointer import candidates, span_losses
from roformer_tf.tasks.labelling import teacher_weights
from roformer_tf.tasks.losses import Tensor, mixed
from roformer_tf.tasks.multilabel import f1_threshold
from roformer_tf.tasks.objective import TrainingObjective
from roformer_tf.tasks.probabilities import shortest
from roformer_tf.tasks.tagging import UnitLabelling, words_are_units
from roformer_tf.tasks.tags.entity_scoring import SpanMetrics
from roformer_tf.tasks.tags.schemes import as_dictionaries, character_spans
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.tokenizer_json import Units
from roformer_tf.translation import Message

ONE_LOSS = "treats labels separately; spans have one loss for all spans of a text."


class SpansLabelling(UnitLabelling):
    """Entities of a text. Target (P, 3) int32: first and last character, and the label."""

    task: "Spans"
    has_spans: ClassVar[bool] = True
    span_name: ClassVar[str] = Message("entities")
    min_labels: ClassVar[int] = 1
    # A loss has T · T · C scores for each sequence.
    default_max_length: ClassVar[int] = 256

    def complete(self, examples: list[Example]) -> list[Example]:
        """Tags of units become spans of characters; units that are words are joined by spaces."""
        # A few sentences may have other lengths: where the training is known, its units count.
        spaced = self.task.spaced_units if self.task else words_are_units(examples)
        return [_with_spans(example, spaced) if example.units else example for example in examples]

    def learned(self, training: Examples) -> dict[str, Any]:
        """The labels, and whether units are words."""
        if not any(example.label for example in training):
            raise InputError(
                "no training text has an entity: nothing can be learnt. Give some that have."
            )
        return super().learned(training)

    def for_prediction(self, example: Example) -> Example:
        """Join the units of a CoNLL sentence as training does."""
        if not example.units or example.label is not None:
            return example
        between = " " if self.task.spaced_units else ""
        return example._replace(texts=(between.join(example.units),))

    def labels_in(self, label: Label) -> set[str]:
        """The labels of all entities."""
        return {span[0] for span in label}

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Each character has tokens of its own, and may begin a span in every window with it."""
        characters = [example._replace(units=tuple(example.texts[0])) for example in examples]
        return encode_units(characters, tokenizer, self.task.max_length, overlapping=True)

    def in_no_window(self, examples: Examples, tokenizer: RoFormerTokenizer) -> dict[str, int]:
        """Count the entities that are longer than the overlap of windows and in none of them."""
        encoded = self.encode(examples, tokenizer)
        units = [units[units >= 0] for units in encoded.first_units]
        characters = [np.column_stack([x, x + 1]) for x in units]
        # Targets have the last character of a span, but `in_no_window` takes the one after it.
        return in_no_window(encoded, characters, [self.target(x)[:, :2] + (0, 1) for x in examples])

    def target(self, example: Example) -> np.ndarray:
        """(P, 3) int32."""
        spans = [
            (start, end - 1, self.number_of(label, example))
            for label, start, end in example.label or ()
        ]
        return np.array(spans, np.int32).reshape(-1, 3)

    def row_spans(self, encoded: EncodedTexts, spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of the spans (P, …) of examples, those that count in each row, in its window or not."""
        return [spans[number] for number in encoded.example]

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """The spans (P, K) of examples, in the tokens of rows: (rows, 1 + P, K); weights of 1.

        First the number of a sequence's tokens, the last one before the text, and zeros. Then the
        spans in it: first and last token, and the rest as it is; zeros after the last one.
        """
        rows = zip(self.row_spans(encoded, arrays), encoded.first_units, strict=True)
        # A row of 10 tokens, label 2 on the tokens 3 to 4: [[10, 0, 0], [3, 4, 2], zeros …].
        placed = [_in_window(of_row, units) for of_row, units in rows]
        shape = len(placed), 1 + max(map(len, placed), default=0), arrays[0].shape[1]
        targets = np.zeros(shape, arrays[0].dtype)
        targets[:, 0, 0] = encoded.row_lengths
        for target, of_row in zip(targets, placed, strict=True):
            target[1 : 1 + len(of_row)] = of_row
        return targets, np.ones(len(targets), np.float32)

    def with_soft_targets(
        self, data: Any, logits: Sequence[np.ndarray], labelled: int
    ) -> TrainingData:
        """Targets (rows, 2, 1 + P, 4) float32: the usual ones, and a teacher's likeliest spans.

        The fourth column is 1 for spans of the data, t for those of a teacher, and in the first
        place the teacher's weight. A score s is the best for t = σ(2s) in `span_losses`, so that is
        the target for a probability of σ(s).
        """
        spans = []
        for of_text in logits:
            # p = σ(s), so p² / (p² + (1 − p)²) is σ(2s). `end` is the character after the last.
            first, end, label, p = of_text.T
            spans.append(np.stack([first, end - 1, label, p**2 / (p**2 + (1 - p) ** 2)], axis=1))
        hard, soft = data.targets, np.asarray(self.in_rows(data.encoded, spans)[0])
        longest = max(hard.shape[1], soft.shape[1])
        targets = np.zeros((len(hard), 2, longest, 4), np.float32)
        targets[:, 0, : hard.shape[1], :3] = hard
        # A span never begins at token 0, [CLS]: zeros are padding. Index 0 is set below.
        targets[:, 0, :, 3] = targets[:, 0, :, 0] > 0
        targets[:, 1, : soft.shape[1]] = soft
        targets[:, :, 0, 3] = teacher_weights(data.encoded.example, labelled)[:, None]
        return dataclasses.replace(data, targets=targets)


def _with_spans(example: Example, spaced: bool) -> Example:
    """An example with a tag for each unit, with spans of characters instead."""
    text = (" " if spaced else "").join(example.units)
    spans = character_spans(text, example.units, example.label)
    return example._replace(texts=(text,), label=ordered(spans))


def _in_window(spans: np.ndarray, first_units: np.ndarray) -> np.ndarray:
    """The spans (P, …) of characters that are in a window, in its tokens."""
    tokens = np.flatnonzero(first_units >= 0)
    begin, end = _bounds(first_units)
    inside = spans[(spans[:, 0] >= begin) & (spans[:, 1] <= end)]
    # (2, P) indices among the window's characters, whose numbers follow each other, → tokens.
    first, last = tokens[inside[:, :2].astype(int).T - begin]
    return np.column_stack([first, last, inside[:, 2:]]).astype(spans.dtype)


class SpansObjective(TrainingObjective):
    """GlobalPointer's multi-label cross-entropy."""

    model_name: ClassVar[str] = "RoFormerForSpanExtraction"
    # Measured on slots of dialogues with our small checkpoint: F1 is 88 % after 198 steps, 92 %
    # after 396 (docs/LOG.md).
    few_steps: ClassVar[int] = 450
    refused_settings = dict.fromkeys(
        ("label_smoothing", "focal", "class_weights", "r_drop"), ONE_LOSS
    )
    losses = staticmethod(span_losses)
    soft_losses = staticmethod(partial(span_losses, soft=True))

    def taught_losses(self, targets: Tensor, logits: Tensor, *settings: Any) -> Tensor:
        """The loss of the data's spans, and that of a teacher's in place of a divergence."""
        # For targets of 0 and 1 the soft form equals the usual loss, so one function computes both.
        losses, soft = (self.soft_losses(targets[:, i], logits) for i in range(2))
        return mixed(losses, soft, targets[:, 0, 0, 3])


class SpansDecoding(Decoding):
    """Pointers → all spans above the threshold.

    Logits of an example and scores of a prediction are (M, 4): first character, last character + 1,
    index of the label and probability of each of the likeliest spans.
    """

    task: "Spans"
    graph_part: ClassVar[NetworkPart] = "global_pointer"
    activation = None

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Pointers of sequences (T, 2K + 2C) → the likeliest spans of examples (M, 4)."""
        return [spans_of_windows(row_logits, rows, encoded) for rows in rows_of(encoded)]

    def predict(self, logits: np.ndarray) -> Prediction:
        """All spans above the threshold."""
        return self.reread(Prediction([], logits))

    def reread(self, prediction: Prediction) -> Prediction:
        """The spans above the current threshold."""
        above = prediction.scores[:, 3].astype(np.float64) > self.task.threshold
        return prediction._replace(label=ordered(self.task.spans_of(prediction.scores[above])))

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """The same."""
        return scores

    def with_choices(self, gold: Gold, predictions: Predictions) -> "Spans":
        """The threshold with the highest F1; of equally good ones the nearest to ½."""
        pairs = zip(gold, predictions, strict=True)
        # (M,): whether the data have each of the likeliest spans of all texts.
        right = np.array(
            [span in spans for spans, x in pairs for span in self.task.spans_of(x.scores)], np.bool_
        )
        scores = np.concatenate([x.scores[:, 3] for x in predictions]) if right.size else right
        threshold = f1_threshold(scores, right, sum(map(len, gold)))
        return dataclasses.replace(self.task, thresholds=(threshold,) * len(self.task.labels))

    def gold_cell(self, example: Example) -> Any:
        """The spans of the label, as in `as_json`."""
        return as_dictionaries(example.texts[0], example.label)

    def cell_names(self) -> list[str]:
        """spans."""
        return ["spans"]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """spans: start, end, label, text and score of each, in the order of the text."""
        scores = self.task.scores_of(prediction)
        spans = as_dictionaries(example.texts[0], prediction.label)
        return {
            "spans": [
                span | {"score": shortest(scores[triple])}
                for span, triple in zip(spans, prediction.label, strict=True)
            ]
        }


def spans_of_windows(
    row_logits: Sequence[np.ndarray], rows: Sequence[int], encoded: EncodedTexts
) -> np.ndarray:
    """The likeliest spans (M, 4) of the rows that are the windows of a text."""
    units = int(encoded.units[encoded.example[rows[0]]])
    bounds = np.array([_bounds(encoded.first_units[row]) for row in rows])
    of_windows = []
    for window, row in enumerate(rows):
        tokens = np.flatnonzero(encoded.first_units[row] >= 0)
        spans = candidates(row_logits[row], tokens)
        # From indices among the window's characters to indices in the text.
        spans[:, :2] += bounds[window, 0]
        # Several windows may have a span: it counts once, as its best window predicts it.
        of_windows.append(spans[_best_window(spans, bounds, units) == window])
    return np.concatenate(of_windows) + np.array([0, 1, 0, 0], np.float32)


def _bounds(first_units: np.ndarray) -> tuple[int, int]:
    """First and last unit of a window, whose units follow each other."""
    units = first_units[first_units >= 0]
    return (int(units[0]), int(units[-1])) if len(units) else (0, -1)


def _best_window(spans: np.ndarray, bounds: np.ndarray, units: int) -> np.ndarray:
    """Of spans (M, …), the window (M,) whose edges are farthest; bounds (W, 2) of its units.

    There is context on both sides of a span. Beginning and end of the text are no edges.
    """
    # The ends of the text are moved so far outside that they are never the nearer edge. A window
    # without the span has a negative distance.
    first = np.where(bounds[:, :1] > 0, bounds[:, :1], -units)  # (W, 1)
    last = np.where(bounds[:, 1:] < units - 1, bounds[:, 1:], 2 * units)
    return np.argmax(np.minimum(spans[:, 0] - first, last - spans[:, 1]), axis=0)


class Spans(Task):
    """One text, and its entities, which may be nested or overlap."""

    name: ClassVar[str] = "spans"
    title: ClassVar[str] = "实体抽取（可嵌套） · Entities, also nested"
    pipeline_tag: ClassVar[str] = "token-classification"
    labelling = part(SpansLabelling)
    objective = part(SpansObjective)
    decoding = part(SpansDecoding)
    metrics = part(SpanMetrics)

    units: Units = "characters"  # whatever the units of the data

    @property
    def threshold(self) -> float:
        """The probability above which a span is predicted."""
        return self.thresholds[0] if self.thresholds else 0.5

    def spans_of(self, scores: np.ndarray) -> list[Span]:
        """The spans of scores (M, 4)."""
        numbers = scores[:, :3].astype(int).tolist()
        return [(self.labels[label], start, end) for start, end, label in numbers]

    def scores_of(self, prediction: Prediction) -> dict[Span, float]:
        """The probability of each of the likeliest spans."""
        scores = prediction.scores
        return dict(zip(self.spans_of(scores), scores[:, 3].tolist(), strict=True))
