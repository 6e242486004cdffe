"""A query and the documents that a search returns for it: which are relevant?

Every document is a pair with its query, whose logit is its score, and a softmax over the documents
of a query is the loss. The search's own scores count, too, by a weight that the validation set
selects, so the result is not worse than the search there.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, find_cell, parsed, read_text, to_number
from roformer_tf.labelled.column_names import DOCUMENTS
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.readers.records import Row
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.choices.multiple_choice import ChoiceDecoding, ListLabelling, ListObjective
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.metrics import Function, Metric, mean
from roformer_tf.tasks.probabilities import log_odds, shortest, sigmoid
from roformer_tf.tasks.scoring import JsonObject, Metrics, NamedPredictions, shortened
from roformer_tf.tasks.vectors.ranked_texts import MRR, NDCG, query_figures
from roformer_tf.translation import Message

# Weights of the model's scores to try; with 0 the order of the search stays.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# A rank beyond every cut.
NOT_FOUND = 1 << 30
FIRST_STAGE = Message("the order of the search")


class Judgment(NamedTuple):
    """What is known of the documents of a query."""

    relevance: tuple[float, ...]
    """0 for a wrong one."""
    search: tuple[float, ...] = ()
    """The score of each in the search that returned them."""
    lost: int = 0
    """Relevant documents that the search did not return."""
    weight: float = 1.0
    """Of a prediction: that of its scores in the order, since models differ in it."""


def fused(search: Sequence[float] | np.ndarray, scores: np.ndarray, weight: float) -> np.ndarray:
    """Scores of a query's documents in a search, combined with a model's: (C,) float64.

    search: on any scale, since they are divided by their standard deviation; scores: relevance from
    0 to 1, whose log-odds count; weight: of the model, from 0 to 1.
    """
    values = np.asarray(search, np.float64)
    deviation = values.std()
    standardized = (values - values.mean()) / (deviation if deviation > 0 else 1)
    return weight * log_odds(scores) + (1 - weight) * standardized


class RerankingLabelling(ListLabelling):
    """Queries with documents in the order of a search. Target (C,): relevance, with the sum 1."""

    label_optional: ClassVar[bool] = True
    lists_texts: ClassVar[bool] = False
    default_max_length: ClassVar[int] = 256
    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = DOCUMENTS

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """A query with its documents, or with one document; without a label it is relevant."""
        query, documents = texts
        listed = self.read_list(row.cells, documents, 1)
        values: Any = [1.0] * len(listed)
        if label is not None:
            values = parsed(find_cell(row.cells, label))
            values = values if isinstance(values, list) else [values]
        if len(values) != len(listed):
            number = f"{len(values)} instead of {len(listed)} labels"
            raise BadCellError(f"has {number}, one for each document")
        judgment = Judgment(tuple(map(self._relevance, values)))
        return Example((read_text(row.cells, query), *listed), judgment, row.source_line)

    def _relevance(self, value: Any) -> float:
        number = to_number(int(value) if isinstance(value, bool) else value, as_shown=True)
        if number is None or number < 0:
            raise BadCellError(f"has the label {value!r}, but relevance is a number of at least 0")
        return number

    def complete(self, examples: list[Example]) -> list[Example]:
        """One example for each query, with all of its documents.

        Raises InputError where no query has a relevant document.
        """
        # The first example of each query, and the relevance of its documents.
        queries: dict[str, tuple[Example, dict[str, float]]] = {}
        for example in examples:
            query, *texts = example.texts
            _, relevance = queries.setdefault(query, (example, {}))
            for text, label in zip(texts, example.label.relevance, strict=True):
                # A document may occur in several rows of a query: the highest label counts.
                relevance[text] = max(label, relevance.get(text, 0.0))
        # Nothing can be learned from, or measured on, a query without a relevant document.
        groups = [
            example._replace(texts=(query, *labels), label=Judgment(tuple(labels.values())))
            for query, (example, labels) in queries.items()
            if any(labels.values())
        ]
        path, rest = examples[0].source_line.rpartition(":")[0], len(queries) - len(groups)
        if not groups:
            raise InputError(
                f"{path}: no query has a relevant document. Give documents with a label above 0."
            )
        if rest:
            print(f"{path}: skipped queries without relevant document: {rest:,}.", file=sys.stderr)
        return groups

    def as_cells(self, example: Example) -> tuple[Any, ...]:
        """The query, and its document or a list of them."""
        query, *documents = example.texts
        return (query, documents[0] if len(documents) == 1 else documents)

    def target(self, example: Example) -> np.ndarray:
        """(C,) float32."""
        relevance = np.array(example.label.relevance, np.float32)
        return relevance / max(float(relevance.sum()), 1e-9)


class RerankingObjective(ListObjective):
    """The softmax over a query's documents."""

    vector_settings: ClassVar[tuple[str, ...]] = ("hard_negatives",)


