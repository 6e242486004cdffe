"""Three of a task's four parts, as base classes: labelling, objective, decoding.

What is not overridden holds for a task whose examples have one text and one of several labels.
Class methods need no settings: they are called before the task of a training is defined.
Axes: B rows, T tokens, C logits.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError, check_number
from roformer_tf.labelled.batches import RowBatches, TrainingData
from roformer_tf.labelled.cells import read_label
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import (
    EncodedTexts,
    Rows,
    encode_texts,
    mean_of_rows,
    window_targets,
)
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import Question, example_key, text_question
from roformer_tf.tasks.losses import (
    balanced_weights,
    balanced_yes_and_no,
    sigmoid_divergence,
    sigmoid_losses,
    softmax_divergence,
    softmax_losses,
)
from roformer_tf.tasks.probabilities import LISTED, MANY_LABELS, shortest
from roformer_tf.tasks.task_settings import (
    Examples,
    Gold,
    Part,
    Prediction,
    Predictions,
    TaskSettings,
    TaskT,
)
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.kernels.forms import Tensor
    from roformer_tf.models.pretrained import PretrainedModel


class Labelling(Part[TaskT]):
    """Which columns a task reads, and how their cells become examples, rows and targets."""

    text_counts: ClassVar[tuple[int, ...]] = (1,)
    """How many texts an example may have."""
    has_units: ClassVar[bool] = False
    """Whether each character or word of an example has a label: its files are CoNLL."""
    label_optional: ClassVar[bool] = False
    """Whether a file may have texts alone, which then belong together."""
    rows_per_example: ClassVar[int] = 1
    """Rows that an example is trained on, if no text is read in windows."""
    min_labels: ClassVar[int] = 2
    """Different labels without which nothing can be learned."""
    default_max_length: ClassVar[int] = 1024
    """Most tokens of a row where the user does not set it."""
    fixed_long_texts: ClassVar[str] = ""
    """What becomes of long texts, where it cannot be chosen: "all is read, in windows."."""

    # Rows of a file → examples

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Why the columns of a file are those of the task; "" if they are not."""
        return ""

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """A cell as label. Raises BadCellError where it is none."""
        return read_label(value)

    @classmethod
    def check(cls, example: Example) -> None:
        """Raise BadCellError for an example from which nothing can be learned."""
        return

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """The labelled examples of a whole file, as training takes them.

        Raises InputError for one that does not fit the rest.
        """
        return examples

    def for_prediction(self, example: Example) -> Example:
        """An example without label, as the model takes it."""
        return example

    # Examples → sets, and what is learned from the training set

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """The labels that an example's label consists of."""
        return {str(label)}

    @classmethod
    def strata(cls, examples: Examples) -> list[Any]:
        """What of each example should be as frequent in training as in validation and test."""
        return [sorted(cls.labels_in(example.label)) for example in examples]

    @classmethod
    def split_keys(cls, example: Example) -> Sequence[bytes]:
        """Examples that share one of these keys stay in the same set."""
        return [example_key(example.texts)]

    @classmethod
    def question(cls, example: Example) -> Question:
        """What is asked of an example, and its answer: equal questions should have equal ones."""
        return text_question(example)

    @classmethod
    def learned(cls, training: Examples) -> dict[str, Any]:
        """The settings that training examples define: the labels.

        Raises InputError where there is nothing to learn: no example, or a single label.
        """
        labels = {label for example in training for label in cls.labels_in(example.label)}
        if len(labels) < cls.min_labels:
            shown = f"only {next(iter(labels))!r}" if labels else "none"
            raise InputError(
                f"the training examples have {shown} as a label: nothing can be learnt. "
                "Give examples of at least two labels, or another --label-column."
            )
        return {"labels": tuple(sorted(labels, key=_natural))}

    def notes(self, training: Examples) -> list[str]:
        """What to print about the training examples, as the task takes them."""
        return []

    # Examples → rows and targets

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Make rows of at most `max_length` tokens."""
        return encode_texts(examples, tokenizer, self.task.max_length, self.task.long_texts)

    @abstractmethod
    def target(self, example: Example) -> np.ndarray:
        """What the loss compares an example's logits with.

        Raises InputError, with the example's place, for a label that training has not seen.
        """

    def row_targets(self, encoded: EncodedTexts, examples: Examples) -> tuple[Rows, Rows]:
        """What the loss compares each row's logits with, and how much each row weighs."""
        return window_targets(encoded, [self.target(example) for example in examples])

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """What is trained on, in batches. Raises InputError as `target`."""
        encoded = self.encode(examples, tokenizer)
        targets, weights = self.row_targets(encoded, examples)
        labels = self.task.outputs if self.task.crf else 0
        return RowBatches(encoded, targets, weights, labels=labels)

    def why_long_texts_fixed(self) -> str:
        """What becomes of long texts, where it cannot be chosen; "" where it can."""
        of_several = "the longer text is cut." if len(self.task.text_columns) > 1 else ""
        return self.fixed_long_texts or of_several

    def number_of(self, label: Any, example: Example) -> int:
        """Index of a label among the logits. Raises InputError where it has none."""
        try:
            return self.task.label_numbers[label]
        except (KeyError, TypeError):  # or a value that is no label at all
            labels = self.task.labels
            known = ", ".join(labels[:10]) + ("…" if len(labels) > 10 else "")
            raise InputError(
                f"{example.place}: the label {label!r} does not occur in the training data, "
                f"which has {known}. Correct it, or add examples of it to --train."
            ) from None


