"""Pairs of texts with a score, or 0 and 1: the cosine of their vectors should follow it."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.text_sides import EncodedSides, SideBatches, encode_separately
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.base import Prediction, part
from roformer_tf.tasks.classification import ROC_AUC
from roformer_tf.tasks.losses import cosent_each
from roformer_tf.tasks.metrics import (
    ACCURACY,
    Figures,
    Measure,
    Metric,
    correlation,
    mean,
    ranks,
    roc_auc,
)
from roformer_tf.tasks.regression import PEARSON, SAME_LABELS, SPEARMAN, range_of
from roformer_tf.tasks.scoring import MISTAKES, JsonObject
from roformer_tf.tasks.task_settings import Examples, Gold, Predictions
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts
from roformer_tf.tasks.vectors.sentence_vectors import (
    ChunkLosses,
    Data,
    Loss,
    SentenceVectors,
    VectorDecoding,
    VectorLabelling,
    VectorMetrics,
    VectorObjective,
)
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.kernels.forms import Tensor

MAX_CLASSES = 50
"""Different scores up to which each may be a class of a classifier."""


class ScoredLabelling(VectorLabelling["ScoredPairs"]):
    """Target () float32: the score."""

    @classmethod
    def learned(cls, training: Examples) -> dict[str, Any]:
        """The scores. Raises InputError where all are the same, or all texts."""
        levels = sorted({float(example.label) for example in training})
        if len(levels) < 2:
            raise InputError(
                f"all training pairs have the same score, {levels[0]:g}: nothing can be learnt. "
                "Give pairs of several; texts that belong together need no scores at all."
            )
        if len({text_key([text]) for example in training for text in example.texts}) < 3:
            raise InputError("all training pairs are of the same texts: nothing can be learnt.")
        return {"levels": few_levels(training)}

    def notes(self, training: Examples) -> list[str]:
        """How many scores there are, and the loss."""
        count = len(self.task.levels) or "many"
        return [f"pairs with {count} different scores; loss {self.task.loss}"]

    def target(self, example: Example) -> np.ndarray:
        """() float32."""
        return np.array(example.label, np.float32)

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Pairs in batches; a classifier has the number of the score as target."""
        passages = self.task.long_texts == "windows"
        encoded = encode_separately(examples, tokenizer, self.task.max_length, passages)
        scores = np.array([self.target(example) for example in examples], np.float32)
        if self.task.loss == "classifier":
            scores = np.searchsorted(self.task.levels, scores).astype(np.int32)
        return SideBatches(encoded, targets=scores)


class ScoredObjective(VectorObjective["ScoredPairs"]):
    """CoSENT of the cosines, or a classifier of both vectors."""

    @property
    def pair_classes(self) -> int:
        """One for each of the scores, for a classifier."""
        return len(self.task.levels) if self.task.loss == "classifier" else 0

    def with_vector_settings(self, **settings: Any) -> "ScoredPairs":
        """With a loss, and lengths to which vectors may be cut."""
        loss = self.task.loss if settings.get("loss", "auto") == "auto" else settings["loss"]
        dimensions = settings.get("dimensions", ())
        if loss == "softmax":
            raise InputError(
                "loss is softmax, but the pairs have scores. Give --loss cosent or classifier."
            )
        if loss == "classifier" and not self.task.levels:
            raise InputError(
                f"loss is classifier, but the pairs have more than {MAX_CLASSES} different "
                "scores, and each would be a class. Give --loss cosent."
            )
        if loss == "classifier" and dimensions:
            raise InputError(
                "dimensions cannot be trained with --loss classifier, which reads whole vectors. "
                "Give --loss cosent, or leave --dimensions out."
            )
        if settings.get("hard_negatives"):
            raise InputError(
                "hard_negatives are for texts that belong together: pairs with low scores are "
                "negatives already. Leave --hard-negatives out."
            )
        sizes = tuple(sorted(set(dimensions)))
        return dataclasses.replace(self.task, loss=loss, dimensions=sizes)

    def batch_loss(
        self,
        targets: "Tensor",
        outputs: Any,
        weights: "Tensor",
        inputs: Any = None,
        classifier: Any = None,
    ) -> "Tensor":
        """CoSENT of the whole vectors and of those cut, or the classifier's cross-entropy."""
        from roformer_tf.tasks import losses

        if self.task.loss == "classifier":
            logits = classifier(losses.classifier_features(outputs))
            return losses.classes(targets, logits, weights)
        sizes = self.task.sizes(outputs.shape[-1])
        return losses.over_cuts(losses.cosent, sizes, targets, outputs, weights)

    def losses_of_chunks(self, encoded: EncodedSides, examples: Examples) -> ChunkLosses:
        """What each pair adds to CoSENT."""
        targets = [self.task.labelling.target(example) for example in examples]
        scores = np.array(targets, np.float64)
        return lambda sides, chunk: cosent_each(sides, scores[chunk])


class ScoredDecoding(VectorDecoding["ScoredPairs"]):
    """The label of a prediction is the cosine of the two texts."""

    def read_scores(self, texts: DifferentTexts, scores: Iterable[np.ndarray]) -> list[Prediction]:
        """The score of the pair itself."""
        cosines = [row[own[0]] for row, own in zip(scores, texts.places, strict=True)]
        return [Prediction(float(cosine), np.array([cosine], np.float32)) for cosine in cosines]

    def with_choices(self, gold: Gold, predictions: Predictions) -> "ScoredPairs":
        """The threshold that is right most often, where scores are a no and a yes."""
        if not self.task.is_binary:
            return self.task
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        threshold = best_threshold(cosines, self.task.is_near(gold))
        return dataclasses.replace(self.task, threshold=threshold)


