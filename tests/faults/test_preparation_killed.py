"""A killed preparation leaves nothing that looks finished, and continues when it is run again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("datasketch")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from roformer_tf import terminal
from roformer_tf.corpus import preparation

terminal.EVERY = 0  # each step prints a line, not only slow ones
preparation.PART_CHARACTERS = 10_000

if __name__ == "__main__":
    corpus, output, workers = sys.argv[1:]
    preparation.prepare(
        preparation.PreparationConfig(
            (corpus,),
            output=output,
            vocab_size=1_500,
            length=64,
            duplicates="near",
            workers=int(workers),
        )
    )
"""

COMMAND = """
import sys
from roformer_tf.cli import main
from roformer_tf.corpus import preparation

preparation.PART_CHARACTERS = 10_000

if __name__ == "__main__":
    corpus, output, workers = sys.argv[1:]
    flags = ["--vocab-size", "1500", "--length", "64", "--workers", workers]
    sys.exit(main(["prepare", "--corpus", corpus, "--output", output, *flags]))
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(output, workers) → a process that prepares a corpus of about 50 parts."""
    folder = tmp_path_factory.mktemp("killed")
    words = _words()
    lines = ["".join(words[(7 * i + j * j) % len(words)] for j in range(150)) for i in range(2_000)]
    lines[5::9] = [f"{line[:-1]}？" for line in lines[4::9][: len(lines[5::9])]]  # duplicates
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    script = folder / "script.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def start(output, workers, code=SCRIPT):
        script.write_text(code)
        return subprocess.Popen(
            [sys.executable, script, folder / "corpus.txt", output, str(workers)],
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    """The files of an uninterrupted run: {name: bytes}."""
    output = tmp_path_factory.mktemp("peace") / "rows"
    out, _ = finish(start(output, 1))
    assert "duplicates" in out
    return content(output)


def _words():
    vocabulary = ROOT / "tests" / "fixtures" / "tokenizer" / "word" / "vocab.txt"
    lines = vocabulary.read_text(encoding="utf-8").splitlines()
    return [word for word in lines if word.isalpha() and word[0] >= "\u4e00"]


def finish(process):
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out, errors


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_until(condition, process):
    """Poll until a condition holds while the process runs."""
    deadline = time.monotonic() + 180
    while not condition():
        assert process.poll() is None, f"the process ended too soon: {process.communicate()[1]}"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def records(output):
    return list((output / "unfinished").glob("part-*.json"))


MOMENTS = {
    "while it looks for duplicates": lambda output: (output / "unfinished").is_dir(),
    "while it counts words": lambda output: (output / "unfinished" / "duplicates.json").is_file(),
    "when it has a vocabulary": lambda output: (output / "vocab.txt").is_file(),
    "after some parts": lambda output: len(records(output)) >= 20,
}


@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        pytest.param(moment, workers, marks=[] if workers == quick else pytest.mark.slow)
        for moment, quick in zip(MOMENTS, (None, None, None, 1), strict=True)
        for workers in (1, 2)
    ],
)
def test_a_killed_preparation_resumes(start, uninterrupted, tmp_path, moment, workers):
    output = tmp_path / "rows"
    process = start(output, workers)
    wait_until(lambda: MOMENTS[moment](output), process)
    os.killpg(process.pid, signal.SIGKILL)  # the workers too, while they write
    process.communicate()
    assert not (output / "manifest.json").exists()
    completed = {
        output / shard["file"]: (output / shard["file"]).stat()
        for record in records(output)
        for shard in json.loads(record.read_text())["shards"]
    }
    assert len(completed) >= 20 or moment != "after some parts"
    assert len(completed) < len(uninterrupted) - 20

    steps = {"finding duplicates": [*MOMENTS][:1], "counting words": [*MOMENTS][:2]}
    errors = finish(start(output, 3 - workers))[1]
    assert content(output) == uninterrupted
    for step, moments in steps.items():
        assert (step in errors) == (moment in moments), "a finished step was repeated"
    for path, before in completed.items():
        assert path.stat().st_ino == before.st_ino, "a finished part was repeated"
    if moment == "after some parts":
        assert "is prepared already" in finish(start(output, workers))[0]
        assert content(output) == uninterrupted


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_the_workers_of_a_killed_preparation_end_too(start, uninterrupted, tmp_path):
    output = tmp_path / "rows"
    process = start(output, 2)
    wait_until(lambda: len(records(output)) >= 5, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()  # only the main process
    process.communicate()
    deadline = time.monotonic() + 60
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    finish(start(output, 2))
    assert content(output) == uninterrupted


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM between processes")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_terminated_preparation_ends_in_a_message_and_resumes(start, tmp_path, workers):
    """It ended in a warning of multiprocessing about leaked semaphores."""
    output = tmp_path / "rows"
    process = start(output, workers, COMMAND)
    wait_until(lambda: len(records(output)) >= 5, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75
    message = "received SIGTERM. Run the same command again to resume."
    assert errors.endswith(f"\nroformer-tf prepare: {message}\n")
    assert "semaphore" not in errors
    assert not list(tmp_path.rglob("*.tmp*"))
    finish(start(output, workers, COMMAND))
    assert (output / "manifest.json").exists()
