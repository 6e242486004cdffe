"""What the service tells Prometheus: requests, how long they took, how large its batches are."""

import time
from collections.abc import Callable, Collection, Sized
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")
Rest = ParamSpec("Rest")
Questions = TypeVar("Questions", bound=Sized)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OTHER = "other"
"""Path of all requests that ask for what is not there; else each would be a series of its own."""
FAILED, GONE = 500, 499
"""Status of a request that ended without an answer: by our fault, or since its client left (nginx
counts the latter like this)."""
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServiceMetrics:
    """The figures of one service, in a registry of its own.

    Series, all with the prefix `roformer_`: `http_requests_total` by path and status,
    `http_request_duration_seconds` by path, from a request's head to the end of its answer;
    `batch_texts` and `batch_duration_seconds`, of the model alone; `waiting_requests`;
    `model_info`; of a model that writes `written_tokens_total`. Beside them those of the process
    (`process_*`, where the system tells them).
    """

    def __init__(self, model: str, task: str) -> None:
        self.registry = registry = CollectorRegistry()
        Info("roformer_model", "What is served.", registry=registry).info(
            {"model": model, "task": task}
        )
        self._requests = Counter(
            "roformer_http_requests",
            "Requests that were answered, by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self._request_seconds = Histogram(
            "roformer_http_request_duration_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self._batch_texts = Histogram(
            "roformer_batch_texts",
            "Texts (pairs, triples) that the model read in one batch.",
            buckets=TEXTS,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "roformer_batch_duration_seconds",
            "Seconds that the model took for one batch.",
            buckets=SECONDS,
            registry=registry,
        )
        self._waiting = Gauge(
            "roformer_waiting_requests", "Requests that wait for the model.", registry=registry
        )
        ProcessCollector(registry=registry)

    def count_batches(
        self, answer: Callable[Concatenate[Questions, Rest], T]
    ) -> Callable[Concatenate[Questions, Rest], T]:
        """The same function of a batch, each call of it counted."""

        @wraps(answer)
        def counted(batch: Questions, *rest: Rest.args, **named: Rest.kwargs) -> T:
            self._batch_texts.observe(len(batch))
            with self._batch_seconds.time():
                return answer(batch, *rest, **named)

        return counted

    def count_tokens(self) -> Callable[[int], None]:
        """Whom to tell how many tokens more a model has written."""
        return Counter(
            "roformer_written_tokens",
            "Tokens that the model wrote, those of samples among which was chosen, too.",
            registry=self.registry,
        ).inc

    def watch_waiting(self, waiting: Callable[[], int]) -> None:
        """Where to ask how many requests wait."""
        self._waiting.set_function(waiting)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class CountedRequests:
    """ASGI middleware that counts requests, whatever becomes of them.

    paths: those that are told apart; all others are `OTHER`.
    """

    def __init__(self, app: "ASGIApp", metrics: ServiceMetrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Hand a request on, and count it at its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from starlette.requests import ClientDisconnect

        began, status = time.perf_counter(), FAILED

        async def noted(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnect:
            status = GONE
            raise
        finally:
            path: Any = scope["path"] if scope["path"] in self._paths else OTHER
            self._metrics.count_request(path, status, time.perf_counter() - began)
