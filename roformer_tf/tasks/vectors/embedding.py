"""`--task embedding`: one name for two tasks, of which the examples select one."""

import dataclasses
from typing import Any, ClassVar, cast

from roformer_tf.tasks.base import Examples, Task, part
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.vectors.ranked_texts import RETRIEVAL
from roformer_tf.tasks.vectors.retrieval import Retrieval, RetrievalMetrics
from roformer_tf.tasks.vectors.scored_pairs import ScoredMetrics, ScoredPairs, few_levels
from roformer_tf.tasks.vectors.sentence_vectors import data_of


class EmbeddingMetrics(RetrievalMetrics):
    """The metrics of both tasks by name: `embedding` is the only task name in a report."""

    all: ClassVar[tuple[Metric, ...]] = (*RETRIEVAL, *ScoredMetrics.all)


class Embedding(Retrieval):
    """The task of `--task embedding`: retrieval, or scored pairs if its examples have scores."""

    metrics = part(EmbeddingMetrics)

    @classmethod
    def from_examples(cls, training: Examples, **settings: Any) -> Task:
        """Retrieval or scored pairs. Raises InputError if nothing can be learned."""
        if data_of(training) == "scores":
            return ScoredPairs.from_examples(training, **settings)
        return super().from_examples(training, **settings)

    @classmethod
    def from_settings(cls, **settings: Any) -> Task:
        """The task with these settings: retrieval or scored pairs."""
        return ScoredPairs(**settings) if settings.get("data") == "scores" else cls(**settings)

    @classmethod
    def adapted(cls, task: Any, examples: Examples) -> Task:
        """The task for another kind of data than that of the training."""
        data = data_of(examples)
        if data == task.data:
            return cast(Task, task)
        # The learned settings stay, such as the threshold; the kind of data changes.
        settings = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
        levels = few_levels(examples) if data == "scores" else ()
        return cls.from_settings(**settings | {"data": data, "levels": levels})
