"""The service of a causal language model: gpt, sim, or the result of causal pretraining.

POST /generate  {"text": X} or {"texts": [X, …]}, with the settings of `GenerationConfig`, and
                `paraphrases` of a sim model
                → {"generations": [[{"text": …, "score": …}, …], …], "seed": …}
                {"text": X, "stream": true} → events {"text": chunk} …, and at the end
                {"done": true, "text": the whole, "score": …, "seed": …}
POST /v1/completions   as at OpenAI: {"prompt": X or [X, …], "model", "max_tokens", "temperature",
                "stop", …} → {"choices": [{"text", "index", "finish_reason"}, …], "usage", …}
                with "stream": true → the same in events, and at the end [DONE]

As at OpenAI, a text of the second route is sampled unless `temperature` is 0, has 16 tokens unless
`max_tokens` is set, and does not contain what it stopped at.
"""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Body, Request
from pydantic import BaseModel, Field

from roformer_tf.checkpoints.sources import embedding_settings
from roformer_tf.engines.choice import Choice
from roformer_tf.errors import MAX_SEED, InputError
from roformer_tf.inference.embed import embedder_of
from roformer_tf.inference.generate import nearest_paraphrases, open_generator
from roformer_tf.inference.opening import open_model
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.application import ModelRoutes
from roformer_tf.serving.batching import Batcher, ModelQueue
from roformer_tf.serving.generation_jobs import (
    GenerationJob,
    ServedGenerator,
    generation_queue,
    respond,
)
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import (
    SAMPLE,
    CompatibleRequest,
    GeneratedText,
    GenerateRequest,
    Generations,
    StopTexts,
    TextOrTexts,
)
from roformer_tf.serving.serve_vectors import ServedVectors, add_vectors, vector_queue
from roformer_tf.serving.settings import GenerationLimits, ServeConfig

if TYPE_CHECKING:
    from roformer_tf.models.generator import Continuation
    from roformer_tf.serving.generation_jobs import Events, Texts

TITLE = "文本生成 · Text generation"
EXAMPLE = {"text": SAMPLE, "max_tokens": 16, "seed": 1}
MAX_TOKENS = 16
# Below it, sampling is greedy in float32, and a division by it could overflow.
GREEDY = 1e-3
PROMPT = {"prompt": SAMPLE, "model": "any", "max_tokens": 8, "temperature": 0}


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
        embedder = embedder_of(model, name, settings, config.batch_size)
        # Computes vectors once, so that the first request is not slow.
        nearest_paraphrases(model, [SAMPLE], [[SAMPLE[:3]]], 1)
    model.generate([SAMPLE], max_tokens=16)
    return ServedGenerator(name, model, embedder, Choice("keras", precision))


def generation_routes(
    served: ServedGenerator, metrics: ServiceMetrics, config: ServeConfig
) -> ModelRoutes:
    """The routes of a causal language model."""
    queue, router = generation_queue(served, metrics, config), APIRouter()
    batchers: list[Batcher[Any, Any]] = [queue.batcher]
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
        "limits": asdict(config.limits) | asdict(config.generation_limits),
    }
    return ModelRoutes(served.name, router, health, "generate.js", batchers, served.choice)


def _add_generate(router: APIRouter, queue: ModelQueue) -> None:
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


# OpenAI's route


