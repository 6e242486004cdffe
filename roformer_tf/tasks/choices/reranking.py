"""A query and the documents that a search returns for it: which are relevant?

Every document is a pair with its query, whose logit is its score, and a softmax over the documents
of a query is the loss. The order of a search is kept in part: it is combined with the scores by a
weight that the validation set selects, so the result is not worse than the search there.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.engines.network import OutputKind
from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, find_cell, parsed, read_text, to_number
from roformer_tf.labelled.column_names import DOCUMENTS
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.splits import Question
from roformer_tf.readers.records import Row, text_key
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.choices.multiple_choice import ChoiceDecoding, ListLabelling, ListObjective
from roformer_tf.tasks.metrics import Function, Metric, mean
from roformer_tf.tasks.probabilities import log_odds, shortest, sigmoid
from roformer_tf.tasks.scoring import JsonObject, Metrics, NamedPredictions, shortened
from roformer_tf.tasks.vectors.ranked_texts import MRR, NDCG, query_figures
from roformer_tf.translation import Message

# Weights of the model's scores to try; with 0 the search's order stays.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# A rank beyond every cut.
NOT_FOUND = 1 << 30
FIRST_STAGE = Message("the order of the search (BM25)")


def fused(scores: np.ndarray, weight: float) -> np.ndarray:
    """Log-linear pooling of a search's order and the scores of its documents: (C,) float64.

    scores: relevance from 0 to 1, in the order of the search, whose own odds count as 1 / rank.
    weight: of the scores' log-odds, from 0 to 1.
    """
    ranks = np.arange(1, len(scores) + 1)
    return weight * log_odds(scores) - (1 - weight) * np.log(ranks)


def order_of(scores: np.ndarray, weight: float) -> tuple[int, ...]:
    """Indices of documents in the combined order, the best first."""
    return tuple(np.argsort(-fused(scores, weight), kind="stable").tolist())


class RerankingLabelling(ListLabelling):
    """Queries with documents in the order of a search. Target (C,): relevance, with the sum 1."""

    label_optional: ClassVar[bool] = True
    lists_texts: ClassVar[bool] = False
    min_candidates: ClassVar[int] = 1
    default_max_length: ClassVar[int] = 256
    shares_tokens: ClassVar[bool | None] = False
    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = DOCUMENTS

    @classmethod
    def read_row(cls, row: Row, texts: Sequence[str], label: str | None, separator: str) -> Example:
        """A query with its documents, or with one document; without a label it is relevant."""
        query, documents = texts
        listed = cls.read_list(row.cells, documents)
        values: Any = [1.0] * len(listed)
        if label is not None:
            values = parsed(find_cell(row.cells, label))
            values = values if isinstance(values, list) else [values]
        if len(values) != len(listed):
            raise BadCellError(f"has {len(values)} labels for {len(listed)} documents")
        relevance = tuple(map(cls._relevance, values))
        return Example((read_text(row.cells, query), *listed), relevance, row.place)

    @classmethod
    def _relevance(cls, value: Any) -> float:
        number = to_number(int(value) if isinstance(value, bool) else value)
        if number is None or number < 0:
            raise BadCellError(f"has the label {value!r}, but relevance is a number of at least 0")
        return number

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """One example for each query, with all of its documents.

        Raises InputError where no query has a relevant document.
        """
        queries: dict[str, Example] = {}
        documents: dict[str, dict[str, float]] = {}
        for example in examples:
            query, *texts = example.texts
            queries.setdefault(query, example)
            relevance = documents.setdefault(query, {})
            for text, label in zip(texts, example.label, strict=True):
                relevance[text] = max(label, relevance.get(text, 0.0))
        # Nothing can be learned from, or measured on, a query without a relevant document.
        groups = [
            example._replace(texts=(query, *labels), label=tuple(labels.values()))
            for query, example in queries.items()
            if any((labels := documents[query]).values())
        ]
        path, rest = examples[0].place.rpartition(":")[0], len(queries) - len(groups)
        if not groups:
            raise InputError(
                f"{path}: no query has a relevant document. Give documents with a label above 0."
            )
        if rest:
            print(f"{path}: {rest:,} queries have no relevant document: skipped.", file=sys.stderr)
        return groups

    @classmethod
    def question(cls, example: Example) -> Question:
        """The query and its documents; a document may be relevant to a degree only."""
        return text_key(example.texts), None

    def as_cells(self, example: Example) -> tuple[Any, ...]:
        """The query, and its document or a list of them."""
        query, *documents = example.texts
        return (query, documents[0] if len(documents) == 1 else documents)

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32."""
        relevance = np.array(example.label, np.float32)
        return relevance / max(float(relevance.sum()), 1e-9)


