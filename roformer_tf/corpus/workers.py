"""A task done for one item after the other, by this process or by others beside it.

The results come in the order of the items, and at most two items for each worker are under way, so
that memory does not grow with their number.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from roformer_tf.errors import InputError

WorkerTask = Callable[[Any], Any]
Item = TypeVar("Item")


class EngineError(InputError):
    """The workers failed, not the input: what is done is kept, and the same command continues."""


@dataclass(frozen=True)
class Workers:
    """Workers with one task."""

    submit: Callable[[Any], Callable[[], Any]]
    """Have the task done for an item; what it gives waits for the result and gives that."""
    room: Callable[[], int]
    """How many items may be under way now."""


def in_order(workers: Workers, items: Iterable[Item]) -> Iterator[tuple[Item, Any]]:
    """Give each item with what the task makes of it, in order."""
    under_way: deque[tuple[Item, Callable[[], Any]]] = deque()
    for item in items:
        under_way.append((item, workers.submit(item)))
        while len(under_way) >= workers.room():
            yield _first(under_way)
    while under_way:
        yield _first(under_way)


def _first(under_way: deque[tuple[Item, Callable[[], Any]]]) -> tuple[Item, Any]:
    """Take out the oldest item, and wait for its result."""
    item, result = under_way.popleft()
    return item, result()


@contextmanager
def in_this_process(task: WorkerTask) -> Iterator[Workers]:
    """Do the task in this process, at once."""

    def submit(item: Any) -> Callable[[], Any]:
        result = task(item)
        return lambda: result

    yield Workers(submit, room=lambda: 1)


@contextmanager
def processes(task: WorkerTask, workers: int) -> Iterator[Workers]:
    """Do the task in processes of this machine.

    They are spawned, not forked: this one may run TensorFlow's threads, which a fork would break.
    Raises EngineError if one of them is killed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (task,)) as pool:
        try:
            yield Workers(lambda item: pool.submit(_run_task, item).result, lambda: 2 * workers)
        except BrokenProcessPool:
            raise EngineError(
                "a worker process was killed, perhaps since memory ran out. The same command "
                "continues; with fewer --workers it needs less memory."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_task: WorkerTask  # of a worker process: sent once, as a tokenizer is large


def _start_worker(task: WorkerTask) -> None:
    """Set up a worker process."""
    global _task
    _task = task
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):  # the parent's, which ends us
        if number := getattr(signal, name, None):  # Windows has SIGBREAK, too, others have not
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone; a killed one cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_task(item: Any) -> Any:
    """Run the worker's task."""
    return _task(item)
