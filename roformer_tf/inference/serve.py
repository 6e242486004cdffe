"""A small HTTP service that answers with a fine-tuned model.

GET  /         a page to try it by hand
GET  /health   what is served: the model's name, its task, its labels, the limits
POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [answer, …]}
GET  /docs     the same described, to read and to try (OpenAPI; /openapi.json for programs)
GET  /metrics  requests, how long they took, sizes of batches, as Prometheus reads them

X is a text; of a pair a list of two texts, of a ranking a list of three. Whatever is wrong with a
request is answered by {"error": what} with a status of 4xx, and a question that was not understood
by an example of a right one, too; 503 asks to try again later.
"""

import asyncio
import ipaddress
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.inference.batching import Answer, Batcher, OverloadedError
from roformer_tf.inference.export import MEGABYTE
from roformer_tf.inference.predict import InferencePrecision, predict
from roformer_tf.inference.predictor import open_finetuned
from roformer_tf.inference.questions import (
    BAD_REQUEST,
    SAMPLE,
    TOO_LARGE,
    TOO_SLOW,
    UNPROCESSABLE,
    JsonObject,
    Limits,
    as_example,
    asked_texts,
    question_type,
    read_body,
    reply,
    sample_question,
)
from roformer_tf.inference.rows import BATCH_SIZE
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

FAILED, OVERLOADED = 500, 503
PATIENCE = 30
"""Seconds that a client has to send a request's head, and again to send its body; that it may
leave an answer lying; and that the last ones have at the end."""
NEEDED = ("fastapi", "fastapi_offline", "prometheus_client", "uvicorn")
MEANINGS = {
    BAD_REQUEST: "The body is no JSON.",
    TOO_SLOW: "No whole body came in time.",
    TOO_LARGE: "The body is too large.",
    UNPROCESSABLE: "The JSON is no question that this model understands.",
    FAILED: "The service failed; its log says why.",
    OVERLOADED: "Too many requests wait; try again after the seconds in Retry-After.",
}
"""Of the statuses of /predict other than 200."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Answer requests over HTTP with a fine-tuned model, and show a page to try it."""

    model: Path
    """The model/ folder of a run of `finetune`, or an export to onnx or int8; --model itself may be
    left out."""
    host: str = "127.0.0.1"
    """Address to listen at: 127.0.0.1 for this machine alone, 0.0.0.0 for all that reach it."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    batch_size: int = BATCH_SIZE
    """Most texts that are answered together; those of several requests are."""
    precision: InferencePrecision = "float32"
    """bfloat16 is faster where the hardware has it; probabilities move by some thousandths. An
    export keeps the precision that it has."""
    top_k: int | None = None
    """List so many labels in an answer, the likeliest; unset, all, or of more than 20 the likeliest
    5."""
    limits: Limits = field(default_factory=Limits)


class Served(NamedTuple):
    """What a service answers with."""

    name: str
    task: Task
    answer: Answer
    sample: JsonObject | None = None
    """The model's answer to `sample_question`."""


