"""Prepare a large corpus on a cluster that loses workers, and compare with local processes.

    python -m benchmarks.debian --output /tmp/debian
    python -m benchmarks.cluster --megabytes 1000 --output /tmp/cluster --text '/tmp/debian/*.jsonl'
    python -m benchmarks.cluster --megabytes 3 --output /tmp/cluster --freeze 5      a minute

First, two local processes prepare the corpus. Then a Dask cluster does: a scheduler and three
workers on this machine, of which one is killed and another is frozen for a minute. All files must
be identical, byte for byte. CLUSTER.md reports the time and memory of both.
"""

import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import settings_of
from benchmarks.corpus import write_mixed
from roformer_tf.corpus.documents import find_files
from roformer_tf.corpus.shards import read_manifest
from roformer_tf.files import write_text

ROOT = Path(__file__).parents[1]
WORKERS = 3
PARTS = 60  # minimum number, so that workers can be stopped midway through a small corpus
Process = subprocess.Popen[bytes]
PREPARE = """
import json, sys
from roformer_tf.corpus import preparation

settings, characters = json.loads(sys.argv[1]), int(sys.argv[2])
preparation.PART_CHARACTERS = min(preparation.PART_CHARACTERS, characters)
if __name__ == "__main__":
    preparation.prepare(preparation.PreparationConfig(**settings))
"""
TEXT = """# A cluster that loses workers

`python -m benchmarks.cluster` writes this file. {megabytes} MB of text ({characters} characters;
sentences in ever new orders, of {sources})
became {rows} rows of 512, a vocabulary counted first: once by two processes, once by a Dask cluster
on the same two cores, of a scheduler and three workers. When a third of the parts were done, one
worker was killed (SIGKILL); at half another was frozen for {freeze} s (SIGSTOP). Memory is the
largest resident size.

{machine}.

{table}

{found}
"""


@dataclass(frozen=True)
class ClusterConfig:
    """Prepare a corpus on this machine and on a cluster that loses workers, and compare."""

    output: Path
    """Folder for the corpus, which is reused if it exists, and for both results."""
    megabytes: int = 1000
    """Size of the corpus, made of the demo's sentences in random order."""
    text: tuple[str, ...] = ()
    """More text files whose sentences are mixed in."""
    vocab_size: int = 20_000
    """Size of the vocabulary, which is built first."""
    freeze: float = 60.0
    """Seconds that a worker is frozen."""
    report: Path = ROOT / "benchmarks" / "CLUSTER.md"
    """Report file."""


@dataclass
class Figures:
    """Time and memory of a preparation."""

    name: str
    seconds: float = 0.0
    main: int = 0
    """Peak memory of the main process, in bytes."""
    worker: int = 0
    """Peak memory of the largest worker, in bytes."""


class Loopback:
    """A Dask scheduler on 127.0.0.1 and its workers.

    The workers run without a nanny, so a killed worker is not restarted.
    """

    def __init__(self, folder: Path, workers: int = 0, **variables: str) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.workers: list[Process] = []
        self._variables = {"PYTHONPATH": str(ROOT), **variables}
        self.scheduler = self._start("scheduler", "--port", "0")
        while not self.file.exists() or not self.file.stat().st_size:
            assert self.scheduler.poll() is None, self._log("scheduler").read_text()
            time.sleep(0.02)
        for _ in range(workers):
            self.add_worker()

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, *failure: object) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()  # SIGKILL also ends a frozen process
            process.wait()

    def add_worker(self, **variables: str) -> Process:
        """Start one more worker."""
        flags = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder))
        self.workers.append(self._start("worker", *flags, **variables))
        return self.workers[-1]

    def _start(self, kind: str, *flags: str, **variables: str) -> Process:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log(kind).open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", f"distributed.cli.dask_{kind}", *flags),
                    *("--scheduler-file", str(self.file), "--host", "127.0.0.1"),
                    *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._variables, **variables},
            )

    def _log(self, kind: str) -> Path:
        return self.folder / f"{kind}.log"


def freeze(process: Process) -> None:
    """Stop a process (SIGSTOP), to simulate a lost network or a machine that swaps."""
    process.send_signal(signal.SIGSTOP)


def thaw(process: Process) -> None:
    """Let a frozen process continue (SIGCONT)."""
    process.send_signal(signal.SIGCONT)


def recorded_parts(output: Path) -> int:
    """Return the number of finished parts of a running preparation."""
    return len(list((output / "unfinished").glob("part-*.json")))


