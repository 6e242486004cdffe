"""One text or two, a number."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import Meaning
from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, read_label, to_number
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import number_strata
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.baselines import BaselineSets, tfidf_baseline
from roformer_tf.tasks.details import POINTS, JsonObject
from roformer_tf.tasks.losses import number_divergence, squared_errors
from roformer_tf.tasks.metrics import Figures, Measure, Metric, correlation, mean, ranks
from roformer_tf.tasks.probabilities import shortest
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.kernels.forms import Tensor

SAME_PREDICTIONS = Message("all predictions are the same number")
PEARSON = Metric(
    "pearson",
    Message("Pearson r"),
    "coefficient",
    meaning=Message("linear correlation of predicted and true values: 1 is perfect, 0 is none"),
    undefined=SAME_PREDICTIONS,
)
SPEARMAN = Metric(
    "spearman",
    Message("Spearman ρ"),
    "coefficient",
    meaning=Message("correlation of their ranks: whether the order is right"),
    undefined=SAME_PREDICTIONS,
)
MAE = Metric(
    "mae",
    Message("mean absolute error"),
    "distance",
    falls=True,
    meaning=Message("mean distance between predicted and true values"),
)
RMSE = Metric(
    "rmse",
    Message("root mean square error"),
    "distance",
    falls=True,
    meaning=Message("similar, with more weight on large errors"),
)
SAME_LABELS = Message("all labels are the same number")
NO_LABELS = "is about labels, but a regression has numbers."


class Regression(Task):
    """One text or two in one row, a number.

    Logits (1,), in deviations from the training data's mean, as is the target (1,) float32; scores
    (1,), the number itself.
    """

    name: ClassVar[str] = "regression"
    title: ClassVar[str] = "数值回归 · Regression"
    metrics: ClassVar[tuple[Metric, ...]] = (PEARSON, SPEARMAN, MAE, RMSE)
    text_counts: ClassVar[tuple[int, ...]] = (1, 2)
    refused_loss_settings: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("label_smoothing", "focal", "class_weights"), NO_LABELS
    )
    sureness_kind: ClassVar[Any] = "error"

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Numbers with decimals."""
        fits = len(sample.texts) in cls.text_counts and sample.has_decimals
        return "the labels are numbers with decimals" if fits and not sample.why_several else ""

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """A finite number, also if spelled as text."""
        name, found = read_label(value), to_number(value)
        if found is None:
            raise BadCellError(f"has the label {name!r}, which is no number")
        return found

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """None: any number may be met that training does not have."""
        return set()

    @classmethod
    def strata(cls, examples: Sequence[Example]) -> list[Any]:
        """Tenths of the numbers."""
        return number_strata([example.label for example in examples])

    def config_values(self) -> dict[str, Any]:
        """And that the score is no probability, but the number itself."""
        return super().config_values() | {
            "problem_type": "regression",
            # A CrossEncoder would put a single output through a sigmoid.
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        }

    def labels_outside(self) -> tuple[str, ...]:
        """The number's name, as in other answers."""
        return ("value",)

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """The mean and deviation of the numbers. Raises InputError where all are the same."""
        numbers = np.array([example.label for example in training], np.float64)
        if len(set(numbers.tolist())) < 2:
            raise InputError("all training examples have the same number: nothing can be learnt.")
        return cls(mean=float(numbers.mean()), deviation=float(numbers.std()), **settings)

    def target(self, example: Example) -> np.ndarray:
        """(1,) float32."""
        return np.array([(float(example.label) - self.mean) / self.deviation], np.float32)

    @classmethod
    def losses(
        cls,
        targets: "Tensor",
        logits: "Tensor",
        smoothing: float = 0.0,
        focal: float = 0.0,
        class_weights: list[Any] | None = None,
    ) -> "Tensor":
        """Squared error; what is about labels has no part in it."""
        return squared_errors(targets, logits)

    @classmethod
    def divergence(cls, logits: "Tensor", others: "Tensor") -> "Tensor":
        """Of two normal distributions, whose log-likelihood the squared error is."""
        return number_divergence(logits, others)

    def answer(self, logits: np.ndarray) -> Prediction:
        """The number."""
        value = logits.astype(np.float32) * self.deviation + self.mean
        return Prediction(float(value[0]), value)

    def graph_meaning(self) -> Meaning:
        """The number."""
        return Meaning("value", "linear", self.deviation, self.mean)

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """Correlations of the numbers and of their ranks, and errors in the labels' unit."""
        numbers = np.array(gold, np.float64)
        answers = np.array([prediction.label for prediction in predictions], np.float64)
        error = answers - numbers

        def measure(weights: np.ndarray) -> Figures:
            of_ranks = ranks(numbers, weights), ranks(answers, weights)
            return {
                PEARSON.name: correlation(numbers, answers, weights),
                SPEARMAN.name: correlation(*of_ranks, weights),
                MAE.name: mean(np.abs(error), weights),
                RMSE.name: np.sqrt(mean(error**2, weights)),
            }

        return measure

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """Nothing correlates with a constant."""
        same = len(set(gold)) == 1
        return {PEARSON.name: SAME_LABELS, SPEARMAN.name: SAME_LABELS} if same else {}

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[Message, list[Prediction]]:
        """TF-IDF and ridge regression."""
        return tfidf_baseline(self, "ridge", BaselineSets(training, test, valid), metric)

    def fit_linear(
        self, examples: Sequence[Example], features: Any, others: Any, strength: float
    ) -> list[Prediction]:
        """The number; the usual strength of 10 is scikit-learn's usual alpha of 1."""
        from sklearn.linear_model import Ridge

        numbers = np.array([example.label for example in examples], np.float64)
        found = Ridge(alpha=10 / strength).fit(features, numbers).predict(others)
        return [Prediction(float(one), np.array([one])) for one in found.astype(np.float32)]

    def describe_labels(self, gold: Sequence[Label]) -> JsonObject:
        """Where a set's numbers lie."""
        x = np.array(gold, np.float64)
        figures = {"lowest": x.min(), "mean": x.mean(), "highest": x.max(), "deviation": x.std()}
        return {"labels": {}, "numbers": {name: float(value) for name, value in figures.items()}}

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Pairs of numbers in the data and answered."""
        pairs = zip(examples, predictions, strict=True)
        points = [[example.label, answer.label] for example, answer in pairs]
        return {
            "mistakes": self.mistakes(examples, predictions),
            "scatter": points[:: -(-len(points) // POINTS)],
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How far the answer is off."""
        return abs(float(label) - prediction.label)

    def cell_names(self) -> list[str]:
        """value."""
        return ["value"]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The number."""
        return [shortest(prediction.scores[0])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """value."""
        return {"value": shortest(prediction.scores[0])}
