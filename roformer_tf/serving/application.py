"""What the services of all models share: page, /health, /metrics, /docs, limits and errors."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.templating import Jinja2Templates
from fastapi_offline import FastAPIOffline  # FastAPI's own /docs loads scripts from a CDN
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import Failure
from roformer_tf.serving.settings import BODY_SECONDS, Limits

MEGABYTE = 1_000_000

FAILURE = "the service failed; its log has the reason"
# Error responses of every route, for its documentation.
FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "The body is not JSON."},
    408: {"model": Failure, "description": "The body did not arrive in time."},
    413: {"model": Failure, "description": "The body, or the response, is too large."},
    422: {"model": Failure, "description": "The JSON is not a valid request."},
    500: {"model": Failure, "description": "The service failed; its log has the reason."},
    503: {"model": Failure, "description": "Too many requests wait: see Retry-After."},
}
PAGES = Jinja2Templates(Path(__file__).parent / "page")


def create_app(
    name: str,
    health: Mapping[str, Any],
    script: str,
    metrics: ServiceMetrics,
    batchers: Iterable[Batcher[Any, Any]],
    limits: Limits,
) -> FastAPI:
    """Create the application, without the routes of its model.

    health: the task, its title, the limits, and more for /health. script: of the page, for this
    kind of model. batchers: closed when the service stops.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # The server has finished its requests, so the batchers are idle.
        for batcher in batchers:
            await asyncio.to_thread(batcher.close)

    app = FastAPIOffline(
        title=f"roformer_tf: {name}",
        version=version("roformer-tf"),
        description=f"{health['title']}. A page to try it is at [/](/).",
        redoc_url=None,
        lifespan=lifespan,
        # All errors have the same form, {"error": reason}; FastAPI's own have several.
        exception_handlers={
            StarletteHTTPException: _http_error,
            RequestValidationError: _invalid_request,
            Exception: _failure,
        },
    )
    app.add_middleware(JsonBodies, max_bytes=limits.max_megabytes * MEGABYTE)
    metrics.add_to(app)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(request: Request) -> Response:
        return PAGES.TemplateResponse(request, "page.html", {"script": script})

    @app.get("/health", summary="The served model and its limits")
    async def describe() -> dict[str, Any]:
        return {"ready": True, "model": name, **health}

    return app


class JsonBodies:
    """ASGI middleware: limits size and time of a body, and treats every body as JSON.

    `curl --data` declares a form, which FastAPI would not parse as JSON.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a limited `receive`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Servers give header names in lower case, as ASGI demands.
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
        scope["headers"] = [*headers, (b"content-type", b"application/json")]
        seconds = BODY_SECONDS
        deadline = asyncio.get_running_loop().time() + seconds
        size, complete = 0, False

        async def limited() -> Message:
            nonlocal size, complete
            if complete:  # from now on, `receive` waits for the client to disconnect
                return await receive()
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:  # the same as TimeoutError only since Python 3.11
                complete = True
                raise HTTPException(408, f"the body took longer than {seconds} seconds") from None
            # Content-Length may be absent or wrong: what arrives is counted.
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                complete = True
                raise HTTPException(413, f"the body is larger than {self._max_bytes:,} bytes")
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, limited, send)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    """Describe the first mistakes: "texts.1: the text is empty"."""
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    first = mistakes[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"error": f"the body is not JSON: {first['ctx']['error']}"}, 400)
    if first["loc"] == ("body",) and first["type"] == "missing":
        return JSONResponse({"error": "the body is empty; send JSON"}, 400)
    # Three are enough to correct a request, and a response stays short.
    reasons = []
    for mistake in mistakes[:3]:
        where = ".".join(map(str, mistake["loc"][1:]))  # the first is "body"
        reasons.append(f"{where}: {mistake['msg']}" if where else mistake["msg"])
    return JSONResponse({"error": "; ".join(reasons)}, 422)


async def _failure(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": FAILURE}, 500)


def check_texts(items: list[Any], limits: Limits) -> None:
    """Raise status 422 for too many texts, or too long ones."""
    if len(items) > limits.max_texts:
        raise HTTPException(
            422, f"texts: {len(items):,} texts, but at most {limits.max_texts:,} are allowed"
        )
    for number, item in enumerate(items):
        length = max(map(len, [item] if isinstance(item, str) else item))
        if length > limits.max_characters:
            raise HTTPException(
                422,
                f"text {number + 1} has {length:,} characters, but at most "
                f"{limits.max_characters:,} are allowed",
            )


def json_response(key: str, items: Iterable[Any], limits: Limits) -> Response:
    """The response {key: [item, …]}; status 413 for one that is too large.

    Items are encoded one by one: a too large response never exists as a whole, and other threads
    get their turn between two items.
    """
    max_bytes = limits.max_answer_megabytes * MEGABYTE
    parts: list[bytes] = []
    size = 0
    for item in items:
        text = json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        parts.append(text.encode())
        size += len(parts[-1])
        if size > max_bytes:
            raise HTTPException(
                413,
                f"the response is larger than {max_bytes:,} bytes; ask for fewer or shorter texts",
            )
    return Response(
        b'{"%s":[%s]}' % (key.encode(), b",".join(parts)), media_type="application/json"
    )
