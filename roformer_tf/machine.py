"""Properties of the machine without Keras: CPU cores and instructions, peak of accelerators."""

import math
import os
import re
from pathlib import Path

PEAKS = {  # FLOP/s by a part of a device's name; the first match counts
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800 PCIe": 756e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090 Ti": 80e12,
    "RTX 3090": 71e12,
    "V100S": 130e12,
    "V100-PCIE": 112e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Peak of dense bfloat16 matrix products with float32 sums, from data sheets; of float16 for V100
and T4, which lack bfloat16."""

_ANOTHER = r"(?![A-Za-z0-9])(?! (?:Ti|D|SUPER|Laptop)\b)"
"""After a match there must be nothing that makes it another device: A10G, 4090 Laptop."""


CPU_INFO, CPU_QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
MULTIPLY_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Linux' names of the instructions for bfloat16 products with float32 sums."""
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN's variables that limit the instructions which it uses."""
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0")


def usable_cores() -> int:
    """Number of CPU cores that this process may use, with the limit of a container."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return max(1, cores)


def instructions() -> set[str]:
    """The CPU's instruction sets by Linux' names; none on other systems."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return set()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return set(flags.partition(":")[2].split())


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products, and oneDNN may use them."""
    limits = [os.environ[name].upper() for name in ISA_LIMITS if os.environ.get(name)]
    allowed = all("BF16" in x or "AMX" in x or x in ("ALL", "DEFAULT") for x in limits)
    return allowed and bool(instructions() & set(MULTIPLY_BFLOAT16))


def has_accelerator() -> bool:
    """Whether there is a GPU or TPU that is not hidden from this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and any(Path(device).exists() for device in ACCELERATORS)


def peak_flops(name: str | None) -> float | None:
    """Peak operations per second of the device with this name; None if it is unknown.

    A part of a GPU (MIG) has a lower peak than the GPU, so it is unknown, too.
    """
    if name is None or re.search(r"\bMIG\b", name):
        return None
    peaks = (peak for word, peak in PEAKS.items() if re.search(rf"\b{word}{_ANOTHER}", name))
    return next(peaks, None)
