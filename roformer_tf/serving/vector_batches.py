"""Batches of texts for their vectors, and for searches, whatever route they came from."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roformer_tf.errors import check_number
from roformer_tf.models.rows import grouped
from roformer_tf.serving.batching import Batcher, Deliver
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.settings import ServeConfig

if TYPE_CHECKING:
    from roformer_tf.inference.embed import TextEmbedder
    from roformer_tf.search.retriever import Retriever

# Of a vector's numbers, all below 1: more than float32 has.
DECIMALS = 8


class ServedVectors(NamedTuple):
    """A model of sentence vectors in service, and an index."""

    name: str
    embedder: "TextEmbedder"
    retriever: "Retriever | None" = None


class VectorQuery(NamedTuple):
    """One text of a request."""

    text: str | list[int]
    """The text, or its token ids without special tokens."""
    top: int | None = None
    """Number of documents to return; None for the vector itself."""
    where: str | None = None
    """A condition on the metadata of documents."""


class TextVector(NamedTuple):
    """The vector of a text."""

    numbers: np.ndarray
    """(D,) float32 of length 1."""
    tokens: int
    """How many tokens of the text were read."""


class VectorQueue(NamedTuple):
    """A model of sentence vectors with the texts that wait for it."""

    served: ServedVectors
    batcher: Batcher[VectorQuery, Any]
    config: ServeConfig


def vector_queue(
    served: ServedVectors, metrics: ServiceMetrics, config: ServeConfig
) -> VectorQueue:
    """Batches of texts, some for their vectors, some to search with."""

    def run(batch: list[VectorQuery], deliver: Deliver[Any]) -> None:
        blocks = list(served.embedder.blocks((query.text for query in batch), config.batch_size))
        # (texts, D) float32 of length 1, for queries of all kinds in one pass of the model.
        vectors = np.concatenate([block.vectors for block in blocks])
        lengths = [length for block in blocks for length in block.lengths]
        # A condition is evaluated once for all queries that have it.
        for (top, where), chosen in grouped(batch, lambda query: query[1:]).items():
            results: Iterable[Any] = (TextVector(vectors[i], lengths[i]) for i in chosen)
            if top is not None and served.retriever is not None:
                texts = [str(batch[i].text) for i in chosen]
                results = served.retriever.hits(texts, vectors[chosen], top, where)
            for i, result in zip(chosen, results, strict=True):
                deliver(i, result)

    return VectorQueue(served, Batcher(run, config.batch_size, config.limits, metrics), config)


def cut(
    vectors: list[np.ndarray], dimensions: int | None, embedder: "TextEmbedder"
) -> list[np.ndarray]:
    """The first numbers of vectors (D,), as vectors of length 1 again; None: all.

    Raises InputError for more than there are.
    """
    if dimensions is None:
        return vectors
    hint = "the size of the model's vectors"
    check_number("dimensions", dimensions, at_most=embedder.size, hint=hint)
    # Vectors have length 1 already, which changes nothing: after a cut only the direction counts.
    return list(replace(embedder, dimensions=dimensions).finished(np.stack(vectors)))


def numbers(vectors: Iterable[np.ndarray]) -> Iterator[list[float]]:
    """Vectors as lists for JSON."""
    for vector in vectors:
        yield vector.astype(np.float64).round(DECIMALS).tolist()
