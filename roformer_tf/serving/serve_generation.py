"""The service of a causal language model: gpt, sim, or the result of causal pretraining.

POST /generate  {"text": X} or {"texts": [X, …]}, with the settings of `GenerationConfig`, and
                `paraphrases` of a sim model
                → {"generations": [[{"text": …, "score": …}, …], …], "seed": …}
                {"text": X, "stream": true} → events {"text": chunk} …, and at the end
                {"done": true, "text": the whole, "score": …, "seed": …}

Requests that arrive during a batch gather for the next one, whatever their settings. When a client
disconnects, its texts leave the batch with their next token.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from roformer_tf.engines.choice import KerasPrecision
from roformer_tf.errors import InputError, check_number, check_numbers
from roformer_tf.inference.embed import TextEmbedder, embedder_of
from roformer_tf.inference.generate import (
    ScoredText,
    check_prompts,
    nearest_paraphrases,
    open_generator,
    sampling_settings,
)
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.serving.application import (
    FAILURE,
    FAILURES,
    check_texts,
    create_app,
)
from roformer_tf.serving.batching import Batcher, Deliver
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import SAMPLE, GenerateRequest, Generations
from roformer_tf.serving.serve_predictions import model_name
from roformer_tf.serving.serve_vectors import ServedVectors, add_embed, vector_batcher
from roformer_tf.serving.settings import GenerationLimits, Limits

if TYPE_CHECKING:
    from roformer_tf.inference.generate import CausalModel

TITLE = "文本生成 · Text generation"
# Status in /metrics of a request whose client disconnected; nginx's number.
CLIENT_CLOSED = 499
LIMIT = "a limit of this service"
EXAMPLE = {"text": SAMPLE, "max_tokens": 16, "seed": 1}
# Headers of a stream: neither caches nor proxies (nginx reads the second) may collect it.
NO_BUFFERING = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ServedGenerator(NamedTuple):
    """A causal language model in service."""

    name: str
    model: "CausalModel"
    embedder: TextEmbedder | None = None
    """Of a sim model: chooses paraphrases."""


@dataclass(frozen=True)
class GenerationJob:
    """A prompt to continue."""

    text: str
    token_ids: list[int]
    config: GenerationConfig
    turn: int
    """Index among equal prompts of the request, whose samples must differ."""
    paraphrases: int
    cancelled: Event
    """Set when the client has disconnected."""
    on_token: Callable[[int], None] | None = None

    @property
    def width(self) -> int:
        """Number of sequences that are generated in parallel."""
        return max(self.config.samples, self.config.beams)


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


def generate_batch(
    served: ServedGenerator,
    jobs: list[GenerationJob],
    deliver: Deliver[list[ScoredText]],
    batch_size: int = BATCH_SIZE,
    count_tokens: Callable[[int], None] = lambda _: None,
) -> None:
    """Generate for all jobs in one batch; each is delivered as soon as it is complete."""
    candidates: dict[int, list[str]] = {}

    def on_token(number: int, _: int, token: int) -> None:
        if (listener := jobs[number].on_token) is not None:
            listener(token)

    def on_done(number: int, results: Any) -> None:
        count_tokens(sum(len(result.token_ids) for result in results))
        job = jobs[number]
        if not job.paraphrases:
            deliver(number, [ScoredText(result.text, result.score) for result in results])
        elif job.cancelled.is_set():
            deliver(number, [])
        else:
            candidates[number] = [result.text for result in results]

    served.model.generate_ids(
        [job.token_ids for job in jobs],
        [job.config for job in jobs],
        rows=batch_size,
        turns=[job.turn for job in jobs],
        on_token=on_token,
        on_done=on_done,
        given_up=lambda number: jobs[number].cancelled.is_set(),
    )
    if not candidates:
        return
    # Paraphrases are the candidates nearest to the text, by vectors that are computed together.
    texts = [jobs[number].text for number in candidates]
    largest = max(jobs[number].paraphrases for number in candidates)
    nearest = nearest_paraphrases(served.model, texts, [*candidates.values()], largest)
    for number, results in zip(candidates, nearest, strict=True):
        deliver(number, results[: jobs[number].paraphrases])


def create_generation_app(
    served: ServedGenerator,
    batch_size: int = BATCH_SIZE,
    limits: Limits | None = None,
    generation_limits: GenerationLimits | None = None,
) -> FastAPI:
    """The application of a causal language model."""
    limits, generation_limits = limits or Limits(), generation_limits or GenerationLimits()
    metrics = ServiceMetrics(served.name, "generation")

    def run(jobs: list[GenerationJob], deliver: Deliver[list[ScoredText]]) -> None:
        generate_batch(served, jobs, deliver, batch_size, metrics.generated_tokens.inc)

    batcher = Batcher(run, batch_size, limits.max_waiting, metrics, lambda job: job.width)
    batchers: list[Batcher[Any, Any]] = [batcher]
    if served.embedder is not None:
        vectors = ServedVectors(served.name, served.embedder)
        batchers.append(vector_batcher(vectors, metrics, batch_size, limits))
    health = {
        "task": "generation",
        "title": TITLE,
        "attention_type": served.model.config.attention_type,
        "paraphrases": served.embedder is not None,
        "settings": {k: v for k, v in asdict(GenerationConfig()).items() if k != "seed"},
        "limits": asdict(limits) | asdict(generation_limits),
    }
    app = create_app(served.name, health, "generate.js", metrics, batchers, limits)
    if served.embedder is not None:
        add_embed(app, batchers[1], limits)

    @app.post(
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
            tokens = asyncio.Queue[int | None]()
            job = replace(jobs[0], on_token=_put_from_thread(tokens))
            results = asyncio.wrap_future(batcher.submit([job]))
            results.add_done_callback(lambda _: tokens.put_nowait(None))  # after the last token
            events = _events(served, tokens, results, job)
            return StreamingResponse(events, headers=NO_BUFFERING, media_type="text/event-stream")
        results = await _unless_disconnected(
            request, asyncio.wrap_future(batcher.submit(jobs)), jobs[0].cancelled
        )
        if results is None:
            return Response(status_code=CLIENT_CLOSED)
        generations = [[text._asdict() for text in texts] for texts in results]
        return Generations(generations=generations, seed=seed)

    return app


def jobs_of(
    body: GenerateRequest, model: "CausalModel", limits: GenerationLimits
) -> list[GenerationJob]:
    """The jobs of a request.

    Raises InputError for what the model cannot do, and for more than the limits allow.
    """
    from roformer_tf.models.generation import turns_of

    names = {field.name for field in fields(GenerationConfig)}
    settings = body.model_dump(include=names, exclude_unset=True, exclude_none=True)
    settings.setdefault("seed", secrets.randbelow(2**32))
    settings.setdefault("max_tokens", min(GenerationConfig.max_tokens, limits.max_text_tokens))
    settings["stop"] = tuple(settings.get("stop", ()))
    config = GenerationConfig(**settings)  # which checks the values
    model.check_stops(config)
    several = body.texts is not None or config.samples > 1 or config.beams > 1
    if body.stream and (several or body.paraphrases):
        raise InputError("stream needs a single text, without samples, beams or paraphrases.")
    if body.paraphrases:
        if getattr(model, "pooler", None) is None:
            raise InputError("paraphrases need a sim model: this one has no pooler for vectors.")
        if config.beams > 1:
            raise InputError("paraphrases are sampled, so they exclude beams. Give one of both.")
        config = sampling_settings(config, body.paraphrases)
    # Before the texts are tokenized, which takes long for many of them.
    check_number("max_tokens", config.max_tokens, at_most=limits.max_text_tokens, hint=LIMIT)
    hint = f"{LIMIT} (candidates for {body.paraphrases} paraphrases)" if body.paraphrases else LIMIT
    check_numbers(config, "samples", "beams", at_most=limits.max_samples, hint=hint)
    check_prompts(model, body.items)
    prompts = [model.encode_prompt(text) for text in body.items]
    _check_tokens(prompts, config, model.config.max_position_embeddings, limits)
    cancelled = Event()
    return [
        GenerationJob(text, prompt, config, turn, body.paraphrases, cancelled)
        for text, prompt, turn in zip(body.items, prompts, turns_of(prompts), strict=True)
    ]


def _check_tokens(
    prompts: list[list[int]], config: GenerationConfig, max_length: int, limits: GenerationLimits
) -> None:
    width = max(config.samples, config.beams)
    # A text ends at the model's length, too.
    tokens = sum(width * min(config.max_tokens, max_length - len(prompt)) for prompt in prompts)
    if tokens > limits.max_request_tokens:
        raise InputError(
            f"up to {tokens:,} tokens would be generated, but must be at most "
            f"{limits.max_request_tokens:,} for a request, {LIMIT}. Give fewer texts, or smaller "
            "max_tokens, samples or beams."
        )


async def _unless_disconnected(
    request: Request, results: "asyncio.Future[Any]", cancelled: Event
) -> Any:
    """Wait for the results; None if the client disconnects first, which cancels its jobs."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    # Once the body is read, uvicorn reports nothing but the disconnection, and only to `receive`.
    leaving = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({results, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await results if results.done() else None
    finally:
        leaving.cancel()
        cancelled.set()
        results.cancel()  # a request that still waits never starts


def _put_from_thread(tokens: "asyncio.Queue[int | None]") -> Callable[[int], None]:
    """A function for the model's thread that puts tokens into a queue of the running loop."""
    loop = asyncio.get_running_loop()

    def put(token: int) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tokens.put_nowait, token)

    return put


async def _events(
    served: ServedGenerator,
    tokens: "asyncio.Queue[int | None]",
    results: "asyncio.Future[list[list[ScoredText]]]",
    job: GenerationJob,
) -> AsyncIterator[str]:
    """Chunks of the text as they are generated, and at the end the whole."""
    from roformer_tf.models.generation import TextStream

    def event(**content: Any) -> str:
        return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"

    assert served.model.tokenizer is not None
    chunks = TextStream(served.model.tokenizer)
    try:
        while (token := await tokens.get()) is not None:
            if chunk := chunks.add(token):  # a token may need the next one to become text
                yield event(text=chunk)
        if results.exception() is not None:
            yield event(error=FAILURE)
        (((text, score),),) = await results  # raises what failed, for the log
        if rest := chunks.rest(text):
            yield event(text=rest)
        yield event(done=True, text=text, score=score, seed=job.config.seed)
    finally:  # also when the client disconnects
        job.cancelled.set()  # the batch drops it at its next token
        results.cancel()  # if it still waits, it never starts
