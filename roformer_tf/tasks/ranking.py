"""Three texts: is B or C nearer to A?"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from roformer_tf.labelled.cells import BadCellError, read_label
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import EncodedTexts, Rows, rows_side_by_side
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.base import Examples, Prediction, Predictions, Task, part
from roformer_tf.tasks.choices.multiple_choice import (
    CHARACTER_OVERLAP,
    CandidateMetrics,
    by_overlap,
)
from roformer_tf.tasks.decoding import LabelDecoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.objective import SigmoidObjective
from roformer_tf.tasks.probabilities import sigmoid
from roformer_tf.tasks.scoring import NamedPredictions, Probabilities
from roformer_tf.translation import Message

RANKED = ("B", "C")


class RankingLabelling(Labelling):
    """Sequences (A, B) and (A, C) of three texts. Target (2,) float32: 1 for the nearer one."""

    text_counts: ClassVar[tuple[int, ...]] = (3,)
    rows_per_example: ClassVar[int] = 2

    def guess(self, sample: LabelSample) -> str:
        """Three texts; not the options A, B, C and D of a question, one of which is right."""
        fits = len(sample.texts) in self.text_counts and "D" not in sample.labels
        return Message("there are three texts") if fits else ""

    def read_label(self, value: Any, sep: str) -> Label:
        """B or C."""
        name = read_label(value)
        if name.upper() not in RANKED:
            raise BadCellError(f"has the label {name!r}, but it is B or C, the one nearer to A")
        return name.upper()

    def check(self, example: Example) -> None:
        """Refuse equal texts B and C."""
        if text_key([example.texts[1]]) == text_key([example.texts[2]]):
            raise BadCellError("has the same text in B and C: neither is nearer to A")

    def learned(self, training: Examples) -> dict[str, Any]:
        """Nothing: the labels are always B and C."""
        return {}

    def target(self, example: Example) -> np.ndarray:
        """(2,) float32."""
        return np.array([example.label == name for name in RANKED], np.float32)

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """(sequences, 1), and weights of 1."""
        # Two sequences an example, in the order of `target`: first B, then C.
        return np.reshape(arrays, (-1, 1)), np.ones(len(encoded.example), np.float32)


class RankingObjective(SigmoidObjective):
    """Near or not, for each sequence independently."""

    poolings: ClassVar[tuple[str, ...]] = ("mean", "cls")  # as in the released fine-tuning script
    refused_settings: ClassVar[Mapping[str, str]] = {
        "class_weights": "is balanced, but so is every ranking: of each A, B and C one pair is "
        "a 1 and one a 0."
    }


class RankingDecoding(LabelDecoding):
    """Logits (2,), one a sequence → B or C. Scores (2,): probability that each is near to A."""

    lists_labels: ClassVar[bool] = False
    activation = "sigmoid"
    names = RANKED

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """The logits of both sequences in one array."""
        return rows_side_by_side(row_logits, encoded)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The text whose sequence has the higher logit."""
        return Prediction(RANKED[int(np.argmax(logits))], sigmoid(logits))


class RankingMetrics(CandidateMetrics):
    """Figures of labels B and C."""

    sureness_kind: ClassVar[Any] = "lead"
    has_probabilities: ClassVar[bool] = True
    kinds = RANKED

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The text that shares more characters with A; nothing is learned."""
        predictions = [x._replace(label=RANKED[x.label]) for x in map(by_overlap, test)]
        return CHARACTER_OVERLAP, predictions

    def probabilities(self, examples: Examples, predictions: Predictions) -> Probabilities:
        """Of each of the two sequences: whether its texts are near."""
        scores = np.array([prediction.scores for prediction in predictions])
        near = np.array([[example.label == name for name in RANKED] for example in examples])
        return scores.ravel(), near.ravel()

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How much higher the wrong text's score is."""
        return float(np.ptp(prediction.scores))


class Ranking(Task):
    """Three texts: the label is the one of B and C that is nearer to A."""

    name: ClassVar[str] = "ranking"
    title: ClassVar[str] = "相似度排序 · Ranking by similarity"
    headline: ClassVar[tuple[str, str] | None] = ("{} 更接近 A", "{} is nearer to A")
    pipeline_tag: ClassVar[str] = "text-ranking"
    labelling = part(RankingLabelling)
    objective = part(RankingObjective)
    decoding = part(RankingDecoding)
    metrics = part(RankingMetrics)
