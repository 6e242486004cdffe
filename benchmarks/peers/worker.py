"""What the process of every peer does: prepare a case, then run it whenever it is asked to.

Requests are lines of JSON on standard input, answers lines on standard output; what libraries
print goes to standard error. Needs Python alone, since every peer has an environment of its own.

    {"case": "mlm_step", "length": 512, …}  → {"loss": 10.9, …}       prepared: built, compiled
    {"count": 3}                            → {"seconds": 1.24}       three steps in one round
    {"count": 0}                            → {"peak_memory": 2e9}    since the first round
    whatever goes wrong                     → {"error": "ValueError: …"}
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

# Characters of an error's message that are reported.
LONGEST_ERROR = 300


class Prepared(NamedTuple):
    """A case that is ready: what to run, and what else is worth knowing of it."""

    run: Callable[[int], Figures]
    """Do it so many times; {"seconds": in all, …}."""
    facts: Figures
    peak: Callable[[], int] | None = None
    """Bytes, where not this process but its children do the work."""


def timed(work: Callable[[], object]) -> Callable[[int], Figures]:
    """A round of calls one after the other."""

    def run(count: int) -> Figures:
        began = time.perf_counter()
        for _ in range(count):
            work()
        return {"seconds": time.perf_counter() - began}

    return run


def serve(cases: Sequence[Callable[..., Prepared]], packages: Sequence[str]) -> None:
    """Answer requests until standard input ends; the first one has the versions of `packages`."""
    answers = _answers_alone_on_stdout()
    by_name = {case.__name__: case for case in cases}
    versions = {name: version(name) for name in packages}
    prepared: Prepared | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                prepared = by_name[request.pop("case")](**request)
                answer = {"versions": versions, **prepared.facts}
                _forget_peak()
            else:
                assert prepared is not None
                answer = _round(prepared, request["count"])
        except Exception as error:  # the runner reports it: a peer that fails is a row, too
            traceback.print_exc()
            message = " ".join(str(error).split())[:LONGEST_ERROR]
            answer = {"error": f"{type(error).__name__}: {message}"}
        print(json.dumps(answer), file=answers, flush=True)


def anew(make: Callable[[], Callable[[], object]]) -> Callable[[int], Figures]:
    """A round of calls, each of something made for it, which is not timed."""

    def run(count: int) -> Figures:
        return {"seconds": sum(timed(make())(1)["seconds"] for _ in range(count))}

    return run


def fresh_processes(program: str, *arguments: str) -> Prepared:
    """Python programs from their first instant to their last.

    What a program prints at its end, seconds of its stages, is reported for the last one.
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
    """Largest memory that a finished child process had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def peak_memory() -> int:
    """Largest resident memory of this process since it was ready, in bytes (Linux; else ever)."""
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


def _forget_peak() -> None:
    """Have the peak of memory counted anew: building and compiling are no part of it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _answers_alone_on_stdout() -> TextIO:
    """Standard output for the answers, while everything printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
