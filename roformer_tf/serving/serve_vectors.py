"""The service of sentence vectors, and of a search index.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1
POST /search   the same with "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; needs an index

A model that generates text and has sentence vectors, such as a sim model, has /embed as well.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from fastapi import Body, FastAPI, HTTPException, Response

from roformer_tf.errors import InputError
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.search.filters import parse_filter
from roformer_tf.serving.application import (
    FAILURES,
    check_texts,
    create_app,
    json_response,
)
from roformer_tf.serving.batching import Batcher, deliver_all
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import (
    SAMPLE,
    SearchRequest,
    SearchResults,
    TextRequest,
    TextVectors,
)
from roformer_tf.serving.settings import Limits

if TYPE_CHECKING:
    from roformer_tf.inference.embed import TextEmbedder
    from roformer_tf.search.index import Result, SearchIndex
    from roformer_tf.search.retrieval import Retriever

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
# Of a vector's numbers, all below 1: more than float32 has.
DECIMALS = 8
# Two lengths: TensorFlow's plan for the second serves all later ones.
WARM_UP = ["好" * 20, "好" * 40]


def _as_json(results: "Sequence[Result]") -> list[dict[str, Any]]:
    """The documents of one query."""
    return [
        {"document": result.text, "score": round(result.score, DECIMALS)}
        | ({} if result.id is None else {"id": result.id})
        for result in results
    ]


class ServedVectors(NamedTuple):
    """A model of sentence vectors in service, and an index."""

    name: str
    embedder: "TextEmbedder"
    retriever: "Retriever | None" = None


class VectorQuery(NamedTuple):
    """One text of a request."""

    text: str
    top: int | None = None
    """Number of documents to return; None for the vector itself."""
    where: str | None = None
    """A condition on the metadata of documents."""


def create_vector_app(
    served: ServedVectors, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> FastAPI:
    """The application of sentence vectors, with /search if there is an index."""
    limits = limits or Limits()
    metrics = ServiceMetrics(served.name, "embedding")
    batcher = vector_batcher(served, metrics, batch_size, limits)
    health = {
        "task": "embedding",
        "title": TITLE if served.retriever is None else SEARCH_TITLE,
        "pooling": served.embedder.config.pooling,
        "size": served.embedder.size,
        "documents": None if served.retriever is None else len(served.retriever.index),
        "limits": asdict(limits),
    }
    app = create_app(served.name, health, "vectors.js", metrics, [batcher], limits)
    add_embed(app, batcher, limits)
    if served.retriever is not None:
        _add_search(app, served.retriever.index, batcher, limits)
    return app


def vector_batcher(
    served: ServedVectors, metrics: ServiceMetrics, batch_size: int, limits: Limits
) -> Batcher[VectorQuery, Any]:
    """Batches of texts, some for their vectors, some to search with."""

    def run(batch: list[VectorQuery]) -> list[Any]:
        vectors = served.embedder.embed((query.text for query in batch), batch_size)
        results: list[Any] = list(vectors)
        if served.retriever is None:
            return results
        # A condition is evaluated once for all queries that have it.
        for top, where in {(query.top, query.where) for query in batch if query.top}:
            chosen = [i for i, x in enumerate(batch) if (x.top, x.where) == (top, where)]
            texts = [batch[i].text for i in chosen]
            all_hits = served.retriever.hits(texts, vectors[chosen], top, where)
            for i, hits in zip(chosen, all_hits, strict=True):
                results[i] = hits
        return results

    return Batcher(deliver_all(run), batch_size, limits.max_waiting, metrics)


def add_embed(app: FastAPI, batcher: Batcher[VectorQuery, Any], limits: Limits) -> None:
    """Add the route /embed."""

    @app.post(
        "/embed",
        summary="Vectors of one text, or several",
        response_model=TextVectors,
        responses=FAILURES,
    )
    async def embed(
        body: Annotated[TextRequest, Body(examples=[{"text": SAMPLE}])],
    ) -> Response:
        check_texts(body.items, limits)
        vectors = await asyncio.wrap_future(batcher.submit(list(map(VectorQuery, body.items))))
        return await asyncio.to_thread(json_response, "vectors", _numbers(vectors), limits)


def _numbers(vectors: Sequence[np.ndarray]) -> Iterator[list[float]]:
    for vector in vectors:
        yield vector.astype(np.float64).round(DECIMALS).tolist()


def _add_search(
    app: FastAPI, index: "SearchIndex", batcher: Batcher[VectorQuery, Any], limits: Limits
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
        if body.where is not None:
            # Here, so that an error is this request's alone and not its batch's.
            try:
                parse_filter(body.where, await asyncio.to_thread(lambda: index.fields))
            except InputError as error:
                raise HTTPException(422, str(error)) from None
        queries = [VectorQuery(text, body.top, body.where) for text in body.items]
        all_hits = await asyncio.wrap_future(batcher.submit(queries))
        # Texts are read query by query while the response is written, so that its size limit also
        # limits memory: 128 queries may find 13,000 documents of any length.
        results = (_as_json(index.read(hits)) for hits in all_hits)
        return await asyncio.to_thread(json_response, "results", results, limits)
