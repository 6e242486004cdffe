"""Several devices, and several processes that train one model together: JAX's own runtime.

Data parallel: every device has the weights and a part of each batch. With `model_parallel` M
devices share one copy: a weight's heads, features or hidden units are split among them, and so are
its optimizer slots. Keras and XLA put in what has to be exchanged; a step's loss, gradient norm and
update are those of the whole batch.
"""

import atexit
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from roformer_tf.errors import TRY_AGAIN, InputError, TerminatedError
from roformer_tf.internals import jax_coordinator
from roformer_tf.machine import peak_flops
from roformer_tf.training.devices import device_name
from roformer_tf.training.settings import DevicesConfig

DATA_AXIS, MODEL_AXIS = "batch", "model"
"""Axes of the mesh of devices."""

SPLIT_WEIGHTS = {
    r".*/(query|key|value)/kernel": (None, MODEL_AXIS, None),  # (D, N, H)
    r".*/(query|key|value)/bias": (MODEL_AXIS, None),
    r".*/attention_output/kernel": (MODEL_AXIS, None, None),  # (N, H, D)
    r".*/intermediate/kernel": (None, MODEL_AXIS),  # (D, F)
    r".*/intermediate/bias": (MODEL_AXIS,),
    r".*/output/kernel": (MODEL_AXIS, None),  # (F, D)
    r".*/word/embeddings": (None, MODEL_AXIS),  # (V, E)
}
"""Weights that devices share, by path, and the axis that is split; norms and the rest are whole."""

PEER_SECONDS = 20
"""After which a process that gives no sign of life counts as dead."""
VISIBLE_SECONDS = 100
"""Within which a file system shows a file to all machines: NFS may keep a folder's list for 60."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model, seen from one of them. All must call its methods."""

    index: int = 0
    count: int = 1
    part: tuple[int, int] = (0, 1)
    """Which of how many equal pieces of each batch this process reads."""
    _turns: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)
    """Number of the next word that the first process has for the others."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.index == 0

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return bool(np.max(self._gathered(int(flag))))

    def check_equal(self, value: int, what: str) -> None:
        """Wait for all; raise InputError unless all have the same number."""
        values = self._gathered(value)
        if len(set(values.tolist())) > 1:
            raise InputError(
                f"the processes do not agree on {what}: {values.tolist()}. Give all of them the "
                "same command, and an --output on a file system that all of them see."
            )

    def run_on_first(self, work: Callable[[], object], *made: Path) -> None:
        """Have the first process do something for all, while the others wait for it.

        `made` are the files and folders that the others then find. Where the first one fails, here
        or on its way here, inside `reporting_failure`, the others raise InputError if it did, else
        TerminatedError.
        """
        if self.first:
            work()
            self._send({"kind": "done"})
        else:
            self._receive()
            _wait_for(made)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """If the first process fails in this block, tell the others, who wait in `run_on_first`."""
        try:
            yield
        except BaseException as error:
            if self.first:
                with suppress(RuntimeError):  # of JAX: there is nobody to tell any more
                    self._send(_failure(error))
            raise

    def _send(self, word: dict[str, str]) -> None:
        """Leave word for the others at JAX's coordinator, which runs in the first process.

        At its end that process waits for the others, so they hear even of what made it end.
        """
        if self.count > 1:
            jax_coordinator().key_value_set(f"roformer_tf/{next(self._turns)}", json.dumps(word))

    def _receive(self) -> None:
        """Wait for the first process' next word. Raises as `run_on_first` does."""
        turn = next(self._turns)
        word: dict[str, str] = {}
        while not word:
            try:  # in short waits: a signal is heeded in between
                word = json.loads(
                    jax_coordinator().blocking_key_value_get(f"roformer_tf/{turn}", 500)
                )
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    reason = str(error).strip().splitlines()[0][:200]
                    exit_without_shutdown(TRY_AGAIN)
                    raise TerminatedError(
                        f"lost the first process ({reason}). The same command continues."
                    ) from None
        if word["kind"] == "input":
            raise InputError(f"the first process stopped: {word['message']}")
        if word["kind"] == "other":
            raise TerminatedError(f"the first process stopped: {word['message']}")

    def _gathered(self, value: int) -> np.ndarray:
        """The number of every process, (count,)."""
        if self.count == 1:
            return np.array([value])
        from jax.experimental import multihost_utils

        return np.ravel(multihost_utils.process_allgather(np.int32(value)))


