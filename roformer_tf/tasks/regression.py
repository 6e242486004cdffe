"""One text or two, a number."""

from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, read_label, to_number
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import metrics
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.decoding import NumberDecoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.losses import number_divergence, squared_errors
from roformer_tf.tasks.metrics import Function, Metric
from roformer_tf.tasks.objective import TrainingObjective
from roformer_tf.tasks.scoring import POINTS, JsonObject, Metrics
from roformer_tf.tasks.tfidf import LinearModel, Setting
from roformer_tf.translation import Message

NO_LABELS = "is about labels, but a regression has numbers."


class RegressionLabelling(Labelling):
    """A number. Target (1,) float32, in deviations from the mean of the training data."""

    text_counts: ClassVar[tuple[int, ...]] = (1, 2)
    min_labels: ClassVar[int] = 0

    def guess(self, sample: LabelSample) -> str:
        """Numbers with decimals."""
        fits = len(sample.texts) in self.text_counts and sample.has_decimals
        return Message("the labels are numbers with decimals") if fits else ""

    def read_label(self, value: Any, sep: str) -> Label:
        """A number that float32 holds, also if spelled as text, such as 1,234.5 or 85%."""
        name, number = read_label(value), to_number(value, as_shown=True)
        if number is None or abs(number) > 1e18:  # its square would overflow in float32
            raise BadCellError(f"has the label {name!r}, which is no number")
        return number

    def learned(self, training: Examples) -> dict[str, Any]:
        """The mean and deviation of the numbers. Raises InputError where all are the same."""
        numbers = np.array([example.label for example in training], np.float64)
        if len(set(numbers.tolist())) < 2:
            raise InputError(
                Message("all training examples have the same number: nothing can be learnt.")
            )
        return {"mean": float(numbers.mean()), "deviation": float(numbers.std())}

    def target(self, example: Example) -> np.ndarray:
        """(1,) float32. Raises InputError for another number of texts than in training."""
        # A model of another program does not know its columns: it may take two texts.
        if self.task.label_column and len(example.texts) != len(self.task.text_columns):
            raise InputError(
                f"{example.source_line} has another number of texts ({len(example.texts)}) than in "
                f"training. Give a file with {' and '.join(self.task.text_columns)}."
            )
        # Standardized: one learning rate suits labels from 0 to 1 and prices in thousands.
        number = (float(example.label) - self.task.mean) / self.task.deviation
        return np.array([number], np.float32)


class RegressionObjective(TrainingObjective):
    """Squared error."""

    refused_settings = dict.fromkeys(("label_smoothing", "focal", "class_weights"), NO_LABELS)
    losses = staticmethod(squared_errors)
    divergence = staticmethod(number_divergence)
    soft_losses = staticmethod(squared_errors)  # a teacher's number is a target like any other


class RegressionDecoding(NumberDecoding):
    """Logits (1,), in deviations → the number. Scores (1,): the number itself."""

    score_columns = ("score",)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The number."""
        value = logits.astype(np.float32) * self.task.deviation + self.task.mean
        return Prediction(float(value[0]), value)

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """In deviations."""
        return (scores.astype(np.float64) - self.task.mean) / self.task.deviation

    def outside_labels(self) -> tuple[str, ...]:
        """What the number is: other programs call it the score of this label."""
        return ("value",)

    def config_values(self) -> dict[str, Any]:
        """The score is no probability, but the number itself."""
        return super().config_values() | {
            "problem_type": "regression",
            # A CrossEncoder would put a single output through a sigmoid.
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        }

    def graph_meaning(self) -> OutputKind:
        """The number."""
        return OutputKind("value", "linear", self.task.deviation, self.task.mean)


class RegressionMetrics(Metrics):
    """Correlations of the numbers and of their ranks, and errors in the labels' unit."""

    all = (metrics.PEARSON, metrics.SPEARMAN, metrics.MAE, metrics.RMSE)
    linear_model: ClassVar[str] = "ridge"
    sureness_kind: ClassVar[Any] = "error"

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """All four."""
        numbers = np.array(gold, np.float64)
        predicted = np.array([prediction.label for prediction in predictions], np.float64)
        error = predicted - numbers
        squares = partial(metrics.mean, error**2)
        return {
            metrics.PEARSON: partial(metrics.correlation, numbers, predicted),
            metrics.SPEARMAN: partial(metrics.rank_correlation, numbers, predicted),
            metrics.MAE: partial(metrics.mean, np.abs(error)),
            metrics.RMSE: lambda weights: np.sqrt(squares(weights)),
        }

    def fit_linear(self, targets: np.ndarray, features: Any, setting: Setting) -> LinearModel:
        """Ridge regression. The usual strength of 10 is scikit-learn's alpha of 1."""
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=10 / setting.strength).fit(features, targets[:, 0])
        return LinearModel(model.coef_[:, None], np.array([model.intercept_]))

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Pairs of true and predicted numbers, too."""
        pairs = zip(examples, predictions, strict=True)
        # Every n-th pair, so that the scatter plot has at most POINTS points.
        points = [[example.label, prediction.label] for example, prediction in pairs]
        scatter = points[:: -(-len(points) // POINTS)]
        return super().details(examples, predictions) | {"scatter": scatter}

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The absolute error."""
        return abs(float(label) - prediction.label)


class Regression(Task):
    """One text or two in one sequence, a number."""

    name: ClassVar[str] = "regression"
    title: ClassVar[str] = "数值回归 · Regression"
    labelling = part(RegressionLabelling)
    objective = part(RegressionObjective)
    decoding = part(RegressionDecoding)
    metrics = part(RegressionMetrics)
