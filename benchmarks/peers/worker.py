"""The process of a peer: prepare a case, then run it for each request.

Requests are lines of JSON on standard input, responses are lines on standard output. Output of
libraries goes to standard error. This module needs only Python, because every peer has its own
environment.

    {"case": "mlm_step", "length": 512, …}  → {"loss": 10.9, …}       prepared: built, compiled
    {"count": 3}                            → {"seconds": 1.24}       three steps in one round
    {"count": 0}                            → {"peak_memory": 2e9}    since the first round
    any failure                             → {"error": "ValueError: …"}
"""

import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TextIO

Figures = dict[str, Any]

# Maximum characters of a reported error message.
MAX_ERROR_LENGTH = 300


class Prepared(NamedTuple):
    """A prepared case."""

    run: Callable[[int], Figures]
    """Run the work `count` times; returns {"seconds": total, …}."""
    facts: Figures
    peak: Callable[[], int] | None = None
    """Peak memory in bytes, if child processes do the work. Default: this process's peak."""


def timed(work: Callable[[], object]) -> Callable[[int], Figures]:
    """Return a round function that calls `work` repeatedly."""

    def run(count: int) -> Figures:
        began = time.perf_counter()
        for _ in range(count):
            work()
        return {"seconds": time.perf_counter() - began}

    return run


def serve(cases: Sequence[Callable[..., Prepared]], packages: Sequence[str]) -> None:
    """Process requests until standard input ends.

    The response to the first request includes the versions of `packages`.
    """
    responses = _redirect_stdout()
    by_name = {case.__name__: case for case in cases}
    versions = {name: version(name) for name in packages}
    prepared: Prepared | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                prepared = by_name[request.pop("case")](**request)
                response = {"versions": versions, **prepared.facts}
                _reset_peak()
            else:
                assert prepared is not None
                response = _round(prepared, request["count"])
        except Exception as error:  # reported as a failed row by the runner
            traceback.print_exc()
            message = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
            response = {"error": f"{type(error).__name__}: {message}"}
        print(json.dumps(response), file=responses, flush=True)


def timed_without_setup(make: Callable[[], Callable[[], object]]) -> Callable[[int], Figures]:
    """Return a round function that times calls of new objects, without their creation."""

    def run(count: int) -> Figures:
        return {"seconds": sum(timed(make())(1)["seconds"] for _ in range(count))}

    return run


def fresh_processes(program: str, *arguments: str) -> Prepared:
    """Time new Python processes from start to exit.

    The program prints the seconds of its stages; those of the last process are reported.
    """
    command = [sys.executable, "-c", program, *arguments]

    def run(count: int) -> Figures:
        began = time.perf_counter()
        for _ in range(count):
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        stages = list(map(float, done.stdout.splitlines()[-1].split()))
        return {"seconds": time.perf_counter() - began, "stages": stages}

    return Prepared(run, {}, peak_of_children)


def peak_of_children() -> int:
    """Return the peak memory of the largest finished child process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def peak_memory() -> int:
    """Return this process's peak resident memory in bytes, on Linux since it was ready."""
    try:
        status = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def _round(prepared: Prepared, count: int) -> Figures:
    if not count:
        return {"peak_memory": (prepared.peak or peak_memory)()}
    return prepared.run(count)


def _reset_peak() -> None:
    """Reset the peak of memory, to exclude building and compiling."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _redirect_stdout() -> TextIO:
    """Return standard output for responses, and redirect everything printed to standard error."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return responses
