"""The device of Keras' backend: its name, and the precision and compiler that suit it."""

import platform

import keras

from roformer_tf.kernels.devices import accelerators
from roformer_tf.machine import cpu_property, multiplies_bfloat16, usable_cores
from roformer_tf.training.settings import Precision


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
