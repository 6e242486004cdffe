"""The devices of a run: precision and compiler, several devices, several processes.

Several processes train one model together by JAX's own runtime. Data parallel: every device has the
weights and a part of each batch. With `model_parallel` M devices share one copy: a weight's heads,
features or hidden units are split among them, and so are its optimizer slots. Keras and XLA insert
the communication; a step's loss, gradient norm and update are those of the whole batch.
"""

import atexit
import itertools
import json
import os
import platform
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
from roformer_tf.kernels.accelerators import accelerators
from roformer_tf.machine import cpu_property, multiplies_bfloat16, usable_cores
from roformer_tf.training.settings import DevicesConfig, Precision

# Axes of the mesh of devices.
DATA_AXIS, MODEL_AXIS = "batch", "model"

# Weights that devices share, by path, and the axis that is split; norms and the rest are whole.
SPLIT_WEIGHTS = {
    r".*/(query|key|value)/kernel": (None, MODEL_AXIS, None),  # (D, N, H)
    r".*/(query|key|value)/bias": (MODEL_AXIS, None),
    r".*/attention_output/kernel": (MODEL_AXIS, None, None),  # (N, H, D)
    r".*/intermediate/kernel": (None, MODEL_AXIS),  # (D, F)
    r".*/intermediate/bias": (MODEL_AXIS,),
    r".*/output/kernel": (MODEL_AXIS, None),  # (F, D)
    r".*/word/embeddings": (None, MODEL_AXIS),  # (V, E)
}

# A process without a heartbeat for this time counts as dead.
PEER_SECONDS = 20
# In this time a file system shows a new file to all machines; NFS may cache a folder for 60 s.
VISIBLE_SECONDS = 100


def choose_precision(asked: Precision) -> str:
    """The Keras dtype policy to use. "auto": bfloat16 matrix products if the device is faster.

    GPUs and TPUs are. A CPU is if it has instructions for them (AMX, AVX512-BF16): products then
    take about half the time, but without these instructions many times as long.
    """
    if asked != "auto":
        return asked
    return "mixed_bfloat16" if accelerators() or multiplies_bfloat16() else "float32"


def choose_jit() -> bool | str:
    """Whether to compile the step with XLA: TensorFlow's own kernels are faster on a CPU."""
    return "auto" if keras.backend.backend() != "tensorflow" or accelerators() else False


def describe_machine() -> dict[str, str]:
    """CPU, accelerators, backend and versions, for the report of a run."""
    processor = cpu_property("model name") or platform.processor() or platform.machine()
    return {
        "processor": f"{processor}, {usable_cores()} cores",
        "accelerators": ", ".join(accelerators()) or "none",
        "software": f"Keras {keras.__version__} on {keras.backend.backend()}, "
        f"Python {platform.python_version()}, {platform.system()}",
    }


def sync(model: keras.Model) -> None:
    """Update the model's variables: on JAX, `fit` keeps the state of the last step elsewhere."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


# Several devices and processes


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model, seen from one of them. All must call its methods."""

    index: int = 0
    count: int = 1
    # The number of this process's part of each batch, and the number of parts of equal size.
    part: tuple[int, int] = (0, 1)
    # Number of the next message of the first process.
    _turns: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.index == 0

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(np.max(self._gathered(int(flag))))

    def check_equal(self, value: int, what: str) -> None:
        """Wait for all; raise InputError unless all have the same number."""
        # A collective operation: it returns once every process has called it.
        values = self._gathered(value)
        if len(set(values.tolist())) > 1:
            raise InputError(
                f"the processes do not agree on {what}: {values.tolist()}. Give all of them the "
                "same command, and an --output on a file system that all of them see."
            )

    def run_on_first(self, work: Callable[[], object], *outputs: Path) -> None:
        """Run a function in the first process, while the others wait.

        `outputs`: files and folders that the others then need. If the first process fails, here or
        earlier within `reporting_failure`, the others raise InputError if it did, otherwise
        TerminatedError.
        """
        if self.first:
            work()
            # Messages are numbered, and all processes count alike, so each reads the right one.
            self._send({"kind": "done"})
        else:
            self._receive()
            _wait_for(outputs)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """If the first process fails in this block, report it to those that wait for it."""
        try:
            yield
        except BaseException as error:
            if self.first:
                with suppress(RuntimeError):  # by JAX, if no other process is connected any more
                    self._send(_failure(error))
            raise

    def _send(self, message: dict[str, str]) -> None:
        """Leave a message for the others at JAX's coordinator, which runs in the first process.

        At its end that process waits for the others, so they receive even the error that ended it.
        """
        if self.count > 1:
            jax_coordinator().key_value_set(f"roformer_tf/{next(self._turns)}", json.dumps(message))

    def _receive(self) -> None:
        """Wait for the next message of the first process. Raises as `run_on_first` does."""
        turn = next(self._turns)
        message: dict[str, str] = {}
        while not message:
            try:  # in short waits: Python handles a signal only in between
                message = json.loads(
                    jax_coordinator().blocking_key_value_get(f"roformer_tf/{turn}", 500)
                )
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise lost("the first process", error) from None
        if message["kind"] == "input":
            raise InputError(f"the first process stopped: {message['message']}")
        if message["kind"] == "other":
            raise TerminatedError(f"the first process stopped: {message['message']}")

    def _gathered(self, value: int) -> np.ndarray:
        """The number of every process, (count,)."""
        if self.count == 1:
            return np.array([value])
        from jax.experimental import multihost_utils

        return np.ravel(multihost_utils.process_allgather(np.int32(value)))


