"""Memory of a pretraining step by length and batch size, with and without rematerialisation.

    python -m benchmarks.memory                        on TensorFlow, the default backend
    KERAS_BACKEND=jax python -m benchmarks.memory      on JAX; on a GPU, the device's memory
    python -m benchmarks.memory --sizes base --lengths 512 --batches 2 4

Each figure is measured in a separate process that trains a few steps. On a CPU it is the peak
resident size, including libraries and optimizer; on a GPU, the peak of allocated memory. A process
that exceeds --limit is killed and reported as "does not fit".
"""

import argparse
import dataclasses
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import SIZES, Case, compiled_model, step_seconds

TOKENS = 4096  # of a step if no batch size is given


def measure(case: Case) -> dict[str, Any]:
    """Train a few steps; return the seconds of a step, the peak memory and the dtype."""
    from roformer_tf.training.devices import choose_precision

    case = dataclasses.replace(case, dtype=choose_precision("auto"))
    seconds = step_seconds(compiled_model(case), case, steps=1, rounds=2)
    return {"seconds": seconds, "memory": peak_bytes(), "dtype": case.dtype}


def peak_bytes() -> int:
    """Return the peak memory of the device, or of this process on a CPU."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        if stats := jax.devices()[0].memory_stats():
            return int(stats["peak_bytes_in_use"])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def isolated(case: Case, limit: float) -> dict[str, Any] | None:
    """Measure in a separate process. Returns None if it exceeds `limit` gigabytes."""
    command = [sys.executable, "-m", "benchmarks.memory", "--case"]
    process = subprocess.Popen(
        [*command, json.dumps(dataclasses.asdict(case))], stdout=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        if resident_bytes(process.pid) > limit * 1e9:
            process.kill()
            process.wait()
            return None
        time.sleep(0.05)
    output = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"{case} failed: see above")
    return dict(json.loads(output.splitlines()[-1]))


def resident_bytes(process: int) -> int:
    """Return a process's current resident memory (Linux), or 0 after it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def row(case: Case, kept: dict[str, Any] | None, again: dict[str, Any] | None) -> str:
    """Return one line of the Markdown table: memory and time without and with recomputation."""
    cells = [case.size, f"{case.length:,}", str(case.batch)]
    for result in (kept, again):
        cells.append(f"{result['memory'] / 1e9:.1f}" if result else "does not fit")
        cells.append(f"{result['seconds']:.1f}" if result else "–")
    return "| " + " | ".join(cells) + " |"


HEADER = (
    "| size | length | batch | all kept, GB | step, s | rematerialised, GB | step, s |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1536, 4096])
    parser.add_argument("--batches", nargs="+", type=int, default=[], help="rows of a step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--limit", type=float, default=16.0, help="gigabytes of main memory")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(Case(**json.loads(args.case)))))
        return
    print(HEADER)
    for size, length in itertools.product(args.sizes, args.lengths):
        rows = max(1, TOKENS // length)
        for batch in args.batches or [rows, 2 * rows]:
            case = Case(size, length, batch, args.dropout)
            recomputed = dataclasses.replace(case, rematerialize=True)
            results = (isolated(x, args.limit) for x in (case, recomputed))
            print(row(case, *results), flush=True)


if __name__ == "__main__":
    main()
