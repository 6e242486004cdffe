"""A task done on the workers of a Dask cluster, whatever happens to them.

A cluster may do an item twice (its worker was lost, or is late), so a task must be one that can be
done again, even at the same time.
"""

import hashlib
import logging
import os
import pickle
import platform
import statistics
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from tqdm import tqdm

from roformer_tf.corpus.workers import EngineError, Workers, WorkerTask
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json

ADDRESS = "DASK_SCHEDULER_ADDRESS"  # set by what starts clusters on Slurm, Kubernetes, YARN
CONNECTING = 8  # seconds
GLANCE = 1.0  # seconds between two looks at the cluster while waiting for it
NEVER_LATE = 30.0  # seconds in which no item is late, nor within …
LATE = 5  # … times as long as the others take
LINGER = 10.0  # seconds for what is still written when a job ends


def check_cluster(scheduler: str | None) -> None:
    """Raise InputError if no scheduler answers."""
    _connect(scheduler).close()


@contextmanager
def cluster(task: WorkerTask, folder: Path, scheduler: str | None) -> Iterator[Workers]:
    """Do the task on the workers of a Dask cluster, which may come and go.

    Raises InputError if no scheduler answers, and EngineError if it is lost, if an item kills its
    workers, and if a worker does not see the folder or has other versions than this process.
    """
    with _connect(scheduler) as client, _posted(task, folder) as job:
        work = _ClusterWork(client, job)
        try:
            yield Workers(work.submit, work.room)
        except EngineError:
            raise
        except Exception:
            work.settle()  # before the caller clears up
            raise
        work.settle()


def _connect(scheduler: str | None) -> Any:
    """Connect to a scheduler as a `distributed.Client`. Raises InputError if none answers."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "the engine dask needs the extra [dask]: pip install 'roformer-tf[dask]'."
        ) from None
    # What they say of losses at great length, our errors say.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    address = _address(scheduler or os.environ[ADDRESS])
    try:
        return Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}: {error}. Give --scheduler the address that "
            "`dask scheduler` prints, such as tcp://host:8786, or the file that it writes by "
            "--scheduler-file."
        ) from None


def _address(scheduler: str) -> str:
    """Read the address in a scheduler file; what is no file is an address."""
    path = Path(scheduler)
    if not path.is_file():
        return scheduler
    try:
        return str(parse_json(path.read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(
            f"{path} is no scheduler file. Give the one that `dask scheduler --scheduler-file` "
            "wrote, or the scheduler's address, such as tcp://host:8786."
        ) from None


@dataclass(frozen=True)
class _Job:
    """What the workers of a cluster are told with each item."""

    file: str
    """Holds the task. They see by it that they see the folder, and that the job goes on."""
    digest: str
    """Hash of the file, since a pickle is to be opened only by whom it is from."""
    versions: str


@contextmanager
def _posted(task: WorkerTask, folder: Path) -> Iterator[_Job]:
    """Lay the task into the folder, where each worker fetches it once; take it away at the end.

    Workers would otherwise fetch it from each other, and wait for a frozen one. The file is named
    as what `files.sweep` removes: so a job that continues a killed one ends what was left of it.
    """
    content = pickle.dumps(task)
    file = folder.absolute() / f".job.{uuid.uuid4().hex[:8]}.tmp"
    file.write_bytes(content)
    try:
        yield _Job(str(file), _digest(content), _versions())
    finally:
        file.unlink(missing_ok=True)


@dataclass
class _Attempts:
    """What was done to have one item done: one attempt, and others where that is late."""

    number: int
    item: bytes
    futures: dict["Future[Any]", str] = field(default_factory=dict)
    """Each with the name that Dask knows it by."""
    began: float = field(default_factory=time.monotonic)


class _ClusterWork:
    """Items of one job on a cluster."""

    def __init__(self, client: Any, job: _Job) -> None:
        self._client = client
        self._executor = client.get_executor()
        self._job = job
        self._place = str(client.scheduler.address)
        self._name = f"roformer-{uuid.uuid4().hex}"
        self._numbers = count()
        self._under_way: set[Future[Any]] = set()
        self._seconds: deque[float] = deque(maxlen=100)  # that the last items took
        self._waits = False
        self._hint_at_threads()

    def submit(self, item: Any) -> Callable[[], Any]:
        """Send an item; give what waits for its result."""
        attempts = _Attempts(next(self._numbers), pickle.dumps(item))
        self._attempt(attempts)
        return partial(self._result, attempts)

    def room(self) -> int:
        """Two items for each worker there is now; for one, before any has come."""
        return 2 * max(1, len(self._threads()))

    def settle(self) -> None:
        """Let nothing begin any more, and wait a while for what is being written."""
        Path(self._job.file).unlink(missing_ok=True)
        wait(self._under_way, LINGER)

    def _attempt(self, attempts: _Attempts, **where: Any) -> None:
        """Have an item done, the first time or once more."""
        name = f"{self._name}-part-{attempts.number}-{len(attempts.futures)}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a document may be large
            # Bytes are all that Dask sees: a worker that cannot import a task's function ends.
            call = pickle.dumps(_Call(self._job, attempts.item))
            submit = partial(self._executor.submit, pickle.loads, call, key=name, **where)
            future = self._ask(submit)
        attempts.futures[future] = name
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        began = attempts.began  # alone: a future lives until the next collection of cycles
        future.add_done_callback(lambda _: self._seconds.append(time.monotonic() - began))

    def _result(self, attempts: _Attempts) -> Any:
        """Wait for the first attempt that ends, and make another when it is late."""
        while not (done := wait(attempts.futures, GLANCE, FIRST_COMPLETED).done):
            self._tell_without_workers()
            if self._is_late(attempts):
                self._attempt_elsewhere(attempts)
        return self._outcome(attempts.number, done.pop())

    def _is_late(self, attempts: _Attempts) -> bool:
        """Tell whether an item takes far longer than others: its worker may be frozen.

        Dask waits for such a worker five minutes. A second attempt makes it twice as long.
        """
        if not self._seconds:
            return False
        usual = max(NEVER_LATE, LATE * statistics.median(tuple(self._seconds)))
        taken = time.monotonic() - attempts.began
        return taken > usual * 2 ** (len(attempts.futures) - 1)

    def _attempt_elsewhere(self, attempts: _Attempts) -> None:
        """Have an item done by a worker that does not have it, if there is one."""
        names = set(attempts.futures.values())
        has = self._ask(self._client.processing)
        others = [worker for worker, theirs in has.items() if names.isdisjoint(theirs)]
        if others:
            self._attempt(attempts, workers=others, allow_other_workers=True)

    def _outcome(self, number: int, future: "Future[Any]") -> Any:
        """Give the result of a future that is done, or raise what it failed by.

        Raises EngineError for what is the cluster's fault, and the task's own errors as they are.
        """
        from distributed import KilledWorker

        try:
            return future.result()
        except CancelledError:
            raise self._lost() from None
        except KilledWorker as error:
            raise EngineError(
                f"part {number} (counted from 0) ended {error.allowed_failures + 1} workers, one "
                f"after the other, the last of them {error.last_worker.address}; their logs say "
                "why. Give them more memory, or look for an extreme document there. The same "
                "command continues."
            ) from None
        except ImportError as error:
            raise EngineError(
                f"a machine of the cluster at {self._place} cannot load what the task needs: "
                f"{error}. Install there what is installed here: {_versions()}."
            ) from None

    def _threads(self) -> dict[str, int]:
        """The workers there are now, with the threads of each."""
        return dict(self._ask(self._client.nthreads))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Ask the scheduler something. Raises EngineError if it is lost."""
        if self._client.status != "running":
            raise self._lost()
        try:
            return question()
        except (OSError, CancelledError):
            raise self._lost() from None

    def _lost(self) -> EngineError:
        """Say that the scheduler is gone, or has forgotten the job."""
        return EngineError(
            f"the Dask scheduler at {self._place} is lost, or has cancelled the work. What is "
            "done is kept: the same command continues, with this engine or another."
        )

    def _tell_without_workers(self) -> None:
        """Say it, once, when there is nobody to work."""
        missing = not self._threads()
        if missing and not self._waits:
            _tell(f"waiting for workers. Start some: dask worker {self._place} --nthreads 1")
        self._waits = missing

    def _hint_at_threads(self) -> None:
        """Say it if workers have threads that will find nothing to do."""
        several = [worker for worker, threads in self._threads().items() if threads > 1]
        if several:
            _tell(
                f"{len(several)} workers have several threads, but each prepares one part at a "
                "time. Start a worker for each core: dask worker --nworkers -1 --nthreads 1"
            )


