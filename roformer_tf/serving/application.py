"""What the services of all models share: page, /health, /metrics, /docs, limits and errors."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from fastapi_offline import FastAPIOffline  # FastAPI's own /docs loads scripts from a CDN
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roformer_tf.serving.api_key import ApiKey, describe_key
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import failures, http_error, invalid_request, unexpected
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import Failure, OpenAiFailure, ServedModel, ServedModels
from roformer_tf.serving.settings import BODY_SECONDS, ApiConfig, Limits

MEGABYTE = 1_000_000

NOT_READY = failures(Failure, 503)
NO_MODEL = failures(OpenAiFailure, 404)
PAGES = Jinja2Templates(Path(__file__).parent / "page")


def create_app(
    name: str,
    health: Mapping[str, Any],
    script: str,
    metrics: ServiceMetrics,
    batchers: Collection[Batcher[Any, Any]],
    limits: Limits,
    api: ApiConfig | None = None,
) -> FastAPI:
    """Create the application, without the routes of its model.

    health: the task, its title, the limits, and more for /health. script: of the page, for this
    kind of model. batchers: closed when the service stops.
    """
    api = api or ApiConfig()

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
        # FastAPI's own errors have several forms.
        exception_handlers={
            StarletteHTTPException: http_error,
            RequestValidationError: invalid_request,
            Exception: unexpected,
        },
    )
    app.add_middleware(JsonBodies, max_bytes=limits.max_megabytes * MEGABYTE)
    metrics.add_to(app)
    # The last one is the first to see a request: CORS, whose requests "OPTIONS" have no key.
    if api.key is not None:
        app.add_middleware(ApiKey, key=api.key)
        describe_key(app)
    if api.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=api.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    _add_pages(app, script, {"ready": True, "model": name, **health})
    _add_probes(app, batchers, limits)
    _add_models(app, name)
    return app


def _add_pages(app: FastAPI, script: str, health: dict[str, Any]) -> None:
    @app.head("/", include_in_schema=False)
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(request: Request) -> Response:
        return PAGES.TemplateResponse(request, "page.html", {"script": script})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="The served model and its limits")
    async def describe() -> dict[str, Any]:
        return health


def _add_probes(app: FastAPI, batchers: Collection[Batcher[Any, Any]], limits: Limits) -> None:
    """Routes for Kubernetes and load balancers."""

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether the process responds")
    async def alive() -> dict[str, bool]:
        return {"ok": True}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether there is room for requests", responses=NOT_READY)
    async def ready() -> dict[str, bool]:
        if any(batcher.waiting() >= limits.max_waiting for batcher in batchers):
            raise HTTPException(503, "too many requests wait", {"Retry-After": "1"})
        return {"ready": True}


def _add_models(app: FastAPI, name: str) -> None:
    """OpenAI's routes that list the models."""
    served = ServedModel(id=name, created=int(time.time()))

    @app.get("/v1/models", summary="The served models, as at OpenAI")
    async def models() -> ServedModels:
        return ServedModels(data=[served])

    @app.get("/v1/models/{model:path}", summary="One of them", responses=NO_MODEL)
    async def model(model: str) -> ServedModel:
        if model != name:
            raise HTTPException(404, f"there is no model {model!r}; the model is {name!r}")
        return served


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


def check_texts(items: list[Any], limits: Limits) -> None:
    """Raise status 422 for too many texts, or too long ones."""
    if len(items) > limits.max_texts:
        raise HTTPException(
            422, f"texts: {len(items):,} texts, but at most {limits.max_texts:,} are allowed"
        )
    check_lengths(items, limits)


def check_lengths(items: list[Any], limits: Limits) -> None:
    """Raise status 422 for a text that is too long."""
    for number, item in enumerate(items):
        length = max(map(len, [item] if isinstance(item, str) else item))
        if length > limits.max_characters:
            raise HTTPException(
                422,
                f"text {number + 1} has {length:,} characters, but at most "
                f"{limits.max_characters:,} are allowed",
            )


def json_response(
    key: str, items: Iterable[Any], limits: Limits, more: Mapping[str, Any] | None = None
) -> Response:
    """The response {key: [item, …], **more}, or, without a key, the list alone.

    Status 413 for one that is too large. Items are encoded one by one: a too large response never
    exists as a whole, and other threads get their turn between two items.
    """
    max_bytes = limits.max_answer_megabytes * MEGABYTE
    parts: list[bytes] = []
    size = 0
    for item in items:
        parts.append(_as_json(item))
        size += len(parts[-1])
        if size > max_bytes:
            raise HTTPException(
                413,
                f"the response is larger than {max_bytes:,} bytes; ask for fewer or shorter texts",
            )
    content = b"[%s]" % b",".join(parts)
    if key:
        rest = b"".join(b",%s:%s" % (_as_json(k), _as_json(x)) for k, x in (more or {}).items())
        content = b"{%s:%s%s}" % (_as_json(key), content, rest)
    return Response(content, media_type="application/json")


def _as_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
