"""Error responses: {"error": reason}, or the shape that clients of other services read.

Under /v1 it is OpenAI's, {"error": {"message", "type", "param", "code"}}, under /v2 Cohere's,
{"message": reason}. Both call every invalid request 400, where our own routes have 422.
"""

import re
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Scope

from roformer_tf.errors import DamagedError, InputError
from roformer_tf.tasks.base import FIXED_LABELS

SERVICE_FAILED = "the service failed; its log has the reason"
# Where each of several models has its routes.
MODELS = "/models/"
# `code` of an error under /v1, where the status does not say it all.
CODES = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}


class Failure(BaseModel):
    """Why a request failed."""

    error: str


# Error responses of all routes, for their documentation.
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": Failure,
        "description": "A failure; under /v1 it has OpenAI's form, under /v2 Cohere's. 400: the "
        "body is not JSON; 401: the API key is missing or wrong; 404: there is no such model or "
        "document; 408: the body did not arrive in time; 413: the body, or the response, is too "
        "large; 415: the body is compressed, but not by gzip; 422 (400 under /v1 and /v2): the "
        "JSON is not a valid request; 500: the service failed, its log has the reason; 503: too "
        "many requests wait, see Retry-After.",
    }
}


def own_path(scope: Scope) -> str:
    """The path of a request, without that of the proxy."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def error_response(request: Request, status: int, reason: str, headers: Any = None) -> JSONResponse:
    """The response to a request that failed, in the shape of its route."""
    # /v1/embeddings, or of one of several models /models/NAME/v1/embeddings
    match = re.match(rf"(?:{MODELS}[^/]*)?/(v1|v2)/", own_path(request.scope))
    version = match[1] if match else ""
    if version and status == 422:
        status = 400
    content: Any = {"error": reason}
    if version == "v1":
        kind = "server_error" if status >= 500 else "invalid_request_error"
        content = {"message": reason, "type": kind, "param": None, "code": CODES.get(status)}
        content = {"error": content}
    elif version == "v2":
        content = {"message": reason}
    return JSONResponse(content, status, headers)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """What a route raised, or the router where there is no route."""
    assert isinstance(error, StarletteHTTPException)
    # A 404 of the router has the text "Not Found"; one that a route raises has its own reason.
    reason, path = error.detail, request.url.path
    if reason == "Not Found":
        reason = f"there is no {path} for the model of this service; /docs lists its routes"
    if reason == "There was an error parsing the body":  # of FastAPI, such as GBK's bytes
        reason = "the body cannot be read: send JSON in UTF-8"
    return error_response(request, error.status_code, reason, error.headers)


async def bad_input(request: Request, error: Exception) -> JSONResponse:
    """What the model of a route cannot do."""
    if isinstance(error, DamagedError):
        raise error  # for `unexpected`, and for the log
    return error_response(request, 422, str(error))


async def invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Describe the first mistakes: "texts.1: the text is empty"."""
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    first = mistakes[0]
    if first["type"] == "json_invalid":
        return error_response(request, 400, f"the body is not JSON: {first['ctx']['error']}")
    if first["loc"] == ("body",) and first["type"] == "missing":
        return error_response(request, 400, "the body is empty; send JSON")
    # Three are enough to correct a request, and a response stays short.
    reasons = []
    for mistake in mistakes[:3]:
        # The first is "body". Names in brackets are those of `schemas`, not of the request.
        names = map(str, mistake["loc"][1:])
        where = ".".join(name for name in names if not name.startswith("("))
        unknown = mistake["type"] == "extra_forbidden" and where == "labels"
        reason = FIXED_LABELS if unknown else mistake["msg"]
        reasons.append(f"{where}: {reason}" if where else reason)
    return error_response(request, 422, "; ".join(reasons))


async def unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug, or a damaged file."""
    return error_response(request, 500, SERVICE_FAILED)


HANDLERS: dict[Any, Any] = {
    StarletteHTTPException: http_error,
    RequestValidationError: invalid_request,
    InputError: bad_input,
    Exception: unexpected,
}
