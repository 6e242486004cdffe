"""OpenAI's route for vectors.

POST /v1/embeddings   {"input": X or [X, …], "model": …, "encoding_format"?, "dimensions"?}
                      → {"object": "list", "data": [{"embedding": …}, …], "model", "usage"}
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from roformer_tf.errors import InputError, check_number
from roformer_tf.serving.application import check_lengths, json_response
from roformer_tf.serving.failures import OPENAI_ERRORS
from roformer_tf.serving.schemas import SAMPLE, CompatibleRequest, TextsOrIds, Usage
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.serving.vector_batches import TextVector, VectorQuery, VectorQueue, cut, numbers
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

EXAMPLE = {"input": SAMPLE, "model": "any"}


class EmbeddingsRequest(CompatibleRequest):
    """OpenAI's request for vectors."""

    input: TextsOrIds
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32. Default: float."
    )
    dimensions: int | None = Field(None, ge=1, description="Cut vectors to so many numbers.")


class EmbeddingItem(BaseModel):
    """A vector of length 1."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    """Vectors in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


def add_embeddings(router: APIRouter, queue: VectorQueue) -> None:
    """Add the route /v1/embeddings."""
    served, batcher, config = queue
    tokenizer = served.embedder.tokenizer

    @router.post(
        "/v1/embeddings",
        summary="Vectors of one text, or several, as at OpenAI",
        response_model=Embeddings,
        responses=OPENAI_ERRORS,
    )
    async def embeddings(body: Annotated[EmbeddingsRequest, Body(examples=[EXAMPLE])]) -> Response:
        _check_inputs(body.input, tokenizer, config)
        queries = [VectorQuery(_without_specials(x, tokenizer)) for x in body.input]
        results: list[TextVector] = await batcher.results(queries)
        vectors = cut([x.numbers for x in results], body.dimensions, served.embedder)
        tokens = sum(x.tokens for x in results)
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
