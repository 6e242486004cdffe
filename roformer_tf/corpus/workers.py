"""Run a task for one item after another, in this process or in others of this machine.

Results are in the order of the items. At most two items per worker are in progress, so memory does
not grow with their number.
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
    """The workers failed, not the input. Results are kept, and the same command continues."""


@dataclass(frozen=True)
class Workers:
    """Workers with one task."""

    submit: Callable[[Any], Callable[[], Any]]
    """Starts the task for an item; the returned function waits for its result."""
    room: Callable[[], int]
    """The number of items that may be in progress now."""


def in_order(workers: Workers, items: Iterable[Item]) -> Iterator[tuple[Item, Any]]:
    """Yield each item with its result, in order."""
    in_progress: deque[tuple[Item, Callable[[], Any]]] = deque()
    for item in items:
        in_progress.append((item, workers.submit(item)))
        while len(in_progress) >= workers.room():
            first, result = in_progress.popleft()
            yield first, result()
    for last, result in in_progress:
        yield last, result()


@contextmanager
def in_this_process(task: WorkerTask) -> Iterator[Workers]:
    """Run the task in this process, at once."""

    def submit(item: Any) -> Callable[[], Any]:
        result = task(item)
        return lambda: result

    yield Workers(submit, room=lambda: 1)


@contextmanager
def processes(task: WorkerTask, workers: int) -> Iterator[Workers]:
    """Run the task in processes of this machine.

    Raises EngineError if one of them is killed.
    """
    # Not forked: this process may run threads of TensorFlow, which a fork would break.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (task,)) as pool:
        try:
            yield Workers(lambda item: pool.submit(_run_task, item).result, lambda: 2 * workers)
        except BrokenProcessPool:
            raise EngineError(
                "a worker process was killed, perhaps because memory ran out. The same command "
                "continues; with fewer --workers it needs less memory."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_task: WorkerTask  # in a worker process: sent once, because a tokenizer is large


def _start_worker(task: WorkerTask) -> None:
    """Set up a worker process."""
    global _task
    _task = task
    # Signals are for the parent, which ends this process. Only Windows has SIGBREAK.
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process with its parent, which cannot end its workers if it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_task(item: Any) -> Any:
    """Run the worker's task."""
    return _task(item)
