"""Check that a setting has its effect, and send requests to services in this process."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from numbers import Number

import numpy as np


def assert_wired(got, want, ignored, atol=1e-4):
    """Assert that a result is correct and differs from the results of likely mistakes.

    `ignored`: the result of each mistake by name, such as the result without the setting. If a
    mistake would give the correct result, the test could not detect it, and fails.
    """
    assert ignored, "give at least one mistake in `ignored`"
    for name, wrong in ignored.items():
        assert not alike(wrong, want, 20 * atol), f"{name} would not be detected"
    for name, wrong in ignored.items():
        assert not alike(got, wrong, atol), f"{name}: {got}"
    assert alike(got, want, atol), f"{got} is not {want}"


def alike(first, other, atol):
    """Whether two nested results are equal up to rounding."""
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


def post(app, *requests):
    """The responses of a service to (path, request body) pairs.

    The application is called as an ASGI server calls it, without a socket, and shut down
    afterwards.
    """

    async def send_request(path, content):
        body = json.dumps(content).encode()
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
        messages, responses = [{"type": "http.request", "body": body}], []

        async def receive():
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message):
            responses.append(message)

        await app(scope, receive, send)
        text = b"".join(item.get("body", b"") for item in responses)
        assert responses[0]["status"] == 200, text
        return json.loads(text)

    async def send_all():
        async with app.router.lifespan_context(app):
            return await asyncio.gather(*(send_request(*item) for item in requests))

    return asyncio.run(send_all())
