"""A small HTTP service that answers with a fine-tuned model.

GET  /         a page to try it by hand
GET  /health   what is served: the model's name, its task, its labels, the limits
POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [answer, …]}

X is a text; of a pair a list of two texts, of a ranking a list of three. Whatever is wrong with a
request is answered by {"error": what} with a status of 4xx, and a question that was not understood
by an example of a right one, too; 503 asks to try again later.
"""

import asyncio
import ipaddress
import json
import logging
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.inference.export import MEGABYTE
from roformer_tf.inference.predict import InferencePrecision, predict
from roformer_tf.inference.predictor import open_finetuned
from roformer_tf.inference.rows import BATCH_SIZE
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails
    from starlette.requests import Request

Answer: TypeAlias = Callable[[list[Example]], list[Prediction]]

BAD_REQUEST, TOO_SLOW, TOO_LARGE, UNPROCESSABLE = 400, 408, 413, 422
FAILED, OVERLOADED = 500, 503
PATIENCE = 30
"""Seconds that a client has to send a request's head, and again to send its body; that it may
leave an answer lying; and that the last ones have at the end."""
MANY_MISTAKES = 1000
"""More of them in one question are counted, not described: that would hold up all others."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask, and how many may wait."""

    max_texts: int = 128
    """Most texts (pairs, triples) of a request."""
    max_characters: int = 100_000
    """Most characters of a text."""
    max_megabytes: int = 4
    """Largest body of a request; a larger one is refused before it is read whole."""
    max_waiting: int = 256
    """Most requests that wait for the model; further ones are asked to come later."""
    max_connections: int = 512
    """Most connections at a time, and no more than half of the files that the process may still
    open; a further one takes the place of the one that has been idle the longest."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise InputError(f"{name} is {value}, but must be at least 1.")


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
    limits: Limits = Limits()


class Served(NamedTuple):
    """What a service answers with."""

    name: str
    task: Task
    answer: Answer


class OverloadedError(RuntimeError):
    """So many requests wait already that another one would wait too long."""


def serve(config: ServeConfig) -> None:
    """Answer requests until the process is told to end; those begun are finished."""
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
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

    for count in (1, 2):
        example = as_example(["好" * 50 * count] * len(task.text_columns), task)
        task.as_json(example, answer([example] * count)[0])
    path = folder.resolve()
    return Served(path.parent.name if path.name == "model" else path.name, task, answer)


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


class Batcher:
    """Puts the requests that wait at the same time into one batch, in one thread.

    Models are not made for several threads; this one alone asks it. A request that comes while
    the model is idle is answered at once; while it works others gather, so that batches grow
    with the load and nobody waits on a clock.
    """

    def __init__(self, answer: Answer, batch_size: int, max_waiting: int) -> None:
        self._answer = answer
        self._batch_size = batch_size
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "model")

    def ask(self, examples: list[Example]) -> "Future[list[Prediction]]":
        """Promise answers. Raises OverloadedError where too many wait already."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError
        asked = _Waiting(examples, Future())
        self._waiting.append(asked)
        self._thread.submit(self._work)  # one call for each request: after the last none waits
        return asked.answers

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Answer the next requests, unless an earlier call has answered them."""
        batch = self._next_batch()
        if not batch:
            return
        try:
            answers = iter(self._answer([example for asked in batch for example in asked.examples]))
        except Exception as error:  # our mistake: those who asked hear of it, the thread goes on
            for asked in batch:
                asked.answers.set_exception(error)
        else:
            for asked in batch:
                asked.answers.set_result(list(islice(answers, len(asked.examples))))

    def _next_batch(self) -> "list[_Waiting]":
        """Take requests until the batch is full or none waits; skip those given up."""
        batch: list[_Waiting] = []
        while self._waiting and sum(len(asked.examples) for asked in batch) < self._batch_size:
            asked = self._waiting.popleft()
            if asked.answers.set_running_or_notify_cancel():
                batch.append(asked)
        return batch


class _Waiting(NamedTuple):
    examples: list[Example]
    answers: "Future[list[Prediction]]"


def make_app(
    served: Served, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> "FastAPI":
    """The service as an ASGI application, for any server of such."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    limits = limits or Limits()
    task = served.task
    question = question_type(task, limits)
    page = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    batcher = Batcher(served.answer, batch_size, limits.max_waiting)

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

    app = FastAPI(
        title=f"roformer_tf: {served.name}",
        lifespan=working,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        exception_handlers={HTTPException: say, Exception: say},
    )

    @app.get("/", response_class=HTMLResponse)
    async def try_it() -> str:
        return page

    @app.get("/health")
    async def health() -> dict[str, Any]:
        names = ("title", "headline", "labels", "text_columns", "spaced_units")
        of_task = {"task": task.name} | {name: getattr(task, name) for name in names}
        return {"ready": True, "model": served.name} | of_task | {"limits": asdict(limits)}

    schema = {"content": {"application/json": {"schema": question.model_json_schema()}}}

    @app.post("/predict", openapi_extra={"requestBody": schema | {"required": True}})
    async def answer(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE)
        examples = [as_example(texts, task) for texts in asked_texts(question, body, task)]
        try:
            predictions = await asyncio.wrap_future(batcher.ask(examples))
        except OverloadedError:
            busy = "too many requests wait; try again in a moment"
            raise HTTPException(OVERLOADED, busy, {"Retry-After": "1"}) from None
        # in a thread: the tags of a long text take seconds, in which others are to be heard
        written = await asyncio.to_thread(reply, examples, predictions, task)
        return Response(written, media_type="application/json")

    return app


