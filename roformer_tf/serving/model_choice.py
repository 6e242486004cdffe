"""Several models in one service: each request chooses one.

Every model has its routes at /models/NAME/, such as /models/reviews/predict. The same path without
this prefix is a route of all models that have it: it leads to the one that `model` in the body
names. Without `model`, it leads to the only model that has it.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from copy import deepcopy
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.routing import APIRoute
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from roformer_tf.serving.failures import MODELS


def prefix(name: str) -> str:
    """The path of the routes of one of several models."""
    return f"{MODELS}{name}"


def unknown_model(name: str, names: Collection[str]) -> str:
    """Why a request fails that names a model that is not there."""
    return f"there is no model {name!r}; the service has {', '.join(names)}"


def no_other_model(name: str, names: Collection[str]) -> Callable[[Request], Awaitable[None]]:
    """A dependency of the routes at `prefix(name)`: status 400 for a body that names another."""

    async def check(request: Request) -> None:
        asked = (_content(request.scope["body"]) or {}).get("model")
        if asked != name and asked in names:
            reason = f"the path is of the model {name!r}, but the body names {asked!r}"
            raise HTTPException(400, reason)

    return check


def add_choice(app: FastAPI, routers: Mapping[str, APIRouter]) -> None:
    """Add the routes that a request's `model` leads to the routes of models.

    routers: those that the application includes at `prefix(name)`, by the name of the model.
    """
    shared: dict[tuple[str, str], dict[str, APIRouter]] = {}
    for name, router in routers.items():
        for route in (x for x in router.routes if isinstance(x, APIRoute)):
            # A GET has no body that names a model: the application has its own routes.
            for method in sorted(set(route.methods or ()) - {"GET", "HEAD"}):
                # Path and method → the models that have this route.
                shared.setdefault((route.path, method), {})[name] = router
    paths = app.openapi()["paths"]
    for (path, method), owners in shared.items():
        # An endpoint that is no function is an ASGI application for Starlette: it gets the raw
        # request.
        choice = Route(path, ChosenModel(path, owners, [*routers]), methods=[method])
        app.router.routes.append(choice)
        # As OpenAPI has it: /documents/{name}, not /documents/{name:path}.
        path = choice.path_format
        operations = [paths[prefix(name) + path][method.lower()] for name in owners]
        paths.setdefault(path, {})[method.lower()] = _of_any(operations, [*owners])


class ChosenModel:
    """ASGI application: leads a request to the router of the model that its body names.

    It follows `JsonBodies`, which has read the body into the scope.
    """

    def __init__(self, path: str, owners: Mapping[str, APIRouter], names: Collection[str]) -> None:
        self._path, self._owners, self._names = path, owners, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the route of the chosen model."""
        # A model's router knows its routes without the prefix, so the path is right as it is.
        await self._owners[self._chosen(scope["body"])](scope, receive, send)

    def _chosen(self, body: bytes) -> str:
        """Which of the models that have the path a body chooses.

        Status 404 for a model that is not there, or does not have the path; 422 where none is
        named, and several have it.
        """
        owners, known = [*self._owners], ", ".join(self._owners)
        content = _content(body)
        if content is None:
            return owners[0]  # which reports that the body is invalid
        name = content.get("model")
        if name is None and len(owners) > 1:
            reason = f"model: {known} all have {self._path}; the request must name one of them"
            raise HTTPException(422, reason)
        if not isinstance(name, str):
            return owners[0]  # the only one, or it reports what is wrong
        if name in owners:
            return name
        if name in self._names:
            reason = f"the model {name!r} has no {self._path}; {known} can do that"
            raise HTTPException(404, reason)
        raise HTTPException(404, unknown_model(name, self._names))


def _content(body: bytes) -> dict[str, Any] | None:
    """The object in a body; None if there is none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _of_any(operations: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """The description of a route that leads to one of several operations."""
    merged = deepcopy(operations[0])
    del merged["operationId"], merged["tags"]
    if "requestBody" not in merged:  # nothing that names a model: only one has the route
        return merged
    merged["description"] = f"`model` is one of: {', '.join(names)}."
    of_all = [_contents(operation) for operation in operations]
    for content, *contents in zip(_contents(merged), *of_all, strict=True):
        content["schema"] = {"anyOf": [x["schema"] for x in contents]}
    return merged


def _contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The body and the response of a request."""
    parts = operation["requestBody"], operation["responses"]["200"]
    return [part["content"]["application/json"] for part in parts]
