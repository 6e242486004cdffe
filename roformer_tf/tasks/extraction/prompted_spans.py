"""Entities whose label is part of the input: a text is read once for each label.

    [CLS] label [SEP] window of the text [SEP]

GlobalPointer has a single class here, the entities of the label before the text, as in machine
reading (Li et al., "A Unified MRC Framework for Named Entity Recognition", arXiv 1910.11476). So
the model can be asked for labels that training did not have.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import RowBatches, TrainingData
from roformer_tf.labelled.encoding import EncodedRow, EncodedTexts, Rows, joined, rows_of
from roformer_tf.tasks.base import Examples, Task, check_labels, part
from roformer_tf.tasks.extraction.spans import (
    Spans,
    SpansDecoding,
    SpansLabelling,
    spans_of_windows,
)
from roformer_tf.tokenizers.padding import SPECIALS, Ints
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Labels that a training text does not have, but is read for: the model learns to find nothing.
NEGATIVES = 3


@dataclass(frozen=True, kw_only=True)
class EncodedPrompts(EncodedTexts):
    """Windows of texts, each once for every label that is asked for."""

    label: Ints
    """(rows,) int32: the label before the text, by its index."""


class PromptedLabelling(SpansLabelling):
    """Entities of a text, by label. Targets of a row as in `SpansLabelling`, with the label 0."""

    task: "PromptedSpans"

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedPrompts:
        """All windows of a text for the first label, then for the second, and so on."""
        return self._encode(examples, [range(len(self.task.labels))] * len(examples), tokenizer)

    def _encode(
        self, examples: Examples, labels: Sequence[Sequence[int]], tokenizer: RoFormerTokenizer
    ) -> EncodedPrompts:
        """Sequences for some labels of each example, by their indices."""
        length = self.task.max_length
        # As a question, a label has at most half of a sequence.
        prompts = [tokenizer.ids(x)[: (length - SPECIALS) // 2] for x in self.task.labels]
        # The longest label's room is reserved for all: every label has the same windows of a text,
        # which `PromptedDecoding.combine` relies on.
        room = 1 + max(map(len, prompts))  # with the [SEP] after it
        alone = dataclasses.replace(self.task, max_length=length - room)
        texts = SpansLabelling(alone).encode(examples, tokenizer)
        sequences, first_units, label_of_row = list[list[EncodedRow]](), list[Ints](), list[int]()
        for windows, asked in zip(rows_of(texts), labels, strict=True):
            sequences.append([])
            for label, row in product(asked, windows):
                ids, prompt = texts.token_ids[row][1:-1].tolist(), prompts[label]
                sequences[-1].append(joined(tokenizer, prompt, ids))
                # For [CLS] and the label. The −1 of the row's own [CLS] is now that of the [SEP].
                before = 1 + len(prompt)
                first_units.append(np.pad(texts.first_units[row], (before, 0), constant_values=-1))
                label_of_row.append(label)
        return EncodedPrompts.of_rows(
            sequences,
            texts.lengths + room,
            first_units=first_units,
            units=texts.units,
            label=np.array(label_of_row, np.int32),
        )

    def row_spans(self, encoded: EncodedTexts, spans: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The spans with the label of each row, as label 0."""
        assert isinstance(encoded, EncodedPrompts)
        spans = super().row_spans(encoded, spans)
        return [
            # The label becomes 0, the single class. Spans of a teacher have a fourth column.
            of_text[of_text[:, 2] == label] * np.array([1, 1, 0, 1])[: of_text.shape[1]]
            for of_text, label in zip(spans, encoded.label, strict=True)
        ]

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """As in `SpansLabelling`, with the number of the last token before the text."""
        targets, weights = super().in_rows(encoded, arrays)
        for target, segments in zip(targets, encoded.segment_ids, strict=True):
            # Segment 1 begins with the text: the position before it is the [SEP] after the label.
            target[0, 1] = np.argmax(segments) - 1
        return targets, weights

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """A text for each of its labels, and for at most `NEGATIVES` others, drawn at random."""
        labels = []
        for number, example in enumerate(examples):
            own = np.unique(self.target(example)[:, 2])
            rest = np.setdiff1d(np.arange(len(self.task.labels)), own)
            # Drawn before training: every epoch has the same sequences.
            drawn = np.random.default_rng(number).permutation(rest)[:NEGATIVES]
            labels.append([*own.tolist(), *drawn.tolist()])
        encoded = self._encode(examples, labels, tokenizer)
        return RowBatches(encoded, *self.row_targets(encoded, examples))


class PromptedDecoding(SpansDecoding):
    """Pointers of each label's sequences → the spans of all labels."""

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Pointers of sequences (T, 2K + 2) → the likeliest spans of examples (M, 4)."""
        assert isinstance(encoded, EncodedPrompts)
        examples = []
        for rows in rows_of(encoded):
            # All labels have the same windows, one label after the other.
            of_labels = np.split(np.array(rows), len(self.task.labels))
            spans = [spans_of_windows(row_logits, x.tolist(), encoded) for x in of_labels]
            for label, of_label in enumerate(spans):
                # `candidates` returned 0, the single class.
                of_label[:, 2] = label
            examples.append(np.concatenate(spans))
        return examples

    def outside_labels(self) -> tuple[str, ...]:
        """What the single class is."""
        return ("entity",)


@dataclass(frozen=True, kw_only=True)
class PromptedSpans(Spans):
    """One text, and the entities of the labels that are asked for; by default those of training."""

    labelling = part(PromptedLabelling)
    decoding = part(PromptedDecoding)

    label_prompts: bool = True
    """Distinguishes a `task.json` from those of `Spans`."""

    outputs = 1  # the entities of one label
    accepts_labels = True  # they are part of the input

    def with_labels(self, labels: Sequence[str], template: str | None = None) -> Task:
        """The task for other labels, with the same threshold. Raises InputError for a template."""
        if template is not None:
            raise InputError(
                "template is for a model of natural language inference; this one reads the names "
                "of labels alone. Remove it."
            )
        names = check_labels(labels)
        return dataclasses.replace(self, labels=names, thresholds=(self.threshold,) * len(names))


class Extraction(Spans):
    """The task of `--task spans`: `Spans`, or `PromptedSpans` with `--label-prompts`."""

    @classmethod
    def from_settings(cls, **settings: Any) -> Task:
        """The task with these settings."""
        return (PromptedSpans if settings.get("label_prompts") else cls)(**settings)
