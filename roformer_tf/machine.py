"""Properties of the machine without Keras: CPU cores and instructions, accelerators."""

import math
import os
from contextlib import suppress
from pathlib import Path

CPU_INFO, CPU_QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
MULTIPLY_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Linux' names of the instructions for bfloat16 products with float32 sums."""
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN's variables that limit the instructions which it uses."""
# Devices of the drivers of NVIDIA, of AMD (ROCm) and of TPUs.
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0")


def usable_cores() -> int:
    """Number of CPU cores that this process may use, with the limit of a container."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # "200000 100000" is 200 ms of CPU time in every 100 ms: two cores.
    with suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = CPU_QUOTA.read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def instructions() -> set[str]:
    """The CPU's instruction sets by Linux' names; none on other systems."""
    return set(cpu_property("flags", "Features").split())


def cpu_property(*names: str) -> str:
    """The first value under one of these names in Linux' description of the CPU; else ""."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(names)), "")


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products, and oneDNN may use them."""
    limits = [os.environ[name].upper() for name in ISA_LIMITS if os.environ.get(name)]
    allowed = all("BF16" in x or "AMX" in x or x in ("ALL", "DEFAULT") for x in limits)
    return allowed and bool(instructions() & set(MULTIPLY_BFLOAT16))


def has_accelerator() -> bool:
    """Whether there is a GPU or TPU that is not hidden from this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and any(Path(device).exists() for device in ACCELERATORS)
