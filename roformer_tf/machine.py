"""What is known of machines without Keras: cores, and what devices can do at their best."""

import os
import re

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


def usable_cores() -> int:
    """Count the processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_flops(name: str | None) -> float | None:
    """Operations a second of the device of this name at its best; None if it is unknown.

    A part of a GPU (MIG) can do less than the whole, so it is unknown, too.
    """
    if name is None or re.search(r"\bMIG\b", name):
        return None
    found = (peak for word, peak in PEAKS.items() if re.search(rf"\b{word}{_ANOTHER}", name))
    return next(found, None)