def join(config: DevicesConfig) -> ProcessGroup:
    """Connect the processes and set the devices up for every model that is made from now on.

    Must come before anything is computed. Raises InputError for devices that are not there, and
    where other processes cannot be reached.
    """
    if keras.backend.backend() != "jax":
        if config.distributed or config.model_parallel > 1 or (config.devices or 1) > 1:
            raise InputError(
                f"the {keras.backend.backend()} backend trains on one device. For more, install "
                "roformer-tf[jax] and set the environment variable KERAS_BACKEND=jax."
            )
        return ProcessGroup()
    if config.distributed:
        _connect()
    keras.distribution.set_distribution(None)
    import jax

    devices = keras.distribution.list_devices()
    wanted = config.devices or len(devices)
    if wanted > len(devices) or wanted % config.model_parallel:
        raise InputError(
            f"{wanted} devices in groups of {config.model_parallel} are asked for, but JAX sees "
            f"{len(devices)}: {', '.join(devices)}."
        )
    group = ProcessGroup(jax.process_index(), jax.process_count())
    if group.count > 1 and wanted < len(devices):
        raise InputError(
            f"--devices is {wanted}, but {group.count} processes have {len(devices)} together. "
            "Leave it out, or start fewer processes."
        )
    if wanted == 1:
        return group
    distribution = _distribution(devices[:wanted], config.model_parallel)
    keras.distribution.set_distribution(distribution)
    parts = min(distribution.num_model_replicas, group.count)
    return ProcessGroup(group.index, group.count, (distribution.data_shard_id, parts))


def exit_without_shutdown(code: int) -> None:
    """Have this process end with `code`, at once, when its program is through.

    At its end JAX takes leave of the other processes: of a dead one that takes long, and aborts.
    """

    def exit_now() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(exit_now)  # before JAX's own, which was registered earlier


def replicas() -> int:
    """Parts that the devices split a batch into."""
    distribution = keras.distribution.distribution()
    return 1 if distribution is None else distribution.num_model_replicas


def peak_of_devices(config: DevicesConfig) -> float | None:
    """Operations a second of all devices of a run at their best; None where that is unknown."""
    peak = config.peak_flops or peak_flops(device_name())
    return None if peak is None else peak * replicas() * config.model_parallel


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """A copy of a variable's whole value, wherever its parts lie; all processes must call this."""
    value = variable.value
    if keras.backend.backend() == "jax" and not value.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.array(keras.ops.convert_to_numpy(value))


def on_every_device(array: Any) -> Any:
    """Within a compiled function: have the whole array on each device, for `to_numpy`'s sake."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return array
    layout = keras.distribution.TensorLayout([None] * len(array.shape), distribution.device_mesh)
    return keras.distribution.distribute_tensor(array, layout)


def _failure(error: BaseException) -> dict[str, str]:
    """The word of a first process that fails."""
    if isinstance(error, InputError):
        return {"kind": "input", "message": str(error)}
    if isinstance(error, TerminatedError):  # which says that the same command continues
        return {"kind": "other", "message": str(error)}
    name = type(error).__name__
    return {"kind": "other", "message": f"{name}: {error}. The same command continues."}


def _wait_for(paths: Sequence[Path]) -> None:
    """Wait until a file system shows what another machine has written. Raises InputError if not."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    for path in paths:
        while not path.exists():
            if time.monotonic() > deadline:
                raise InputError(
                    f"the first process has written {path}, but this one does not see it. Give an "
                    "--output on a file system that all of them see."
                )
            time.sleep(0.2)


def _connect() -> None:
    """Find the other processes."""
    import jax

    count, place = (os.environ.get(f"JAX_{name}") for name in ("NUM_PROCESSES", "PROCESS_ID"))
    try:
        jax.distributed.initialize(
            num_processes=int(count) if count else None,
            process_id=int(place) if place else None,
            heartbeat_timeout_seconds=PEER_SECONDS,
            shutdown_timeout_seconds=PEER_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"--distributed: the processes do not find each other ({reason}). Start them under "
            "Slurm, Open MPI or Kubernetes, or set JAX_COORDINATOR_ADDRESS=HOST:PORT, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID for each."
        ) from None


def _distribution(devices: list[str], model_parallel: int) -> Any:
    """Keras' plan for these devices."""
    shape = (len(devices) // model_parallel, model_parallel)
    mesh = keras.distribution.DeviceMesh(shape, [DATA_AXIS, MODEL_AXIS], devices)
    layout = keras.distribution.LayoutMap(mesh)
    if model_parallel > 1:
        for path, axes in SPLIT_WEIGHTS.items():
            layout[path] = axes
    return keras.distribution.ModelParallel(  # with nothing split it is data parallel
        layout_map=layout, batch_dim_name=DATA_AXIS, auto_shard_dataset=False
    )
