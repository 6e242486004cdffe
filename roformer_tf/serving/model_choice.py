"""Several models in one service: each request chooses one.

Every model has its routes at /models/NAME/, such as /models/reviews/predict. The same path without
this prefix is a route of all models that have it: it leads to the one that `model` in the body
names. Without `model`, it leads to the only model that has it.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roformer_tf.serving.failures import DESCRIPTIONS, MODELS


def prefix(name: str) -> str:
    """The path of the routes of one of several models."""
    return f"{MODELS}{name}"


def unknown_model(name: str, names: Collection[str]) -> str:
    """Why a request fails that names a model that is not there."""
    return f"there is no model {name!r}; the service has {', '.join(names)}"


def add_choice(app: FastAPI, routers: Mapping[str, APIRouter]) -> None:
    """Add the routes that a request's `model` leads to the routes of models.

    routers: those that the application includes at `prefix(name)`, by the name of the model.
    """
    shared: dict[tuple[str, str], dict[str, APIRouter]] = {}
    for name, router in routers.items():
        for route in (x for x in router.routes if isinstance(x, APIRoute)):
            # A GET has no body that names a model: the application has its own routes.
            for method in sorted(set(route.methods or ()) - {"GET", "HEAD"}):
                shared.setdefault((route.path, method), {})[name] = router
    described = []
    for (path, method), owners in shared.items():
        choice = Route(path, _endpoint(path, owners, [*routers]), methods=[method])
        app.router.routes.append(choice)
        described.append((choice.path_format, method.lower(), [*owners]))
    _describe(app, described)


def _endpoint(path: str, owners: Mapping[str, APIRouter], names: Collection[str]) -> Any:
    """An endpoint that leads to the router of the chosen model."""

    async def choose(request: Request) -> ASGIApp:
        try:
            body = await request.body()
        except ClientDisconnect:
            raise HTTPException(400, "the body is incomplete") from None
        router = owners[_chosen(body, path, [*owners], names)]
        messages = iter([{"type": "http.request", "body": body}])

        async def lead(scope: Scope, receive: Receive, send: Send) -> None:
            async def body_again() -> Message:
                return next(messages, None) or await receive()

            await router(scope, body_again, send)

        return lead

    return choose


def _chosen(body: bytes, path: str, owners: list[str], names: Collection[str]) -> str:
    """Which of the models that have a path a body chooses.

    Status 404 for a model that is not there, or does not have the path; 422 where none is named,
    and several have it.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    name = content.get("model") if isinstance(content, dict) else ""
    if name in owners:
        return str(name)
    if name is None and len(owners) > 1:
        raise HTTPException(
            422, f"model: {', '.join(owners)} all have {path}; the request must name one of them"
        )
    if isinstance(content, dict) and isinstance(name, str):
        if name in names:
            reason = f"the model {name!r} has no {path}; {', '.join(owners)} can do that"
            raise HTTPException(404, reason)
        raise HTTPException(404, unknown_model(name, names))
    return owners[0]  # the only one; or the body is invalid, as this model reports


def _describe(app: FastAPI, shared: list[tuple[str, str, list[str]]]) -> None:
    """Add shared routes to the OpenAPI description, which FastAPI writes when it is needed.

    shared: their paths, methods and models.
    """
    describe = app.openapi

    def described() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        schema = describe()
        for path, method, names in shared if is_new else ():
            operations = [schema["paths"][prefix(name) + path][method] for name in names]
            schema["paths"].setdefault(path, {})[method] = _of_any(operations, names)
        return schema

    app.openapi = described  # type: ignore[method-assign]


def _of_any(operations: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """The description of a route that leads to one of several operations."""
    first = operations[0]
    merged = {key: x for key, x in first.items() if key not in ("operationId", "tags")}
    if "requestBody" not in first:  # nothing that names a model: only one has the route
        return merged
    responses = {
        **first["responses"],
        "200": _any_content([x["responses"]["200"] for x in operations]),
        "404": {**first["responses"]["400"], "description": DESCRIPTIONS[404]},
    }
    return {
        **merged,
        "description": f"`model` is one of: {', '.join(names)}.",
        "requestBody": _any_content([x["requestBody"] for x in operations]),
        "responses": responses,
    }


def _any_content(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A body, or a response, that has the schema of any of these."""
    kind = "application/json"
    schemas = [x["content"][kind]["schema"] for x in parts]
    different = [x for i, x in enumerate(schemas) if x not in schemas[:i]]
    schema = different[0] if len(different) == 1 else {"anyOf": different}
    content = {**parts[0]["content"], kind: {**parts[0]["content"][kind], "schema": schema}}
    return {**parts[0], "content": content}
