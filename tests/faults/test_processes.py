"""Several JAX processes train like one, and a failure in one of them stops all of them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.files import locked
from roformer_tf.training.run_files import read_metrics

pytestmark = [
    pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]"),
    pytest.mark.skipif(os.name == "nt", reason="kills process groups"),
]

STEPS = 50
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def flags(pretrain_flags):
    """flags(output) → flags of a run that logs every step and clips gradients."""
    settings = {
        "steps": STEPS,
        "save_every": 20,
        "log_every": 1,
        "clip_norm": 0.5,
        "learning_rate": 3e-3,
        "precision": "float32",
        "evaluation_rows": 16,
        "keep_checkpoints": 10,
    }
    return lambda output, **changes: pretrain_flags(output, **settings | changes)


@pytest.fixture(scope="module")
def rows(write_corpus, tmp_path_factory):
    """Sequences of two corpora."""
    folder = tmp_path_factory.mktemp("corpora")
    corpora = {"news": write_corpus(folder / "news.txt", 150), "law": folder / "law.txt"}
    write_corpus(corpora["law"], 50, seed=1)
    files = [f"{name}={file}" for name, file in corpora.items()]
    sizes = ["--vocab-size", "200", "--tokenization", "char", "--length", "32", "--held-out", "0.1"]
    output = ["--output", str(folder / "rows"), "--workers", "1"]
    assert main(["prepare", "--corpus", *files, *sizes, *output]) == 0
    return {"rows": folder / "rows", "corpus": None, "vocab_size": None}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def started(request, start_command):
    """started(flags, processes, devices=1) → the processes of a run, which end with the test.

    Most of their time goes into compiling, so the quick tests skip XLA's optimizations. The slow
    tests keep them, as users do.
    """
    processes = []
    slow = request.node.get_closest_marker("slow")
    fast_compilation = "" if slow else "--xla_backend_optimization_level=0 "

    def start(flags, count, devices=1):
        port = free_port()
        for process_id in range(count):
            environment = {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(process_id),
            }
            processes.append(
                start_command(
                    "pretrain/run_mlm.py",
                    *flags,
                    *(["--distributed"] if count > 1 else []),
                    KERAS_BACKEND="jax",
                    XLA_FLAGS=f"{fast_compilation}--xla_force_host_platform_device_count={devices}",
                    **(environment if count > 1 else {}),
                )
            )
        return processes[-count:]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finished(processes, timeout=600):
    """Wait for all processes and return the output of the first."""
    outputs = [process.communicate(timeout=timeout) for process in processes]
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err[-3000:]
    for out, _ in outputs[1:]:  # only the first prints, except for the library that connects them
        assert all(line.startswith("[Gloo]") for line in out.splitlines()), out
    return outputs[0][0]


def losses(run):
    return [line["loss"] for line in read_metrics(run / "metrics.jsonl")]


def held_out(run):
    """At each evaluation, the losses of all texts and of each corpus."""
    lines = read_metrics(run / "evaluations.jsonl")
    by_corpus = [line["held_out_by_corpus"] for line in lines]
    assert all(corpora.keys() == {"news", "law"} for corpora in by_corpus)
    return [
        [line["held_out_loss"], *(x["loss"] for x in corpora.values())]
        for line, corpora in zip(lines, by_corpus, strict=True)
    ]


def same_run(run, other, steps=STEPS):
    assert losses(run) == pytest.approx(losses(other), abs=TOLERANCE)
    np.testing.assert_allclose(held_out(run), held_out(other), rtol=0, atol=TOLERANCE)
    assert len(losses(run)) == steps
    return True


def wait_until(condition, processes, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        outputs = [process.communicate() for process in processes if process.poll() is not None]
        assert not outputs, outputs
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_train_like_one(started, flags, rows, pretrained, tmp_path, eagerly):
    """Use LAMB, two micro-batches and clipping. The single process is this one, on TensorFlow.

    Both start from the same weights, without dropout, because each backend draws its own random
    numbers. Slow tests compare with one JAX process, with dropout.
    """
    run, single = tmp_path / "two", tmp_path / "one"
    changes = {"optimizer": "lamb", "accumulate": 2, "steps": 2, "save_every": 2, "dropout": 0.0}
    changes |= {"init_from": pretrained / "model", "architecture": None, "tokenization": None}
    changes |= {"rows": pretrained / "rows", "corpus": None, "vocab_size": None}
    out = finished(started(flags(run, **changes), 2))
    assert "split over the copies of the model: 2; devices of each: 1; processes: 2" in out
    with eagerly():
        assert main(["pretrain", *flags(single, **changes)]) == 0
    assert losses(run) == pytest.approx(losses(single), abs=TOLERANCE)
    evaluated = [
        [line["held_out_loss"] for line in read_metrics(item / "evaluations.jsonl")]
        for item in (run, single)
    ]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=TOLERANCE)
    assert (len(losses(run)), len(evaluated[0])) == (2, 2)


@pytest.mark.slow
def test_sigterm_makes_all_processes_save_the_same_step(started, flags, rows, tmp_path):
    run = tmp_path / "run"
    command = flags(run, steps=100_000, save_every=100_000, **rows)
    processes = started(command, 2)
    metrics = run / "metrics.jsonl"
    wait_until(lambda: len(read_metrics(metrics)) > 5, processes)
    os.killpg(processes[1].pid, signal.SIGTERM)  # sent to only one of them
    actual = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [75, 75], actual
    (saved,) = (run / "checkpoints").iterdir()
    assert saved.name == f"step-{read_metrics(metrics)[-1]['step']:08}"
    assert f"saved {saved}" in actual[0][1]


@pytest.mark.slow
def test_when_a_process_dies_the_others_stop_within_a_minute(started, flags, rows, tmp_path):
    run = tmp_path / "run"
    processes = started(flags(run, steps=100_000, **rows), 2)
    wait_until(lambda: any((run / "checkpoints").glob("step-*")), processes)
    os.killpg(processes[1].pid, signal.SIGKILL)
    died = time.monotonic()
    _, err = processes[0].communicate(timeout=90)
    assert time.monotonic() - died < 60
    assert processes[0].returncode == 75, err[-2000:]
    assert "lost another process" in err
    saved = max((run / "checkpoints").glob("step-*"))
    assert f"Saved: {saved}" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    ["its corpus is empty", "another run has the folder"],
)
def test_when_the_first_fails_before_training_the_others_stop_with_its_message(
    started, flags, tmp_path, failure
):
    run, corpus = tmp_path / "run", tmp_path / "empty.txt"
    corpus.write_text("\n")
    with locked(run) if "folder" in failure else nullcontext():
        processes = started(flags(run, corpus=corpus), 2)
        actual = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], actual
    empty = f"{corpus}: there is no sequence to train on"
    message = f"{run} is in use" if "folder" in failure else empty
    assert f"pretrain: {message}" in actual[0]
    assert f"pretrain: the first process stopped: {message}" in actual[1]
    assert "Traceback" not in actual[0] + actual[1]
    assert not run.exists()


BAD = """
import json, sys
from roformer_tf.cli import main
for flags in json.loads(sys.argv[1]):
    print(main(["pretrain", *flags]))
