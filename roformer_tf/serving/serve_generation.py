"""The service of a causal language model: gpt, sim, or the result of causal pretraining.

POST /generate  {"text": X} or {"texts": [X, …]}, with the settings of `GenerationConfig`, and
                `paraphrases` of a sim model
                → {"generations": [[{"text": …, "score": …}, …], …], "seed": …}
                {"text": X, "stream": true} → events {"text": chunk} …, and at the end
                {"done": true, "text": the whole, "score": …, "seed": …}

OpenAI's /v1/completions is in `openai_completions`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from roformer_tf.engines.choice import KerasPrecision
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import embedder_of
from roformer_tf.inference.generate import nearest_paraphrases, open_generator
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.application import ModelRoutes, check_texts
from roformer_tf.serving.batching import Batcher, Deliver
from roformer_tf.serving.failures import FAILURE, FAILURES
from roformer_tf.serving.generation_jobs import (
    CLIENT_CLOSED,
    NO_BUFFERING,
    GenerationJob,
    ServedGenerator,
    generate_batch,
    jobs_of,
    streamed,
    unless_disconnected,
)
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.openai_completions import add_completions
from roformer_tf.serving.schemas import SAMPLE, GeneratedText, GenerateRequest, Generations
from roformer_tf.serving.serve_vectors import add_vectors
from roformer_tf.serving.settings import ApiConfig, GenerationLimits, Limits, model_name
from roformer_tf.serving.vector_batches import ServedVectors, vector_batcher

if TYPE_CHECKING:
    from roformer_tf.models.generator import Continuation
    from roformer_tf.serving.generation_jobs import Texts

TITLE = "文本生成 · Text generation"
EXAMPLE = {"text": SAMPLE, "max_tokens": 16, "seed": 1}


def load_served_generator(
    source: str | Path,
    attention: str | None = None,
    precision: KerasPrecision = "float32",
) -> ServedGenerator:
    """Open a causal language model, and generate once. Raises InputError as `open_generator`."""
    model = open_generator(source, attention, precision)
    name = model_name(source)
    embedder = None if getattr(model, "pooler", None) is None else embedder_of(model, name)
    served = ServedGenerator(name, model, embedder)
    if embedder is not None:
        nearest_paraphrases(model, [SAMPLE], [[SAMPLE[:3]]], 1)
    config = GenerationConfig(max_tokens=16)
    job = GenerationJob(SAMPLE, model.encode_prompt(SAMPLE), config, 0, 0, Event())
    generate_batch(served, [job], lambda *_: None)
    return served


def generation_routes(
    served: ServedGenerator,
    metrics: ServiceMetrics,
    batch_size: int,
    limits: Limits,
    generation_limits: GenerationLimits,
    api: ApiConfig,
) -> ModelRoutes:
    """The routes of a causal language model."""

    def run(jobs: list[GenerationJob], deliver: "Deliver[Texts]") -> None:
        generate_batch(served, jobs, deliver, batch_size, metrics.generated_tokens.inc)

    batcher = Batcher(run, batch_size, limits.max_waiting, metrics, lambda job: job.width)
    batchers: list[Batcher[Any, Any]] = [batcher]
    vectors = None if served.embedder is None else ServedVectors(served.name, served.embedder)
    if vectors is not None:
        batchers.append(vector_batcher(vectors, metrics, batch_size, limits))
    health = {
        "task": "generation",
        "title": TITLE,
        "attention_type": served.model.config.attention_type,
        "paraphrases": served.embedder is not None,
        "settings": {k: v for k, v in asdict(GenerationConfig()).items() if k != "seed"},
        "limits": asdict(limits) | asdict(generation_limits),
    }
    router = APIRouter()
    add_completions(router, served, batcher, limits, generation_limits)
    if vectors is not None:
        add_vectors(router, vectors, batchers[1], limits, api)

    @router.post(
        "/generate",
        summary="Continue one text, or several",
        response_model=Generations,
        responses={200: {"content": {"text/event-stream": {}}}, **FAILURES},
    )
    async def generate(
        body: Annotated[GenerateRequest, Body(examples=[EXAMPLE])], request: Request
    ) -> Response | Generations:
        check_texts(body.items, limits)
        try:  # in a thread: tokenizing long texts takes a while
            jobs = await asyncio.to_thread(jobs_of, body, served.model, generation_limits)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        seed = jobs[0].config.seed
        if body.stream:
            events = _events(streamed(served, batcher, jobs[0]), seed)
            return StreamingResponse(events, headers=NO_BUFFERING, media_type="text/event-stream")
        results = await unless_disconnected(
            request, asyncio.wrap_future(batcher.submit(jobs)), jobs[0].cancelled
        )
        if results is None:
            return Response(status_code=CLIENT_CLOSED)
        generations = [
            [GeneratedText(text=x.text, score=x.score) for x in texts] for texts in results
        ]
        return Generations(generations=generations, seed=seed)

    return ModelRoutes(served.name, router, health, "generate.js", batchers)


async def _events(chunks: "AsyncGenerator[str | Continuation]", seed: int) -> AsyncIterator[str]:
    """Chunks of the text as they are generated, and at the end the whole."""

    def event(**content: Any) -> str:
        return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"

    # Closed with this stream when the client disconnects: then the batch drops the text.
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                if isinstance(chunk, str):
                    yield event(text=chunk)
                else:
                    yield event(done=True, text=chunk.text, score=chunk.score, seed=seed)
        except Exception:
            yield event(error=FAILURE)
            raise  # for the log