def _tell(message: str) -> None:
    """Print to stderr, above a progress bar."""
    tqdm.write(message, file=sys.stderr)


@dataclass(frozen=True)
class _Call:
    """A call of `_do`, which is made when it is unpickled."""

    job: _Job
    item: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _do, (self.job, self.item)


def _do(job: _Job, item: bytes) -> Any:
    """Do a job's task for a pickled item, on a worker of a cluster.

    Raises EngineError for other versions than those of the job, and where its folder is not seen.
    """
    if _versions() != job.versions:
        raise EngineError(
            f"{_worker()} has other versions, so that its rows might differ: {_versions()}, "
            f"and not {job.versions}. Install the same everywhere."
        )
    if not Path(job.file).is_file():
        raise _unseen(job)
    with _one_at_a_time:
        return _task_of(job)(pickle.loads(item))


_one_at_a_time = threading.Lock()  # Python runs one thread at a time, but each takes memory


@lru_cache(maxsize=1)  # once for all items of a job
def _task_of(job: _Job) -> WorkerTask:
    """Fetch a job's task."""
    try:
        content = Path(job.file).read_bytes()
    except OSError:
        content = b""
    if _digest(content) != job.digest:
        raise _unseen(job)
    task: WorkerTask = pickle.loads(content)
    return task


def _unseen(job: _Job) -> EngineError:
    """Say that a worker sees another folder than the one who sent the job."""
    return EngineError(
        f"{_worker()} does not see what is in {Path(job.file).parent}. Choose an --output that has "
        "the same path on all machines, on a file system that they share."
    )


def _worker() -> str:
    """Name this process."""
    return f"the worker process {os.getpid()} on {platform.node()}"


def _digest(content: bytes) -> str:
    """Hash bytes, 128 bits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@cache
def _versions() -> str:
    """Name all versions that rows depend on: text is normalized by Python, and cut by jieba."""
    found = [f"Python {sys.version_info.major}.{sys.version_info.minor}"]
    for name in ("roformer-tf", "numpy", "jieba", "rjieba"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)
