"""Prompts as jobs of a batch, whatever route they came from.

Requests that arrive during a batch gather for the next one, whatever their settings. When a client
disconnects, its texts leave the batch with their next token.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from roformer_tf.engines.choice import KERAS, Choice
from roformer_tf.errors import InputError, check_number, check_numbers
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.inference.generate import (
    ScoredText,
    check_prompts,
    nearest_paraphrases,
    sampling_settings,
)
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.application import check_texts
from roformer_tf.serving.batching import Batcher, Deliver, ModelQueue
from roformer_tf.serving.failures import SERVICE_FAILED, error_response
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import GenerateRequest
from roformer_tf.serving.settings import GenerationLimits, ServeConfig

if TYPE_CHECKING:
    from roformer_tf.inference.generate import CausalModel
    from roformer_tf.models.generator import Continuation

    # Of a prompt; paraphrases are `ScoredText`.
    Texts: TypeAlias = Sequence[Continuation | ScoredText]
    # A chunk of a job's text, or at the end the whole → the events of a stream.
    Events: TypeAlias = Callable[["GenerationJob", str | Continuation], Iterable[str]]

LIMIT = "a limit of this service"
# Status in /metrics of a request whose client disconnected; nginx's number.
CLIENT_CLOSED = 499
# Headers of a stream: neither caches nor proxies (nginx reads the second) may collect it.
NO_BUFFERING = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ServedGenerator(NamedTuple):
    """A causal language model in service."""

    name: str
    model: "CausalModel"
    embedder: TextEmbedder | None = None
    """Of a sim model: chooses paraphrases."""
    choice: Choice = KERAS


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
    on_token: Callable[[int], Any] = lambda _: None


def generation_queue(
    served: ServedGenerator, metrics: ServiceMetrics, config: ServeConfig
) -> ModelQueue:
    """Batches of prompts; each job is delivered as soon as it is complete."""

    def run(jobs: list[GenerationJob], deliver: "Deliver[Texts]") -> None:
        def on_done(number: int, results: Any) -> None:
            # In the model's thread, which may thus compute the vectors of the candidates.
            metrics.generated_tokens.inc(sum(len(result.token_ids) for result in results))
            job = jobs[number]
            if job.paraphrases and not job.cancelled.is_set():
                texts = [[result.text for result in results]]
                (results,) = nearest_paraphrases(served.model, [job.text], texts, job.paraphrases)
            deliver(number, results)

        served.model.generate_ids(
            [job.token_ids for job in jobs],
            [job.config for job in jobs],
            rows=config.batch_size,
            turns=[job.turn for job in jobs],
            on_token=lambda number, _, token: jobs[number].on_token(token),
            on_done=on_done,
            given_up=lambda number: jobs[number].cancelled.is_set(),
        )

    size = config.batch_size
    batcher = Batcher(run, size, config.limits, metrics, lambda job: job.config.width)
    return ModelQueue(served, batcher, config)


def jobs_of(
    body: GenerateRequest, model: "CausalModel", limits: GenerationLimits
) -> list[GenerationJob]:
    """The jobs of a request.

    Raises InputError for what the model cannot do, and for more than the limits allow.
    """
    from roformer_tf.models.generation import turns_of

    names = {field.name for field in fields(GenerationConfig)}
    settings = body.model_dump(include=names, exclude_unset=True, exclude_none=True)
    # Drawn here, not by the generator, since the response contains it.
    settings.setdefault("seed", secrets.randbelow(2**32))
    settings.setdefault("max_tokens", min(GenerationConfig.max_tokens, limits.max_text_tokens))
    config = GenerationConfig(**settings)  # which checks the values
    model.check_stops(config)
    several = "texts" in body.model_fields_set or config.samples > 1 or config.beams > 1
    if body.stream and (several or body.paraphrases):
        raise InputError("stream needs a single text, without samples, beams or paraphrases.")
    if body.paraphrases:
        if getattr(model, "pooler", None) is None:
            raise InputError("paraphrases need a sim model: this one has no pooler for vectors.")
        config = sampling_settings(config, body.paraphrases)
    # Before the texts are tokenized, which takes long for many of them.
    check_number("max_tokens", config.max_tokens, at_most=limits.max_text_tokens, hint=LIMIT)
    hint = f"{LIMIT} (candidates for {body.paraphrases} paraphrases)" if body.paraphrases else LIMIT
    check_numbers(config, "samples", "beams", at_most=limits.max_samples, hint=hint)
    check_prompts(model, body.items)
    prompts = [model.encode_prompt(text) for text in body.items]
    _check_tokens(prompts, config, model.config.max_position_embeddings, limits)
    # One event for all jobs: a request is cancelled as a whole.
    cancelled = Event()
    return [
        GenerationJob(text, prompt, config, turn, body.paraphrases, cancelled)
        for text, prompt, turn in zip(body.items, prompts, turns_of(prompts), strict=True)
    ]


def _check_tokens(
    prompts: list[list[int]], config: GenerationConfig, max_length: int, limits: GenerationLimits
) -> None:
    # A text ends at the model's length, too.
    lengths = [min(config.max_tokens, max_length - len(prompt)) for prompt in prompts]
    tokens = config.width * sum(lengths)
    if tokens > limits.max_request_tokens:
        raise InputError(
            f"up to {tokens:,} tokens would be generated, but must be at most "
            f"{limits.max_request_tokens:,} for a request, {LIMIT}. Give fewer texts, or smaller "
            "max_tokens, samples or beams."
        )


async def respond(
    request: Request,
    body: GenerateRequest,
    queue: ModelQueue,
    whole: "Callable[[list[GenerationJob], Sequence[Texts]], Any]",
    events: "Events",
) -> Any:
    """Generate what a request asks for, and respond in the form of its route.

    whole: makes the response; events: those of a stream, of each chunk of the text and at the end
    of the whole. Raises InputError as `jobs_of` does; status 503 when too many requests wait.
    """
    limits, model = queue.config.generation_limits, queue.served.model
    check_texts(body.items, queue.config.limits)
    # in a thread: tokenizing long texts takes a while
    jobs = await asyncio.to_thread(jobs_of, body, model, limits)
    if body.stream:
        return _streamed(request, queue, jobs[0], events)
    results = asyncio.wrap_future(queue.batcher.submit(jobs))
    if await _disconnected(request, results, jobs[0].cancelled):
        return Response(status_code=CLIENT_CLOSED)
    return whole(jobs, await results)


async def _disconnected(request: Request, results: "asyncio.Future[Any]", cancelled: Event) -> bool:
    """Wait for the results, or for the client to disconnect, which cancels its jobs."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    # Once the body is read, uvicorn reports nothing but the disconnection, and only to `receive`.
    leaving = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({results, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return not results.done()
    finally:
        leaving.cancel()
        # Also after success, where it has no effect: the jobs are complete.
        cancelled.set()
        results.cancel()  # a request that still waits never starts


def _streamed(
    request: Request, queue: ModelQueue, job: GenerationJob, events: "Events"
) -> StreamingResponse:
    """Queue a job, and send its text as it is generated, in server-sent events."""
    from roformer_tf.models.generation import TextStream

    loop, tokens = asyncio.get_running_loop(), asyncio.Queue[int | None]()

    def put(token: int) -> None:  # in the model's thread
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tokens.put_nowait, token)

    results = asyncio.wrap_future(queue.batcher.submit([replace(job, on_token=put)]))
    results.add_done_callback(lambda _: tokens.put_nowait(None))  # after the last token

    def lines(chunk: "str | Continuation") -> str:
        return "".join(f"data: {event}\n\n" for event in events(job, chunk))

    async def content() -> AsyncIterator[str]:
        # In the event loop, while the model generates the next tokens in its thread.
        text = TextStream(queue.served.model.own_tokenizer)
        try:
            while (token := await tokens.get()) is not None:
                if chunk := text.add(token):  # a token may need the next one to become text
                    yield lines(chunk)
            ((whole,),) = await results  # raises what failed
            if rest := text.rest(whole.text):
                yield lines(rest)
            yield lines(whole)
        except Exception:
            yield f"data: {bytes(error_response(request, 500, SERVICE_FAILED).body).decode()}\n\n"
            raise  # for the log
        finally:  # also when the client disconnects
            job.cancelled.set()  # the batch drops it at its next token
            results.cancel()  # if it still waits, it never starts

    return StreamingResponse(content(), headers=NO_BUFFERING, media_type="text/event-stream")
