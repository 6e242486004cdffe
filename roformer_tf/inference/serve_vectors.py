"""The service of a model that gives vectors, and of an index of documents.

POST /embed    {"text": X} or {"texts": [X, …]} → {"vectors": [[…], …]}, of length 1
POST /search   the same, and "top": N → {"results": [[{"document": …, "score": …}, …], …]}, the best
               first, with the `id` of documents that have one; where an index is served

A model that writes and gives vectors, such as the released sim ones, has /embed beside /generate.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.inference.batching import Batcher, at_once
from roformer_tf.inference.embed import TextEmbedder, open_embedder
from roformer_tf.inference.index import SearchIndex
from roformer_tf.inference.questions import (
    MEGABYTE,
    SAMPLE,
    JsonObject,
    Limits,
    parsed_question,
    question_type,
    read_body,
)
from roformer_tf.inference.reranking import report_reranking
from roformer_tf.inference.retrieval import Answer, Retriever, load_reranker
from roformer_tf.inference.service import (
    PATIENCE,
    count_requests,
    described_answers,
    described_question,
    make_service,
    promised,
)
from roformer_tf.models.rows import BATCH_SIZE

if TYPE_CHECKING:
    from fastapi import FastAPI

    from roformer_tf.inference.monitoring import ServiceMetrics

TITLE, SEARCH_TITLE = "句向量 · Sentence vectors", "检索 · Search"
TOP, MOST = 10, 100
"""Documents that a search finds unless asked otherwise, and at most."""
DECIMALS = 8
"""Of a vector's numbers, all below 1: more than float32 has."""


class ServedVectors(NamedTuple):
    """What a service embeds with, and searches in."""

    name: str
    embedder: TextEmbedder
    retriever: Retriever | None = None


class Asked(NamedTuple):
    """One text of a request."""

    text: str
    top: int | None = None
    """How many documents to find; None for the vector itself."""


def load_served_vectors(
    source: str | Path,
    index: Path | None = None,
    *,
    pooling: Pooling | None = None,
    hybrid: bool = False,
    rerank: str | None = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    batch_size: int = BATCH_SIZE,
) -> ServedVectors:
    """Load a model for its vectors, and an index of documents, and have both answer once.

    Raises InputError for what is none, and for an index of another model.
    """
    path = Path(source).resolve()
    name = path.parent.name if path.name == "model" else path.name.removesuffix(".zip")
    if index is None:
        embedder = open_embedder(source, pooling, precision=precision, engine=engine)
        embedder.embed(["好" * 20, "好" * 40])  # TensorFlow's plan for the second serves for all
        return ServedVectors(name, embedder)
    opened = SearchIndex(index)
    made = opened.manifest
    embedder = open_embedder(
        source,
        pooling or made.pooling,
        made.dimensions,
        precision,
        made.max_length,
        engine=engine,
    )
    opened.check_model(embedder)
    reranker = None if rerank is None else load_reranker(rerank, precision)
    retriever = Retriever(opened, embedder, hybrid, reranker=reranker, batch_size=batch_size)
    if rerank is not None:
        for line in report_reranking(rerank, retriever):
            print(line, file=sys.stderr)
    list(retriever.answers(["好" * 20, "好" * 40], 1))
    return ServedVectors(name, embedder, retriever)