class TrainingObjective(Part[TaskT]):
    """Which model is trained, and by which loss."""

    pooling: ClassVar[str] = "cls"
    """What a prediction is computed from by default: the first token's vector, or the mean."""
    poolings: ClassVar[tuple[str, ...]] = ("cls", "mean")
    """What it may be computed from."""
    refused_settings: ClassVar[Mapping[str, str]] = {}
    """Fields of `LossConfig` that the task has no use for, and why: "is about labels, …"."""
    vector_settings: ClassVar[tuple[str, ...]] = ()
    """Fields of `finetuning.settings.VectorConfig` that it has a use for."""

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """The Keras model that gives the logits, made from a config with `num_labels` outputs."""
        from roformer_tf.models.heads import RoFormerForSequenceClassification

        return RoFormerForSequenceClassification

    @classmethod
    def source_class(cls) -> "type[PretrainedModel]":
        """The Keras model whose weights are read from a checkpoint, which may hold more."""
        from roformer_tf.models.encoder import RoFormerEncoder

        return RoFormerEncoder

    @classmethod
    def choose_pooling(cls, checkpoint: "Checkpoint", source: "OpenedSource") -> str:
        """The pooling where the user does not set it; the checkpoint is the source's.

        Raises InputError where the source contradicts itself.
        """
        return cls.pooling

    def first_weights(self) -> dict[str, np.ndarray]:
        """Weights of a new model, by name, that are known before any training."""
        return {}

    losses: "ClassVar[Callable[..., Tensor]]"
    """Of targets, logits (B, C) or (B, T, C), a `LossConfig` and class weights: (B,) or (B, T).

    Where texts are apart, `batch_loss` has its place."""
    divergence: "ClassVar[Callable[..., Tensor]]"
    """KL(p‖q) + KL(q‖p) of what two logits mean, in the shape of `losses`, for R-Drop."""

    def class_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Weights by which a rare label counts for as much as a frequent one: (C,)."""
        return balanced_weights(targets, self.task.outputs)

    @property
    def pair_classes(self) -> int:
        """Classes of a classifier of two vectors, which exists in training only; 0 for none."""
        return 0

    def batch_loss(
        self,
        targets: "Tensor",
        outputs: Any,
        weights: "Tensor",
        inputs: Any = None,
        classifier: Any = None,
    ) -> "Tensor":
        """Where texts are separate rows, the loss of all vectors of a batch: a scalar float32.

        targets (B, …), outputs (B, S, H) vectors, weights (B,), and the batch's inputs; classifier:
        the dense layer of `pair_classes`, if there are any.
        """
        raise NotImplementedError(f"{type(self).__name__} has a loss for each row")

    def example_losses(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts, examples: Examples
    ) -> np.ndarray | None:
        """Loss of each example (N,) float64; None where the mean of `losses` over rows is meant."""
        return None

    def with_vector_settings(self, **settings: Any) -> TaskT:
        """The task with those of `vector_settings`. Raises InputError where they do not fit it."""
        return self.task


class SoftmaxObjective(TrainingObjective[TaskT]):
    """One of C labels for each row or token."""

    losses = staticmethod(softmax_losses)
    divergence = staticmethod(softmax_divergence)


class SigmoidObjective(TrainingObjective[TaskT]):
    """Yes or no for each of C logits."""

    losses = staticmethod(sigmoid_losses)
    divergence = staticmethod(sigmoid_divergence)

    def class_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Of each label's 0 and 1 (C, 2)."""
        return balanced_yes_and_no(targets)