class ScoredMetrics(VectorMetrics["ScoredPairs"]):
    """Correlations of scores and cosines; of 0 and 1 also ROC AUC and accuracy."""

    all: ClassVar[tuple[Metric, ...]] = (ROC_AUC, ACCURACY, SPEARMAN, PEARSON)

    def usable(self) -> tuple[Metric, ...]:
        """ROC AUC and accuracy need two scores."""
        return self.all if self.task.is_binary else (SPEARMAN, PEARSON)

    def measure(self, gold: Gold, predictions: Predictions) -> Measure:
        """All that is usable."""
        numbers = np.array(gold, np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        near = self.task.is_near(gold)
        right = (cosines > self.task.threshold) == near

        def measure(weights: np.ndarray) -> Figures:
            of_ranks = ranks(numbers, weights), ranks(cosines, weights)
            figures = {
                ROC_AUC.name: roc_auc(near, cosines, weights),
                ACCURACY.name: mean(right, weights),
                SPEARMAN.name: correlation(*of_ranks, weights),
                PEARSON.name: correlation(numbers, cosines, weights),
            }
            return {metric.name: figures[metric.name] for metric in self.usable()}

        return measure

    def trials(self, gold: Gold, predictions: Predictions) -> dict[str, int]:
        """Each pair is right or wrong, where scores are two."""
        return {ACCURACY.name: len(gold)} if self.task.is_binary else {}

    def why_undefined(self, gold: Gold) -> dict[str, Message]:
        """Nothing correlates with scores that are all the same."""
        names = (ROC_AUC.name, SPEARMAN.name, PEARSON.name)
        return dict.fromkeys(names, SAME_LABELS) if len(set(gold)) == 1 else {}

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """On the right side of the threshold."""
        if not self.task.is_binary:
            return False
        return bool((prediction.label > self.task.threshold) == (label > self.task.middle))

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The cosine's distance from the threshold."""
        return abs(prediction.label - self.task.threshold)

    def mistakes(self, examples: Examples, predictions: Predictions) -> list[JsonObject]:
        """Of many scores: the pairs whose ranks by score and by cosine differ most."""
        if self.task.is_binary:
            return super().mistakes(examples, predictions)
        gold = np.array([example.label for example in examples], np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        once = np.ones((1, len(gold)))
        distance = np.abs(ranks(gold, once) - ranks(cosines, once))[0] / len(gold)
        order = np.argsort(-distance, kind="stable")[:MISTAKES].tolist()
        return [
            {"place": examples[i].place, "sureness": float(distance[i])}
            | self.describe(examples[i], predictions[i])
            for i in order
        ]

    def near_and_far(
        self, examples: Examples, predictions: Predictions
    ) -> tuple[list[float], list[float]]:
        """Near are those that score above the middle, or above the median of many scores."""
        cosines = [float(prediction.scores[0]) for prediction in predictions]
        gold = np.array([example.label for example in examples], np.float64)
        middle = self.task.middle if self.task.levels else float(np.median(gold))
        return list(np.compress(gold > middle, cosines)), list(np.compress(gold <= middle, cosines))

    def describe_labels(self, gold: Gold) -> JsonObject:
        """The range of a set's scores."""
        return {"labels": {}, "numbers": range_of(gold)}


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(SentenceVectors):
    """Pairs of texts with a score, or 0 and 1."""

    labelling = part(ScoredLabelling)
    objective = part(ScoredObjective)
    decoding = part(ScoredDecoding)
    metrics = part(ScoredMetrics)

    data: Data = "scores"
    loss: Loss = "cosent"

    @property
    def is_binary(self) -> bool:
        """Whether scores are a no and a yes."""
        return len(self.levels) == 2

    @property
    def middle(self) -> float:
        """The mean of the scores: above it is a yes."""
        return sum(self.levels) / len(self.levels) if self.levels else 0.0

    def is_near(self, gold: Gold) -> np.ndarray:
        """Which of the scores are a yes (N,) bool."""
        return np.array(gold, np.float64) > self.middle


def few_levels(examples: Examples) -> tuple[float, ...]:
    """The different scores of examples; none where they are too many to be classes."""
    levels = sorted({float(example.label) for example in examples})
    return tuple(levels) if len(levels) <= MAX_CLASSES else ()


def best_threshold(scores: np.ndarray, wanted: np.ndarray) -> float:
    """The number above which a prediction is yes that is right most often: scores, wanted (N,).

    Halfway between two neighbouring scores, so that those of other texts may be a little off.
    """
    order = np.argsort(scores, kind="stable")
    ordered, yes = scores[order], wanted[order]
    # With a threshold after the first k scores these are no: right are the no's among them, and
    # the yes's of the rest.
    right = (
        np.concatenate([[0], np.cumsum(~yes)]) + yes.sum() - np.concatenate([[0], np.cumsum(yes)])
    )
    ends = np.concatenate([[ordered[0] - 0.1], ordered, [ordered[-1] + 0.1]])
    # No threshold separates equal scores.
    right[1:-1] = np.where(np.diff(ordered) > 0, right[1:-1], -1)
    best = int(np.argmax(right))
    return float((ends[best] + ends[best + 1]) / 2)
