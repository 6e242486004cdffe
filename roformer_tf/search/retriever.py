"""Queries → the documents of an index that match them: embedded, searched, perhaps reranked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.inference.embed import TextEmbedder, VectorSettings
from roformer_tf.inference.opening import Finetuned, open_finetuned
from roformer_tf.inference.text_files import report
from roformer_tf.labelled.examples import Example
from roformer_tf.search.index import Hit, Result, SearchIndex
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.choices.reranking import Reranking, fused
from roformer_tf.tasks.classification import ENTAILMENT

# Queries that are embedded at a time.
QUERIES = 1024
# Names of labels that mean that two texts belong together.
RELATED = (
    *("1", "true", "yes", "是", "相关", "相似", "同义", "匹配", "similar", "relevant"),
    *ENTAILMENT,
)


@dataclass(frozen=True)
class Reranker:
    """A model fine-tuned on pairs, and which of its predictions is a score.

    Its weight is that of `Reranking`, selected on the validation set of the model; a model of pairs
    orders alone.
    """

    finetuned: Finetuned
    label: int = 0
    """The index of the label whose probability counts; 0 for a number, or for relevance."""
    weight: float = 1.0
    """Of its scores relative to the search's, from 0 to 1."""

    def scores(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """How well each document matches the query, (documents,) float32."""
        labelling = self.finetuned.task.labelling
        examples = [labelling.for_prediction(Example((query, x), None, "")) for x in documents]
        predictions = self.finetuned.predict(examples)
        return np.array([x.scores[self.label] for x in predictions], np.float32)


def open_reranker(folder: str, settings: VectorSettings, threads: int | None = None) -> Reranker:
    """Open a model that `finetune` made on pairs, with a label or a number for each.

    settings: its engine, precision and batch size are those of the vectors. threads: of a graph.
    Raises InputError for another model, and where no label means that two texts belong together.
    """
    finetuned = open_finetuned(
        folder,
        settings.engine,
        settings.precision,
        batch_size=settings.batch_size,
        threads=threads,
        text_columns=("query", "document"),
    )
    report(*finetuned.notes)
    task = finetuned.task
    classifies = task.decoding.graph_part == "classifier"
    several = task.separate_texts or task.labelling.lists_texts
    if len(task.text_columns) != 2 or not classifies or several:
        raise InputError(
            f"{folder} is fine-tuned for {task.name}, but --rerank needs a model of --task "
            "reranking, or a model of pairs: --task pair, or regression with two texts."
        )
    if isinstance(task, Reranking):
        return Reranker(finetuned, weight=task.weight)
    report(
        f"warning: {folder} orders the results alone. With a model of --task reranking the "
        "search's scores count, too, as much as was best on its validation set."
    )
    return Reranker(finetuned, relevant_label(task, folder))


def relevant_label(task: Task, name: str) -> int:
    """Index of the label that means that two texts belong together; 0 where a number is predicted.

    name: of the model. Raises InputError where no label is known to mean that.
    """
    # The names of --label-names, then the labels in the data, in the same order.
    labels = [label.casefold() for label in (*task.labels, *task.label_values)]
    known = [label for label in RELATED if label in labels]
    if labels and not known:
        raise InputError(
            f"{name} has the labels {', '.join(task.labels)}, and none is known to mean that two "
            "texts belong together. Fine-tune with labels called 0 and 1."
        )
    return labels.index(known[0]) % len(task.labels) if known else 0


@dataclass(frozen=True)
class Retriever:
    """An open index, the model of its vectors, and how it is searched."""

    index: SearchIndex
    embedder: TextEmbedder
    hybrid: bool = False
    weight: float | None = None
    """Of a cosine, which implies a hybrid search; by default the index's own."""
    reranker: Reranker | None = None
    reranked: int = 50
    """How many of the first documents the reranker orders."""

    def results(
        self, queries: Sequence[str], top: int, where: str | None = None
    ) -> Iterator[list[Result]]:
        """The best documents of each query, in the order of the queries."""
        for start in range(0, len(queries), QUERIES):
            texts = queries[start : start + QUERIES]
            vectors = self.embedder.embed(texts)
            yield from map(self.index.read, self.hits(texts, vectors, top, where))

    def hits(
        self, queries: Sequence[str], vectors: np.ndarray, top: int, where: str | None = None
    ) -> Iterator[list[Hit]]:
        """The best documents of each query, without their texts; vectors: (Q, D) of the queries."""
        wanted = top if self.reranker is None else max(top, self.reranked)
        hybrid = self.hybrid or self.weight is not None
        all_hits = self.index.search(
            queries, vectors, wanted, hybrid=hybrid, weight=self.weight, where=where
        )
        for query, hits in zip(queries, all_hits, strict=True):
            yield self._reranked(query, hits)[:top]

    def _reranked(self, query: str, hits: list[Hit]) -> list[Hit]:
        """The first of the hits in the combined order, then the rest, with the search's scores."""
        if self.reranker is None or not hits:
            return hits
        # May be fewer than the hits, if documents were deleted after the search.
        results = self.index.read(hits[: self.reranked])
        scores = self.reranker.scores(query, [x.text for x in results])
        weight = self.reranker.weight
        combined = scores if weight == 1 else fused([x.score for x in results], scores, weight)
        order = np.argsort(-combined, kind="stable")  # of equal scores, the search's order
        first = [Hit(results[i].number, float(combined[i])) for i in order]
        return first + hits[self.reranked :]
