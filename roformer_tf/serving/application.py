"""An application of one model or several: page, /health, /metrics, /docs, key, limits and errors.

One model has its routes at /. Of several, each has them at /models/NAME/, and at / are those of
all: see `model_choice`.
"""

import asyncio
import base64
import binascii
import json
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.templating import Jinja2Templates
from fastapi_offline import FastAPIOffline  # FastAPI's own /docs loads scripts from a CDN
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import ERRORS, HANDLERS, error_response, own_path
from roformer_tf.serving.model_choice import add_choice, no_other_model, prefix, unknown_model
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import ServedModel, ServedModels
from roformer_tf.serving.settings import BODY_SECONDS, Limits, ServeConfig

MEGABYTE = 1_000_000
# zlib's `wbits` of a gzip header and the largest window.
GZIP = 31
# Paths that load balancers ask, without a key.
WITHOUT_KEY = ("/health", "/healthz", "/readyz")
NO_KEY = 'the API key is missing or wrong; send the header "Authorization: Bearer KEY"'
# Browsers ask the user for a name and a password: so the page of the service can be used.
CHALLENGE = {"WWW-Authenticate": 'Basic realm="roformer_tf"'}
PAGES = Jinja2Templates(Path(__file__).parent / "page")


class ModelRoutes(NamedTuple):
    """The routes of a model, and what an application needs to know of it."""

    name: str
    router: APIRouter
    health: Mapping[str, Any]
    """The task, its title, the limits, and more for /health; a function is called each time."""
    script: str
    """Of the page, for this kind of model."""
    batchers: Collection[Batcher[Any, Any]]
    """Closed when the service stops."""
    choice: Choice
    """What computes it."""


def create_app(
    models: Sequence[ModelRoutes], metrics: ServiceMetrics, config: ServeConfig
) -> FastAPI:
    """Create the application of some models, whose names differ."""
    api, names = config.api, [model.name for model in models]
    batchers = [batcher for model in models for batcher in model.batchers]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        # The server has finished its requests, so the batchers are idle.
        for batcher in batchers:
            await asyncio.to_thread(batcher.close)

    # A set would lose the order; several models of one task have the same title.
    titles = ", ".join(dict.fromkeys(model.health["title"] for model in models))
    app = FastAPIOffline(
        title=f"roformer_tf: {', '.join(names)}",
        version=version("roformer-tf"),
        description=f"{titles}. A page to try it is at [/](/).",
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers=HANDLERS,  # FastAPI's own errors have several forms
        responses=ERRORS,
    )
    app.add_middleware(JsonBodies, max_bytes=config.limits.max_megabytes * MEGABYTE)
    # The fastest level: vectors as text hardly become smaller with more work.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    metrics.add_to(app)
    # The last one is the first to see a request: CORS, whose requests "OPTIONS" have no key.
    if api.key is not None:
        app.add_middleware(ApiKey, key=api.key)
    if api.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=api.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    for model in models:
        metrics.models.labels(model.name, model.health["task"]).set(1)
        _add_pages(model, names)
        _add_models(model.router, [model.name])
    # From here on, the order matters: `app.openapi()` keeps its first result, which `add_choice`
    # and `describe_key` change. A route that is added after them is missing in /docs.
    _add_probes(app, batchers)
    if len(models) == 1:
        app.include_router(models[0].router)
    else:
        for model in models:
            app.include_router(
                model.router,
                prefix=prefix(model.name),
                tags=[model.name],
                dependencies=[Depends(no_other_model(model.name, names))],
            )
        _add_overview(app, models)
        _add_models(app, names)
        add_choice(app, {model.name: model.router for model in models})
    if api.key is not None:
        describe_key(app)
    return app


def _add_pages(model: ModelRoutes, names: Sequence[str]) -> None:
    """The page of a model, with links to those of the rest, and its description."""
    several = len(names) > 1
    variables = {
        "script": model.script,
        "models": names if several else (),
        # From /models/NAME/ back to /: absolute links would lose the path of a proxy.
        "root": "../../" if several else "",
    }

    @model.router.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page(request: Request) -> Response:
        return PAGES.TemplateResponse(request, "page.html", variables)

    # No coroutine, so FastAPI calls it in a thread: counting the documents of an index waits for a
    # search that is running.
    @model.router.get("/health", summary="The served model and its limits")
    def describe() -> dict[str, Any]:
        return _described(model)


def _described(model: ModelRoutes) -> dict[str, Any]:
    facts = {key: x() if callable(x) else x for key, x in model.health.items()}
    return {"ready": True, "model": model.name, **facts}


def _add_overview(app: FastAPI, models: Sequence[ModelRoutes]) -> None:
    """The pages and the descriptions of several models."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        # Relative, models/NAME/ without the first slash, so that the path of a proxy stays.
        return RedirectResponse(f"{prefix(quote(models[0].name))[1:]}/")

    @app.get("/health", summary="The served models and their limits")
    def describe() -> dict[str, Any]:
        return {"ready": True, "models": list(map(_described, models))}


def _add_probes(app: FastAPI, batchers: Collection[Batcher[Any, Any]]) -> None:
    """Routes for Kubernetes and load balancers."""

    @app.get("/healthz", summary="Whether the process responds")
    async def alive() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/readyz", summary="Whether there is room for requests")
    async def ready() -> dict[str, bool]:
        for batcher in batchers:
            batcher.check_room()
        return {"ready": True}


def _add_models(router: FastAPI | APIRouter, names: Sequence[str]) -> None:
    """OpenAI's routes that list the models."""
    served = {name: ServedModel(id=name, created=int(time.time())) for name in names}

    @router.get("/v1/models", summary="The served models, as at OpenAI")
    async def models() -> ServedModels:
        return ServedModels(data=list(served.values()))

    @router.get("/v1/models/{model:path}", summary="One of them")
    async def model(model: str) -> ServedModel:
        if model not in served:
            raise HTTPException(404, unknown_model(model, names))
        return served[model]