def join(config: DevicesConfig) -> ProcessGroup:
    """Connect the processes and set up the devices for every model that is created afterwards.

    Must come before anything is computed. Raises InputError if devices are missing, or if other
    processes cannot be reached.
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
            f"devices requested: {wanted}, in groups of {config.model_parallel}; but JAX sees "
            f"{len(devices)}: {', '.join(devices)}."
        )
    group = ProcessGroup(jax.process_index(), jax.process_count())
    if group.count > 1 and wanted < len(devices):
        raise InputError(
            f"--devices is {wanted}, but {group.count} processes have {len(devices)} together. "
            "Remove --devices, or start fewer processes."
        )
    if wanted == 1:
        return group
    distribution = _distribution(devices[:wanted], config.model_parallel)
    keras.distribution.set_distribution(distribution)
    # If a copy of the model spans several processes, these read the same part of each batch.
    parts = min(distribution.num_model_replicas, group.count)
    return ProcessGroup(group.index, group.count, (distribution.data_shard_id, parts))


def exit_at_once(code: int) -> None:
    """End this process with an exit code as soon as its program is finished."""

    # At the end of a process JAX disconnects from the others. If one of them is dead, or waits for
    # a batch of this one, that takes long and then aborts all of them.
    def exit_now() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(exit_now)  # runs before JAX's own, which was registered earlier


def lost(process: str, error: Exception, saved: str = "") -> TerminatedError:
    """The error for a process that died, and for this one, which ends with it."""
    exit_at_once(TRY_AGAIN)
    reason = str(error).strip().splitlines()[0][:200]
    return TerminatedError(f"lost {process} ({reason}).{saved} The same command continues.")


def replicas() -> int:
    """Number of parts into which the devices split a batch."""
    distribution = keras.distribution.distribution()
    return 1 if distribution is None else distribution.num_model_replicas


def peak_of_devices(config: DevicesConfig) -> float | None:
    """Peak operations per second of all devices of a run; None if it is not given."""
    peak = config.peak_flops
    return None if peak is None else peak * replicas() * config.model_parallel


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """A copy of a variable's whole value, on whatever devices; all processes must call this."""
    value = variable.value
    # A part of the array is on devices of other processes, which this one cannot read alone.
    if keras.backend.backend() == "jax" and not value.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.array(keras.ops.convert_to_numpy(value))


def on_every_device(array: Any) -> Any:
    """In a compiled function: copy the whole array to each device, so that it can be read."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return array
    layout = keras.distribution.TensorLayout([None] * len(array.shape), distribution.device_mesh)
    return keras.distribution.distribute_tensor(array, layout)


def _failure(error: BaseException) -> dict[str, str]:
    """The message of a first process that fails."""
    if isinstance(error, InputError):
        return {"kind": "input", "message": str(error)}
    if isinstance(error, TerminatedError):  # its text ends with that advice already
        return {"kind": "other", "message": str(error)}
    name = type(error).__name__
    return {"kind": "other", "message": f"{name}: {error}. The same command continues."}


def _wait_for(paths: Sequence[Path]) -> None:
    """Wait until the file system shows files of another machine; InputError if it does not."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    for path in paths:
        while not path.exists():
            if time.monotonic() > deadline:
                raise InputError(
                    f"the first process has written {path}, but this one does not see it. Give an "
                    "--output on a file system that all processes see."
                )
            time.sleep(0.2)


def _connect() -> None:
    """Connect to the other processes."""
    import jax

    # Under Slurm, Open MPI and Kubernetes these are not set, and JAX detects the values.
    count, rank = (os.environ.get(f"JAX_{name}") for name in ("NUM_PROCESSES", "PROCESS_ID"))
    try:
        jax.distributed.initialize(
            num_processes=int(count) if count else None,
            process_id=int(rank) if rank else None,
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
    """How Keras distributes weights and batches over these devices."""
    # The copies of the model, and the devices that share one copy.
    shape = (len(devices) // model_parallel, model_parallel)
    mesh = keras.distribution.DeviceMesh(shape, [DATA_AXIS, MODEL_AXIS], devices)
    layout = keras.distribution.LayoutMap(mesh)
    if model_parallel > 1:
        for path, axes in SPLIT_WEIGHTS.items():
            layout[path] = axes
    return keras.distribution.ModelParallel(  # with nothing split it is data parallel
        layout_map=layout, batch_dim_name=DATA_AXIS, auto_shard_dataset=False
    )