class RerankingDecoding(ChoiceDecoding):
    """Logits (C,) → relevance from 0 to 1. The label has no order: that needs the search, too."""

    activation = "sigmoid"

    def predict(self, logits: np.ndarray) -> Prediction:
        """The relevance of each document."""
        scores = sigmoid(logits)
        return self.reread(Prediction(Judgment(tuple(scores.tolist())), scores))

    def reread(self, prediction: Prediction) -> Prediction:
        """The same relevance, with the weight of the task."""
        return prediction._replace(label=prediction.label._replace(weight=self.task.weight))

    def with_choices(self, gold: Gold, predictions: Predictions) -> Any:
        """The task with the weight that is best by MRR@10, then nDCG@10; of equal ones the lowest.

        With the lowest the search counts most.
        """
        tasks = [dataclasses.replace(self.task, weight=weight) for weight in WEIGHTS]

        def goodness(task: Any) -> tuple[float, ...]:
            figures = task.metrics.compute(gold, list(map(task.decoding.reread, predictions)))
            return tuple(float(figures[metric.name] or 0) for metric in task.metrics.all)

        return max(tasks, key=goodness)

    def gold_cell(self, example: Example) -> Any:
        """The relevance of each document."""
        return list(example.label.relevance)

    def cell_names(self) -> list[str]:
        """score."""
        return ["score"]

    cells = Decoding.cells  # the score

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """score: the relevance of the document, from 0 to 1, or of each document of a list."""
        scores = list(map(shortest, prediction.scores))
        return {"score": scores[0] if len(scores) == 1 else scores}


class RerankingMetrics(Metrics):
    """MRR@10 and nDCG@10 of the combined order; documents with equal scores have a random one."""

    all: ClassVar[tuple[Metric, ...]] = (MRR, NDCG)
    sureness_kind: ClassVar[Any] = "distance"

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """Both figures; a document that was not found has a rank beyond every cut."""
        pairs = zip(gold, predictions, strict=True)
        # A query without any relevant document gets one that is not found: its figures are 0.
        ranks = [(self._ranks(x, y) + [NOT_FOUND] * x.lost) or [NOT_FOUND] for x, y in pairs]
        each = query_figures(ranks)
        return {metric: partial(mean, each[metric.name]) for metric in self.all}

    def _ranks(self, label: Judgment, prediction: Prediction) -> list[float]:
        """The ranks of the relevant documents, ascending; of equal scores the expected ones.

        With scores [5, 3, 3] the second document has the rank 2.5, and so has the third: where the
        file lists a relevant document must not matter.
        """
        scores = fused(label.search, prediction.scores, prediction.label.weight)
        relevant = np.array(label.relevance) > 0
        ranks: list[float] = []
        for score in np.unique(scores[relevant])[::-1]:
            equal = scores == score
            # In a random order, `count` of n positions divide them into count + 1 equal distances.
            count = int(np.sum(equal & relevant))
            distance = (np.sum(equal) + 1) / (count + 1)
            ranks += (np.sum(scores > score) + distance * np.arange(1, count + 1)).tolist()
        return ranks

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether a relevant document is first."""
        return 1 in self._ranks(label, prediction)

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The order of the search, in which scores have a weight of 0."""
        search = Judgment((), weight=0.0)
        return FIRST_STAGE, [Prediction(search, np.float32(x.label.search)) for x in test]

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The rank of the first relevant document; one more than there are if it is not found."""
        return float(min(self._ranks(label, prediction), default=len(label.relevance) + 1))

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """The first relevant document, the document that is first, and the query."""
        query, *documents = example.texts
        relevant = [x for x, value in zip(documents, example.label.relevance, strict=True) if value]
        combined = fused(example.label.search, prediction.scores, prediction.label.weight)
        return {
            "gold": shortened(relevant[0]) if relevant else "",
            "predicted": shortened(documents[int(np.argmax(combined))]),
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
    """Of the model's scores relative to the search's, from 0 to 1."""

    @property
    def why_useless(self) -> str:
        """With the weight 0, on the validation set, no share of the model's order helps."""
        if self.weight:
            return ""
        return "reranking does not improve the order of the search on the validation set"
