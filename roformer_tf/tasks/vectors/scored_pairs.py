"""Pairs of texts with a score, or 0 and 1: the cosine of their vectors should follow it.

`--task embedding` is one name for this task and that of `retrieval`; the examples select one.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.examples import Label
from roformer_tf.labelled.text_sides import SideBatches
from roformer_tf.readers.records import text_key
from roformer_tf.tasks import losses, metrics
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.losses import Tensor
from roformer_tf.tasks.metrics import Function, Metric
from roformer_tf.tasks.probabilities import best_threshold
from roformer_tf.tasks.scoring import MISTAKES, JsonObject
from roformer_tf.tasks.vectors import sentence_vectors
from roformer_tf.tasks.vectors.ranked_texts import RETRIEVAL, DifferentTexts, unit
from roformer_tf.tasks.vectors.retrieval import Retrieval, RetrievalMetrics
from roformer_tf.tasks.vectors.sentence_vectors import NearAndFar
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.top_k import top_k

# Each score may be a class of a classifier, if there are at most this many.
MAX_CLASSES = 50


class ScoredLabelling(sentence_vectors.VectorLabelling):
    """Target () float32: the score."""

    def learned(self, training: Examples) -> dict[str, Any]:
        """The scores. Raises InputError if all are equal, or all texts are."""
        # Equal scores give CoSENT no pair of pairs to order.
        if len({example.label for example in training}) < 2:
            raise InputError(
                f"all training pairs have the same score, {training[0].label:g}: nothing can be "
                "learnt. Give pairs of several; texts that belong together need no scores at all."
            )
        if len({text_key([text]) for example in training for text in example.texts}) < 3:
            raise InputError("all training pairs are of the same texts: nothing can be learnt.")
        return {"levels": few_levels(training)}

    def notes(self, training: Examples) -> list[str]:
        """The number of different scores, and the loss."""
        count = len(self.task.levels) or "many"
        return [f"pairs with {count} different scores; loss {self.task.loss}"]

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Pairs in batches; the target of a classifier is the index of the score."""
        encoded = self.encode(examples, tokenizer)
        scores = np.array([self.target(example) for example in examples], np.float32)
        if self.task.loss == "classifier":
            # Every score of the examples is one of the levels: its index is the class. Both are
            # float32, in which 0.1 is above the float64 0.1, and would be the next class.
            scores = np.searchsorted(np.float32(self.task.levels), scores).astype(np.int32)
        return SideBatches(encoded, targets=scores)


class ScoredObjective(sentence_vectors.VectorObjective):
    """CoSENT of the cosines, or a classifier of both vectors."""

    vector_losses = ("cosent", "classifier")
    meaning = "the pairs have scores"
    vector_loss = staticmethod(losses.cosent)

    @property
    def pair_classes(self) -> int:
        """For a classifier, the number of scores."""
        return len(self.task.levels) if self.task.loss == "classifier" else 0

    def with_vector_settings(self, config: losses.VectorConfig, teacher: str | None) -> Any:
        """The task with these settings. Raises InputError if they do not suit its scores."""
        if config.loss == "classifier" and not self.task.levels:
            raise InputError(
                f"loss is classifier, but the pairs have more than {MAX_CLASSES} different "
                "scores, and each would be a class. Give --loss cosent."
            )
        if config.loss == "classifier" and config.dimensions:
            raise InputError(
                "dimensions cannot be trained with --loss classifier, which reads whole vectors. "
                "Give --loss cosent, or remove --dimensions."
            )
        return super().with_vector_settings(config, teacher)

    def batch_loss(self, targets: Tensor, outputs: Any, weights: Tensor, inputs: Any) -> Tensor:
        """CoSENT of the whole vectors and of those cut, or the classifier's cross-entropy."""
        if self.task.loss != "classifier":
            return super().batch_loss(targets, outputs, weights, inputs)
        return losses.classes(targets, outputs, weights)


class ScoredDecoding(sentence_vectors.VectorDecoding):
    """The label of a prediction is the cosine of the two texts."""

    def read_rows(self, row_logits: Sequence[np.ndarray], encoded: Any) -> list[Prediction]:
        """The cosine of each pair of `EncodedSides`, not of all texts: time is then no square."""
        vectors = unit(row_logits)
        # Of several passages of the second text the nearest one counts.
        pairs = zip(encoded.first_rows, encoded.counts[:, -1], strict=True)
        return _predicted((vectors[b : b + size] @ vectors[a]).max() for (a, b), size in pairs)

    def read_scores(self, texts: DifferentTexts, scores: Iterable[np.ndarray]) -> list[Prediction]:
        """The cosine of each pair."""
        return _predicted(row[own[0]] for row, own in zip(scores, texts.documents, strict=True))

    def with_choices(self, gold: Gold, predictions: Predictions) -> "ScoredPairs":
        """The threshold with the highest accuracy, if scores are a no and a yes."""
        if not self.task.is_binary:
            return self.task
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        # A cosine below the threshold is a no. Those of other texts may be below or above all here.
        gains = np.where(self.task.is_near(gold), -1, 1)
        threshold = best_threshold(cosines, gains, cosines.min() - 0.1, cosines.max() + 0.1)
        return dataclasses.replace(self.task, threshold=threshold)

    def shifted(self, prediction: Prediction, count: int, task: Any) -> Prediction:
        """The cosine, so that the threshold of `task` splits it as its own one does."""
        # Models, such as those of folds, have cosines of different scales.
        return prediction._replace(label=prediction.label - self.task.threshold + task.threshold)


def _predicted(cosines: Iterable[Any]) -> list[Prediction]:
    return [Prediction(float(cosine), np.array([cosine], np.float32)) for cosine in cosines]


