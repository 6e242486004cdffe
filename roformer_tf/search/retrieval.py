"""Queries → the documents of an index that answer them: embedded, searched, perhaps reranked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roformer_tf.engines.choice import Precision
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.inference.opening import open_finetuned, predict
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.search.index import Result, SearchIndex
from roformer_tf.tasks.base import Task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

QUERIES = 1024
"""Queries that are embedded at a time."""
RELATED = ("1", "true", "yes", "是", "相关", "相似", "同义", "similar", "relevant", "entailment")
"""Names of labels that mean that two texts belong together."""


@dataclass(frozen=True)
class Reranker:
    """A model fine-tuned on pairs, and which of its predictions is a score."""

    model: Any
    tokenizer: RoFormerTokenizer
    task: Task
    label: int | None
    """The label whose probability counts; None for a number."""

    def scores(self, query: str, documents: Sequence[str], batch_size: int) -> np.ndarray:
        """How well each document matches the query, (documents,) float32."""
        examples = [
            self.task.labelling.for_prediction(Example((query, document), None, ""))
            for document in documents
        ]
        predictions = predict(self.model, self.tokenizer, self.task, examples, batch_size)
        if self.label is None:
            return np.array([prediction.label for prediction in predictions], np.float32)
        return np.array([prediction.scores[self.label] for prediction in predictions], np.float32)


def load_reranker(folder: str, precision: Precision = "float32") -> Reranker:
    """Open a model that `finetune` made on pairs, with a label or a number for each.

    Raises InputError for another model, and where no label means that two texts belong together.
    """
    opened = open_finetuned(folder, precision=precision)
    model, tokenizer, task = opened.model, opened.tokenizer, opened.task
    if len(task.text_columns) != 2 or task.texts_apart:
        raise InputError(
            f"{folder} is fine-tuned for {task.name} of {len(task.text_columns)} text, but "
            "--rerank needs a model of pairs: --task pair, or regression with two texts."
        )
    if not task.labels:  # it predicts a number
        return Reranker(model, tokenizer, task, None)
    labels = [label.casefold() for label in task.labels]
    known = [label for label in RELATED if label in labels]
    if not known:
        raise InputError(
            f"{folder} has the labels {', '.join(task.labels)}, and none is known to mean that two "
            f"texts belong together. Fine-tune with labels called 0 and 1."
        )
    return Reranker(model, tokenizer, task, labels.index(known[0]))


@dataclass(frozen=True)
class Retriever:
    """An open index, the model of its vectors, and how it is searched."""

    index: SearchIndex
    embedder: TextEmbedder
    hybrid: bool = False
    weight: float | None = None
    """Of a cosine in a hybrid search; by default the index's own, or ranks alone."""
    reranker: Reranker | None = None
    reranked: int = 50
    """How many of the first documents the reranker orders."""
    batch_size: int = BATCH_SIZE

    def answers(
        self, queries: Sequence[str], top: int, where: str | None = None
    ) -> Iterator[list[Result]]:
        """The best documents of each query, in the order of the queries."""
        wanted = top if self.reranker is None else max(top, self.reranked)
        for start in range(0, len(queries), QUERIES):
            texts = queries[start : start + QUERIES]
            vectors = self.embedder.embed(texts, self.batch_size)
            results = self.index.search(
                texts, vectors, wanted, hybrid=self.hybrid, weight=self.weight, where=where
            )
            for query, documents in zip(texts, results, strict=True):
                yield self._reranked(query, documents)[:top]

    def _reranked(self, query: str, results: list[Result]) -> list[Result]:
        """The first of the results in the reranker's order; those after them are dropped."""
        if self.reranker is None or not results:
            return results
        first = results[: self.reranked]
        scores = self.reranker.scores(query, [result.text for result in first], self.batch_size)
        order = np.argsort(-scores, kind="stable")
        return [first[i]._replace(score=float(scores[i])) for i in order]
