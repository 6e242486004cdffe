"""Precision and compiler for the device at hand."""

import os
import platform
from pathlib import Path
from typing import Literal

import keras

Precision = Literal["auto", "float32", "mixed_bfloat16"]


def choose_precision(asked: Precision) -> str:
    """Give a Keras dtype policy's name: as asked, or bfloat16 products where they are faster.

    They are on GPUs and TPUs, and on processors with instructions for them: on a 2-core AVX512-BF16
    machine a step takes 0.7 of its float32 time, without such instructions longer.
    """
    if asked != "auto":
        return asked
    return "mixed_bfloat16" if _accelerated() or _cpu_multiplies_bfloat16() else "float32"


def choose_jit() -> bool | str:
    """Whether to compile the step with XLA: TensorFlow's own kernels are faster on a CPU."""
    return "auto" if keras.backend.backend() != "tensorflow" or _accelerated() else False


def _accelerated() -> bool:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return bool(_accelerators())


def _cpu_multiplies_bfloat16() -> bool:
    """Whether Linux reports AVX512-BF16 or AMX; elsewhere nothing is known, so no."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def describe_machine() -> dict[str, str]:
    """What a run ran on, for its report: processor, accelerators, backend and versions."""
    return {
        "processor": f"{_processor()}, {_cores()} cores",
        "accelerators": ", ".join(_accelerators()) or "none",
        "software": f"Keras {keras.__version__} on {keras.backend.backend()}, "
        f"Python {platform.python_version()}, {platform.system()}",
    }


def _accelerators() -> list[str]:
    return [name for name in keras.distribution.list_devices() if not name.startswith("cpu")]


def _processor() -> str:
    """The processor's name, as Linux has it; elsewhere its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
