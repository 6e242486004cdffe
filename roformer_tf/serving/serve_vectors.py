"""The service of sentence vectors, and of a search index.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1; or, as at
               Text Embeddings Inference, {"inputs": X or [X, …]} → [[…], …]
POST /search   the same with "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; needs an index. Also "offset": N to
               skip the best, and "where": a condition

With --writable, for which the index is a database that other processes may use at the same time:

PUT, POST /documents     {"documents": [{"id", "text", …}, …]} → {"new", "updated", "unchanged",
                         "total"}: as the lines of a file of `search --documents`; other keys are
                         metadata for `where`
DELETE /documents/ID      → {"deleted": ID}, or status 404

A model that generates text and has sentence vectors, such as a sim model, has /embed as well.
OpenAI's /v1/embeddings is in `openai_embeddings`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Response

from roformer_tf.search import writing
from roformer_tf.search.document_files import Document, as_metadata
from roformer_tf.search.filters import parse_filter
from roformer_tf.serving.application import ModelRoutes, check_texts, json_response
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.openai_embeddings import add_embeddings
from roformer_tf.serving.schemas import (
    SAMPLE,
    DocumentsRequest,
    EmbedRequest,
    SearchRequest,
    SearchResults,
    TeiEmbedRequest,
    TextVectors,
)
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.serving.vector_batches import (
    DECIMALS,
    ServedVectors,
    VectorQuery,
    VectorQueue,
    cut,
    numbers,
    vector_queue,
)

if TYPE_CHECKING:
    from roformer_tf.search.index import Result, SearchIndex

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
# Two lengths: TensorFlow's plan for the second serves all later ones.
WARM_UP = ["好" * 20, "好" * 40]
DOCUMENTS = {"documents": [{"id": "a", "text": SAMPLE, "year": 2024}]}


def vector_routes(
    served: ServedVectors, metrics: ServiceMetrics, config: ServeConfig
) -> ModelRoutes:
    """The routes of sentence vectors, with /search if there is an index."""
    queue = vector_queue(served, metrics, config)
    index = None if served.retriever is None else served.retriever.index
    health = {
        "task": "embedding",
        "title": TITLE if index is None else SEARCH_TITLE,
        "pooling": served.embedder.config.pooling,
        "size": served.embedder.size,
        "documents": None if index is None else lambda: len(index),
        "limits": asdict(config.limits),
    }
    router = APIRouter()
    add_vectors(router, queue)
    if index is not None:
        _add_search(router, index, queue)
        if config.writable:
            _add_documents(router, index, queue)
    choice = served.embedder.choice
    return ModelRoutes(served.name, router, health, "vectors.js", [queue.batcher], choice)


def add_vectors(router: APIRouter, queue: VectorQueue) -> None:
    """Add the routes /embed and /v1/embeddings."""
    add_embeddings(router, queue)
    served, batcher, config = queue

    @router.post(
        "/embed",
        summary="Vectors of one text, or several",
        response_model=TextVectors | list[list[float]],
    )
    async def embed(body: Annotated[EmbedRequest, Body(examples=[{"text": SAMPLE}])]) -> Response:
        tei = isinstance(body, TeiEmbedRequest)
        texts = body.inputs if tei else body.items
        check_texts(texts, config.limits)
        vectors = [x.numbers for x in await batcher.results(list(map(VectorQuery, texts)))]
        if tei:
            vectors = cut(vectors, body.dimensions, served.embedder)
            return await json_response(numbers(vectors), config.limits)
        return await json_response({"vectors": numbers(vectors)}, config.limits)


def _add_search(router: APIRouter, index: "SearchIndex", queue: VectorQueue) -> None:
    _, batcher, config = queue

    @router.post(
        "/search", summary="Documents for one query, or several", response_model=SearchResults
    )
    async def search(
        body: Annotated[SearchRequest, Body(examples=[{"text": SAMPLE, "top": 10}])],
    ) -> Response:
        check_texts(body.items, config.limits)
        if body.where is not None:  # here, so that an error is this request's, not its batch's
            parse_filter(body.where, await asyncio.to_thread(lambda: index.fields))
        count = body.offset + body.top
        queries = [VectorQuery(text, count, body.where) for text in body.items]
        all_hits = [hits[body.offset :] for hits in await batcher.results(queries)]
        # Texts are read query by query while the response is written, so that its size limit also
        # limits memory: 128 queries may find 13,000 documents of any length.
        results = (_as_json(index.read(hits)) for hits in all_hits)
        return await json_response({"results": results}, config.limits)


def _as_json(results: "Sequence[Result]") -> list[dict[str, Any]]:
    """The documents of one query."""
    return [
        {"document": result.text, "score": round(result.score, DECIMALS)}
        | ({} if result.id is None else {"id": result.id})
        for result in results
    ]


def _add_documents(router: APIRouter, index: "SearchIndex", queue: VectorQueue) -> None:
    """Add the routes that change the documents of an index."""
    served, batcher, config = queue
    add = partial(
        writing.add_documents, index.folder, served.embedder, batch_size=config.batch_size
    )

    @router.put("/documents", summary="Add documents, or replace them by id")
    @router.post("/documents", summary="The same as PUT")
    async def put(body: Annotated[DocumentsRequest, Body(examples=[DOCUMENTS])]) -> writing.Added:
        check_texts([x.text for x in body.documents], config.limits)
        documents = [
            Document(x.text, x.id, as_metadata(x.model_extra or {})) for x in body.documents
        ]
        # In the model's thread, because new documents are embedded.
        return await batcher.call(partial(add, documents))

    @router.delete("/documents/{name:path}", summary="Delete a document")
    async def delete(name: str) -> dict[str, str]:
        # Needs no model, so it does not wait for its thread.
        if await asyncio.to_thread(writing.delete_documents, index.folder, [name]):
            raise HTTPException(404, f"no document has the id {name!r}")
        return {"deleted": name}
