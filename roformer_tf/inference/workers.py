"""Processes that answer batches for a service, each with a model of its own on weights they share.

The service stays in the first process: it takes requests, and hands each batch to a worker that is
idle. A worker that dies is replaced, and its batch is given to another one.
"""

import gc
import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

TRIES = 3
"""Workers that a batch is given to, one after the other, before it has no answer."""

Open = Callable[[], Callable[[list[Any]], list[Any]]]
"""Called in a worker's process: what answers a batch there. It can be pickled."""


class WorkersError(RuntimeError):
    """Workers ended, one after the other, over the same batch."""


@dataclass
class _Worker:
    process: Any
    connection: Connection
    number: int
    """Of the process."""


class ServiceWorkers:
    """So many processes that answer; `answer` may be called by as many threads at a time.

    open_model: called once in every process. Processes are started anew, not forked, and have
    nothing of the first one's threads.
    """

    def __init__(self, open_model: Open, count: int) -> None:
        self._open_model = open_model
        self._context = multiprocessing.get_context("spawn")
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._lock = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        for worker in [self._start() for _ in range(count)]:
            self._await(worker)
            self._idle.put(worker)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        with self._lock:
            return list(self._workers)

    def answer(self, questions: Sequence[Any]) -> list[Any]:
        """Have a batch answered. Raises WorkersError where every worker dies of it.

        What goes wrong in a worker without ending it is raised here.
        """
        for _ in range(TRIES):
            worker = self._idle.get()
            try:
                worker.connection.send(list(questions))
                right, reply = worker.connection.recv()
            except (EOFError, OSError):  # it died
                self._idle.put(self._replaced(worker))
                continue
            self._idle.put(worker)
            if not right:
                raise RuntimeError(reply)
            return list(reply)
        raise WorkersError(f"{TRIES} workers ended over one batch of {len(questions)}")

    def close(self) -> None:
        """End the processes; those that answer first end that."""
        for worker in list(self._workers.values()):
            with suppress(OSError):
                worker.connection.close()
        for worker in list(self._workers.values()):
            worker.process.join(10)
            if worker.process.is_alive():
                worker.process.terminate()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._open_model), daemon=True)
        process.start()
        theirs.close()  # or its end would not be heard of
        worker = _Worker(process, ours, int(process.pid or 0))
        with self._lock:
            self._workers[worker.number] = worker
        return worker

    def _await(self, worker: _Worker) -> None:
        """Wait until it is ready. Raises what kept it from that."""
        try:
            error = worker.connection.recv()
        except (EOFError, OSError):
            raise WorkersError("a worker ended before it was ready") from None
        if error is not None:
            self.close()
            raise error

    def _replaced(self, worker: _Worker) -> _Worker:
        """Another worker in the place of one that died."""
        worker.connection.close()
        worker.process.join(1)
        with self._lock:
            self._workers.pop(worker.number, None)
        try:
            found = self._start()
            self._await(found)
        except (OSError, WorkersError):
            return worker  # whoever gets it next tries again
        return found


def _work(connection: Connection, open_model: Open) -> None:
    """The life of a worker: open the model, then answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl+C the first process hears, and ends it
    try:
        answer = open_model()
    except Exception as error:
        connection.send(error)
        return
    connection.send(None)
    gc.freeze()  # as `serve` does, for the same reason
    while True:
        try:
            questions = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply: Any = (True, answer(questions))
        except Exception as error:  # our mistake: who asked hears of it, the worker goes on
            reply = (False, f"{type(error).__name__}: {error}")
        connection.send(reply)
