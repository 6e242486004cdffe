"""After thirty kills at random moments, a run ends with the weights of an uninterrupted run."""

import os
import random
import signal
import time

import pytest

from roformer_tf.cli import main
from roformer_tf.training.run_files import read_metrics

KILLS, STEPS, SAVE_EVERY = 30, 400, 10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.name == "nt", reason="kills process groups"),
]


def newest(run):
    return max(
        (int(x.name.removeprefix("step-")) for x in run.glob("checkpoints/step-*")), default=0
    )


def logged(run):
    lines = read_metrics(run / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


def metrics_inode(run):
    """The inode of the metrics file.

    It changes when another process trains, which rewrites the file.
    """
    path = run / "metrics.jsonl"
    return path.stat().st_ino if path.exists() else None


def moment(rng, run, before):
    """A random moment for a kill: at startup, at some step, or while a checkpoint is written."""
    kind = rng.choice(["starting", "training", "training", "saving", "saving"])
    if kind == "starting":
        deadline = time.monotonic() + rng.uniform(0.5, 12)
        return lambda: time.monotonic() > deadline
    if kind == "training":
        step = before + rng.randrange(1, 25)
        return lambda: logged(run) >= min(step, STEPS - 2)
    pause = rng.uniform(0, 0.03)

    def saving():
        if newest(run) < before + 1 and not list(run.glob("checkpoints/.step-*.tmp")):
            return False
        time.sleep(pause)
        return True

    return saving


def test_thirty_kills_change_no_bit(
    start_command, pretrain_flags, stable_metrics, tmp_path, capsys
):
    """Send SIGKILL or SIGTERM at random.

    SIGKILL repeats at most the steps since the last checkpoint, and SIGTERM none.
    """
    rng = random.Random(20)
    settings = {"steps": STEPS, "save_every": SAVE_EVERY, "log_every": 1, "evaluation_rows": 8}
    run, reference = tmp_path / "run", tmp_path / "peace"
    repeated = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    counts = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    while sum(counts.values()) < KILLS:
        before, file = logged(run), metrics_inode(run)
        process = start_command("pretrain/run_mlm.py", *pretrain_flags(run, **settings))
        condition = moment(rng, run, before)
        while process.poll() is None and not condition():
            time.sleep(0.001)
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()
            break
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=120)
        counts[number] += 1
        if number == signal.SIGTERM and process.returncode not in (75, 0):
            assert process.returncode == -signal.SIGTERM, err[-2000:]  # before the handler
            assert logged(run) == before
        lost = (
            logged(run) - newest(run) if metrics_inode(run) != file else 0
        )  # otherwise counted before
        assert lost <= 2 * SAVE_EVERY  # a checkpoint may still be incomplete
        if process.returncode == 75:
            assert lost == 0
        repeated[number] += lost
    process = start_command("pretrain/run_mlm.py", *pretrain_flags(run, **settings))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-2000:]
    assert sum(counts.values()) == KILLS, "the run ended before all kills; make it longer"

    assert main(["pretrain", *pretrain_flags(reference, **settings)]) == 0
    last = f"checkpoints/step-{STEPS:08}"
    for file in (
        "model/model.safetensors",
        "best/model.safetensors",
        f"{last}/training.safetensors",
    ):
        assert (run / file).read_bytes() == (reference / file).read_bytes()
    assert stable_metrics(run / "metrics.jsonl") == stable_metrics(reference / "metrics.jsonl")
    with capsys.disabled():
        output = {n.name: (counts[n], repeated[n]) for n in counts}
        print(f"\nkills and steps done again: {output}")
    assert repeated[signal.SIGTERM] == 0
    assert repeated[signal.SIGKILL] <= counts[signal.SIGKILL] * SAVE_EVERY