class ApiKey:
    """ASGI middleware: refuse requests without the key, before their bodies are read."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or send status 401."""
        if scope["type"] != "http" or own_path(scope) in WITHOUT_KEY or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        await error_response(Request(scope), 401, NO_KEY, CHALLENGE)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        header = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, value = header.partition(b" ")
        if kind.lower() == b"basic":
            try:
                # Basic is NAME:PASSWORD in base64: the key is the password, the name may be any.
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != b"bearer":
            return False
        # in constant time: an attacker cannot measure how much of the key is right
        return secrets.compare_digest(value.strip(), self._key)


def describe_key(app: FastAPI) -> None:
    """Add the key to the OpenAPI description."""
    schema = app.openapi()
    kinds = {"bearer": {"type": "http", "scheme": "bearer"}}
    schema.setdefault("components", {})["securitySchemes"] = kinds
    for path, operations in schema["paths"].items():
        for operation in operations.values() if path not in WITHOUT_KEY else ():
            operation["security"] = [{"bearer": []}]


class JsonBodies:
    """ASGI middleware: reads bodies, with limits of size and time, and treats all as JSON.

    `curl --data` declares a form, which FastAPI would not parse as JSON. A gzipped body is
    decompressed, and its size limited as that of others.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with the whole body, or respond why it was refused."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Servers give header names in lower case, as ASGI demands.
        coding = dict(scope["headers"]).get(b"content-encoding", b"identity").decode("latin-1")
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
        scope["headers"] = [*headers, (b"content-type", b"application/json")]
        if scope["method"] == "HEAD":  # in a copy: the server itself sends no body for HEAD
            scope = {**scope, "method": "GET"}
        try:
            body = await asyncio.wait_for(self._read(coding, receive), BODY_SECONDS)
        # asyncio's is the same as TimeoutError only since Python 3.11
        except (HTTPException, asyncio.TimeoutError) as error:
            status, reason = 408, f"the body took longer than {BODY_SECONDS} seconds"
            if isinstance(error, HTTPException):
                status, reason = error.status_code, error.detail
            await error_response(Request(scope), status, reason)(scope, receive, send)
            return
        scope["body"] = body  # for `ChosenModel`
        messages = iter([{"type": "http.request", "body": body}])

        async def whole() -> Message:  # after it, wait for the client to disconnect
            return next(messages, None) or await receive()

        await self._app(scope, whole, send)

    async def _read(self, coding: str, receive: Receive) -> bytes:
        """The decompressed body. Status 400, 413 or 415 for one that cannot be read."""
        gzip = zlib.decompressobj(GZIP) if coding.lower() in ("gzip", "x-gzip") else None
        # A server passes a body in several messages; the last one is without `more_body`.
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "the body is incomplete")
            part, more = message.get("body", b""), message.get("more_body", False)
            if gzip is not None:
                try:
                    # One byte more than is allowed shows that a body is too large, without
                    # expanding the rest of it. The limit is never 0, which zlib takes for no limit.
                    part = gzip.decompress(part, self._max_bytes - len(body) + 1)
                except zlib.error:
                    reason = "Content-Encoding is gzip, but the body is not"
                    raise HTTPException(400, reason) from None
            elif part and coding.lower() != "identity":
                raise HTTPException(415, f"Content-Encoding is {coding}: send gzip, or plain JSON")
            # Content-Length may be absent or wrong: what arrives is counted.
            body += part
            if len(body) > self._max_bytes:
                raise HTTPException(413, f"the body is larger than {self._max_bytes:,} bytes")
        if gzip is not None and not gzip.eof:
            raise HTTPException(400, "the gzipped body is incomplete")
        return bytes(body)


def check_texts(items: list[Any], limits: Limits) -> None:
    """Raise InputError for too many texts, or too long ones."""
    if len(items) > limits.max_texts:
        raise InputError(
            f"texts: {len(items):,} texts, but at most {limits.max_texts:,} are allowed"
        )
    check_lengths(items, limits)


def check_lengths(items: list[Any], limits: Limits, name: str = "text") -> None:
    """Raise InputError for a text that is too long."""
    for number, item in enumerate(items, 1):
        length = max(map(len, [item] if isinstance(item, str) else item))
        if length > limits.max_characters:
            raise InputError(
                f"{name} {number} has {length:,} characters, but at most "
                f"{limits.max_characters:,} are allowed"
            )


async def json_response(content: Any, limits: Limits, short: bool = False) -> Response:
    """The response of a list, or of an object whose last value is one; any iterable is a list.

    Status 413 for one that is too large. Meanwhile other requests are served, unless it is short:
    the tags of long texts take seconds to encode, few items less than another thread to start.
    """
    # Only the last value can be long: it is encoded item by item, and put into the encoded rest.
    # {"model": "m", "data": [..]} → {"model":"m","data": + [..] + }
    *head, (key, items) = content.items() if isinstance(content, dict) else [("", content)]
    encode = partial(_json_list, items, limits.max_answer_megabytes * MEGABYTE)
    body = encode() if short else await asyncio.to_thread(encode)
    if key:
        body = _as_json({**dict(head), key: []}).removesuffix(b"[]}") + body + b"}"
    return Response(body, media_type="application/json")


def _json_list(items: Iterable[Any], max_bytes: int) -> bytes:
    # Items are encoded one by one: a too large response never exists as a whole, and other threads
    # get their turn between two items.
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
    return b"[%s]" % b",".join(parts)


def _as_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()