def main(config: ClusterConfig) -> None:
    """Measure, compare and write the report. Exits with 1 if a file differs."""
    corpus = config.output / "corpus.jsonl"
    if not corpus.exists():
        config.output.mkdir(parents=True, exist_ok=True)
        write_mixed(corpus, config.megabytes, patterns=config.text)
    local, clustered = config.output / "local", config.output / "cluster"
    for folder in (local, clustered, config.output / "dask"):
        shutil.rmtree(folder, ignore_errors=True)
    settings = {"corpus": [str(corpus)], "vocab_size": config.vocab_size}
    characters = config.megabytes * 1_000_000 // 3 // PARTS

    local_figures = Figures("two processes")
    command = _command({**settings, "output": str(local), "workers": 2}, characters)
    with _measured(local_figures, command) as process:
        process.wait()
    cluster_figures = Figures("cluster")
    with Loopback(config.output / "dask", WORKERS) as cluster:
        dask = {"engine": "dask", "scheduler": str(cluster.file)}
        command = _command({**settings, **dask, "output": str(clustered)}, characters)
        with _measured(cluster_figures, command, cluster.workers) as process:
            _disturb(cluster, clustered, len(list(local.glob("train-*"))), config.freeze, process)
            process.wait()

    different = differences(local, clustered)
    write_text(
        config.report, render(config, (local_figures, cluster_figures), corpus, local, different)
    )
    print(config.report.read_text(encoding="utf-8"))
    if different:
        sys.exit(1)


def _command(settings: dict[str, Any], characters: int) -> list[str]:
    """Return a command that prepares a corpus in parts of at most `characters` characters."""
    return [sys.executable, "-c", PREPARE, json.dumps(settings), str(characters)]


@contextmanager
def _measured(
    figures: Figures, command: list[str], workers: Sequence[Process] = ()
) -> Iterator[Process]:
    """Run a command during the block, and record its time and memory.

    Raises CalledProcessError if it fails.
    """
    begun = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as main:
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(figures, main, workers, ended))
        watch.start()
        try:
            yield main
        finally:
            main.kill()  # still running only if the block failed
            main.wait()
            ended.set()
            watch.join()
    figures.seconds = time.monotonic() - begun
    if main.returncode:
        raise subprocess.CalledProcessError(main.returncode, command[:1])


def _watch(
    figures: Figures, main: Process, workers: Sequence[Process], ended: threading.Event
) -> None:
    """Record the peak memory of the main process and of the largest worker until `ended`."""
    while not ended.wait(0.2):
        figures.main = max(figures.main, _peak(main.pid))
        pids = [worker.pid for worker in workers] or _children(main.pid)
        figures.worker = max(figures.worker, *map(_peak, pids), 0)


def _peak(process: int) -> int:
    """Return a process's peak resident memory in bytes, or 0 after it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _children(process: int) -> list[int]:
    """Return the ids of a process's child processes."""
    with suppress(OSError):
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return []


def _disturb(cluster: Loopback, output: Path, parts: int, seconds: float, process: Process) -> None:
    """Kill a worker when a third of the parts are done, and freeze another for a while at half."""
    killed, frozen, *_ = cluster.workers
    _wait_for(lambda: recorded_parts(output) >= parts // 3, process)
    killed.kill()
    _wait_for(lambda: recorded_parts(output) >= parts // 2, process)
    freeze(frozen)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    thaw(frozen)


def _wait_for(condition: Callable[[], bool], process: Process) -> None:
    """Wait until the condition is true or the process has ended."""
    while process.poll() is None and not condition():
        time.sleep(0.05)


def differences(first: Path, other: Path) -> list[str]:
    """Return the files that exist in only one of two folders or differ in content."""
    names = [{str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} for f in (first, other)]
    common = names[0] & names[1]
    unequal = {
        name for name in common if not filecmp.cmp(first / name, other / name, shallow=False)
    }
    return sorted((names[0] ^ names[1]) | unequal)


def render(
    config: ClusterConfig,
    figures: Sequence[Figures],
    corpus: Path,
    output: Path,
    different: Sequence[str],
) -> str:
    """Return the text of the report."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from benchmarks.results import this_machine  # loads TensorFlow

    further = (
        [each.name.partition(".")[0] for each in find_files(config.text)] if config.text else []
    )
    splits = read_manifest(output)["splits"].values()
    characters, rows = (sum(split[of] for split in splits) for of in ("characters", "rows"))
    megabytes = corpus.stat().st_size / 1e6
    lines = [["", *(each.name for each in figures)], ["---"] * (1 + len(figures))]
    for name, cell in {
        "time": lambda each: f"{each.seconds:,.0f} s",
        "rate": lambda each: (
            f"{characters / each.seconds / 1e6:.2f} M characters/s, "
            f"{megabytes / each.seconds:.1f} MB/s"
        ),
        "memory of the main process": lambda each: f"{each.main / 1e6:,.0f} MB",
        "memory of the largest worker": lambda each: f"{each.worker / 1e6:,.0f} MB",
    }.items():
        lines.append([name, *map(cell, figures)])
    files = sum(path.is_file() for path in output.rglob("*"))
    actual = f"**{len(different)} files differ**: {', '.join(different[:10])}"
    return TEXT.format(
        megabytes=f"{megabytes:,.0f}",
        characters=f"{characters:,}",
        sources=", ".join(["the demo", *further]),
        rows=f"{rows:,}",
        freeze=f"{config.freeze:g}",
        machine=", ".join(this_machine().values()),
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
        found=actual if different else f"All {files:,} files are the same, byte for byte.",
    )


if __name__ == "__main__":
    main(settings_of(ClusterConfig))
