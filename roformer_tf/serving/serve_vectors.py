"""The service of sentence vectors, and of a search index.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1; or, as at
               Text Embeddings Inference, {"inputs": X or [X, …]} → [[…], …]
POST /search   the same with "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; needs an index. Also "offset": N to
               skip the best, and "where": a condition
PUT, DELETE /documents   see `document_routes`

A model that generates text and has sentence vectors, such as a sim model, has /embed as well.
OpenAI's /v1/embeddings is in `openai_embeddings`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Response

from roformer_tf.errors import InputError
from roformer_tf.search.filters import parse_filter
from roformer_tf.serving.application import ModelRoutes, check_texts, json_response
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import FAILURES
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.openai_embeddings import add_embeddings
from roformer_tf.serving.schemas import (
    SAMPLE,
    EmbedRequest,
    SearchRequest,
    SearchResults,
    TeiEmbedRequest,
    TextRequest,
    TextVectors,
    listed,
)
from roformer_tf.serving.settings import ApiConfig, Limits
from roformer_tf.serving.vector_batches import (
    DECIMALS,
    ServedVectors,
    VectorQuery,
    cut,
    numbers,
    vector_batcher,
)

if TYPE_CHECKING:
    from roformer_tf.search.index import Result, SearchIndex

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
# Two lengths: TensorFlow's plan for the second serves all later ones.
WARM_UP = ["好" * 20, "好" * 40]


def _as_json(results: "Sequence[Result]") -> list[dict[str, Any]]:
    """The documents of one query."""
    return [
        {"document": result.text, "score": round(result.score, DECIMALS)}
        | ({} if result.id is None else {"id": result.id})
        for result in results
    ]


def vector_routes(
    served: ServedVectors,
    metrics: ServiceMetrics,
    batch_size: int,
    limits: Limits,
    api: ApiConfig,
) -> ModelRoutes:
    """The routes of sentence vectors, with /search if there is an index."""
    batcher = vector_batcher(served, metrics, batch_size, limits)
    index = None if served.retriever is None else served.retriever.index
    health = {
        "task": "embedding",
        "title": TITLE if index is None else SEARCH_TITLE,
        "pooling": served.embedder.config.pooling,
        "size": served.embedder.size,
        "documents": None if index is None else lambda: len(index),
        "limits": asdict(limits),
    }
    router = APIRouter()
    add_vectors(router, served, batcher, limits, api)
    if index is not None:
        _add_search(router, index, batcher, limits)
    if served.writable:
        from roformer_tf.serving.document_routes import add_documents

        add_documents(router, served, batcher, batch_size, limits)
    return ModelRoutes(served.name, router, health, "vectors.js", [batcher])


def add_vectors(
    router: APIRouter,
    served: ServedVectors,
    batcher: Batcher[VectorQuery, Any],
    limits: Limits,
    api: ApiConfig,
) -> None:
    """Add the routes /embed and /v1/embeddings."""
    add_embeddings(router, served, batcher, limits, api)

    @router.post(
        "/embed",
        summary="Vectors of one text, or several",
        response_model=TextVectors | list[list[float]],
        responses=FAILURES,
    )
    async def embed(
        body: Annotated[EmbedRequest, Body(examples=[{"text": SAMPLE}])],
    ) -> Response:
        tei = body if isinstance(body, TeiEmbedRequest) else None
        texts = body.items if isinstance(body, TextRequest) else listed(body.inputs)
        check_texts(texts, limits)
        vectors = [x.numbers for x in await batcher.results(list(map(VectorQuery, texts)))]
        if tei is not None:
            vectors = cut(vectors, tei.dimensions)
        key = "vectors" if tei is None else ""
        return await asyncio.to_thread(json_response, key, numbers(vectors), limits)


def _add_search(
    router: APIRouter, index: "SearchIndex", batcher: Batcher[VectorQuery, Any], limits: Limits
) -> None:
    @router.post(
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
        count = body.offset + body.top
        queries = [VectorQuery(text, count, body.where) for text in body.items]
        all_hits = [hits[body.offset :] for hits in await batcher.results(queries)]
        # Texts are read query by query while the response is written, so that its size limit also
        # limits memory: 128 queries may find 13,000 documents of any length.
        results = (_as_json(index.read(hits)) for hits in all_hits)
        return await asyncio.to_thread(json_response, "results", results, limits)
