"""Server-sent events: an answer whose pieces leave as they come into being.

Lines `data: {"text": "床前"}`, each with an empty one behind it.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """Sends events, dictionaries that become JSON, until they end or the client has gone.

    on_end: called in both cases, at once.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], on_end: Callable[[], None]) -> None:
        # Neither caches nor proxies (nginx reads the second) may gather what is to be seen at once.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _lines(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async for event in events:
        yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
