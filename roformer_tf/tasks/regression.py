"""One text or two, a number."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, read_label, to_number
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import number_strata
from roformer_tf.tasks.base import Prediction, Task, part
from roformer_tf.tasks.losses import number_divergence, squared_errors
from roformer_tf.tasks.metrics import Figures, Measure, Metric, correlation, mean, ranks
from roformer_tf.tasks.parts import Labelling, NumberDecoding, TrainingObjective
from roformer_tf.tasks.scoring import POINTS, JsonObject, Metrics
from roformer_tf.tasks.task_settings import Examples, Gold, Predictions
from roformer_tf.translation import Message

if TYPE_CHECKING:
    pass

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


class RegressionLabelling(Labelling[Task]):
    """A number. Target (1,) float32, in deviations from the mean of the training data."""

    text_counts: ClassVar[tuple[int, ...]] = (1, 2)

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Numbers with decimals."""
        fits = len(sample.texts) in cls.text_counts and sample.has_decimals
        return "the labels are numbers with decimals" if fits and not sample.why_several else ""

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """A finite number, also if spelled as text."""
        name, number = read_label(value), to_number(value)
        if number is None:
            raise BadCellError(f"has the label {name!r}, which is no number")
        return number

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """None: numbers may occur that training does not have."""
        return set()

    @classmethod
    def strata(cls, examples: Examples) -> list[Any]:
        """Tenths of the numbers."""
        return number_strata([example.label for example in examples])

    @classmethod
    def learned(cls, training: Examples) -> dict[str, Any]:
        """The mean and deviation of the numbers. Raises InputError where all are the same."""
        numbers = np.array([example.label for example in training], np.float64)
        if len(set(numbers.tolist())) < 2:
            raise InputError("all training examples have the same number: nothing can be learnt.")
        return {"mean": float(numbers.mean()), "deviation": float(numbers.std())}

    def target(self, example: Example) -> np.ndarray:
        """(1,) float32."""
        number = (float(example.label) - self.task.mean) / self.task.deviation
        return np.array([number], np.float32)


class RegressionObjective(TrainingObjective[Task]):
    """Squared error; what concerns labels has no part in it."""

    refused_settings: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("label_smoothing", "focal", "class_weights"), NO_LABELS
    )

    losses = staticmethod(squared_errors)
    divergence = staticmethod(number_divergence)


class RegressionDecoding(NumberDecoding[Task]):
    """Logits (1,), in deviations → the number. Scores (1,): the number itself."""

    number_name: ClassVar[str] = "value"

    def predict(self, logits: np.ndarray) -> Prediction:
        """The number."""
        value = logits.astype(np.float32) * self.task.deviation + self.task.mean
        return Prediction(float(value[0]), value)

    def outside_labels(self) -> tuple[str, ...]:
        """The number's name, as in our own predictions."""
        return (self.number_name,)

    def config_values(self) -> dict[str, Any]:
        """And that the score is no probability, but the number itself."""
        return super().config_values() | {
            "problem_type": "regression",
            # A CrossEncoder would put a single output through a sigmoid.
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        }

    def graph_meaning(self) -> OutputKind:
        """The number."""
        return OutputKind(self.number_name, "linear", self.task.deviation, self.task.mean)


class RegressionMetrics(Metrics[Task]):
    """Correlations of the numbers and of their ranks, and errors in the labels' unit."""

    all: ClassVar[tuple[Metric, ...]] = (PEARSON, SPEARMAN, MAE, RMSE)
    linear_model: ClassVar[str] = "ridge"
    sureness_kind: ClassVar[Any] = "error"

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All four."""
        numbers = np.array(gold, np.float64)
        predicted = np.array([prediction.label for prediction in predictions], np.float64)
        error = predicted - numbers

        def measure(weights: np.ndarray) -> Figures:
            of_ranks = ranks(numbers, weights), ranks(predicted, weights)
            return {
                PEARSON.name: correlation(numbers, predicted, weights),
                SPEARMAN.name: correlation(*of_ranks, weights),
                MAE.name: mean(np.abs(error), weights),
                RMSE.name: np.sqrt(mean(error**2, weights)),
            }

        return measure

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """Nothing correlates with a constant."""
        same = len(set(gold)) == 1
        return {PEARSON.name: SAME_LABELS, SPEARMAN.name: SAME_LABELS} if same else {}

    def fit_linear(
        self, examples: Examples, features: Any, new_features: Any, strength: float
    ) -> list[Prediction]:
        """The number; the usual strength of 10 is scikit-learn's usual alpha of 1."""
        from sklearn.linear_model import Ridge

        numbers = np.array([example.label for example in examples], np.float64)
        values = Ridge(alpha=10 / strength).fit(features, numbers).predict(new_features)
        return [Prediction(float(x), np.array([x])) for x in values.astype(np.float32)]

    def describe_labels(self, gold: Gold) -> JsonObject:
        """The range of a set's numbers."""
        return {"labels": {}, "numbers": range_of(gold)}

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Pairs of true and predicted numbers."""
        pairs = zip(examples, predictions, strict=True)
        points = [[example.label, prediction.label] for example, prediction in pairs]
        return {
            "mistakes": self.mistakes(examples, predictions),
            "scatter": points[:: -(-len(points) // POINTS)],
        }

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How far the prediction is off."""
        return abs(float(label) - prediction.label)


class Regression(Task):
    """One text or two in one row, a number."""

    name: ClassVar[str] = "regression"
    title: ClassVar[str] = "数值回归 · Regression"
    labelling = part(RegressionLabelling)
    objective = part(RegressionObjective)
    decoding = part(RegressionDecoding)
    metrics = part(RegressionMetrics)


def range_of(numbers: Sequence[float]) -> JsonObject:
    """The lowest, mean and highest of numbers, and their deviation."""
    x = np.array(numbers, np.float64)
    figures = {"lowest": x.min(), "mean": x.mean(), "highest": x.max(), "deviation": x.std()}
    return {name: float(value) for name, value in figures.items()}