class ScoredMetrics(sentence_vectors.VectorMetrics):
    """Correlations of scores and cosines; of 0 and 1 also ROC AUC and accuracy."""

    all = (metrics.ROC_AUC, metrics.ACCURACY, metrics.SPEARMAN, metrics.PEARSON)

    def usable(self) -> tuple[Metric, ...]:
        """ROC AUC and accuracy need exactly two scores, accuracy also a threshold."""
        if not self.task.is_binary:
            return (metrics.SPEARMAN, metrics.PEARSON)
        return tuple(x for x in self.all if self.task.has_threshold or x != metrics.ACCURACY)

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """All four."""
        numbers = np.array(gold, np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        return super().functions(gold, predictions) | {
            metrics.ROC_AUC: partial(metrics.roc_auc, self.task.is_near(gold), cosines),
            metrics.SPEARMAN: partial(metrics.rank_correlation, numbers, cosines),
            metrics.PEARSON: partial(metrics.correlation, numbers, cosines),
        }

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether the cosine is on the right side of the threshold, if there is one."""
        if not self.task.has_threshold:
            return False
        return bool(prediction.label > self.task.threshold) == (label > self.task.middle)

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The cosine's distance from the threshold."""
        return abs(prediction.label - self.task.threshold)

    def mistakes(self, examples: Examples, predictions: Predictions) -> list[JsonObject]:
        """Without a threshold: the pairs whose ranks by score and by cosine differ most."""
        if self.task.has_threshold:
            return super().mistakes(examples, predictions)
        gold = np.array([example.label for example in examples], np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        # Nothing separates right from wrong here: the difference of ranks takes its place.
        once = np.ones((1, len(gold)))
        distance = np.abs(metrics.ranks(gold, once) - metrics.ranks(cosines, once))[0] / len(gold)
        order = top_k(distance, MISTAKES).tolist()
        return [
            {"sureness": float(distance[i])} | self.shown(i, examples, predictions) for i in order
        ]

    def near_and_far(self, examples: Examples, predictions: Predictions) -> NearAndFar:
        """Near pairs have a score above the middle, or above the median of many scores."""
        cosines = [float(prediction.scores[0]) for prediction in predictions]
        gold = np.array([example.label for example in examples], np.float64)
        # With many scores, half of the pairs count as near.
        middle = self.task.middle if self.task.levels else float(np.median(gold))
        return list(np.compress(gold > middle, cosines)), list(np.compress(gold <= middle, cosines))


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(sentence_vectors.SentenceVectors):
    """Pairs of texts with a score, or 0 and 1."""

    labelling = part(ScoredLabelling)
    objective = part(ScoredObjective)
    decoding = part(ScoredDecoding)
    metrics = part(ScoredMetrics)

    data: sentence_vectors.Data = "scores"
    loss: sentence_vectors.Loss = "cosent"

    @property
    def is_binary(self) -> bool:
        """Whether scores are a no and a yes."""
        return len(self.levels) == 2

    @property
    def has_threshold(self) -> bool:
        """Whether a cosine above the threshold predicts a yes."""
        return self.is_binary and self.threshold is not None

    @property
    def middle(self) -> float:
        """The mean of the scores; a score above it is a yes."""
        return sum(self.levels) / len(self.levels) if self.levels else 0.0

    def is_near(self, gold: Gold) -> np.ndarray:
        """Which of the scores are a yes (N,) bool."""
        return np.array(gold, np.float64) > self.middle


def few_levels(examples: Examples) -> tuple[float, ...]:
    """The different scores of examples; none if they are too many for a classifier."""
    levels = sorted({float(example.label) for example in examples})
    return tuple(levels) if len(levels) <= MAX_CLASSES else ()


class EmbeddingMetrics(RetrievalMetrics):
    """The metrics of both tasks by name: `embedding` is the only task name in a report."""

    all: ClassVar[tuple[Metric, ...]] = (*RETRIEVAL, *ScoredMetrics.all)


class Embedding(Retrieval):
    """The task of `--task embedding`: retrieval, or scored pairs if its examples have scores."""

    metrics = part(EmbeddingMetrics)

    @classmethod
    def from_examples(cls, training: Examples, **settings: Any) -> Task:
        """Retrieval or scored pairs. Raises InputError if nothing can be learned."""
        if sentence_vectors.data_of(training) == "scores":
            return ScoredPairs.from_examples(training, **settings)
        return super().from_examples(training, **settings)

    @classmethod
    def from_settings(cls, **settings: Any) -> Task:
        """The task with these settings: retrieval or scored pairs."""
        return ScoredPairs(**settings) if settings.get("data") == "scores" else cls(**settings)

    @classmethod
    def adapted(cls, task: Any, examples: Examples) -> Task:
        """The task for other data than that of the training: another kind, or other scores."""
        data = sentence_vectors.data_of(examples)
        has_scores = data == "scores"
        scores = {example.label for example in examples} if has_scores else set()
        # Trained on scores 0 to 5, evaluated on 0 and 5 alone: the task becomes binary.
        has_more_levels = len(scores) == 2 < len(task.levels)  # of these two there is a ROC AUC
        # `<=` of sets: every score of the examples occurred in training.
        if data == task.data and scores <= {*task.levels} and not has_more_levels:
            return cast(Task, task)
        # The learned settings stay, such as the threshold, which two scores of training gave.
        levels = few_levels(examples) if has_scores else ()
        threshold = task.threshold if len(task.levels) == 2 else None
        changes = {"data": data, "levels": levels, "threshold": threshold}
        return cls.from_settings(**dataclasses.asdict(task) | changes)
