"""What a service has, whatever it answers with: a page, /health, /metrics, /docs, and errors."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from roformer_tf.inference.batching import Batcher, OverloadedError
from roformer_tf.inference.questions import BAD_REQUEST, TOO_LARGE, TOO_SLOW, UNPROCESSABLE

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from roformer_tf.inference.monitoring import ServiceMetrics

Question = TypeVar("Question")
Reply = TypeVar("Reply")

PATIENCE = 30
"""Seconds that a client has to send a request's head, and again to send its body; that it may
leave an answer lying; and that the last ones have at the end."""
FAILED, OVERLOADED = 500, 503
FAILURE = "the service failed; its log says why"
MEANINGS = {
    BAD_REQUEST: "The body is no JSON.",
    TOO_SLOW: "No whole body came in time.",
    TOO_LARGE: "The body is too large.",
    UNPROCESSABLE: "The JSON is no question that this model understands.",
    FAILED: "The service failed; its log says why.",
    OVERLOADED: "Too many requests wait; try again after the seconds in Retry-After.",
}
"""Of the statuses of an answer other than 200."""
SCRIPT = re.compile("/[*] the script of .* [*]/")


def make_service(
    name: str,
    title: str,
    script: str,
    health: Mapping[str, Any],
    metrics: "ServiceMetrics",
    *batchers: Batcher[Any, Any],
    at_end: Callable[[], None] | None = None,
) -> "FastAPI":
    """An application that answers nothing yet but what is asked of the service itself.

    title: what it does. script: that of the page, a file beside page.html. health: what /health
    says of it. batchers: what its requests wait for, until the service ends; at_end is called then.
    """
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi_offline import FastAPIOffline  # FastAPI's own /docs load scripts from elsewhere
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    from roformer_tf.inference.monitoring import CONTENT_TYPE

    page = page_with(script)
    metrics.watch_waiting(lambda: sum(batcher.waiting() for batcher in batchers))

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        yield
        for batcher in batchers:
            batcher.close()
        if at_end is not None:
            at_end()

    async def say(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            detail: Any = error.detail
            content = detail if isinstance(detail, dict) else {"error": detail}
            return JSONResponse(content, error.status_code, error.headers)
        return JSONResponse({"error": FAILURE}, FAILED)

    app = FastAPIOffline(
        title=f"roformer_tf: {name}",
        version=version("roformer-tf"),
        description=f"{title}. A page to try it by hand is at [/](/).",
        redoc_url=None,
        lifespan=working,
        exception_handlers={HTTPException: say, Exception: say},
    )

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def try_it() -> str:
        return page

    @app.get("/health", summary="What is served, and its limits")
    async def of_service() -> dict[str, Any]:
        return {"ready": True, "model": name, **health}

    @app.get("/metrics", summary="Requests, latency and batches, as Prometheus reads them")
    async def measured() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    return app


def page_with(script: str) -> str:
    """The page, with the script of what is served in its place."""
    room = files(__package__)
    own = room.joinpath(script).read_text(encoding="utf-8")
    return SCRIPT.sub(lambda _: own, room.joinpath("page.html").read_text(encoding="utf-8"))


def count_requests(app: "FastAPI", metrics: "ServiceMetrics") -> "FastAPI":
    """The application, now that all its paths are there, with its requests counted."""
    from roformer_tf.inference.monitoring import CountedRequests

    paths = {path for route in app.routes if (path := getattr(route, "path", None))}
    app.add_middleware(CountedRequests, metrics=metrics, paths=paths)
    return app


def promised(batcher: Batcher[Question, Reply], questions: list[Question]) -> Future[list[Reply]]:
    """What the batcher will answer; status 503 where too many wait already."""
    from starlette.exceptions import HTTPException

    try:
        return batcher.ask(questions)
    except OverloadedError:
        busy = "too many requests wait; try again in a moment"
        raise HTTPException(OVERLOADED, busy, {"Retry-After": "1"}) from None


async def left(request: "Request") -> None:
    """Wait until a client whose request was read whole has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)


def described_answers(right: Mapping[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The answers of a path for OpenAPI: right ones by their content types, and what goes wrong."""
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string", "description": "What was wrong, and where."},
            "example": {"type": "object", "description": "A question that would be right."},
        },
    }
    wrong = {"application/json": {"schema": error}}
    described: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answers.", "content": dict(right)}
    }
    return described | {
        status: {"description": meaning, "content": wrong} for status, meaning in MEANINGS.items()
    }


def described_question(content: Mapping[str, Any], example: Any) -> dict[str, Any]:
    """The body of a path for OpenAPI: its JSON schema, and a question that would be right."""
    body = {"schema": dict(content), "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": body}}}
