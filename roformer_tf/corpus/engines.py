"""Who does the tasks of a preparation: processes of this machine, or a Dask cluster."""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from roformer_tf.corpus.dask_cluster import ADDRESS, cluster
from roformer_tf.corpus.workers import Workers, WorkerTask, in_this_process, processes
from roformer_tf.errors import InputError, check_number
from roformer_tf.machine import usable_cores

Engine = Literal["processes", "dask"]
MOST_ON_WINDOWS = 61
"""Worker processes that `concurrent.futures` can wait for on Windows."""


def check_engine(engine: Engine, scheduler: str | None, workers: int | None) -> None:
    """Raise InputError for settings that contradict each other."""
    check_number("workers", workers, at_least=1)
    if engine == "processes" and scheduler is not None:
        raise InputError(
            f"scheduler is {scheduler}, but the engine is processes of this machine. "
            "Give --engine dask too, or no scheduler."
        )
    if engine == "dask" and not (scheduler or os.environ.get(ADDRESS)):
        raise InputError(
            "the engine dask needs a scheduler. Give --scheduler with its address, such as "
            f"tcp://host:8786, or its scheduler file, or set {ADDRESS}."
        )
    if engine == "dask" and workers is not None:
        raise InputError(
            f"workers is {workers}, but a cluster works with those that are connected to its "
            "scheduler. Leave workers out, and start as many as you want by `dask worker`."
        )


def open_workers(
    task: WorkerTask, folder: Path, engine: Engine, scheduler: str | None, workers: int | None
) -> AbstractContextManager[Workers]:
    """Choose who does the task; `folder` is one that all workers of a cluster must see."""
    if engine == "dask":
        return cluster(task, folder, scheduler)
    count = workers or usable_cores()
    if sys.platform == "win32":
        count = min(count, MOST_ON_WINDOWS)
    return in_this_process(task) if count == 1 else processes(task, count)
