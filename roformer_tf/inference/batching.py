"""Requests that wait at the same time → one batch of the model."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction

Question = TypeVar("Question")
Reply = TypeVar("Reply")

Answer: TypeAlias = Callable[[list[Example]], list[Prediction]]
Tell: TypeAlias = Callable[[int, Reply], None]
"""Told of a batch's question by its number: what is answered to it."""


class OverloadedError(RuntimeError):
    """So many requests wait already that another one would wait too long."""


def at_once(
    answer: Callable[[list[Question]], list[Reply]],
) -> Callable[[list[Question], Tell[Reply]], None]:
    """A function that answers all of a batch, as a `Batcher` calls one that answers one by one."""

    def told(questions: list[Question], tell: Tell[Reply]) -> None:
        for number, reply in enumerate(answer(questions)):
            tell(number, reply)

    return told


class Batcher(Generic[Question, Reply]):
    """Puts the requests that wait at the same time into one batch, in one thread or several.

    Models are not made for several threads; one alone asks it, or as many as there are workers. A
    request that comes while the model is idle is answered at once; while it works others gather, so
    that batches grow with the load and nobody waits on a clock. A request is answered as soon as
    its own questions are, whatever else the batch still has to do.

    answer: called with the questions of a batch and whom to tell each answer. width: how much of
    a batch's size a question takes; a batch is larger than that only where one request is.
    """

    def __init__(
        self,
        answer: Callable[[list[Question], Tell[Reply]], None],
        batch_size: int,
        max_waiting: int,
        width: Callable[[Question], int] = lambda _: 1,
        threads: int = 1,
    ) -> None:
        self._answer = answer
        self._batch_size = batch_size
        self._max_waiting = max_waiting
        self._width = width
        self._waiting: deque[_Waiting[Question, Reply]] = deque()
        self._taking = Lock()
        self._thread = ThreadPoolExecutor(threads, "model")

    def ask(self, questions: list[Question]) -> "Future[list[Reply]]":
        """Promise answers. Raises OverloadedError where too many wait already."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError
        asked = _Waiting[Question, Reply](questions)
        self._waiting.append(asked)
        self._thread.submit(self._work)  # one call for each request: after the last none waits
        return asked.promise

    def waiting(self) -> int:
        """Count the requests that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        self._thread.shutdown()

    def _work(self) -> None:
        """Answer the next requests, unless an earlier call has answered them."""
        with self._taking:
            batch = self._next_batch()
        if not batch:
            return
        owners = [(asked, place) for asked in batch for place in range(len(asked.questions))]

        def tell(number: int, reply: Reply) -> None:
            asked, place = owners[number]
            asked.answers[place] = reply
            if len(asked.answers) == len(asked.questions):
                asked.promise.set_result([asked.answers[i] for i in range(len(asked.questions))])

        failure: Exception = RuntimeError("a question was not answered")
        try:
            self._answer([question for asked in batch for question in asked.questions], tell)
        except Exception as error:  # our mistake: those who asked hear of it, the thread goes on
            failure = error
        for asked in batch:
            if not asked.promise.done():
                asked.promise.set_exception(failure)

    def _next_batch(self) -> "list[_Waiting[Question, Reply]]":
        """Take requests until the batch is full or none waits; skip those given up."""
        batch: list[_Waiting[Question, Reply]] = []
        room = self._batch_size
        while self._waiting:
            room -= sum(map(self._width, self._waiting[0].questions))
            if batch and room < 0:
                break
            asked = self._waiting.popleft()
            if asked.promise.set_running_or_notify_cancel():
                batch.append(asked)
            else:
                room += sum(map(self._width, asked.questions))
        return batch


@dataclass
class _Waiting(Generic[Question, Reply]):
    questions: list[Question]
    promise: "Future[list[Reply]]" = field(default_factory=Future)
    answers: dict[int, Reply] = field(default_factory=dict)
