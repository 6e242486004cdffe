"""What is known of machines without Keras: cores, and what devices can do at their best."""

import math
import os
import re
from pathlib import Path

PEAKS = {  # FLOP/s by a word of a device's name; the first that is there counts
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
"""Dense products of bfloat16 summed in float32, from data sheets; of V100 and T4, which lack
bfloat16, of float16."""

_ANOTHER = r"(?![A-Za-z0-9])(?! (?:Ti|D|SUPER|Laptop)\b)"
"""Behind a word of a name: nothing that makes it another device, as in A10G or 4090 Laptop."""


CPU_INFO, CPU_QUOTA = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/cpu.max")
MULTIPLY_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""What Linux calls the instructions that multiply numbers of bfloat16, and sum in float32."""
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN's own switches for a processor that is to be taken for an older one."""
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0")


def usable_cores() -> int:
    """Count the processor cores that this process may use: of a container, those of its share."""
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
    """What the processor can do, in Linux' words; nothing where there are none."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return set()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return set(found.partition(":")[2].split())


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it, and oneDNN is not told to leave them."""
    limits = [os.environ[name].upper() for name in ISA_LIMITS if os.environ.get(name)]
    kept = all("BF16" in x or "AMX" in x or x in ("ALL", "DEFAULT") for x in limits)
    return kept and bool(instructions() & set(MULTIPLY_BFLOAT16))


def has_accelerator() -> bool:
    """Whether a GPU or TPU is in sight, and not hidden from this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and any(Path(device).exists() for device in ACCELERATORS)


def peak_flops(name: str | None) -> float | None:
    """Operations a second of the device of this name at its best; None if it is unknown.

    A part of a GPU (MIG) can do less than the whole, so it is unknown, too.
    """
    if name is None or re.search(r"\bMIG\b", name):
        return None
    found = (peak for word, peak in PEAKS.items() if re.search(rf"\b{word}{_ANOTHER}", name))
    return next(found, None)
