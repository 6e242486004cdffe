"""First part of a task: which columns it reads, and how cells become examples and targets.

Axes: B sequences, T tokens, C logits.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import RowBatches, TrainingData
from roformer_tf.labelled.cells import BadCellError, read_label, read_text, to_number
from roformer_tf.labelled.encoding import EncodedTexts, Rows, encode_texts
from roformer_tf.labelled.examples import UNLABELLED, Example, Label
from roformer_tf.labelled.splits import example_key, number_strata
from roformer_tf.readers.records import Row
from roformer_tf.tasks.losses import TEACHER_WEIGHT
from roformer_tf.tasks.parts import Examples, Part
from roformer_tf.terminal import printable
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.labelled.columns import LabelSample
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


class Labelling(Part):
    """Which columns a task reads, and how their cells become examples, sequences and targets."""

    text_counts: ClassVar[tuple[int, ...]] = (1,)
    """How many texts an example may have."""
    has_units: ClassVar[bool] = False
    """Whether each character or word of an example has a label: its files are CoNLL."""
    has_spans: ClassVar[bool] = False
    """Whether an example has entities, which may overlap: its files have a column of them, or
    units, as with `has_units`."""
    lists_texts: ClassVar[bool] = False
    """Whether the last column holds a list of texts, of any length."""
    label_optional: ClassVar[bool] = False
    """Whether a file may have texts alone, which then belong together."""
    rows_per_example: ClassVar[int] = 1
    """Sequences that an example is trained on, if no text is read in windows."""
    separates_labels: ClassVar[bool] = False
    """Whether a cell may hold several labels with a separator between them."""
    min_labels: ClassVar[int] = 2
    """Different labels that are needed to learn anything; 0 if the task has none of its own."""
    default_max_length: ClassVar[int] = 1024
    """Largest `max_length` that is chosen where the user does not set it."""
    fixed_long_texts: ClassVar[str] = ""
    """What happens to long texts, if the user cannot choose: "all is read, in windows."."""

    span_name: ClassVar[str] = ""
    """What spans of a text are, if the model finds such: "entities"."""

    column_names: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Names of the text columns and the label column, if files of the task have fixed ones."""

    # Rows of a file → examples

    def guess(self, sample: "LabelSample") -> str:
        """Why the columns of a file are those of the task; "" if they are not."""
        return ""

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """The example in a row. `texts`, `label`: names of columns; None where no label is read.

        Raises BadCellError for a cell that is no text, or no label.
        """
        values = tuple(read_text(row.cells, column) for column in texts)
        if label is not None and label not in row.cells:  # in JSON
            raise BadCellError(UNLABELLED)
        cell = row.cells[label] if label else None
        # As a text, a label of Parquet's binary columns would be "b'…'".
        if any(isinstance(x, bytes) for x in (cell if isinstance(cell, list) else [cell])):
            raise BadCellError(f"has binary data in {label!r}, which is no label: write it as text")
        target = self.read_label(cell, sep) if label else None
        return Example(values, target, row.source_line)

    def read_label(self, value: Any, sep: str) -> Label:
        """The label in a cell. Raises BadCellError if it is none."""
        return read_label(value)

    def check(self, example: Example) -> None:
        """Raise BadCellError for an example from which nothing can be learned."""

    def complete(self, examples: list[Example]) -> list[Example]:
        """The labelled examples of a whole file, as training takes them.

        Raises InputError for one that does not fit the rest.
        """
        return examples

    def as_cells(self, example: Example) -> tuple[Any, ...]:
        """The texts of an example as the cells of its columns."""
        if not self.lists_texts:
            return example.texts
        *texts, _ = self.task.text_columns
        return (*example.texts[: len(texts)], list(example.texts[len(texts) :]))

    def sample(self, text: str) -> tuple[str, ...]:
        """The texts of an example that a model can predict, made of one text."""
        return (text,) * (len(self.task.text_columns) + self.lists_texts)

    def for_prediction(self, example: Example) -> Example:
        """An example without label, in the form that `encode` expects."""
        return example

    # Examples → training, validation and test set; what is learned from the training set

    def labels_in(self, label: Label) -> set[str]:
        """The labels that an example's label consists of; none if other ones may occur later."""
        if not self.min_labels:
            return set()
        return set(label) if isinstance(label, tuple) else {str(label)}

    def strata(self, examples: Examples) -> list[Any]:
        """The stratum of each example: every set has the same fraction of each stratum.

        Of numbers the strata are tenths.
        """
        # All examples of a file are of one kind, so the first one decides.
        if examples and isinstance(examples[0].label, float):
            return number_strata([example.label for example in examples])
        return [sorted(self.labels_in(example.label)) for example in examples]

    def split_keys(self, example: Example) -> Sequence[bytes]:
        """Examples that share one of these keys stay in the same set."""
        return [example_key(example.texts)]

    def learned(self, training: Examples) -> dict[str, Any]:
        """The settings that training examples define: the labels.

        Raises InputError where nothing can be learned: no example, or a single label.
        """
        labels = {label for example in training for label in self.labels_in(example.label)}
        if len(labels) < self.min_labels:
            shown = Message("only {label!r}", label=min(labels)) if labels else Message("none")
            raise InputError(
                Message(
                    "the training examples have {labels} as a label: nothing can be learnt. "
                    "Give examples of at least two labels, or another --label-column.",
                    labels=shown,
                )
            )
        return {"labels": tuple(sorted(labels, key=_natural))}

    def named(self, examples: Examples) -> list[Example]:
        """The examples with the names of labels in place of the values in the data."""
        if not self.task.label_values:
            return list(examples)
        names = dict(zip(self.task.label_values, self.task.labels, strict=True))

        def name(label: Label) -> Label:
            if isinstance(label, tuple):
                return tuple(map(name, label))
            return names.get(label, label)

        return [example._replace(label=name(example.label)) for example in examples]

    def notes(self, training: Examples) -> list[str]:
        """What to print about the training examples."""
        return []

    # Examples → sequences and targets

    def encode(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> EncodedTexts:
        """Sequences of at most `max_length` tokens."""
        task = self.task
        return encode_texts(examples, tokenizer, task.max_length, task.long_texts)

    def in_no_window(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> dict[str, int]:
        """Spans of the labels that cannot be predicted, as in `encoding.in_no_window`."""
        return {}

    @abstractmethod
    def target(self, example: Example) -> np.ndarray:
        """What the loss compares an example's logits with.

        Raises InputError that names the example for a label that the training set does not have.
        """

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """Targets of examples, or a teacher's logits → those of sequences, and their weights."""
        return np.stack(arrays)[encoded.example], encoded.row_weights

    def row_targets(self, encoded: EncodedTexts, examples: Examples) -> tuple[Rows, Rows]:
        """What the loss compares each sequence's logits with, and the weight of each sequence."""
        return self.in_rows(encoded, [self.target(example) for example in examples])

    def with_soft_targets(
        self, data: Any, logits: Sequence[np.ndarray], labelled: int
    ) -> TrainingData:
        """The data with targets as in `TrainingObjective.taught_losses`.

        logits: a teacher's of each example, as in `Decoding.soft_targets`. The first `labelled`
        examples have labels; for the others the divergence from the teacher is the whole loss.
        """
        # A target of candidates is (C,), so a teacher's logits become a column next to it: (C, 1).
        if self.task.compares:  # targets are of examples, (C,) of their candidates
            soft: Rows = [x[:, None] for x in logits]
            numbers = np.arange(len(logits))
        else:
            soft, _ = self.in_rows(data.encoded, logits)
            numbers = data.encoded.example
        shares = teacher_weights(numbers, labelled)
        targets = [_joined(*each) for each in zip(data.targets, soft, shares, strict=True)]
        # A list where sequences have targets of different shapes, as `RowBatches` expects it.
        stacked = targets if isinstance(soft, list) else np.stack(targets)
        return dataclasses.replace(data, targets=stacked)

    def training_data(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> TrainingData:
        """The training set, in batches. Raises InputError as `target`."""
        encoded = self.encode(examples, tokenizer)
        # A conditional random field computes its loss from labels as an input.
        labels = self.task.outputs if self.task.crf else 0
        return RowBatches(encoded, *self.row_targets(encoded, examples), labels=labels)

    def why_long_texts_fixed(self) -> str:
        """What happens to long texts, if the user cannot choose; "" if the user can."""
        # Windows of a pair would be pairs of windows: the target says nothing about most of them.
        of_several = "the longer text is cut." if len(self.task.text_columns) > 1 else ""
        return self.fixed_long_texts or of_several

    def number_of(self, label: Any, example: Example) -> int:
        """Index of a label among the logits. Raises InputError where it has none."""
        try:
            return self.task.label_numbers[label]
        except (KeyError, TypeError):  # TypeError: a list or dictionary, which is no label
            labels = self.task.labels
            known = printable(", ".join(labels[:10])) + ("…" if len(labels) > 10 else "")
            message = Message(
                "{line}: the label {label!r} does not occur in the training data, which has "
                "{known}. Correct it, name the right column by --label-column, or train on "
                "examples of it.",
                line=example.source_line,
                label=label,
                known=known,
            )
            raise InputError(message) from None


def teacher_weights(examples: np.ndarray, labelled: int) -> np.ndarray:
    """The weight of a teacher for each example (N,), by its number."""
    return np.where(examples < labelled, TEACHER_WEIGHT, 1.0)


def _joined(hard: np.ndarray, soft: np.ndarray, share: float) -> np.ndarray:
    """Targets (…) or (…, K), logits (…, C) and a weight → (…, K + C + 1) float32."""
    # The label 2 of three, with a teacher's logits a, b, c: [2, a, b, c, weight].
    hard = hard[..., None] if np.ndim(hard) < np.ndim(soft) else hard
    weight = np.full((*soft.shape[:-1], 1), share)
    return np.concatenate([hard, soft, weight], axis=-1).astype(np.float32)


def _natural(label: str) -> tuple[bool, float, str]:
    """Sort "2" before "10", numbers before words, such as "nan" and "inf"."""
    number = to_number(label)
    return number is None, number or 0.0, label
