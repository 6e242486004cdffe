"""The service of a model that writes: gpt, sim, or what `pretrain --objective causal` made.

POST /generate  {"text": X} or {"texts": [X, …]}, beside them how to write, under the names of
                `GenerationConfig`, and `paraphrases` of a sim model
                → {"generations": [[{"text": …, "score": …}, …], …], "seed": …}
                {"text": X, "stream": true} → events, {"text": piece} …, and a last one,
                {"done": true, "text": the whole, "score": …, "seed": …}

Requests that come while others are being written gather for the next batch, whatever the settings
of each. What nobody waits for any more ends with its next token, and leaves the batch.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from roformer_tf.engines.choice import KerasPrecision
from roformer_tf.errors import InputError
from roformer_tf.inference.batching import Batcher, Tell
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.inference.generate import (
    WrittenText,
    check_prompts,
    embedder_of,
    load_writer,
    nearest_of,
)
from roformer_tf.inference.questions import MEGABYTE, SAMPLE, JsonObject, Limits, read_body
from roformer_tf.inference.serve_vectors import ServedVectors, add_embed, vector_batcher
from roformer_tf.inference.service import (
    FAILURE,
    PATIENCE,
    count_requests,
    described_answers,
    described_question,
    left,
    make_service,
    promised,
)
from roformer_tf.inference.writing_questions import (
    SAMPLE_QUESTION,
    Draft,
    WritingLimits,
    WritingQuestion,
    asked_writing,
    writing_question_type,
)
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.rows import BATCH_SIZE

if TYPE_CHECKING:
    from fastapi import FastAPI

    from roformer_tf.inference.generate import Writer

TITLE = "文本生成 · Text generation"
GONE = 499
"""Status of a request whose client left before its answer, for /metrics: nobody reads it."""


class ServedWriter(NamedTuple):
    """What a service writes with."""

    name: str
    model: "Writer"
    embedder: TextEmbedder | None = None
    """Of a model that chooses paraphrases."""
    sample: JsonObject | None = None
    """Its answer to `SAMPLE_QUESTION`; none where that is beyond its vocabulary or length."""


def load_served_writer(
    source: str | Path,
    attention: str | None = None,
    precision: KerasPrecision = "float32",
) -> ServedWriter:
    """Load a model that writes, and have it write before anyone asks.

    Raises InputError as `load_writer` does.
    """
    model = load_writer(source, attention, precision)
    name = _name(source)
    embedder = None if getattr(model, "pooler", None) is None else embedder_of(model, name)
    served = ServedWriter(name, model, embedder)
    try:
        check_prompts(model, [SAMPLE])
    except InputError:
        return served
    if embedder is not None:
        nearest_of(model, [SAMPLE], [[SAMPLE[:3]]], 1)
    config = GenerationConfig(**{k: v for k, v in SAMPLE_QUESTION.items() if k != "text"})
    drafts = [Draft(SAMPLE, model.encode_prompt(SAMPLE), config, 0, 0, Event())]
    found: list[list[WrittenText]] = []
    write(served, drafts, lambda _, each: found.append(each))
    return served._replace(sample=_as_json(found, config.seed))


def _name(source: str | Path) -> str:
    """What the page calls a model: the run of a model/, else the file or folder."""
    path = Path(source).resolve()
    return path.parent.name if path.name == "model" else path.name.removesuffix(".zip")


def write(
    served: ServedWriter,
    drafts: list[Draft],
    tell: Tell[list[WrittenText]],
    rows: int = BATCH_SIZE,
    count: Callable[[int], None] = lambda _: None,
) -> None:
    """Write behind each draft, in one batch; each is told as soon as it is finished.

    rows: texts that are written side by side. count: told how many tokens more were written.
    """
    drawn: dict[int, list[str]] = {}

    def on_token(number: int, _: int, token: int) -> None:
        if (told := drafts[number].on_token) is not None:
            told(token)

    def on_done(number: int, found: Any) -> None:
        count(sum(len(one.token_ids) for one in found))
        if not drafts[number].paraphrases:
            tell(number, [WrittenText(one.text, one.score) for one in found])
        elif drafts[number].given_up.is_set():
            tell(number, [])
        else:
            drawn[number] = [one.text for one in found]

    served.model.generate_ids(
        [draft.token_ids for draft in drafts],
        [draft.config for draft in drafts],
        rows=rows,
        turns=[draft.turn for draft in drafts],
        on_token=on_token,
        on_done=on_done,
        given_up=lambda number: drafts[number].given_up.is_set(),
    )
    if drawn:
        texts = [drafts[number].text for number in drawn]
        most = max(drafts[number].paraphrases for number in drawn)
        nearest = nearest_of(served.model, texts, [*drawn.values()], most)
        for number, found in zip(drawn, nearest, strict=True):
            tell(number, found[: drafts[number].paraphrases])


def make_writing_app(
    served: ServedWriter,
    batch_size: int = BATCH_SIZE,
    limits: Limits | None = None,
    writing_limits: WritingLimits | None = None,
) -> "FastAPI":
    """The service of a model that writes as an ASGI application, for any server of such."""
    from starlette.requests import Request
    from starlette.responses import Response

    from roformer_tf.inference.event_stream import EventStream
    from roformer_tf.inference.monitoring import ServiceMetrics

    limits, writing_limits = limits or Limits(), writing_limits or WritingLimits()
    question = writing_question_type(limits)
    metrics = ServiceMetrics(served.name, "generation")
    count = metrics.count_tokens()

    def write_batch(drafts: list[Draft], tell: Tell[list[WrittenText]]) -> None:
        write(served, drafts, tell, batch_size, count)

    batcher = Batcher(
        metrics.count_batches(write_batch), batch_size, limits.max_waiting, lambda x: x.width
    )
    health = {
        "task": "generation",
        "title": TITLE,
        "attention_type": served.model.config.attention_type,
        "paraphrases": served.embedder is not None,
        "settings": {k: v for k, v in asdict(GenerationConfig()).items() if k != "seed"},
        "limits": asdict(limits) | asdict(writing_limits),
    }
    vectors = None
    if served.embedder is not None:
        vectors = ServedVectors(served.name, served.embedder)
    batchers: list[Batcher[Any, Any]] = [batcher]
    if vectors is not None:
        batchers.append(vector_batcher(vectors, metrics, batch_size, limits))
    app = make_service(served.name, TITLE, "generate.js", health, metrics, *batchers)
    if vectors is not None:
        add_embed(app, vectors.embedder, batchers[1], limits)

    @app.post(
        "/generate",
        summary="Write behind one text, or several",
        responses=described_answers(described_generations(served)),
        openapi_extra=described_question(question.model_json_schema(), SAMPLE_QUESTION),
    )
    async def answer(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE, PATIENCE)
        # in a thread: to read long texts takes a while, in which others are to be heard
        asked = await asyncio.to_thread(asked_writing, question, body, served.model, writing_limits)
        given_up = Event()
        if asked.stream:
            tokens = asyncio.Queue[int | None]()
            on_token = _from_a_thread(tokens)
            written = asyncio.wrap_future(promised(batcher, drafts_of(asked, given_up, on_token)))
            events = told(served, tokens, written, asked.config.seed)
            return EventStream(events, lambda: _give_up(written, given_up))
        written = asyncio.wrap_future(promised(batcher, drafts_of(asked, given_up)))
        leaving = asyncio.ensure_future(left(request))
        either: set[asyncio.Future[Any]] = {written, leaving}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not written.done():
                return Response(status_code=GONE)
            text = json.dumps(_as_json(await written, asked.config.seed), ensure_ascii=False)
            return Response(text, media_type="application/json")
        finally:
            leaving.cancel()
            _give_up(written, given_up)

    return count_requests(app, metrics)


def drafts_of(
    asked: WritingQuestion, given_up: Event, on_token: Callable[[int], None] | None = None
) -> list[Draft]:
    """What a request asks for, text by text."""
    from roformer_tf.models.generation import turns_of

    turns = turns_of(asked.prompts)
    return [
        Draft(text, prompt, asked.config, turn, asked.paraphrases, given_up, on_token)
        for text, prompt, turn in zip(asked.texts, asked.prompts, turns, strict=True)
    ]


def _from_a_thread(tokens: "asyncio.Queue[int | None]") -> Callable[[int], None]:
    """Put tokens into a queue of the running loop, from the thread that writes them."""
    loop = asyncio.get_running_loop()

    def put(token: int) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens
            loop.call_soon_threadsafe(tokens.put_nowait, token)

    return put


def _give_up(written: "asyncio.Future[Any]", given_up: Event) -> None:
    """Nobody waits any more: of what is written already this means nothing."""
    given_up.set()
    written.cancel()


async def told(
    served: ServedWriter,
    tokens: "asyncio.Queue[int | None]",
    written: "asyncio.Future[list[list[WrittenText]]]",
    seed: int,
) -> AsyncIterator[dict[str, Any]]:
    """The events of one text: its pieces as they come, and at the end the whole."""
    from roformer_tf.models.generation import TextPieces

    tokenizer = served.model.tokenizer
    assert tokenizer is not None
    written.add_done_callback(lambda _: tokens.put_nowait(None))  # comes behind the last token
    pieces = TextPieces(tokenizer)
    while (token := await tokens.get()) is not None:
        if piece := pieces.add(token):
            yield {"text": piece}
    if written.exception() is not None:
        yield {"error": FAILURE}
    (((text, score),),) = await written  # which raises, for the log, what has failed
    if rest := pieces.rest(text):
        yield {"text": rest}
    yield {"done": True, "text": text, "score": score, "seed": seed}


def _as_json(written: list[list[WrittenText]], seed: int) -> dict[str, Any]:
    """The answer of /generate."""
    return {"generations": [[one._asdict() for one in each] for each in written], "seed": seed}


def described_generations(served: ServedWriter) -> dict[str, Any]:
    """The right answers of /generate for OpenAPI, with a real one of the model."""
    score = "Mean log-probability of a token in nats; of a paraphrase its cosine with the text."
    text = {
        "type": "object",
        "required": ["text", "score"],
        "properties": {
            "text": {"type": "string", "description": "Without the text it was written behind."},
            "score": {"type": "number", "description": score},
        },
    }
    seed = {"type": "integer", "description": "The one that was asked for, or drawn."}
    whole = {
        "type": "object",
        "required": ["generations", "seed"],
        "properties": {
            "generations": {
                "type": "array",
                "items": {"type": "array", "items": text},
                "description": "For each text those that were written, in the order of the texts.",
            },
            "seed": seed,
        },
    }
    right: dict[str, Any] = {"schema": whole}
    if served.sample is not None:
        right["example"] = served.sample
    last = '{"done": true, "text": "…", "score": -0.5, "seed": 1}'
    events = f'data: {{"text": "…"}}\n\ndata: {last}\n\n'
    return {
        "application/json": right,
        "text/event-stream": {"schema": {"type": "string"}, "example": events},
    }
