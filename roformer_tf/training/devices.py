"""The device of Keras' backend: its name, and the precision and compiler that suit it."""

import functools
import platform
import time
from pathlib import Path
from typing import Any

import keras

from roformer_tf.kernels.devices import accelerators
from roformer_tf.machine import usable_cores
from roformer_tf.training.settings import Precision


def choose_precision(asked: Precision) -> str:
    """The Keras dtype policy to use. "auto": bfloat16 matrix products if the device is faster.

    GPUs and TPUs are. On a CPU it is measured: with AMX or AVX512-BF16 products take about half the
    time, without them many times as long.
    """
    if asked != "auto":
        return asked
    return "mixed_bfloat16" if accelerators() or _faster_in_bfloat16() else "float32"


def choose_jit() -> bool | str:
    """Whether to compile the step with XLA: TensorFlow's own kernels are faster on a CPU."""
    return "auto" if keras.backend.backend() != "tensorflow" or accelerators() else False


@functools.cache  # a process decides once
def _faster_in_bfloat16() -> bool:
    """Whether matrix products take clearly less time than in float32.

    Casts and element-wise operations gain nothing, so a small difference would not pay.
    """
    seconds = _product_seconds("bfloat16", "float32")
    return seconds["bfloat16"] < 0.75 * seconds["float32"]


def _product_seconds(*dtypes: str, size: int = 1024, rounds: int = 5) -> dict[str, float]:
    """Minimum CPU time of a product of two square matrices, by dtype.

    CPU time, because wall-clock time depends on other programs and the decision must not.
    """
    squares = {dtype: keras.ops.ones((size, size), dtype) for dtype in dtypes}

    def seconds(x: Any) -> float:
        began = time.process_time()
        keras.ops.convert_to_numpy(keras.ops.matmul(x, x))
        return time.process_time() - began

    for x in squares.values():
        seconds(x)  # warm-up
    tried = [{dtype: seconds(x) for dtype, x in squares.items()} for _ in range(rounds)]
    return {dtype: min(times[dtype] for times in tried) for dtype in dtypes}


def describe_machine() -> dict[str, str]:
    """CPU, accelerators, backend and versions, for the report of a run."""
    return {
        "processor": f"{_processor()}, {usable_cores()} cores",
        "accelerators": ", ".join(accelerators()) or "none",
        "software": f"Keras {keras.__version__} on {keras.backend.backend()}, "
        f"Python {platform.python_version()}, {platform.system()}",
    }


def _processor() -> str:
    """The CPU's name on Linux; elsewhere its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def device_name() -> str | None:
    """The name of the first accelerator of Keras' backend, "NVIDIA L20"; None on a CPU."""
    return next(iter(accelerators()), None)


def sync(model: keras.Model) -> None:
    """Update the model's variables: on JAX, `fit` keeps the state of the last step elsewhere."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
