"""Checks that a setting reaches its place, and calls services within this process."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from numbers import Number

import numpy as np


def assert_wired(got, want, ignored, atol=1e-4):
    """Assert that a result is the right one, and that the tempting mistakes would be noticed.

    ignored: by name, what each mistake gives, such as the result without the setting. A test whose
    mistake gives the right result proves nothing, and fails.
    """
    assert ignored, "no mistake is named"
    for name, wrong in ignored.items():
        assert not alike(wrong, want, 20 * atol), f"{name} would not be noticed"
    for name, wrong in ignored.items():
        assert not alike(got, wrong, atol), f"{name}: {got}"
    assert alike(got, want, atol), f"{got} is not {want}"


def alike(first, other, atol):
    """Whether two results, nested like JSON, are equal except for the rounding of numbers."""
    if isinstance(first, np.ndarray) or isinstance(other, np.ndarray):
        return np.shape(first) == np.shape(other) and np.allclose(first, other, rtol=0, atol=atol)
    if isinstance(first, Mapping):
        return first.keys() == other.keys() and all(alike(first[k], other[k], atol) for k in first)
    if isinstance(first, Sequence) and not isinstance(first, str):
        return len(first) == len(other) and all(
            alike(x, y, atol) for x, y in zip(first, other, strict=True)
        )
    if isinstance(first, Number) and isinstance(other, Number):
        return abs(first - other) <= atol
    return first == other


def post(app, *questions):
    """The answers of a service to (path, question) pairs, and the end of the service.

    The application is called as an ASGI server calls it, without a socket.
    """

    async def ask(path, question):
        body = json.dumps(question).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        messages, answered = [{"type": "http.request", "body": body}], []

        async def receive():
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message):
            answered.append(message)

        await app(scope, receive, send)
        text = b"".join(item.get("body", b"") for item in answered)
        assert answered[0]["status"] == 200, text
        return json.loads(text)

    async def ask_all():
        async with app.router.lifespan_context(app):
            return await asyncio.gather(*(ask(*item) for item in questions))

    return asyncio.run(ask_all())
