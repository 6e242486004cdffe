"""The runner's side of the peers' processes: prepare all of them, then run them in turn."""

import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.environments import HERE, python_of, variables_of

ShowProgress = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """One peer with one choice of settings, in one case."""

    name: str
    """Name in the tables."""
    peer: str
    """Module of `benchmarks.peers`."""
    about: str
    """Description of its settings."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the case, in addition to those of all contenders."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process."""


@dataclass
class Row:
    """Result of a contender."""

    name: str
    about: str
    seconds: list[float] = field(default_factory=list)
    """Time of one unit of work, in each round."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Values that the peer reported when ready and in each round, and `peak_memory` in bytes."""
    failed: str | None = None
    """Error message if the contender failed; `seconds` may then be incomplete."""


class PeerError(Exception):
    """A peer failed; the message is shown in the table."""


class Worker:
    """A contender's process, which runs `peers/worker.py`, and its row."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.row = Row(contender.name, contender.about)
        self.count = 1

    def __enter__(self) -> "Worker":
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process: subprocess.Popen[str] | None = None
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.log.close()

    def begin(self, case: str, settings: Mapping[str, Any]) -> None:
        """Start the process and request the preparation of the case, without waiting."""
        peer = self.contender.peer
        self.process = subprocess.Popen(
            [str(python_of(peer)), "-m", f"benchmarks.peers.{peer}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**variables_of(peer), **self.contender.variables},
            cwd=HERE.parent,
            text=True,
        )
        self._send({"case": case, **settings, **self.contender.settings})

    def get_ready(self) -> None:
        """Wait until the case is prepared."""
        self.row.facts = self._receive()

    def warm_up(self, at_least: float) -> None:
        """Run untimed, and set how often a round repeats the work to last `at_least` seconds."""
        seconds = self._run(1)
        if seconds < 1:  # the first run of short work is slow, for example because it compiles
            seconds = self._run(1)
        self.count = math.ceil(at_least / seconds)

    def run_round(self) -> None:
        """Run one round."""
        self.row.seconds.append(self._run(self.count))

    def end(self) -> None:
        """Request the peak memory of the process."""
        self._send({"count": 0})
        self.row.facts |= self._receive()

    def _run(self, count: int) -> float:
        """Run the work `count` times and return the seconds of one unit."""
        self._send({"count": count})
        response = self._receive()
        self.row.facts |= {key: value for key, value in response.items() if key != "seconds"}
        return response["seconds"] / count

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            print(json.dumps(dict(request)), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise PeerError(self._exit_message()) from None

    def _receive(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        response = json.loads(line) if line else {"error": self._exit_message()}
        if "error" in response:
            raise PeerError(response["error"])
        return response

    def _exit_message(self) -> str:
        """Return the exit code of the process and its last line on stderr."""
        assert self.process is not None
        code = self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        return f"ended with {code}: {lines[-1] if lines else 'no message'}"


def measure(
    work: str,
    settings: Mapping[str, Any],
    contenders: Sequence[Contender],
    *,
    rounds: int,
    at_least: float,
    show_progress: ShowProgress,
) -> list[Row]:
    """Prepare all contenders in parallel, then run them in turn, starting each round with the next.

    Only one runs at a time, for at least `at_least` seconds. A contender that fails drops out, and
    its row has the error message.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(contender)) for contender in contenders]
        show_progress("preparing")
        _each(workers, lambda worker: worker.begin(work, settings))
        _each(workers, Worker.get_ready)
        if rounds > 1:  # a single round is of long work, for which a warm-up makes no difference
            show_progress("warming up")
            _each(workers, lambda worker: worker.warm_up(at_least))
        for number in range(rounds):
            show_progress(f"round {number + 1} of {rounds}")
            first = number % len(workers)
            _each(workers[first:] + workers[:first], Worker.run_round)
        _each(workers, Worker.end)
    return [worker.row for worker in workers]


def _each(workers: Iterable[Worker], action: Callable[[Worker], None]) -> None:
    """Call `act` with each worker that has not failed, one after the other."""
    for worker in workers:
        if worker.row.failed is None:
            try:
                action(worker)
            except (PeerError, subprocess.CalledProcessError, OSError) as error:
                worker.row.failed = str(error)