def question_type(task: Task, limits: Limits) -> type["BaseModel"]:
    """What a request's JSON is checked against: `text` or `texts`, and nothing else."""
    from pydantic import AfterValidator, ConfigDict, Field, create_model, model_validator
    from pydantic_core import PydanticCustomError

    def not_blank(text: str) -> str:
        if not text.strip():
            raise PydanticCustomError("blank", "the text is empty")
        return text

    def one_of_both(question: Any) -> Any:
        if (question.text is None) == (question.texts is None):
            raise PydanticCustomError("one", "give either text or texts")
        return question

    count = len(task.text_columns)
    text: Any = Annotated[str, Field(max_length=limits.max_characters), AfterValidator(not_blank)]
    one: Any = text
    if count > 1:
        one = Annotated[list[text], Field(min_length=count, max_length=count)]
    several: Any = Annotated[list[one], Field(min_length=1, max_length=limits.max_texts)]
    return create_model(
        "Question",
        __config__=ConfigDict(extra="forbid", strict=True),
        __validators__={"one_of_both": model_validator(mode="after")(one_of_both)},  # type: ignore[dict-item]
        text=(one | None, None),
        texts=(several | None, None),
    )


async def read_body(request: "Request", limit: int) -> bytes:
    """A request's body; no more is read of one that is too large (status 413) or slow (408)."""
    from starlette.exceptions import HTTPException

    async def read() -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise HTTPException(TOO_LARGE, f"the body is larger than {limit:,} bytes")
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), PATIENCE)
    except asyncio.TimeoutError:  # TimeoutError itself only since Python 3.11
        raise HTTPException(TOO_SLOW, f"no whole body came in {PATIENCE} seconds") from None


def asked_texts(question: "type[BaseModel]", body: bytes, task: Task) -> list[list[str]]:
    """The texts of each example that a body asks about; a status of 4xx where it is no question."""
    from pydantic import ValidationError
    from starlette.exceptions import HTTPException

    try:
        asked: Any = question.model_validate_json(body)
    except ValidationError as error:
        mistakes = error.error_count()
        found = error.errors() if mistakes <= MANY_MISTAKES else []
        malformed = any(one["type"] == "json_invalid" for one in found)
        status = BAD_REQUEST if malformed else UNPROCESSABLE
        count = len(task.text_columns)
        detail: Any = {
            "error": reason(found) if found else f"{mistakes:,} things are wrong in it",
            "example": {"text": "…" if count == 1 else ["…"] * count},
        }
        raise HTTPException(status, detail) from None
    examples = asked.texts or [asked.text]
    return [[one] if isinstance(one, str) else one for one in examples]


def reason(errors: "Sequence[ErrorDetails]") -> str:
    """What is wrong with a question, and where in it: "texts.1: the text is empty"."""
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, one["loc"])), one["msg"]])) for one in errors[:3]
    )


def as_example(texts: Sequence[str], task: Task) -> Example:
    """An example without a label, as the model takes it."""
    return task.for_prediction(Example(tuple(texts), None, "the request"))


def reply(examples: Sequence[Example], predictions: Sequence[Prediction], task: Task) -> bytes:
    """The body of an answer, {"predictions": [answer, …]}.

    Answer by answer: `json.dumps` of all at once would stop every other thread until it ends.
    """
    answers = (
        json.dumps(
            task.as_json(example, prediction),
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
        for example, prediction in zip(examples, predictions, strict=True)
    )
    return f'{{"predictions":[{",".join(answers)}]}}'.encode()
