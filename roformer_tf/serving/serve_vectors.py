"""The service of sentence vectors, and of a search index.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1
POST /search   the same with "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; needs an index

A model that generates text and has sentence vectors, such as a sim model, has /embed as well.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import Body, FastAPI, Response

from roformer_tf.inference.embed import TextEmbedder, open_embedder
from roformer_tf.inference.index import SearchIndex
from roformer_tf.inference.reranking import report_reranking
from roformer_tf.inference.retrieval import Answer, Retriever, load_reranker
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.serving.application import (
    FAILURES,
    check_texts,
    create_app,
    json_response,
    submit,
)
from roformer_tf.serving.batching import Batcher, deliver_all
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import (
    SAMPLE,
    SearchRequest,
    SearchResults,
    TextRequest,
    Vectors,
)
from roformer_tf.serving.serve_predictions import model_name
from roformer_tf.serving.settings import Limits, ServeConfig

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
DECIMALS = 8
"""Of a vector's numbers, all below 1: more than float32 has."""
WARM_UP = ["好" * 20, "好" * 40]
"""Two lengths: TensorFlow's plan for the second serves all later ones."""


class ServedIndex:
    """An open search index: everything that the service asks of it."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def __len__(self) -> int:
        return len(self._retriever.index)

    def search(self, queries: Sequence[str], top: int) -> list[list[Answer]]:
        """The best documents of each query, without their texts. Runs in the model's thread."""
        return list(self._retriever.answers(queries, top))

    def results(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        """The documents of one query as JSON. Runs in any thread."""
        results = []
        for answer in answers:
            text, name = self._retriever.index.document(answer.place)
            result = {"document": text, "score": round(answer.score, DECIMALS)}
            results.append(result if name is None else result | {"id": name})
        return results


class ServedVectors(NamedTuple):
    """A model of sentence vectors in service, and an index."""

    name: str
    embedder: TextEmbedder
    documents: ServedIndex | None = None


class VectorQuery(NamedTuple):
    """One text of a request."""

    text: str
    top: int | None = None
    """Number of documents to return; None for the vector itself."""


def load_served_vectors(config: ServeConfig) -> ServedVectors:
    """Open a model for its vectors, and an index, and use both once.

    Raises InputError where either cannot be opened, and for an index of another model.
    """
    name, precision = model_name(config.model), config.precision or "float32"
    if config.index is None:
        embedder = open_embedder(
            config.model, config.pooling, precision=precision, engine=config.engine
        )
        embedder.embed(WARM_UP)  # so that the first request is not slow
        return ServedVectors(name, embedder)
    index = SearchIndex(config.index)
    manifest = index.manifest
    embedder = open_embedder(
        config.model,
        config.pooling or manifest.pooling,
        manifest.dimensions,
        precision,
        manifest.max_length,
        engine=config.engine,
    )
    index.check_model(embedder)
    reranker = None if config.rerank is None else load_reranker(config.rerank, precision)
    retriever = Retriever(
        index, embedder, config.hybrid, reranker=reranker, batch_size=config.batch_size
    )
    if config.rerank is not None:
        for line in report_reranking(config.rerank, retriever):
            print(line, file=sys.stderr)
    documents = ServedIndex(retriever)
    documents.search(WARM_UP, 1)
    return ServedVectors(name, embedder, documents)


def create_vector_app(
    served: ServedVectors, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> FastAPI:
    """The application of sentence vectors, with /search if there is an index."""
    limits = limits or Limits()
    metrics = ServiceMetrics(served.name, "embedding")
    batcher = vector_batcher(served, metrics, batch_size, limits)
    health = {
        "task": "embedding",
        "title": TITLE if served.documents is None else SEARCH_TITLE,
        "pooling": served.embedder.config.pooling,
        "size": served.embedder.size,
        "documents": None if served.documents is None else len(served.documents),
        "limits": asdict(limits),
    }
    app = create_app(served.name, health, "vectors.js", metrics, [batcher], limits)
    add_embed(app, batcher, limits)
    if served.documents is not None:
        _add_search(app, served.documents, batcher, limits)
    return app


def vector_batcher(
    served: ServedVectors, metrics: ServiceMetrics, batch_size: int, limits: Limits
) -> Batcher[VectorQuery, Any]:
    """Batches of texts, some for their vectors, some to search with."""

    def run(batch: list[VectorQuery]) -> list[Any]:
        # /embed and /search share the model, and so its batches.
        results: list[Any] = [None] * len(batch)
        plain = [i for i, query in enumerate(batch) if query.top is None]
        vectors = served.embedder.embed((batch[i].text for i in plain), batch_size)
        for i, vector in zip(plain, vectors, strict=True):
            results[i] = vector
        searched = [(i, query.text, query.top) for i, query in enumerate(batch) if query.top]
        if searched and served.documents is not None:
            # One search for all: the best 10 are the first of the best 100.
            top = max(top for _, _, top in searched)
            answers = served.documents.search([text for _, text, _ in searched], top)
            for (i, _, top), each in zip(searched, answers, strict=True):
                results[i] = each[:top]
        return results

    return Batcher(deliver_all(run), batch_size, limits.max_waiting, metrics)


def add_embed(app: FastAPI, batcher: Batcher[VectorQuery, Any], limits: Limits) -> None:
    """Add the route /embed."""

    @app.post(
        "/embed",
        summary="Vectors of one text, or several",
        response_model=Vectors,
        responses=FAILURES,
    )
    async def embed(
        body: Annotated[TextRequest, Body(examples=[{"text": SAMPLE}])],
    ) -> Response:
        check_texts(body.items, limits)
        vectors = await submit(batcher, list(map(VectorQuery, body.items)))
        return await asyncio.to_thread(json_response, "vectors", _numbers(vectors), limits)


def _numbers(vectors: Sequence[np.ndarray]) -> Iterator[list[float]]:
    for vector in vectors:
        yield vector.astype(np.float64).round(DECIMALS).tolist()


def _add_search(
    app: FastAPI, index: ServedIndex, batcher: Batcher[VectorQuery, Any], limits: Limits
) -> None:
    @app.post(
        "/search",
        summary="Documents for one query, or several",
        response_model=SearchResults,
        responses=FAILURES,
    )
    async def search(
        body: Annotated[SearchRequest, Body(examples=[{"text": SAMPLE, "top": 10}])],
    ) -> Response:
        check_texts(body.items, limits)
        queries = [VectorQuery(text, body.top) for text in body.items]
        answers = await submit(batcher, queries)
        # Documents are read query by query, so that a too large response ends early.
        results = map(index.results, answers)
        return await asyncio.to_thread(json_response, "results", results, limits)