def make_vector_app(
    served: ServedVectors, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> "FastAPI":
    """The service of vectors as an ASGI application, for any server of such."""
    from roformer_tf.inference.monitoring import ServiceMetrics

    limits = limits or Limits()
    title = TITLE if served.retriever is None else SEARCH_TITLE
    metrics = ServiceMetrics(served.name, "embedding")
    batcher = vector_batcher(served, metrics, batch_size, limits)
    health = {
        "task": "embedding",
        "title": title,
        "pooling": served.embedder.config.pooling,
        "size": served.embedder.size,
        "documents": None if served.retriever is None else len(served.retriever.index),
        "limits": asdict(limits),
    }
    app = make_service(served.name, title, "vectors.js", health, metrics, batcher)
    add_embed(app, served.embedder, batcher, limits)
    if served.retriever is not None:
        _add_search(app, served.retriever.index, batcher, limits)
    return count_requests(app, metrics)


def vector_batcher(
    served: ServedVectors, metrics: "ServiceMetrics", batch_size: int, limits: Limits
) -> Batcher[Asked, Any]:
    """What answers the texts of several requests together."""

    def answer(asked: list[Asked]) -> list[Any]:
        found: list[Any] = [None] * len(asked)
        plain = [place for place, one in enumerate(asked) if one.top is None]
        vectors = served.embedder.embed((asked[place].text for place in plain), batch_size)
        for place, vector in zip(plain, vectors, strict=True):
            found[place] = vector
        searched = [place for place, one in enumerate(asked) if one.top is not None]
        if searched and served.retriever is not None:
            most = max(asked[place].top or 0 for place in searched)
            answers = served.retriever.answers([asked[place].text for place in searched], most)
            for place, each in zip(searched, answers, strict=True):
                found[place] = each[: asked[place].top]
        return found

    return Batcher(at_once(metrics.count_batches(answer)), batch_size, limits.max_waiting)


def add_embed(
    app: "FastAPI", embedder: TextEmbedder, batcher: Batcher[Asked, Any], limits: Limits
) -> None:
    """Give a service the path /embed."""
    from starlette.requests import Request
    from starlette.responses import Response

    question = question_type(None, limits)

    @app.post(
        "/embed",
        summary="Vectors of one text, or several",
        responses=described_answers({"application/json": _described_vectors(embedder.size)}),
        openapi_extra=described_question(question.model_json_schema(), {"text": SAMPLE}),
    )
    async def embed(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE, PATIENCE)
        asked = await asyncio.to_thread(parsed_question, question, body, {"text": "…"})
        texts = asked.texts or [asked.text]
        vectors = await asyncio.wrap_future(promised(batcher, list(map(Asked, texts))))
        written = await asyncio.to_thread(_vectors_json, vectors)
        return Response(written, media_type="application/json")


def _add_search(
    app: "FastAPI", index: SearchIndex, batcher: Batcher[Asked, Any], limits: Limits
) -> None:
    """Give a service the path /search."""
    from pydantic import Field
    from starlette.requests import Request
    from starlette.responses import Response

    example = {"text": "…", "top": TOP}
    top = Annotated[int, Field(ge=1, le=MOST)]
    question = question_type(None, limits, {"top": (top, TOP)})

    @app.post(
        "/search",
        summary="Documents that answer one query, or several",
        responses=described_answers({"application/json": _described_results()}),
        openapi_extra=described_question(
            question.model_json_schema(), {"text": SAMPLE, "top": TOP}
        ),
    )
    async def search(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE, PATIENCE)
        asked = await asyncio.to_thread(parsed_question, question, body, example)
        queries = [Asked(text, asked.top) for text in asked.texts or [asked.text]]
        found = await asyncio.wrap_future(promised(batcher, queries))
        written = await asyncio.to_thread(_results_json, index, found)
        return Response(written, media_type="application/json")


def _vectors_json(vectors: Sequence[np.ndarray]) -> str:
    """The answer of /embed."""
    numbers = np.stack(vectors).astype(np.float64).round(DECIMALS)
    return json.dumps({"vectors": numbers.tolist()}, separators=(",", ":"))


def _results_json(index: SearchIndex, found: Sequence[Sequence[Answer]]) -> str:
    """The answer of /search."""

    def result(answer: Answer) -> JsonObject:
        text, name = index.document(answer.place)
        named = {} if name is None else {"id": name}
        return {"document": text, "score": round(answer.score, DECIMALS), **named}

    results = [[result(answer) for answer in each] for each in found]
    return json.dumps({"results": results}, ensure_ascii=False)


def _described_vectors(size: int) -> dict[str, Any]:
    """The right answers of /embed for OpenAPI."""
    vector = {
        "type": "array",
        "items": {"type": "number"},
        "minItems": size,
        "maxItems": size,
        "description": "Of length 1: the product of two is their cosine.",
    }
    vectors = {"type": "array", "items": vector, "description": "In the order of the texts."}
    return {
        "schema": {"type": "object", "required": ["vectors"], "properties": {"vectors": vectors}}
    }


def _described_results() -> dict[str, Any]:
    """The right answers of /search for OpenAPI."""
    result = {
        "type": "object",
        "required": ["document", "score"],
        "properties": {
            "document": {"type": "string"},
            "score": {"type": "number", "description": "The higher the better."},
            "id": {"type": "string", "description": "Of documents that have one."},
        },
    }
    results = {
        "type": "array",
        "items": {"type": "array", "items": result},
        "description": "For each query its documents, the best first.",
    }
    return {
        "schema": {"type": "object", "required": ["results"], "properties": {"results": results}}
    }