class Decoding(Part[TaskT]):
    """What logits mean, and how a prediction is written for people and for other programs."""

    graph_part: ClassVar[NetworkPart] = "classifier"
    """The part of an exported network that gives the logits."""
    lists_labels: ClassVar[bool] = False
    """Whether a prediction has a probability of each label, of which the first few may do."""
    chosen_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that `with_choices` sets."""
    joined_by: ClassVar[str] = ""
    """Between several values in a cell of a TSV. Default: what the training data had."""

    # Rows → predictions

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """What the model gives for each row, as `read_rows` takes it: `models.rows.run_rows`."""
        from roformer_tf.models.rows import run_rows

        return run_rows(model, encoded.token_ids, encoded.segment_ids, batch_size)

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of rows → of examples, as `predict` takes them."""
        return mean_of_rows(row_logits, encoded)

    @abstractmethod
    def predict(self, logits: np.ndarray) -> Prediction:
        """The prediction of one example's logits."""

    def predict_all(self, logits: Sequence[np.ndarray]) -> list[Prediction]:
        """The predictions of several examples' logits."""
        return [self.predict(one) for one in logits]

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """Predictions for all examples from what the model gives for their rows."""
        return self.predict_all(self.combine(row_logits, encoded))

    def shifted(self, prediction: Prediction, count: int) -> Prediction:
        """The prediction, where the examples of its set come after `count` others."""
        return prediction

    # Decoding learned or chosen with the weights

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> TaskT:
        """The task with those of a checkpoint's arrays that decoding depends on."""
        return self.task

    def with_weights(self, model: Any) -> TaskT:
        """The same from a model's weights; a graph has none that can be read."""
        if not hasattr(model, "named_variables"):
            return self.task
        return self.with_arrays(model.named_variables())

    def with_choices(self, gold: Gold, predictions: Predictions) -> TaskT:
        """The task with what is chosen on the validation set, such as thresholds."""
        return self.task

    def with_choices_of(self, other: TaskSettings) -> TaskT:
        """The task with what was chosen for another one."""
        chosen = {name: getattr(other, name) for name in self.chosen_fields}
        return dataclasses.replace(self.task, **chosen)

    def reread(self, prediction: Prediction) -> Prediction:
        """A prediction of the same scores by what was chosen since."""
        return prediction

    # For other programs

    def outside_labels(self) -> tuple[str, ...]:
        """The labels as a pipeline of transformers should read them, in the order of the logits."""
        return self.task.labels

    def config_values(self) -> dict[str, Any]:
        """What the model's `config.json` tells transformers of the task: names and kind of labels.

        With them its pipelines report what is meant: each logit's label, and what scores are. None
        is for a key that is not written, whatever the checkpoint has there.
        """
        names = self.outside_labels()
        return {
            "problem_type": None,
            "sentence_transformers": None,
            "id2label": {str(number): label for number, label in enumerate(names)},
            "label2id": {label: number for number, label in enumerate(names)},
        }

    def described_in(self, config: "RoFormerConfig") -> "RoFormerConfig":
        """The config of a model for the task, with all that other programs need to know of it.

        transformers has a table of rotary positions: here it has as many as a row has tokens.
        """
        unknown = {**config.unknown, **self.config_values()}
        positions = config.max_position_embeddings
        if config.unusual_form() is None:
            positions = max(positions, self.task.max_length)
        return config.replace(
            unknown={key: value for key, value in unknown.items() if value is not None},
            max_position_embeddings=positions,
            label_mean=self.task.mean,
            label_deviation=self.task.deviation,
        )

    def order_scores(self) -> dict[str, list[Any]]:
        """Scores of labels that follow each other, for programs that read an exported graph.

        {"start": (C,), "transitions": (C, C), "end": (C,)}; none where each label is by itself.
        """
        return {}

    def graph_meaning(self) -> OutputKind | None:
        """What a graph gives besides its logits; None where logits alone do not define it."""
        return OutputKind("probabilities", "softmax")

    def graph_outputs(self, logits: "Tensor") -> "dict[str, Tensor]":
        """The same of a Keras model that is exported: by its name, if there is any."""
        from keras import ops

        meaning = self.graph_meaning()
        if meaning is None:
            return {}
        if meaning.function == "linear":
            return {meaning.name: logits * meaning.scale + meaning.offset}
        return {meaning.name: getattr(ops, meaning.function)(logits)}

    def save_files(self, folder: Any, config: "RoFormerConfig") -> None:
        """Write further files that other programs read, if there are any."""

    # Predictions → cells and JSON

    @property
    def listed(self) -> int | None:
        """How many labels a prediction lists; None for all, in their own order."""
        top_k, count = self.task.top_k, len(self.task.labels)
        if top_k is None:
            return LISTED if self.lists_labels and count > MANY_LABELS else None
        return min(top_k, count)

    def with_top_k(self, top_k: int | None) -> TaskT:
        """The task with predictions that list so many labels. Raises InputError if it has none."""
        if top_k is None:
            return self.task
        if not self.lists_labels:
            raise InputError(
                f"top_k is {top_k}, but a {self.task.name} model does not choose among labels by "
                "their probabilities. Leave --top-k out."
            )
        check_number("top_k", top_k, at_least=1)
        return dataclasses.replace(self.task, top_k=top_k)

    @abstractmethod
    def cell_names(self) -> list[str]:
        """Names of the cells of a prediction: what is predicted, and its probabilities."""

    @abstractmethod
    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The cells: texts, numbers, tuples of them; what is a list is written as JSON."""

    @abstractmethod
    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """A prediction as the service and Python give it."""


class NumberDecoding(Decoding[TaskT]):
    """A prediction is written as one number, the first score."""

    number_name: ClassVar[str]
    """What the number is called."""

    def cell_names(self) -> list[str]:
        """The number's name."""
        return [self.number_name]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The number."""
        return [shortest(prediction.scores[0])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """The number by its name."""
        return {self.number_name: shortest(prediction.scores[0])}


def _natural(label: str) -> tuple[bool, float, str]:
    """Sort "2" before "10", numbers before words."""
    try:
        number = float(label)
    except ValueError:
        return True, 0.0, label
    # "nan" is a word here: NaN is neither before nor after a number, and sorts at random.
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)
