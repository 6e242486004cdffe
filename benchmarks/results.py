"""Read and write results.json, the measurements of one machine."""

import dataclasses
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Measurement
from benchmarks.environments import HERE
from benchmarks.workers import Row
from roformer_tf.files import temporary_file

FILE = HERE / "results.json"

# A measurement: {"case", "commit", "software", "shape", "settings", "rows": [fields of Row, …]}.
Record = dict[str, Any]


class Results:
    """Measurements of one machine, by key."""

    def __init__(self, machine: dict[str, str], measurements: dict[str, Record]) -> None:
        self.machine = machine
        self.measurements = measurements

    @classmethod
    def read(cls, path: Path, machine: dict[str, str]) -> "Results":
        """Read earlier measurements; those of another machine are discarded."""
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["machine"] == machine:
                return cls(machine, stored["measurements"])
        return cls(machine, {})

    def put(self, measurement: Measurement, rows: list[Row], commit: str) -> None:
        """Add a measurement of the code at `commit`, or replace the earlier one."""
        self.measurements[measurement.key] = {
            "case": measurement.case,
            "commit": commit,
            "software": software(rows),
            "shape": dict(measurement.shape),
            "settings": {
                name: value for name, value in measurement.settings.items() if not _is_path(value)
            },
            "rows": [dataclasses.asdict(row) for row in rows],
        }

    def of(self, case: str) -> list[Record]:
        """Return a case's measurements, in the order in which they were first made."""
        return [record for record in self.measurements.values() if record["case"] == case]

    def write(self, path: Path) -> None:
        """Write all measurements as JSON."""
        stored = {"machine": self.machine, "measurements": self.measurements}
        with temporary_file(path) as temporary:
            temporary.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", "utf-8")


def this_machine() -> dict[str, str]:
    """Describe this machine."""
    from roformer_tf.training.devices import describe_machine

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if os.name == "posix" else 0
    return {
        "processor": describe_machine()["processor"],
        "bf16 instructions": ", ".join(_bfloat16_flags()) or "none",
        "memory": f"{memory / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def this_commit() -> str:
    """Return the current commit, with "-dirty" if files differ; "unknown" if git fails."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def software(rows: list[Row]) -> dict[str, str]:
    """Return the package versions of all contenders."""
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row.facts.get("versions", {})
    return dict(sorted(versions.items()))


def median(record: Record, name: str) -> float | None:
    """Return the median seconds of a contender, or None if it is missing or failed."""
    row = next((row for row in record["rows"] if row["name"] == name), None)
    return statistics.median(row["seconds"]) if row and row["seconds"] else None


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """Return p of the best fit seconds = c · sizeᵖ; 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_absolute()


def _bfloat16_flags() -> list[str]:
    """Return the bfloat16 instruction sets of the CPU, as reported by Linux."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return []
    return sorted({flag for flag in flags if flag in ("avx512_bf16", "amx_bf16", "amx_tile")})
