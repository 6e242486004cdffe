"""Three texts: is B or C nearer to A?"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import Meaning
from roformer_tf.labelled.cells import BadCellError, read_label
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import EncodedTexts, Rows, rows_side_by_side
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import Question, example_key
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import overlap
from roformer_tf.tasks.details import JsonObject, calibration
from roformer_tf.tasks.losses import sigmoid_divergence, sigmoid_losses
from roformer_tf.tasks.metrics import ACCURACY, Measure, Metric, mean
from roformer_tf.tasks.probabilities import named_cells, named_probabilities, shortest, sigmoid
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.kernels.forms import Tensor

RANKED = ("B", "C")
CHARACTER_OVERLAP = Message("character overlap (Jaccard)")


class Ranking(Task):
    """Three texts in two rows, (A, B) and (A, C); the label says which of B and C is nearer to A.

    Logits (2,) and target (2,) float32, 1 for the nearer one, each read from a row of its own;
    scores (2,), how likely each is near to A, for itself.
    """

    name: ClassVar[str] = "ranking"
    title: ClassVar[str] = "相似度排序 · Ranking by similarity"
    headline: ClassVar[tuple[str, str] | None] = ("{} 更接近 A", "{} is nearer to A")
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    text_counts: ClassVar[tuple[int, ...]] = (3,)
    rows_each: ClassVar[int] = 2
    pipeline_tag: ClassVar[str] = "text-ranking"
    pooling: ClassVar[str] = "mean"  # as the released fine-tuning script has it
    refused_loss_settings: ClassVar[Mapping[str, str]] = {
        "class_weights": "is balanced, but so is every ranking: of each A, B and C one pair is "
        "a 1 and one a 0."
    }
    sureness_kind: ClassVar[Any] = "lead"

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Three texts."""
        return "there are three texts" if len(sample.texts) in cls.text_counts else ""

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """B or C."""
        name = read_label(value)
        if name.upper() not in RANKED:
            raise BadCellError(f"has the label {name!r}, but it is B or C, the one nearer to A")
        return name.upper()

    @classmethod
    def question(cls, example: Example) -> Question:
        """The texts, B and C in any order; the answer is the text that the label names."""
        nearer = example.texts[2 if example.label == RANKED[1] else 1]
        return example_key(example.texts), text_key([nearer])

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """Nothing is kept of the examples."""
        return cls(**settings)

    def target(self, example: Example) -> np.ndarray:
        """(2,) float32: 1 for the nearer of (A, B) and (A, C)."""
        return np.array([example.label == name for name in RANKED], np.float32)

    def row_targets(self, encoded: EncodedTexts, examples: Sequence[Example]) -> tuple[Rows, Rows]:
        """(rows, 1) float32, and weights of 1."""
        targets = [self.target(example) for example in examples]
        return np.reshape(targets, (-1, 1)), np.ones(len(encoded.example), np.float32)

    @classmethod
    def losses(
        cls,
        targets: "Tensor",
        logits: "Tensor",
        smoothing: float = 0.0,
        focal: float = 0.0,
        class_weights: list[Any] | None = None,
    ) -> "Tensor":
        """Cross-entropy of near or not."""
        return sigmoid_losses(targets, logits, smoothing, focal, class_weights)

    @classmethod
    def divergence(cls, logits: "Tensor", others: "Tensor") -> "Tensor":
        """Of near or not."""
        return sigmoid_divergence(logits, others)

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """The logits of both rows stand side by side."""
        return rows_side_by_side(row_logits, encoded)

    def answer(self, logits: np.ndarray) -> Prediction:
        """The one whose row has the higher logit."""
        return Prediction(RANKED[int(np.argmax(logits))], sigmoid(logits))

    def graph_meaning(self) -> Meaning:
        """How likely the texts of a row are near."""
        return Meaning("probabilities", "sigmoid")

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """Accuracy by the triple."""
        right = np.array([self.is_right(*pair) for pair in zip(gold, predictions, strict=True)])
        return lambda weights: {ACCURACY.name: mean(right, weights)}

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Each triple is right or wrong."""
        return {ACCURACY.name: len(gold)}

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """A triple with equal scores is not answered, whichever of the two comes first."""
        ahead = prediction.scores[0] != prediction.scores[1]
        return bool(ahead and label == prediction.label)

    @property
    def kinds(self) -> tuple[str, ...]:
        """B and C."""
        return RANKED

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """Whether B or C shares more characters with A; nothing is learnt."""
        answers = []
        for example in test:
            a, b, c = example.texts
            scores = np.array([overlap(a, b), overlap(a, c)], np.float32)
            answers.append(Prediction(RANKED[int(np.argmax(scores))], scores))
        return CHARACTER_OVERLAP, answers

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Calibration of how likely two texts are near."""
        scores = np.array([prediction.scores for prediction in predictions])
        near = np.array([[example.label == name for name in RANKED] for example in examples])
        return {
            "mistakes": self.mistakes(examples, predictions),
            "calibration": calibration(scores.ravel(), near.ravel()),
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """By how much the wrong text is ahead."""
        return float(np.ptp(prediction.scores))

    def cell_names(self) -> list[str]:
        """label, p(B), p(C), each being near to A for itself."""
        return named_cells("label", RANKED)

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """B or C, and both probabilities."""
        return [prediction.label, *map(shortest, prediction.scores)]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """label, probabilities."""
        probabilities = named_probabilities(RANKED, prediction.scores)
        return {"label": prediction.label, "probabilities": probabilities}