"""


@pytest.mark.slow
def test_too_many_devices_and_an_indivisible_batch_are_errors(flags, rows, tmp_path):
    run = tmp_path / "run"
    bad = [flags(run, devices=5, **rows), flags(run, accumulate=4, **rows)]
    done = subprocess.run(  # one process for both cases, to start only once
        [sys.executable, "-c", BAD, json.dumps(bad)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ
        | {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
    )
    assert done.stdout.split() == ["2", "2"]
    assert re.search(r"requested: 5, .* JAX sees 4: cpu:0, cpu:1, cpu:2, cpu:3", done.stderr)
    assert (
        "batches of 8 sequences cannot be split over the devices (4) and micro-batches (4)"
        in done.stderr
    )
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_any_number_of_processes_and_devices_trains_like_one(
    started, flags, rows, tmp_path, optimizer, accumulate
):
    """Compare with two and four processes, four devices in one process, and model parallelism.

    Batches have 16 rows, so that each of four devices has rows in all micro-batches.
    """
    changes = {"optimizer": optimizer, "accumulate": accumulate, "batch_size": 16, **rows}
    finished(started(flags(tmp_path / "one", **changes), 1))
    for count in (2, 4):
        finished(started(flags(tmp_path / f"processes-{count}", **changes), count))
        assert same_run(tmp_path / f"processes-{count}", tmp_path / "one")
    finished(started(flags(tmp_path / "devices-4", **changes), 1, devices=4))
    assert same_run(tmp_path / "devices-4", tmp_path / "one")
    for name, count, devices in (("2x2", 1, 4), ("2x2-processes", 4, 1)):
        run = tmp_path / name
        finished(started(flags(run, model_parallel=2, **changes), count, devices))
        assert same_run(run, tmp_path / "one")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_checkpoint_of_four_processes_resumes_on_two_and_on_one(started, flags, rows, tmp_path):
    changes = {"batch_size": 16, **rows}
    complete = tmp_path / "whole"
    finished(started(flags(complete, **changes), 4))
    for count, model_parallel in ((2, 1), (1, 1), (4, 2)):
        run = shutil.copytree(complete, tmp_path / f"again-{count}-{model_parallel}")
        for step in (40, STEPS):
            shutil.rmtree(run / "checkpoints" / f"step-{step:08}")
        command = flags(run, model_parallel=model_parallel, **changes)
        assert "step-00000020" in finished(started(command, count))
        assert same_run(run, complete)
