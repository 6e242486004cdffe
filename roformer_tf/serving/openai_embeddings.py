"""OpenAI's route for vectors.

POST /v1/embeddings   {"input": X or [X, …], "model": …, "encoding_format"?, "dimensions"?}
                      → {"object": "list", "data": [{"embedding": …}, …], "model", "usage"}
"""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, HTTPException, Response

from roformer_tf.serving.application import check_lengths, json_response
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import OPENAI_FAILURES
from roformer_tf.serving.schemas import SAMPLE, Embeddings, EmbeddingsRequest, listed
from roformer_tf.serving.settings import ApiConfig, Limits
from roformer_tf.serving.vector_batches import ServedVectors, TextVector, VectorQuery, cut, numbers
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

EXAMPLE = {"input": SAMPLE, "model": "any"}


def add_embeddings(
    router: APIRouter,
    served: ServedVectors,
    batcher: Batcher[VectorQuery, Any],
    limits: Limits,
    api: ApiConfig,
) -> None:
    """Add the route /v1/embeddings."""
    tokenizer = served.embedder.tokenizer

    @router.post(
        "/v1/embeddings",
        summary="Vectors of one text, or several, as at OpenAI",
        response_model=Embeddings,
        responses=OPENAI_FAILURES,
    )
    async def embeddings(body: Annotated[EmbeddingsRequest, Body(examples=[EXAMPLE])]) -> Response:
        inputs = checked_inputs("input", listed(body.input), tokenizer, limits, api)
        queries = [VectorQuery(without_specials(x, tokenizer)) for x in inputs]
        results: list[TextVector] = await batcher.results(queries, limits.max_texts)
        vectors = cut([x.numbers for x in results], body.dimensions)
        tokens = sum(x.tokens for x in results)
        more = {
            "object": "list",
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        items = _items(vectors, body.encoding_format == "base64")
        return await asyncio.to_thread(json_response, "data", items, limits, more)


def checked_inputs(
    name: str, inputs: list[Any], tokenizer: RoFormerTokenizer, limits: Limits, api: ApiConfig
) -> list[Any]:
    """Texts, or lists of token ids. Status 422 for what is too long, or no id of the model."""
    if isinstance(inputs[0], str):
        check_lengths(inputs, limits)
        return inputs
    if not api.accept_token_ids:
        raise HTTPException(
            422,
            f"{name} holds token ids, which are those of another tokenizer: send text. LangChain "
            "does with OpenAIEmbeddings(check_embedding_ctx_length=False). For ids of this "
            "model's own vocabulary, start the service with --accept-token-ids.",
        )
    for ids in inputs:
        if max(ids) >= tokenizer.vocab_size:
            raise HTTPException(
                422,
                f"{name} holds the token id {max(ids)}, but the vocabulary of the model has "
                f"{tokenizer.vocab_size:,} tokens",
            )
    return inputs


def without_specials(text: Any, tokenizer: RoFormerTokenizer) -> Any:
    """Token ids without [CLS] at the beginning and [SEP] at the end, if they are there."""
    if isinstance(text, str):
        return text
    start = 1 if text[0] == tokenizer.cls_id else 0
    return text[start : -1 if text[-1] == tokenizer.sep_id else None]


def _items(vectors: Sequence[np.ndarray], as_base64: bool) -> Iterator[dict[str, Any]]:
    coded = (base64.b64encode(x.astype("<f4").tobytes()).decode() for x in vectors)
    for index, vector in enumerate(coded if as_base64 else numbers(vectors)):
        yield {"object": "embedding", "index": index, "embedding": vector}
