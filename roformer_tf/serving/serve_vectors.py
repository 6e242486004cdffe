"""The service of sentence vectors, and of a search index.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1; or, as at
               Text Embeddings Inference, {"inputs": X or [X, …]} → [[…], …]
POST /v1/embeddings   as at OpenAI: {"input": X or [X, …], "model": …, "encoding_format"?,
               "dimensions"?} → {"object": "list", "data": [{"embedding": …}, …], "model", "usage"}
POST /search   the same with "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; needs an index. Also "offset": N to
               skip the best, and "where": a condition

With --writable, for which the index is a database that other processes may use at the same time:

PUT, POST /documents     {"documents": [{"id", "text", …}, …]} → {"new", "updated", "unchanged",
                         "total"}: as the lines of a file of `search --documents`; other keys are
                         metadata for `where`
DELETE /documents/ID      → {"deleted": ID}, or status 404

A model that generates text and has sentence vectors, such as a sim model, has /embed and
/v1/embeddings as well.
"""

import asyncio
import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from fastapi import APIRouter, Body, HTTPException, Response
from pydantic import Field

from roformer_tf.errors import InputError, check_number
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.models.rows import grouped
from roformer_tf.search import writing
from roformer_tf.search.document_files import Document, as_metadata
from roformer_tf.search.filters import parse_filter
from roformer_tf.search.index import Result, SearchIndex
from roformer_tf.search.retriever import Retriever
from roformer_tf.serving.application import ModelRoutes, check_lengths, check_texts, json_response
from roformer_tf.serving.batching import Batcher, Deliver, ModelQueue
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import (
    SAMPLE,
    CompatibleRequest,
    DocumentsRequest,
    EmbedRequest,
    SearchRequest,
    SearchResults,
    TeiEmbedRequest,
    TextsOrIds,
    TextVectors,
)
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
# Two lengths: TensorFlow's plan for the second serves all later ones.
WARM_UP = ["好" * 20, "好" * 40]
DOCUMENTS = {"documents": [{"id": "a", "text": SAMPLE, "year": 2024}]}
INPUT = {"input": SAMPLE, "model": "any"}
# Of a vector's numbers, all below 1: more than float32 has.
DECIMALS = 8


class ServedVectors(NamedTuple):
    """A model of sentence vectors in service, and an index."""

    name: str
    embedder: TextEmbedder
    retriever: Retriever | None = None


class VectorQuery(NamedTuple):
    """One text of a request."""

    text: str | list[int]
    """The text, or its token ids without special tokens."""
    top: int | None = None
    """Number of documents to return; None for its vector and how many tokens were read."""
    where: str | None = None
    """A condition on the metadata of documents."""


def vector_queue(served: ServedVectors, metrics: ServiceMetrics, config: ServeConfig) -> ModelQueue:
    """Batches of texts, some for their vectors, some to search with."""

    def run(batch: list[VectorQuery], deliver: Deliver[Any]) -> None:
        blocks = list(served.embedder.blocks(query.text for query in batch))
        # (texts, D) float32 of length 1, for queries of all kinds in one pass of the model.
        vectors = np.concatenate([block.vectors for block in blocks])
        lengths = [length for block in blocks for length in block.lengths]
        # A condition is evaluated once for all queries that have it.
        for (top, where), chosen in grouped(batch, lambda query: query[1:]).items():
            results: Iterable[Any] = ((vectors[i], lengths[i]) for i in chosen)
            if top is not None and served.retriever is not None:
                texts = [str(batch[i].text) for i in chosen]
                results = served.retriever.hits(texts, vectors[chosen], top, where)
            for i, result in zip(chosen, results, strict=True):
                deliver(i, result)

    return ModelQueue(served, Batcher(run, config.batch_size, config.limits, metrics), config)


def cut(
    vectors: list[np.ndarray], dimensions: int | None, embedder: TextEmbedder
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


def add_vectors(router: APIRouter, queue: ModelQueue) -> None:
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
        vectors = [vector for vector, _ in await batcher.results(list(map(VectorQuery, texts)))]
        if tei:
            vectors = cut(vectors, body.dimensions, served.embedder)
            return await json_response(numbers(vectors), config.limits)
        return await json_response({"vectors": numbers(vectors)}, config.limits)


def _add_search(router: APIRouter, index: SearchIndex, queue: ModelQueue) -> None:
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


def _as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The documents of one query."""
    return [
        {"document": result.text, "score": round(result.score, DECIMALS)}
        | ({} if result.id is None else {"id": result.id})
        for result in results
    ]


def _add_documents(router: APIRouter, index: SearchIndex, queue: ModelQueue) -> None:
    """Add the routes that change the documents of an index."""
    served, batcher, config = queue
    add = partial(writing.add_documents, index.folder, served.embedder)

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


# OpenAI's route


class EmbeddingsRequest(CompatibleRequest):
    """OpenAI's request for vectors."""

    input: TextsOrIds
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32. Default: float."
    )
    dimensions: int | None = Field(None, ge=1, description="Cut vectors to so many numbers.")


def add_embeddings(router: APIRouter, queue: ModelQueue) -> None:
    """Add the route /v1/embeddings."""
    served, batcher, config = queue
    tokenizer = served.embedder.tokenizer

    @router.post(
        "/v1/embeddings",
        summary="Vectors of one text, or several, as at OpenAI",
        description="The response is OpenAI's; all vectors have the length 1.",
    )
    async def embeddings(body: Annotated[EmbeddingsRequest, Body(examples=[INPUT])]) -> Response:
        _check_inputs(body.input, tokenizer, config)
        queries = [VectorQuery(_without_specials(x, tokenizer)) for x in body.input]
        results = await batcher.results(queries)
        vectors = cut([vector for vector, _ in results], body.dimensions, served.embedder)
        tokens = sum(length for _, length in results)
        content = {
            "object": "list",
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "data": _items(vectors, body.encoding_format == "base64"),
        }
        return await json_response(content, config.limits)


def _check_inputs(inputs: list[Any], tokenizer: RoFormerTokenizer, config: ServeConfig) -> None:
    """Raise InputError for texts that are too long, and for token ids that are not the model's."""
    if isinstance(inputs[0], str):
        check_lengths(inputs, config.limits)
        return
    if not config.api.accept_token_ids:
        raise InputError(
            "input holds token ids, which are those of another tokenizer: send text. LangChain "
            "does with OpenAIEmbeddings(check_embedding_ctx_length=False). For ids of this "
            "model's own vocabulary, start the service with --accept-token-ids."
        )
    hint = "the size of the model's vocabulary"
    check_number("a token id", max(map(max, inputs)), below=tokenizer.vocab_size, hint=hint)


def _without_specials(text: Any, tokenizer: RoFormerTokenizer) -> Any:
    """Token ids without [CLS] at the beginning and [SEP] at the end, if they are there."""
    if isinstance(text, str):
        return text
    start = 1 if text[0] == tokenizer.cls_id else 0
    return text[start : -1 if text[-1] == tokenizer.sep_id else None]


def _items(vectors: Sequence[np.ndarray], as_base64: bool) -> Iterator[dict[str, Any]]:
    coded = (base64.b64encode(x.astype("<f4").tobytes()).decode() for x in vectors)
    for index, vector in enumerate(coded if as_base64 else numbers(vectors)):
        yield {"object": "embedding", "index": index, "embedding": vector}
