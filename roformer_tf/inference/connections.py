"""HTTP connections of the service: so many and no more, and none waited for without end.

asyncio accepts whoever comes. Each connection holds a file descriptor; where none is left, every
further try writes a traceback to the log, thousands a second, and nobody is answered.
"""

import asyncio
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

LOGGERS = ("asyncio", "uvicorn.error")
"""Where the server's own complaints go."""
BACKLOG = 128
"""Connections that wait in the kernel to be accepted; more hear nothing for a second."""


class Room(NamedTuple):
    """How many connections a service has room for."""

    connections: int
    """Held at a time."""
    accepted: int
    """Accepted in one go, before any of them is looked at, so that they come on top."""


def room(most: int) -> Room:
    """At most so many connections, and fewer where the process may open few files.

    Of the descriptors that are free now, half are for connections, a quarter for those that are
    being accepted or closed (four turns of the loop), the last for files that are opened later.
    """
    try:
        import resource  # Unix alone
    except ImportError:
        return Room(most, BACKLOG)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return Room(most, BACKLOG)
    try:
        free = allowed - len(list(Path("/dev/fd").iterdir()))
    except OSError:  # /proc is not mounted
        free = allowed
    return Room(max(1, min(most, free // 2)), max(1, min(BACKLOG, free // 16)))


class Server(uvicorn.Server):
    """Takes few connections in one go and lets many wait; for asyncio both are one number."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for at in sockets or ():
            at.listen(BACKLOG)


class BoundedConnection(H11Protocol):
    """A connection that gives way to others, and is closed where its client lets it wait.

    most: connections at a time. One more takes the place of the one that has waited the longest
    for a request's head; where all are being answered, it hears 503.
    patience: seconds for a request's head, and for a client to take some of its answer. A
    request's body has a time limit of its own, in `serve.read_body`.
    """

    def __init__(self, *, most: int, patience: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._most = most
        self._patience = patience
        self._waiting_since = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if it is one too many, end another one, or this one."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) <= self._most:
            return
        others = [
            one
            for one in self.connections
            if isinstance(one, BoundedConnection) and one is not self and one._gives_way()
        ]
        ended = min(others, key=lambda one: one._waiting_since, default=self)
        if ended is self:
            transport.write(_refusal())
        self.connections.discard(ended)  # now: the next one comes before this one is lost
        ended.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that was closed, by whomever."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request's head, and for the client to read the answer."""
        self._wait()
        super().on_response_complete()  # which goes on with a request that has come already

    def _wait(self) -> None:
        self._waiting_since = self.loop.time()
        self._look_again()

    def _look_again(self) -> None:
        """Look at the connection when patience is over."""
        if self._watch is not None:
            self._watch.cancel()
        self._unsent = self.transport.get_write_buffer_size()
        self._watch = self.loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        """Close a connection on which nothing has moved."""
        if self._gives_way():
            self.transport.close()
        elif self._unsent and self.transport.get_write_buffer_size() >= self._unsent:
            self.transport.abort()  # closing would wait for the client to read
        else:
            self._look_again()

    def _gives_way(self) -> bool:
        """Whether no request is being answered: its head has not come whole."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and not self.transport.get_write_buffer_size()


def _refusal() -> bytes:
    """What a client hears where every connection is in use."""
    body = json.dumps({"error": "too many connections are open; try again in a moment"}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Retry-After: 1",
        "Connection: close",
    )
    return "\r\n".join([*head, "", ""]).encode() + body


class Sparing(logging.Filter):
    """Lets a log grow by a few records a minute, and says that it left out others.

    A client that sends nonsense, or a machine without descriptors, would fill a disk.
    """

    MOST = 20
    """Records a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = -1
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; the first one too many says so instead."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        if self._count == self.MOST:
            record.msg, record.args = "further messages of this minute are left out", ()
            record.exc_info = None
        return self._count <= self.MOST