class CompletionsRequest(CompatibleRequest):
    """OpenAI's request for generated text; what is not supported must have no effect."""

    prompt: TextOrTexts
    max_tokens: int | None = Field(None, ge=1, description="Of a completion. Default: 16.")
    temperature: float | None = Field(None, ge=0, le=2, description="0: greedy. Default: 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sample from this probability.")
    n: int | None = Field(None, ge=1, description="Number of completions of each prompt.")
    stop: StopTexts | None = Field(None, description="The completion ends before this text.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="Default: a new one.")
    stream: bool | None = Field(None, description="Of one completion: as server-sent events.")
    stream_options: dict[str, bool] | None = Field(
        None, description="include_usage: send `usage` in the last event."
    )
    best_of: int | None = Field(None, ge=1, le=1, description="Not supported: 1.")
    echo: Literal[False] | None = Field(None, description="Not supported.")
    logprobs: None = Field(None, description="Not supported.")
    suffix: None = Field(None, description="Not supported.")
    logit_bias: dict[str, float] | None = Field(None, max_length=0, description="Not supported.")
    presence_penalty: float | None = Field(None, ge=0, le=0, description="Not supported: 0.")
    frequency_penalty: float | None = Field(None, ge=0, le=0, description="Not supported: 0.")


class CompletionChoice(BaseModel):
    """A completion."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = Field(description="length: max_tokens.")


class CompletionUsage(BaseModel):
    """Numbers of tokens that were read and generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completions(BaseModel):
    """Completions of all prompts, in their order."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(description="Unix time in seconds.")
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


def add_completions(router: APIRouter, queue: ModelQueue) -> None:
    """Add the route /v1/completions."""

    @router.post(
        "/v1/completions",
        summary="Continue one text, or several, as at OpenAI",
        response_model=Completions,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def completions(
        body: Annotated[CompletionsRequest, Body(examples=[PROMPT])], request: Request
    ) -> Any:
        settings = _settings(body, queue.config.generation_limits)
        completion = Completions(
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=queue.served.name,
            choices=[],
        )

        def whole(jobs: list[GenerationJob], results: "Sequence[Any]") -> Completions:
            # Completion number k of prompt p has the index p · n + k.
            texts = [x for each in results for x in each]
            choices = [_choice(index, x, settings.stop) for index, x in enumerate(texts)]
            return completion.model_copy(update={"choices": choices, "usage": _usage(jobs, texts)})

        with_usage = bool(body.stream_options and body.stream_options.get("include_usage"))
        events = _events(completion, settings.stop, with_usage)
        return await respond(request, settings, queue, whole, events)


def _settings(body: CompletionsRequest, limits: GenerationLimits) -> GenerateRequest:
    """The request in our own words. Raises InputError for several greedy texts."""
    temperature = 1.0 if body.temperature is None else body.temperature
    settings: dict[str, Any] = {
        # Only the default is limited silently; a larger number of the client is an error in
        # `jobs_of`.
        "max_tokens": body.max_tokens or min(MAX_TOKENS, limits.max_text_tokens),
        "samples": body.n or 1,
        "stop": body.stop or [],
        "stream": bool(body.stream),
    }
    if temperature >= GREEDY:
        settings |= {"temperature": temperature, "top_p": body.top_p}
    elif settings["samples"] > 1:
        raise InputError("n above 1 needs a temperature above 0: greedy texts are all the same.")
    if body.seed is not None:
        # OpenAI's seeds have 64 bits and may be negative, ours have 32 bits.
        settings["seed"] = body.seed % (MAX_SEED + 1)
    # A list of one prompt becomes `text`, too: `jobs_of` refuses to stream `texts`.
    texts = {"text": body.prompt[0]} if len(body.prompt) == 1 else {"texts": body.prompt}
    return GenerateRequest(**texts, **settings)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stops."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def final_length(text: str, stops: Sequence[str]) -> int:
    """How many characters of an unfinished text cannot be the beginning of a stop."""
    # final_length("好的，再", ["再见"]) is 3: 再 may become 再见, so it is not sent yet.
    # A whole stop does not occur here, since `before_stop` has cut it.
    beginnings = (stop[:n] for stop in stops for n in range(1, len(stop)))
    return len(text) - max((len(x) for x in beginnings if text.endswith(x)), default=0)


def _choice(index: int, result: "Continuation", stops: Sequence[str]) -> CompletionChoice:
    text = before_stop(result.text, stops)
    is_complete = result.ended or text != result.text
    return CompletionChoice(
        index=index, text=text, finish_reason="stop" if is_complete else "length"
    )


def _usage(jobs: Sequence[GenerationJob], results: "Sequence[Continuation]") -> CompletionUsage:
    read = sum(len(job.token_ids) for job in jobs)
    generated = sum(len(result.token_ids) for result in results)
    return CompletionUsage(
        prompt_tokens=read, completion_tokens=generated, total_tokens=read + generated
    )


def _events(completion: Completions, stops: Sequence[str], with_usage: bool) -> "Events":
    """The events of a stream: the text in chunks, its reason to finish, its usage if wanted."""
    # The whole text as generated, and how many of its characters the client has.
    text, sent = "", 0

    def event(**changes: Any) -> str:
        return completion.model_copy(update=changes).model_dump_json(
            exclude=None if "usage" in changes else {"usage"}
        )

    def events(job: GenerationJob, chunk: "str | Continuation") -> Iterator[str]:
        nonlocal text, sent
        if isinstance(chunk, str):
            text += chunk
            visible = before_stop(text, stops)
            # If a stop was cut, all that precedes it is final; later chunks then add nothing.
            end = final_length(visible, stops) if visible == text else len(visible)
            if end > sent:
                choice = CompletionChoice(index=0, text=visible[sent:end], finish_reason=None)
                yield event(choices=[choice])
                sent = end
            return
        choice = _choice(0, chunk, stops)
        choice.text = choice.text[sent:]
        yield event(choices=[choice])
        if with_usage:
            # With `choices` empty, as in OpenAI's last event.
            yield event(usage=_usage([job], [chunk]))
        yield "[DONE]"

    return events
