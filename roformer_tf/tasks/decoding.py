"""Third part of a task: what logits mean, and how a prediction is written.

Axes: C logits.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.network import OutputKind
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError, check_number
from roformer_tf.labelled.encoding import EncodedTexts, mean_of_rows
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks import keras_ops as ops
from roformer_tf.tasks.losses import Tensor
from roformer_tf.tasks.parts import Gold, Part, Prediction, Predictions
from roformer_tf.tasks.probabilities import (
    LISTED,
    MANY_LABELS,
    log_odds,
    log_probabilities,
    shortest,
    softmax,
)
from roformer_tf.top_k import top_k


class Decoding(Part):
    """What logits mean, and how predictions are written for people and for other programs."""

    graph_part: ClassVar[NetworkPart] = "classifier"
    """The part of an exported network that computes the logits."""
    activation: ClassVar[Literal["softmax", "sigmoid"] | None] = "softmax"
    """What makes probabilities of a row's logits; None where they depend on more."""
    lists_labels: ClassVar[bool] = False
    """Whether a prediction has a probability of each label, of which `top_k` may be listed."""
    joined_by: ClassVar[str] = ""
    """Between several values in a cell of a TSV. Default: what the training data had."""

    # Sequences → predictions

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """The model's output for each sequence, as `read_rows` takes it."""
        from roformer_tf.models.rows import run_rows

        return run_rows(model, encoded.token_ids, encoded.segment_ids, batch_size)

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of sequences → logits of examples, as `predict` takes them."""
        return mean_of_rows(row_logits, encoded)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The prediction for one example, from its logits, unless `read_rows` needs more."""
        raise NotImplementedError(f"{type(self).__name__} has only read_rows")

    def predict_all(self, logits: Sequence[np.ndarray]) -> list[Prediction]:
        """The predictions for several examples, from the logits of each."""
        return [self.predict(each) for each in logits]

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """Predictions for all examples, from the model's output for their sequences."""
        return self.predict_all(self.combine(row_logits, encoded))

    def shifted(self, prediction: Prediction, count: int, task: Any) -> Prediction:
        """The prediction, when `count` examples precede those of its set; `task` decodes all."""
        return prediction

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """Logits float64 for which `predict` gives these scores, in the shape of the scores."""
        return log_odds(scores) if self.activation == "sigmoid" else log_probabilities(scores)

    def soft_targets(self, prediction: Prediction) -> np.ndarray:
        """What a student learns from a teacher's prediction: `Labelling.with_soft_targets`."""
        return self.logits(prediction.scores)

    @property
    def score_columns(self) -> tuple[str, ...]:
        """Columns with the scores of a prediction as `predict` writes them; () for none."""
        return ()

    # What decoding depends on besides logits: trained weights, choices on the validation set

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """The task with those arrays of a checkpoint that decoding depends on."""
        return self.task

    def with_choices(self, gold: Gold, predictions: Predictions) -> Any:
        """The task with what is chosen on the validation set, such as thresholds."""
        return self.task

    def reread(self, prediction: Prediction) -> Prediction:
        """The prediction from the same scores under choices made after it."""
        return prediction

    # For other programs

    def outside_labels(self) -> tuple[str, ...]:
        """The labels for pipelines of transformers, in the order of the logits."""
        return self.task.labels

    def config_values(self) -> dict[str, Any]:
        """Keys of `config.json` from which pipelines of transformers know labels and problem type.

        None removes a key that the checkpoint's config may have.
        """
        names = self.outside_labels()
        return {
            "problem_type": None,
            "sentence_transformers": None,
            "id2label": {str(number): label for number, label in enumerate(names)},
            "label2id": {label: number for number, label in enumerate(names)},
        }

    def described_in(self, config: RoFormerConfig) -> RoFormerConfig:
        """The config of a model for the task, with all that other programs need."""
        unknown = {**config.unknown, **self.config_values()}
        positions = config.max_position_embeddings
        # transformers has a table of rotary positions, which must be as long as a sequence.
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

        {"start": (C,), "transitions": (C, C), "end": (C,)}; empty if labels are independent.
        """
        return {}

    def graph_meaning(self) -> OutputKind | None:
        """The second output of an exported graph; None if it is no function of the logits."""
        return OutputKind("probabilities", self.activation) if self.activation else None

    def graph_outputs(self, logits: Tensor) -> dict[str, Tensor]:
        """The second output of an exported Keras model, by its name."""
        # The same functions as in `engines`, in operations of Keras.
        meaning = self.graph_meaning()
        if meaning is None:
            return {}
        if meaning.function == "linear":
            return {meaning.name: logits * meaning.scale + meaning.offset}
        return {meaning.name: getattr(ops, meaning.function)(logits)}

    def save_files(self, folder: Any, config: RoFormerConfig) -> None:
        """Write further files that other programs need."""

    # Predictions → cells and JSON

    @property
    def listed(self) -> int | None:
        """How many labels a prediction lists; None for all, in the order of the logits."""
        # A table with a column for each of hundreds of labels is unreadable.
        top_k, count = self.task.top_k, len(self.task.labels)
        if top_k is None:
            return LISTED if self.lists_labels and count > MANY_LABELS else None
        return min(top_k, count)

    def with_top_k(self, top_k: int | None) -> Any:
        """The task with predictions that list `top_k` labels. Raises InputError if it has none."""
        if top_k is None:
            return self.task
        if not self.lists_labels:
            raise InputError(
                f"top_k is {top_k}, but a model of the task {self.task.name} does not choose among "
                "labels by their probabilities. Remove --top-k (in Python, top)."
            )
        check_number("top_k", top_k, at_least=1)
        return dataclasses.replace(self.task, top_k=top_k)

    def gold_cell(self, example: Example) -> Any:
        """The cell of the example's own label, next to predictions."""
        return example.label

    @abstractmethod
    def cell_names(self) -> list[str]:
        """Column names of a prediction in a table: the label, and its probabilities."""

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The cells of these columns: texts, numbers or tuples of them; lists become JSON."""
        return list(self.as_json(example, prediction).values())

    @abstractmethod
    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """A prediction as the service and Python return it."""


class LabelDecoding(Decoding):
    """Logits (C,) → the most probable label. Scores (C,): probabilities that sum to 1."""

    lists_labels: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """The labels in the order of the logits."""
        return self.task.labels

    def predict(self, logits: np.ndarray) -> Prediction:
        """The most probable label."""
        return Prediction(self.names[int(np.argmax(logits))], softmax(logits))

    def probabilities(self, scores: np.ndarray) -> dict[str, float]:
        """By label its probability: of all, or of the `listed` most probable ones in this order."""
        indices = range(len(scores)) if self.listed is None else top_k(scores, self.listed)
        return {self.names[i]: shortest(scores[i]) for i in indices}

    @property
    def score_columns(self) -> tuple[str, ...]:
        """p(…) of each label."""
        return tuple(f"p({name})" for name in self.names)

    def cell_names(self) -> list[str]:
        """label, p(…) of each label; if only some are listed: label, score, label_2, …."""
        if self.listed is None:
            return ["label", *self.score_columns]
        return ["label", "score", *listed_cells(range(2, self.listed + 1))]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The label and all probabilities, or the most probable labels, each with its own."""
        probabilities = self.probabilities(prediction.scores)
        if self.listed is None:
            return [prediction.label, *probabilities.values()]
        return [cell for pair in probabilities.items() for cell in pair]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label, scores: of all labels, or of those listed, the most probable first."""
        return {"label": prediction.label, "scores": self.probabilities(prediction.scores)}


class NumberDecoding(Decoding):
    """A prediction is written as one number, the first score, in the single column of scores."""

    def cell_names(self) -> list[str]:
        """The number's name."""
        return list(self.score_columns)

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """The number by its name."""
        return {self.score_columns[0]: shortest(prediction.scores[0])}


def listed_cells(numbers: Sequence[int]) -> list[str]:
    """Column names of listed labels: label_2, score_2, label_3, …."""
    return [f"{name}_{number}" for number in numbers for name in ("label", "score")]