class RerankingObjective(ListObjective):
    """The softmax over a query's documents."""

    vector_settings: ClassVar[tuple[str, ...]] = ("hard_negatives",)


class RerankingDecoding(ChoiceDecoding):
    """Logits (C,) → indices in the combined order. Scores (C,): relevance from 0 to 1."""

    chosen_fields: ClassVar[tuple[str, ...]] = ("weight",)

    def predict(self, logits: np.ndarray) -> Prediction:
        """The order of the documents."""
        return self.reread(Prediction((), sigmoid(logits)))

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """Logarithms of the odds."""
        return log_odds(scores)

    def reread(self, prediction: Prediction) -> Prediction:
        """The order under this task's weight."""
        return prediction._replace(label=order_of(prediction.scores, self.task.weight))

    def with_choices(self, gold: Gold, predictions: Predictions) -> Any:
        """The task with the weight that is best by MRR@10, then nDCG@10; of equal ones the lowest.

        With the lowest the search counts most.
        """

        def goodness(weight: float) -> tuple[float, ...]:
            orders = [x._replace(label=order_of(x.scores, weight)) for x in predictions]
            scores = self.task.metrics.compute(gold, orders)
            return tuple(float(scores[metric.name] or 0) for metric in self.task.metrics.all)

        return dataclasses.replace(self.task, weight=max(WEIGHTS, key=goodness))

    def graph_meaning(self) -> OutputKind:
        """The relevance of a document."""
        return OutputKind("probabilities", "sigmoid")

    def cell_names(self) -> list[str]:
        """score."""
        return ["score"]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The relevance of the document, or of each document of a list."""
        scores = list(map(shortest, prediction.scores))
        return [scores[0] if len(scores) == 1 else scores]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """score: the relevance, from 0 to 1."""
        return {"score": self.cells(example, prediction)[0]}


class RerankingMetrics(Metrics):
    """MRR@10 and nDCG@10 of the combined order."""

    all: ClassVar[tuple[Metric, ...]] = (MRR, NDCG)
    sureness_kind: ClassVar[Any] = "distance"

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """Both figures; a document that was not found has no rank."""
        ranks = []
        for relevance, prediction in zip(gold, predictions, strict=True):
            rank_of = {index: rank for rank, index in enumerate(prediction.label, 1)}
            relevant = [rank_of[i] for i, label in enumerate(relevance) if label > 0]
            ranks.append(relevant or [NOT_FOUND])
        each = query_figures(ranks)
        return {metric: partial(mean, each[metric.name]) for metric in self.all}

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether a relevant document is first."""
        return bool(label[prediction.label[0]] > 0)

    def items(self, label: Label) -> set[Any]:
        """None: relevance has no kinds."""
        return set()

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The order of the search."""
        counts = [len(example.texts) - 1 for example in test]
        return FIRST_STAGE, [
            Prediction(tuple(range(count)), np.linspace(1, 0, count, dtype=np.float32))
            for count in counts
        ]

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The rank of the first relevant document."""
        ranks = [rank for rank, i in enumerate(prediction.label, 1) if label[i] > 0]
        return float(ranks[0] if ranks else NOT_FOUND)

    def describe_labels(self, gold: Gold) -> JsonObject:
        """No labels."""
        return {"labels": {}, "numbers": {}}

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """The first relevant document, the document that is first, and the query."""
        query, *documents = example.texts
        relevant = [x for x, label in zip(documents, example.label, strict=True) if label > 0]
        return {
            "gold": shortened(relevant[0]) if relevant else "",
            "predicted": shortened(documents[prediction.label[0]]),
            "texts": [shortened(query)],
        }


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """Documents that a search returned, in a better order."""

    name: ClassVar[str] = "reranking"
    title: ClassVar[str] = "重排 · Reranking"
    compares: ClassVar[bool] = True
    reranks: ClassVar[bool] = True
    pipeline_tag: ClassVar[str] = "text-ranking"
    labelling = part(RerankingLabelling)
    objective = part(RerankingObjective)
    decoding = part(RerankingDecoding)
    metrics = part(RerankingMetrics)

    weight: float = 1.0
    """Of the model's scores relative to the search's order, from 0 to 1."""

    @property
    def why_useless(self) -> str:
        """With the weight 0, on the validation set, no share of the model's order helps."""
        if self.weight:
            return ""
        return "reranking does not improve the order of the search on the validation set"
