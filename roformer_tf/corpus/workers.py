"""Run a task for one item after another: in this process, in others, or on a Dask cluster.

Results are in the order of the items. At most two items per worker are in progress, so memory does
not grow with their number. Dask reassigns the work of a lost worker, so an item may be processed
twice, even at the same time. A task must allow this.
"""

import logging
import multiprocessing
import os
import pickle
import platform
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tqdm import tqdm

from roformer_tf.errors import InputError, check_packages
from roformer_tf.files import json_object
from roformer_tf.machine import usable_cores

Engine = Literal["processes", "dask"]
ADDRESS = "DASK_SCHEDULER_ADDRESS"  # programs that start clusters (Slurm, Kubernetes) set it
CONNECTING = 8  # seconds to wait for the scheduler
LINGER = 10.0  # seconds to wait for parts that are being written when a job fails
# Maximum worker processes of `concurrent.futures` on Windows.
MAX_ON_WINDOWS = 61

WorkerTask = Callable[[Any], Any]
# Items → each with the task's result, in their order.
Results: TypeAlias = Callable[[Iterable[Any]], Iterator[tuple[Any, Any]]]


class EngineError(InputError):
    """The workers failed, not the input. Results are kept, and the same command continues."""


def in_order(
    submit: Callable[[Any], Callable[[], Any]], room: Callable[[], int], items: Iterable[Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its result, in order.

    submit: starts the task for an item; the returned function waits for its result. room: the
    number of items that may be in progress now.
    """
    in_progress: deque[tuple[Any, Callable[[], Any]]] = deque()
    for item in items:
        in_progress.append((item, submit(item)))
        # The next item is read only after a result was taken: reading waits for the workers.
        while len(in_progress) >= room():
            first, result = in_progress.popleft()
            yield first, result()
    for last, result in in_progress:
        yield last, result()


def open_workers(
    task: WorkerTask, folder: Path, engine: Engine, scheduler: str | None, workers: int | None
) -> AbstractContextManager[Results]:
    """Start the workers of an engine; all workers of a cluster must see `folder`."""
    if engine == "dask":
        return cluster(task, folder, scheduler)
    count = workers or usable_cores()
    if sys.platform == "win32":
        count = min(count, MAX_ON_WINDOWS)
    return in_this_process(task) if count == 1 else processes(task, count)


# This machine


@contextmanager
def in_this_process(task: WorkerTask) -> Iterator[Results]:
    """Run the task in this process."""
    yield lambda items: ((item, task(item)) for item in items)


@contextmanager
def processes(task: WorkerTask, workers: int) -> Iterator[Results]:
    """Run the task in processes of this machine.

    Raises EngineError if one of them is killed.
    """
    # Not forked: this process may run threads of TensorFlow, which a fork would break.
    context = multiprocessing.get_context("spawn")
    # Other children of this process, which are not killed below.
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, context, _start_worker, (task,)) as pool:
        try:
            yield partial(
                in_order, lambda item: pool.submit(_run_task, item).result, lambda: 2 * workers
            )
        # Raised in the caller's block, where results are awaited.
        except BrokenProcessPool:
            # The pool would wait for the other workers. They ignore its SIGTERM, and may wait for
            # a lock of the dead one.
            for worker in {*multiprocessing.active_children()}.difference(before):
                worker.kill()
            raise EngineError(
                "a worker process was killed, perhaps because memory ran out. The same command "
                "continues; with fewer --workers it needs less memory."
            ) from None
        finally:
            # Otherwise the end of the block would wait for all items in the queue.
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
    # Not sys.exit, which would end this thread only.
    os._exit(1)


def _run_task(item: Any) -> Any:
    """Run the worker's task."""
    return _task(item)


# Dask


def check_cluster(scheduler: str | None) -> None:
    """Raise InputError if no scheduler responds."""
    _connect(scheduler).close()


@contextmanager
def cluster(task: WorkerTask, folder: Path, scheduler: str | None) -> Iterator[Results]:
    """Run the task on the workers of a Dask cluster, which may come and go.

    Raises InputError if no scheduler responds. Raises EngineError if it is lost, if an item kills
    its workers, and if a worker does not see the folder or has other versions.
    """
    job = pickle.dumps((task, str(folder.absolute()), _versions()))
    with _connect(scheduler) as client:
        pending = set()
        if not client.nthreads():
            address = client.scheduler.address
            tqdm.write(
                f"waiting for workers. Start some: dask worker {address} --nthreads 1",
                file=sys.stderr,
            )

        def submit(item: Any) -> Callable[[], Any]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")  # a document may be large
                call = pickle.dumps(_Call(job, pickle.dumps(item)))
                # `pure=False`: otherwise Dask would hash a whole part for the name of the call, and
                # run equal calls only once.
                future = _ask(client, partial(client.submit, pickle.loads, call, pure=False))
            pending.add(future)

            def result() -> Any:
                pending.discard(future)
                return _ask(client, future.result)

            return result

        def room() -> int:
            return 2 * max(1, len(_ask(client, client.nthreads)))

        try:
            yield partial(in_order, submit, room)
        # The caller keeps its files after this error, so what a worker still writes does no harm.
        except EngineError:
            raise
        except Exception:  # the caller removes its files: no worker may write any more then
            for future in pending:
                with suppress(Exception):
                    future.result(timeout=LINGER)
            raise


def _connect(scheduler: str | None) -> Any:
    """Connect to a scheduler as a `distributed.Client`. InputError if none is given or responds."""
    check_packages("--engine dask", "dask", "distributed")
    from distributed import Client

    # Dask logs several tracebacks for a lost scheduler; our error is one sentence.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    address = scheduler or os.environ.get(ADDRESS)
    if not address:
        raise InputError(
            "the engine dask needs a scheduler. Give --scheduler with its address, such as "
            f"tcp://host:8786, or its scheduler file, or set {ADDRESS}."
        )
    if Path(address).is_file():
        advice = "Give the file that `dask scheduler --scheduler-file` wrote, or the address."
        address = str(json_object(Path(address).read_bytes(), address, advice).get("address"))
    try:
        return Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler responds at {address}: {error}. Give --scheduler the address that "
            "`dask scheduler` prints, such as tcp://host:8786, or the file that it writes by "
            "--scheduler-file."
        ) from None


def _ask(client: Any, request: Callable[[], Any]) -> Any:
    """Send a request to the cluster. Raises EngineError for its failures, and the task's errors."""
    from distributed import KilledWorker

    place = client.scheduler.address if client.scheduler else "its address"
    try:
        if client.status != "running":
            raise CancelledError
        return request()
    except KilledWorker as error:
        raise EngineError(
            f"a part of the corpus ended {error.allowed_failures + 1} workers, one after the "
            f"other, the last of them {error.last_worker.address}; their logs say why. Give them "
            "more memory, or look for an extreme document. The same command continues."
        ) from None
    except ImportError as error:
        raise EngineError(
            f"a machine of the cluster at {place} cannot load what the task needs: {error}. "
            f"Install there what is installed here: {_versions()}."
        ) from None
    except (OSError, CancelledError):
        raise EngineError(
            f"the Dask scheduler at {place} is lost, or has cancelled the work. Finished parts "
            "are kept: the same command continues, with this engine or another."
        ) from None


# Once for all items of a job, because its tokenizer is large.
_unpickled = lru_cache(maxsize=1)(pickle.loads)


@dataclass(frozen=True)
class _Call:
    """A call of `_run`, which is executed when it is unpickled.

    So Dask handles only bytes and `pickle.loads`. A worker without this package would terminate on
    receiving a function of ours, instead of reporting an error.
    """

    job: bytes
    item: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, (self.job, self.item)


def _run(job: bytes, item: bytes) -> Any:
    """Run a job's task for an item, on a worker of a cluster.

    Raises EngineError if the worker has other versions, does not see the job's folder, or cannot
    write its part, such as on a full disk.
    """
    task, folder, versions = _unpickled(job)
    worker = f"the worker process {os.getpid()} on {platform.node()}"
    if _versions() != versions:
        raise EngineError(
            f"{worker} has other versions, so that its rows might differ: {_versions()}, "
            f"and not {versions}. Install the same everywhere."
        )
    if not Path(folder).is_dir():
        raise EngineError(
            f"{worker} does not see {folder}. Choose an --output that has the same path on "
            "all machines, on a file system that they share."
        )
    try:
        return task(pickle.loads(item))
    except OSError as error:  # which `_ask` would take for a lost scheduler
        raise EngineError(
            f"{worker} cannot write its part: {error}. Once it can, the same command continues."
        ) from None


@cache
def _versions() -> str:
    """The versions that sequences depend on: Python normalizes text, and jieba segments it."""
    versions = [f"Python {sys.version_info.major}.{sys.version_info.minor}"]
    for name in ("roformer-tf", "numpy", "jieba", "rjieba"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return ", ".join(versions)
