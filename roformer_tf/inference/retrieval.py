"""Queries → the documents of an index that answer them, in their order.

by vectors     the cosine of a query and a document, or of its nearest passage
hybrid         words and vectors: the sum of BM25, in parts of a query's largest, and the cosine
               times a weight; or, without a weight, reciprocal rank fusion of both orders
reranked       the first of these by a model that reads query and document side by side
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.engines.choice import Precision
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.inference.engines import open_finetuned
from roformer_tf.inference.index import SearchIndex
from roformer_tf.inference.nearest import NONE, Found, best_of, fused
from roformer_tf.inference.predict import predict
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.tasks.base import Task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

CANDIDATES = 200
"""Documents that words and vectors each put forward, where both are asked."""
QUERIES = 1024
"""Queries that are answered at a time."""
RELATED = ("1", "true", "yes", "是", "相关", "相似", "同义", "similar", "relevant", "entailment")
"""What a label may be called that says that two texts belong together."""


class Answer(NamedTuple):
    """A document that was found."""

    place: int
    score: float
    """The cosine; of a hybrid search the sum; reranked, the probability or the number of that."""


@dataclass(frozen=True)
class Reranker:
    """A model fine-tuned on pairs, and what of its answers is a score."""

    model: Any
    tokenizer: RoFormerTokenizer
    task: Task
    label: int | None
    """The label whose probability counts; None for a number."""

    def scores(self, query: str, documents: Sequence[str], batch_size: int) -> np.ndarray:
        """How much each document belongs to the query, (documents,) float32."""
        examples = [
            self.task.labelling.for_prediction(Example((query, document), None, ""))
            for document in documents
        ]
        found = predict(self.model, self.tokenizer, self.task, examples, batch_size)
        values = [one.label if self.label is None else one.scores[self.label] for one in found]
        return np.array(values, np.float32)


def load_reranker(folder: str, precision: Precision = "float32") -> Reranker:
    """Open a model that `finetune` made on pairs, with a label or a number for each.

    Raises InputError for another model, and where no label says that two texts belong together.
    """
    opened = open_finetuned(folder, precision=precision)
    model, tokenizer, task = opened.model, opened.tokenizer, opened.task
    if len(task.text_columns) != 2 or task.texts_apart:
        raise InputError(
            f"{folder} is fine-tuned for {task.name} of {len(task.text_columns)} text, but "
            "--rerank needs a model of pairs: --task pair, or regression with two texts."
        )
    if not task.labels:  # it answers with a number
        return Reranker(model, tokenizer, task, None)
    called = [label for label in RELATED if label in map(str.casefold, task.labels)]
    if not called:
        raise InputError(
            f"{folder} has the labels {', '.join(task.labels)}, and none is known to say that two "
            f"texts belong together. Fine-tune with labels called 0 and 1."
        )
    label = [one.casefold() for one in task.labels].index(called[0])
    return Reranker(model, tokenizer, task, label)


@dataclass(frozen=True)
class Retriever:
    """An open index, and how it is searched."""

    index: SearchIndex
    embedder: TextEmbedder
    hybrid: bool = False
    weight: float | None = None
    """Of a cosine in a hybrid search; unset, the index's own, or ranks alone."""
    reranker: Reranker | None = None
    reranked: int = 50
    """How many of the first are put into the reranker's order."""
    batch_size: int = BATCH_SIZE

    def answers(self, queries: Sequence[str], top: int) -> Iterator[list[Answer]]:
        """The best documents of each query, in the order of the queries."""
        wanted = top if self.reranker is None else max(top, self.reranked)
        for start in range(0, len(queries), QUERIES):
            part = queries[start : start + QUERIES]
            found = self.found(part, wanted)
            for query, places, scores in zip(part, found.places, found.scores, strict=True):
                there = places != NONE
                answers = list(map(Answer, places[there].tolist(), scores[there].tolist()))
                yield self._reranked(query, answers)[:top]

    def found(self, queries: Sequence[str], top: int) -> Found:
        """The best documents of each query, before they are reranked."""
        vectors = self.embedder.embed(queries, self.batch_size)
        if not self.hybrid:
            return self.index.nearest(vectors, top)
        most = max(top, CANDIDATES)
        near = self.index.nearest(vectors, most)
        weight = self.index.manifest.hybrid_weight if self.weight is None else self.weight
        if weight is None:
            return fused([near, _with_words(self.index.words.search(queries, most))], top)
        rows = [
            self._weighted(query, vector, places, weight, top)
            for query, vector, places in zip(queries, vectors, near.places, strict=True)
        ]
        return Found.joined(rows, top)

    def _weighted(
        self, query: str, vector: np.ndarray, near: np.ndarray, weight: float, top: int
    ) -> Found:
        """The best of all that words and vectors put forward, each with both of its scores."""
        words = self.index.words.scores(query)
        largest = max(float(words.max(initial=0)), 1e-9)
        forward = _with_words(best_of(words[None], max(top, CANDIDATES))).places[0]
        places = np.union1d(near, forward)
        places = places[places != NONE]
        scores = words[places] / largest + weight * self.index.cosines(vector, places)
        return best_of(scores[None], top).among(places)

    def _reranked(self, query: str, answers: list[Answer]) -> list[Answer]:
        """The first of the answers in the reranker's order; those behind are left out."""
        if self.reranker is None or not answers:
            return answers
        first = answers[: self.reranked]
        texts = [self.index.document(one.place).text for one in first]
        scores = self.reranker.scores(query, texts, self.batch_size)
        order = np.argsort(-scores, kind="stable")
        return [Answer(first[i].place, float(scores[i])) for i in order]


def _with_words(found: Found) -> Found:
    """What BM25 found, less the documents that share no word with the query."""
    there = found.scores > 0
    return Found(np.where(there, found.places, NONE), np.where(there, found.scores, -np.inf))
