"""A run that is killed and resumed ends with the weights of an uninterrupted run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from roformer_tf.cli import main
from roformer_tf.corpus import preparation

ROOT = Path(__file__).parents[2]
STEPS, SAVE_EVERY = 8, 3
PART = 50_000
LAST = Path("checkpoints", f"step-{STEPS:08}")


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    """Use small parts, so that a corpus of several parts is prepared in a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "PART_CHARACTERS", PART)
        yield


@pytest.fixture(scope="module")
def flags(pretrain_flags, write_corpus, tmp_path_factory):
    """flags(output) → flags of a tiny run whose corpus is prepared in eight parts."""
    corpus = write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt", 700, length=600)
    settings = {
        "corpus": corpus,
        "held_out": 0.05,
        "steps": STEPS,
        "save_every": SAVE_EVERY,
        "log_every": 5,
    }
    return lambda output, **changes: pretrain_flags(output, **settings | changes)


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory, eagerly):
    output = tmp_path_factory.mktemp("peace") / "run"
    with eagerly():
        assert main(["pretrain", *flags(output)]) == 0
    return output


def wait_for(condition, process):
    """Wait until a condition holds while the process runs."""
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"the process ended too soon: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def kill_when(condition, process):
    """Kill a process and its workers with SIGKILL as soon as a condition holds."""
    wait_for(condition, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


RUN = f"""
import json, sys
import tensorflow as tf
from roformer_tf.cli import main
from roformer_tf.corpus import preparation
preparation.PART_CHARACTERS = {PART}
options, *flags = sys.argv[1:]
optimised, eager = json.loads(options)
tf.config.optimizer.set_experimental_options(optimised)
tf.config.run_functions_eagerly(eager)
sys.exit(main(["pretrain", *flags]))
"""


@pytest.fixture
def started(eager_steps):
    """started(flags) → a separate process that pretrains, with the same small parts.

    It uses this process' TensorFlow options: otherwise the last bit of a weight may differ.
    """
    processes = []
    optimizer_options = tf.config.optimizer.get_experimental_options()
    options = json.dumps([optimizer_options, tf.config.functions_run_eagerly()])

    def start(flags):
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RUN, options, *flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that its workers can be killed with it
                cwd=ROOT,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def sigterm():
    """sigterm(condition): send SIGTERM to this process from a thread once the condition holds."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # between two commands
    ended = threading.Event()
    threads = []

    def send(condition):
        def wait():
            while not ended.is_set():
                if condition():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                time.sleep(0.001)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield send
    ended.set()
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
@pytest.mark.usefixtures("eager_steps")
def test_sigterm_ends_a_run_that_saves_every_step(
    pretrain_flags, pretrained, sigterm, tmp_path, capsys
):
    run, steps = tmp_path / "run", 40
    rows = {"rows": pretrained / "rows", "corpus": None, "vocab_size": None}
    sigterm(lambda: any((run / "checkpoints").glob("step-*")))
    changes = {"steps": steps, "save_every": 1, "evaluation_rows": 8} | rows
    assert main(["pretrain", *pretrain_flags(run, **changes)]) == 75
    last = max((run / "checkpoints").glob("step-*"))
    assert int(last.name.removeprefix("step-")) < steps
    assert f"saved {last}. The same command continues." in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_a_killed_run_resumes_bit_for_bit(
    started, flags, uninterrupted, stable_metrics, sigterm, tmp_path, capsys
):
    """Stop the run while it prepares, kill it while it writes a checkpoint, then let it finish."""
    run = tmp_path / "run"
    checkpoints, metrics = run / "checkpoints", run / "metrics.jsonl"
    sigterm((run / "rows" / "unfinished" / "settings.json").exists)
    assert main(["pretrain", *flags(run, workers=2)]) == 75
    err = capsys.readouterr().err
    assert "received SIGTERM. Run the same command again to resume." in err
    assert "Traceback" not in err
    assert not (run / "rows" / "manifest.json").exists()

    process = started(flags(run))
    kill_when(  # while it writes the second checkpoint
        lambda: any(checkpoints.glob("step-*")) and any(checkpoints.glob(".step-*/model/*")),
        process,
    )
    assert not (run / LAST).exists()

    assert main(["pretrain", *flags(run)]) == 0
    assert "continuing from" in capsys.readouterr().out
    for file in (
        Path("model", "model.safetensors"),
        LAST / "model" / "model.safetensors",
        LAST / "training.safetensors",
    ):
        assert (run / file).read_bytes() == (uninterrupted / file).read_bytes()
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert stable_metrics(run / file) == stable_metrics(uninterrupted / file)
    assert [line["step"] for line in lines(metrics)] == [5, 8]
    assert {path.name for path in run.iterdir()} == {path.name for path in uninterrupted.iterdir()}
    assert [path.name for path in checkpoints.glob(".*")] == []
