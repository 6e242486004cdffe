"""OpenAI's route for generated text.

POST /v1/completions   {"prompt": X or [X, …], "model", "max_tokens", "temperature", "stop", …}
                       → {"choices": [{"text", "index", "finish_reason"}, …], "usage", …}
                       with "stream": true → the same in events, and at the end [DONE]

As at OpenAI, a text is sampled unless `temperature` is 0, has 16 tokens unless `max_tokens` is
set, and does not contain what it stopped at.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from roformer_tf.errors import MAX_SEED, InputError
from roformer_tf.serving.application import check_texts
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import FAILURE, OPENAI_FAILURES
from roformer_tf.serving.generation_jobs import (
    CLIENT_CLOSED,
    NO_BUFFERING,
    GenerationJob,
    ServedGenerator,
    jobs_of,
    streamed,
    unless_disconnected,
)
from roformer_tf.serving.schemas import (
    SAMPLE,
    CompletionChoice,
    Completions,
    CompletionsRequest,
    CompletionUsage,
    GenerateRequest,
    listed,
)
from roformer_tf.serving.settings import GenerationLimits, Limits

if TYPE_CHECKING:
    from roformer_tf.models.generator import Continuation

MAX_TOKENS = 16
# Below it, sampling is greedy in float32, and a division by it could overflow.
GREEDY = 1e-3
EXAMPLE = {"prompt": SAMPLE, "model": "any", "max_tokens": 8, "temperature": 0}


def add_completions(
    router: APIRouter,
    served: ServedGenerator,
    batcher: Batcher[GenerationJob, Any],
    limits: Limits,
    generation_limits: GenerationLimits,
) -> None:
    """Add the route /v1/completions."""

    @router.post(
        "/v1/completions",
        summary="Continue one text, or several, as at OpenAI",
        response_model=Completions,
        responses={200: {"content": {"text/event-stream": {}}}, **OPENAI_FAILURES},
    )
    async def completions(
        body: Annotated[CompletionsRequest, Body(examples=[EXAMPLE])], request: Request
    ) -> Response | Completions:
        prompts, stops = listed(body.prompt), listed(body.stop) if body.stop else []
        check_texts(prompts, limits)
        try:  # in a thread: tokenizing long texts takes a while
            settings = _settings(body, prompts, stops, generation_limits)
            jobs = await asyncio.to_thread(jobs_of, settings, served.model, generation_limits)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        completion = Completions(
            id=f"cmpl-{uuid.uuid4().hex}", created=int(time.time()), model=served.name, choices=[]
        )
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            chunks = streamed(served, batcher, jobs[0])
            events = _events(chunks, completion, jobs[0], stops, with_usage)
            return StreamingResponse(events, headers=NO_BUFFERING, media_type="text/event-stream")
        results = await unless_disconnected(
            request, asyncio.wrap_future(batcher.submit(jobs)), jobs[0].cancelled
        )
        if results is None:
            return Response(status_code=CLIENT_CLOSED)
        texts = [x for each in results for x in each]
        choices = [_choice(index, x, stops) for index, x in enumerate(texts)]
        return completion.model_copy(update={"choices": choices, "usage": _usage(jobs, texts)})


def _settings(
    body: CompletionsRequest, prompts: list[str], stops: list[str], limits: GenerationLimits
) -> GenerateRequest:
    """The request in our own words. Raises InputError for several greedy texts."""
    temperature = 1.0 if body.temperature is None else body.temperature
    settings: dict[str, Any] = {
        "max_tokens": body.max_tokens or min(MAX_TOKENS, limits.max_text_tokens),
        "samples": body.n or 1,
        "stop": stops,
        "stream": bool(body.stream),
    }
    if temperature >= GREEDY:
        settings |= {"temperature": temperature, "top_p": body.top_p}
    elif settings["samples"] > 1:
        raise InputError("n above 1 needs a temperature above 0: greedy texts are all the same.")
    if body.seed is not None:
        settings["seed"] = body.seed % (MAX_SEED + 1)
    texts = {"text": prompts[0]} if len(prompts) == 1 else {"texts": prompts}
    return GenerateRequest(**texts, **settings)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stops."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def final_length(text: str, stops: Sequence[str]) -> int:
    """How many characters of an unfinished text cannot be the beginning of a stop."""
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


async def _events(
    chunks: "AsyncGenerator[str | Continuation]",
    completion: Completions,
    job: GenerationJob,
    stops: Sequence[str],
    with_usage: bool,
) -> AsyncIterator[str]:
    """The text in chunks, its reason to finish, and its usage if that was asked for."""

    def event(text: str, reason: Any = None) -> str:
        choice = CompletionChoice(index=0, text=text, finish_reason=reason)
        return _event(completion.model_copy(update={"choices": [choice]}))

    text, sent = "", 0
    # Closed with this stream when the client disconnects: then the batch drops the text.
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                if not isinstance(chunk, str):
                    choice = _choice(0, chunk, stops)
                    yield event(choice.text[sent:], choice.finish_reason)
                    if with_usage:
                        usage = _usage([job], [chunk])
                        yield _event(completion.model_copy(update={"usage": usage}))
                    yield "data: [DONE]\n\n"
                    continue
                text += chunk
                visible = before_stop(text, stops)
                end = final_length(visible, stops) if visible == text else len(visible)
                if end > sent:
                    yield event(visible[sent:end])
                    sent = end
        except Exception:
            error = {"message": FAILURE, "type": "server_error", "param": None, "code": None}
            yield f"data: {json.dumps({'error': error})}\n\n"
            raise  # for the log


def _event(completion: Completions) -> str:
    content = completion.model_dump_json(exclude={"usage"} if completion.usage is None else None)
    return f"data: {content}\n\n"
