"""Requests that wait at the same time → one batch of the model."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, TypeAlias

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction

Answer: TypeAlias = Callable[[list[Example]], list[Prediction]]


class OverloadedError(RuntimeError):
    """So many requests wait already that another one would wait too long."""


class Batcher:
    """Puts the requests that wait at the same time into one batch, in one thread.

    Models are not made for several threads; this one alone asks it. A request that comes while
    the model is idle is answered at once; while it works others gather, so that batches grow
    with the load and nobody waits on a clock.
    """

    def __init__(self, answer: Answer, batch_size: int, max_waiting: int) -> None:
        self._answer = answer
        self._batch_size = batch_size
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "model")

    def ask(self, examples: list[Example]) -> "Future[list[Prediction]]":
        """Promise answers. Raises OverloadedError where too many wait already."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError
        asked = _Waiting(examples, Future())
        self._waiting.append(asked)
        self._thread.submit(self._work)  # one call for each request: after the last none waits
        return asked.answers

    def waiting(self) -> int:
        """Count the requests that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Answer the next requests, unless an earlier call has answered them."""
        batch = self._next_batch()
        if not batch:
            return
        try:
            answers = iter(self._answer([example for asked in batch for example in asked.examples]))
        except Exception as error:  # our mistake: those who asked hear of it, the thread goes on
            for asked in batch:
                asked.answers.set_exception(error)
        else:
            for asked in batch:
                asked.answers.set_result(list(islice(answers, len(asked.examples))))

    def _next_batch(self) -> "list[_Waiting]":
        """Take requests until the batch is full or none waits; skip those given up."""
        batch: list[_Waiting] = []
        while self._waiting and sum(len(asked.examples) for asked in batch) < self._batch_size:
            asked = self._waiting.popleft()
            if asked.answers.set_running_or_notify_cancel():
                batch.append(asked)
        return batch


class _Waiting(NamedTuple):
    examples: list[Example]
    answers: "Future[list[Prediction]]"
