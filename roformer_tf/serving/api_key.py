"""The key that clients must send, as ASGI middleware and in the documentation of the API."""

import base64
import binascii
import secrets

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from roformer_tf.serving.failures import error_response, own_path

# Paths that load balancers ask, without a key.
OPEN = ("/health", "/healthz", "/readyz")
REASON = 'the API key is missing or wrong; send the header "Authorization: Bearer KEY"'
# Browsers ask the user for a name and a password: so the page of the service can be used.
CHALLENGE = {"WWW-Authenticate": 'Basic realm="roformer_tf"'}


class ApiKey:
    """ASGI middleware: refuse requests without the key, before their bodies are read."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or send status 401."""
        if scope["type"] != "http" or own_path(scope) in OPEN or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        await error_response(Request(scope), 401, REASON, CHALLENGE)(scope, receive, send)

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
        for operation in operations.values() if path not in OPEN else ():
            operation["security"] = [{"bearer": []}]
