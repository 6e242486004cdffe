"""Error responses: {"error": reason}, or the shape that clients of other services read.

Under /v1 it is OpenAI's, {"error": {"message", "type", "param", "code"}}, under /v2 Cohere's,
{"message": reason}. Both call every invalid request 400, where our own routes have 422.
"""

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Scope

from roformer_tf.serving.schemas import CohereFailure, Failure, OpenAiFailure

FAILURE = "the service failed; its log has the reason"
# Where each of several models has its routes.
MODELS = "/models/"
DESCRIPTIONS = {
    400: "The body is not JSON.",
    404: "The service has no such model.",
    408: "The body did not arrive in time.",
    413: "The body, or the response, is too large.",
    415: "The body is compressed, but not by gzip.",
    422: "The JSON is not a valid request.",
    500: "The service failed; its log has the reason.",
    503: "Too many requests wait: see Retry-After.",
}
# `code` of an error under /v1, where the status does not say it all.
CODES = {401: "invalid_api_key", 404: "not_found", 503: "overloaded"}


def failures(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route, for its documentation."""
    return {status: {"model": model, "description": DESCRIPTIONS[status]} for status in statuses}


FAILURES = failures(Failure, 400, 408, 413, 415, 422, 500, 503)
OPENAI_FAILURES = failures(OpenAiFailure, 400, 408, 413, 415, 500, 503)
COHERE_FAILURES = failures(CohereFailure, 400, 408, 413, 415, 500, 503)
NO_DOCUMENT = failures(Failure, 404, 500)
NO_DOCUMENT[404]["description"] = "No document has this id."
for described in (OPENAI_FAILURES, COHERE_FAILURES):
    described[400]["description"] = "The body is not JSON, or not a valid request."


def own_path(scope: Scope) -> str:
    """The path of a request, without that of the proxy."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def failure(request: Request, status: int, reason: str, headers: Any = None) -> JSONResponse:
    """The response to a request that failed, in the shape of its route."""
    path = own_path(request.scope)
    if path.startswith(MODELS):  # /models/NAME/v1/embeddings
        path = path.removeprefix(MODELS).partition("/")[2]
    version = path.lstrip("/").partition("/")[0]
    if version in ("v1", "v2") and status == 422:
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
    reason = error.detail
    if reason == "Not Found":
        reason = (
            f"there is no {request.url.path} for the model of this service; /docs lists what is"
        )
    return failure(request, error.status_code, reason, error.headers)


async def invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Describe the first mistakes: "texts.1: the text is empty"."""
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    first = mistakes[0]
    if first["type"] == "json_invalid":
        return failure(request, 400, f"the body is not JSON: {first['ctx']['error']}")
    if first["loc"] == ("body",) and first["type"] == "missing":
        return failure(request, 400, "the body is empty; send JSON")
    # Three are enough to correct a request, and a response stays short.
    reasons = []
    for mistake in mistakes[:3]:
        # The first is "body". Names in brackets are those of `schemas`, not of the request.
        names = map(str, mistake["loc"][1:])
        where = ".".join(name for name in names if not name.startswith("("))
        reasons.append(f"{where}: {mistake['msg']}" if where else mistake["msg"])
    return failure(request, 422, "; ".join(reasons))


async def unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug."""
    return failure(request, 500, FAILURE)
