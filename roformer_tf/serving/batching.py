"""Requests that wait at the same time share a batch of the model."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fastapi import HTTPException

from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.settings import Limits, ServeConfig

Item = TypeVar("Item")
Result = TypeVar("Result")

# Called with the index of a batch's item and its result.
Deliver: TypeAlias = Callable[[int, Result], None]


@dataclass(eq=False)
class Batcher(Generic[Item, Result]):
    """Collects waiting requests into batches, and runs them in one thread.

    A request that arrives while the model is idle runs immediately; while the model is busy, others
    gather. So batches grow with the load, and no timer delays anyone. A request is complete as soon
    as its own items are, whatever else is in its batch.
    """

    run: Callable[[list[Item], Deliver[Result]], None]
    """Called with the items of a batch, and a function that takes each result."""
    batch_size: int
    limits: Limits
    metrics: ServiceMetrics
    width: Callable[[Item], int] = lambda _: 1
    """How much of `batch_size` an item takes; only a single large request may exceed it."""

    def __post_init__(self) -> None:
        # The event loop appends, and only the model's thread removes: between its look at the first
        # request and `popleft`, no other thread can take that request.
        self._waiting: deque[_Request[Item, Result]] = deque()
        # models are not thread-safe, hence a single thread
        self._thread = ThreadPoolExecutor(1, "model")

    def submit(self, items: list[Item]) -> "Future[list[Result]]":
        """Queue the items of a request; status 503 when too many requests wait."""
        self.check_room()
        request = _Request[Item, Result](items)
        self._waiting.append(request)
        self.metrics.waiting.inc()
        # One call for each request: an earlier call may have taken it, and this one finds none.
        self._thread.submit(self._run_batch)
        return request.future

    async def results(self, items: list[Item]) -> list[Result]:
        """Wait for the results of the items; status 503 when too many requests wait.

        Of many items, `max_texts` are queued at a time, so that other requests get their turn.
        """
        step, results = self.limits.max_texts, list[Result]()
        for start in range(0, len(items), step):
            batch = await asyncio.wrap_future(self.submit(items[start : start + step]))
            results += batch
        return results

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function that uses the model, in its thread, between two batches."""
        return await asyncio.wrap_future(self._thread.submit(function))

    def check_room(self) -> None:
        """Status 503 when too many requests wait."""
        if len(self._waiting) >= self.limits.max_waiting:
            reason = "too many requests wait; try again in a moment"
            raise HTTPException(503, reason, {"Retry-After": "1"})

    def close(self) -> None:
        """Finish the waiting requests, and end the thread."""
        self._thread.shutdown()

    def _run_batch(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        # The model sees one list of items; each index leads back to its request.
        owners = [(request, i) for request in batch for i in range(len(request.items))]

        def deliver(index: int, result: Result) -> None:
            request, position = owners[index]
            request.results[position] = result
            # Results arrive in any order; the last one completes the request before its batch ends.
            if len(request.results) == len(request.items):
                request.future.set_result([request.results[i] for i in range(len(request.items))])

        failure = RuntimeError("the batch of the request failed")
        self.metrics.batch_texts.observe(len(owners))
        try:
            with self.metrics.batch_seconds.time():
                self.run([item for request in batch for item in request.items], deliver)
        except Exception as error:  # a bug: its requests fail, the thread continues
            failure.__cause__ = error  # not itself: an InputError here is not the client's
        for request in batch:
            if not request.future.done():
                request.future.set_exception(failure)

    def _next_batch(self) -> "list[_Request[Item, Result]]":
        """Take requests until the batch is full or none waits; skip cancelled ones."""
        batch: list[_Request[Item, Result]] = []
        free = self.batch_size
        while self._waiting:
            width = sum(map(self.width, self._waiting[0].items))
            # The first request is taken whatever its width: else one wider than a batch would never
            # run.
            if batch and width > free:
                break
            request = self._waiting.popleft()
            self.metrics.waiting.dec()
            # False for a cancelled request. From here on it cannot be cancelled, so that
            # `set_result` and `set_exception` never fail.
            if request.future.set_running_or_notify_cancel():
                batch.append(request)
                free -= width
        return batch


class ModelQueue(NamedTuple):
    """A model in service, and the requests that wait for it."""

    served: Any
    batcher: Batcher[Any, Any]
    config: ServeConfig


@dataclass
class _Request(Generic[Item, Result]):
    items: list[Item]
    future: "Future[list[Result]]" = field(default_factory=Future)
    results: dict[int, Result] = field(default_factory=dict)