def serve(config: ServeConfig) -> None:
    """Answer requests until the process is told to end; those begun are finished."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InputError(f"serve needs {', '.join(missing)}: `pip install 'roformer-tf[serve]'`.")
    with listening(config.host, config.port) as at:
        served = load_served(config.model, config.batch_size, config.precision, config.top_k)
        server = make_server(make_app(served, config.batch_size, config.limits), config.limits)
        address, port = at.getsockname()[:2]
        if not is_loopback(address):
            print(
                f"warning: whoever reaches {address} can use this service, and reads along: it "
                "knows no passwords and no encryption. Put it behind a proxy that does.",
                file=sys.stderr,
            )
        print(f"serving {served.name} at {url(address, port)} (Ctrl+C ends it)", flush=True)
        server.run(sockets=[at])


def load_served(
    folder: Path,
    batch_size: int = BATCH_SIZE,
    precision: InferencePrecision = "float32",
    top_k: int | None = None,
) -> Served:
    """Load what `finetune` or `export` wrote, and have it answer before anyone asks.

    Two answers, which differ in rows and length: TensorFlow's plan for the second serves for all.
    """
    model, tokenizer, task = open_finetuned(folder, precision)
    task = task.with_top_k(top_k)

    def answer(examples: list[Example]) -> list[Prediction]:
        return predict(model, tokenizer, task, examples, batch_size)

    def answered(text: str, count: int) -> JsonObject:
        example = as_example([text] * len(task.text_columns), task)
        return task.as_json(example, answer([example] * count)[0])

    answered("好" * 100, 2)
    path = folder.resolve()
    name = path.parent.name if path.name == "model" else path.name
    return Served(name, task, answer, answered(SAMPLE, 1))


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address; before the model is loaded, for whoever asks then waits for it.

    Raises InputError where the address is taken, or none of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        at = socket.create_server((host, port), family=family)
        # or else the kernel keeps an answer's body back until its head is confirmed, for 40 ms
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return at
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen at {host}, port {port}: {reason}. Give another --host or --port."
        ) from None


def make_server(app: "FastAPI", limits: Limits | None = None) -> "uvicorn.Server":
    """What runs the service; told to end, it waits a little for requests that were begun."""
    import uvicorn

    from roformer_tf.inference.connections import LOGGERS, BoundedConnection, Server, Sparing, room

    connections, accepted = room((limits or Limits()).max_connections)
    protocol: Any = partial(BoundedConnection, most=connections, patience=PATIENCE)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        backlog=accepted,
        log_level="warning",
        timeout_graceful_shutdown=PATIENCE,
    )
    for name in LOGGERS:  # now, for uvicorn sets up its own as its settings are made
        logging.getLogger(name).addFilter(Sparing())
    return Server(config)


def url(address: str, port: int) -> str:
    """Where a browser finds the service."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def is_loopback(address: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def make_app(
    served: Served, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> "FastAPI":
    """The service as an ASGI application, for any server of such."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi_offline import FastAPIOffline  # FastAPI's own /docs load scripts from elsewhere
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    from roformer_tf.inference.monitoring import CONTENT_TYPE, CountedRequests, ServiceMetrics

    limits = limits or Limits()
    task = served.task
    question = question_type(task, limits)
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    metrics = ServiceMetrics(served.name, task.name)
    batcher = Batcher(metrics.count_batches(served.answer), batch_size, limits.max_waiting)
    metrics.watch_waiting(batcher.waiting)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    async def say(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            detail: Any = error.detail
            content = detail if isinstance(detail, dict) else {"error": detail}
            return JSONResponse(content, error.status_code, error.headers)
        return JSONResponse({"error": "the service failed; its log says why"}, FAILED)

    app = FastAPIOffline(
        title=f"roformer_tf: {served.name}",
        version=version("roformer-tf"),
        description=f"{task.title}. A page to try it by hand is at [/](/).",
        redoc_url=None,
        lifespan=working,
        exception_handlers={HTTPException: say, Exception: say},
    )

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def try_it() -> str:
        return page

    @app.get("/health", summary="What is served, and its limits")
    async def health() -> dict[str, Any]:
        names = ("title", "headline", "labels", "text_columns", "spaced_units")
        of_task = {"task": task.name} | {name: getattr(task, name) for name in names}
        return {"ready": True, "model": served.name} | of_task | {"limits": asdict(limits)}

    @app.get("/metrics", summary="Requests, latency and batches, as Prometheus reads them")
    async def measured() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @app.post(
        "/predict",
        summary="Answer one text, or several",
        responses=described_answers(served),
        openapi_extra={"requestBody": described_question(question, task)},
    )
    async def answer(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE, PATIENCE)
        examples = [as_example(texts, task) for texts in asked_texts(question, body, task)]
        try:
            predictions = await asyncio.wrap_future(batcher.ask(examples))
        except OverloadedError:
            busy = "too many requests wait; try again in a moment"
            raise HTTPException(OVERLOADED, busy, {"Retry-After": "1"}) from None
        # in a thread: the tags of a long text take seconds, in which others are to be heard
        written = await asyncio.to_thread(reply, examples, predictions, task)
        return Response(written, media_type="application/json")

    paths = {path for route in app.routes if (path := getattr(route, "path", None))}
    app.add_middleware(CountedRequests, metrics=metrics, paths=paths)
    return app


def described_question(question: "type[BaseModel]", task: Task) -> dict[str, Any]:
    """The body of /predict for OpenAPI."""
    content = {"schema": question.model_json_schema(), "example": sample_question(task)}
    return {"required": True, "content": {"application/json": content}}


def described_answers(served: Served) -> dict[int | str, dict[str, Any]]:
    """The answers of /predict for OpenAPI: a real one of the model, and what may go wrong."""
    answer: dict[str, Any] = {"type": "object"}
    predictions = {"type": "array", "items": answer, "description": "In the order of the texts."}
    whole = {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": predictions},
    }
    right: dict[str, Any] = {"schema": whole}
    if served.sample is not None:
        answer["required"] = list(served.sample)
        right["example"] = {"predictions": [served.sample]}
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string", "description": "What was wrong, and where."},
            "example": {"type": "object", "description": "A question that would be right."},
        },
    }
    described: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answers.", "content": {"application/json": right}}
    }
    wrong = {"application/json": {"schema": error}}
    return described | {
        status: {"description": meaning, "content": wrong} for status, meaning in MEANINGS.items()
    }
