"""The command of `make bench`: measure every case, and write RESULTS.md.

    python -m benchmarks.run [--cases inference startup] [--only size=small length=512]

Each measurement is stored in results.json at once; measurements of other cases are kept.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # for all contenders, as our commands do

from tqdm import tqdm

from benchmarks.cases import BY_NAME_ALONE, CASES, Material, Measurement
from benchmarks.command_line import settings_of
from benchmarks.environments import make_environment
from benchmarks.report import summary, write_report
from benchmarks.results import FILE, Results, this_commit, this_machine
from benchmarks.workers import Row, measure
from roformer_tf.errors import InputError


@dataclass(frozen=True)
class RunConfig:
    """Measure this package and its peers, in turns, and write benchmarks/RESULTS.md."""

    cases: tuple[str, ...] = tuple(case for case in CASES if case not in BY_NAME_ALONE)
    """Cases to measure; the others keep their figures."""
    only: tuple[str, ...] = ()
    """Only measurements of these shapes, such as size=small length=512."""
    rounds: int = 5
    """Number of timed rounds of each contender."""


def main(config: RunConfig) -> None:
    """Run all measurements, and write the results after each."""
    results = Results.read(FILE, this_machine())
    commit = this_commit()  # before this run writes its own files
    with tempfile.TemporaryDirectory(prefix="roformer-bench-") as folder:
        print("bench: making texts and checkpoints", flush=True)
        chosen = list(_selected(config, Path(folder)))
        _install({contender.peer for each in chosen for contender in each.contenders})
        with tqdm(chosen, unit="measurement") as bar:
            for measurement in bar:
                results.put(measurement, _run_contenders(measurement, config.rounds, bar), commit)
                results.write(FILE)
                write_report(results)
                bar.write(summary(results.measurements[measurement.key]))
    write_report(results)


def _install(peers: set[str]) -> None:
    """Create the peers' environments. A failure is reported in the peer's row."""
    for peer in sorted(peers):
        try:
            make_environment(peer)
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"bench: {peer} cannot be installed: {error}", flush=True)


def _selected(config: RunConfig, folder: Path) -> Iterator[Measurement]:
    """Yield the selected measurements."""
    material = Material(folder)
    for case in config.cases:
        if case not in CASES:
            raise InputError(f"there is no case {case!r}. There are {', '.join(CASES)}.")
        for measurement in CASES[case](material):
            if set(config.only) <= set(measurement.key.split()):
                yield measurement


def _run_contenders(measurement: Measurement, rounds: int, bar: "tqdm[Measurement]") -> list[Row]:
    """Run the contenders in turn, and show the progress."""

    def show_progress(message: str) -> None:
        bar.set_description(f"{measurement.key}: {message}")

    return measure(
        measurement.work or measurement.case,
        measurement.settings,
        measurement.contenders,
        rounds=measurement.rounds or rounds,
        at_least=measurement.at_least,
        show_progress=show_progress,
    )


if __name__ == "__main__":
    main(settings_of(RunConfig))
