"""The service of a causal language model: gpt, sim, or the result of causal pretraining.

POST /generate  {"text": X} or {"texts": [X, …]}, with the settings of `GenerationConfig`, and
                `paraphrases` of a sim model
                → {"generations": [[{"text": …, "score": …}, …], …], "seed": …}
                {"text": X, "stream": true} → events {"text": chunk} …, and at the end
                {"done": true, "text": the whole, "score": …, "seed": …}

OpenAI's /v1/completions is in `openai_completions`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Request

from roformer_tf.checkpoints.sources import embedding_settings
from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import embedder_of
from roformer_tf.inference.generate import nearest_paraphrases, open_generator
from roformer_tf.inference.opening import open_model
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.application import ModelRoutes
from roformer_tf.serving.batching import Batcher, Deliver
from roformer_tf.serving.generation_jobs import (
    GenerationJob,
    GenerationQueue,
    ServedGenerator,
    generate_batch,
    respond,
)
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.openai_completions import add_completions
from roformer_tf.serving.schemas import SAMPLE, GeneratedText, GenerateRequest, Generations
from roformer_tf.serving.serve_vectors import ServedVectors, add_vectors, vector_queue
from roformer_tf.serving.settings import ServeConfig

if TYPE_CHECKING:
    from roformer_tf.models.generator import Continuation
    from roformer_tf.serving.generation_jobs import Texts

TITLE = "文本生成 · Text generation"
EXAMPLE = {"text": SAMPLE, "max_tokens": 16, "seed": 1}


def load_served_generator(source: str, name: str, config: ServeConfig) -> ServedGenerator:
    """Open a causal language model, and generate once. Raises InputError as `open_generator`.

    Also raised for an engine and a precision that it does not support.
    """
    precision = config.precision or "float32"
    # Of several models, others may run in the engine.
    other_engine = config.engine not in ("auto", "keras") and len(config.model) == 1
    if other_engine or precision == "int8":
        raise InputError(
            f"{source} is a causal language model, which only Keras runs, in float32 or "
            f"bfloat16. Omit --{'engine' if other_engine else 'precision'}."
        )
    model = open_generator(source, config.attention_type, precision)
    embedder = None
    if getattr(model, "pooler", None) is not None:
        with open_model(source) as opened:
            settings = embedding_settings(opened.checkpoint, opened.files)
        embedder = replace(embedder_of(model, name, settings), batch_size=config.batch_size)
        # Computes vectors once, so that the first request is not slow.
        nearest_paraphrases(model, [SAMPLE], [[SAMPLE[:3]]], 1)
    model.generate([SAMPLE], max_tokens=16)
    return ServedGenerator(name, model, embedder, Choice("keras", precision))


def generation_routes(
    served: ServedGenerator, metrics: ServiceMetrics, config: ServeConfig
) -> ModelRoutes:
    """The routes of a causal language model."""
    size, limits = config.batch_size, config.limits

    def run(jobs: list[GenerationJob], deliver: "Deliver[Texts]") -> None:
        generate_batch(served, jobs, deliver, size, metrics.generated_tokens.inc)

    batcher = Batcher(run, size, limits, metrics, lambda job: job.config.width)
    batchers: list[Batcher[Any, Any]] = [batcher]
    queue, router = GenerationQueue(served, batcher, config), APIRouter()
    add_completions(router, queue)
    if served.embedder is not None:
        vectors = vector_queue(ServedVectors(served.name, served.embedder), metrics, config)
        batchers.append(vectors.batcher)
        add_vectors(router, vectors)
    _add_generate(router, queue)
    health = {
        "task": "generation",
        "title": TITLE,
        "attention_type": served.model.config.attention_type,
        "paraphrases": served.embedder is not None,
        "settings": {k: v for k, v in asdict(GenerationConfig()).items() if k != "seed"},
        "limits": asdict(limits) | asdict(config.generation_limits),
    }
    return ModelRoutes(served.name, router, health, "generate.js", batchers, served.choice)


def _add_generate(router: APIRouter, queue: GenerationQueue) -> None:
    def whole(jobs: list[GenerationJob], results: "Sequence[Texts]") -> Generations:
        generations = [
            [GeneratedText(text=x.text, score=x.score) for x in texts] for texts in results
        ]
        return Generations(generations=generations, seed=jobs[0].config.seed)

    def events(job: GenerationJob, chunk: "str | Continuation") -> Iterator[str]:
        """Chunks of the text, and at the end the whole."""
        event: dict[str, Any] = {"text": chunk}
        if not isinstance(chunk, str):
            event = {"done": True, "text": chunk.text, "score": chunk.score}
            event["seed"] = job.config.seed
        yield json.dumps(event, ensure_ascii=False)

    @router.post(
        "/generate",
        summary="Continue one text, or several",
        response_model=Generations,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def generate(
        body: Annotated[GenerateRequest, Body(examples=[EXAMPLE])], request: Request
    ) -> Any:
        return await respond(request, body, queue, whole, events)
