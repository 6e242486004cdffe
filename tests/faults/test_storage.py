"""A full disk, a damaged checkpoint, a lost shard or a batch with NaN never destroys good data."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from roformer_tf import cli
from roformer_tf.checkpoints import huggingface
from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.cli import main
from roformer_tf.conversion.downloads import ListConfig
from roformer_tf.corpus import shards
from roformer_tf.pretraining import training_loop as pretraining
from roformer_tf.pretraining.settings import PretrainConfig
from roformer_tf.training import comparison
from roformer_tf.training.run_files import read_metrics
from tests.support.random_model import random_causal_lm

ROOT = Path(__file__).parents[2]


def poison(monkeypatch, bad, value):
    """Set the label weights of these batches, counted from step 0, to `value`."""
    batches = pretraining.pretraining_batches

    def poisoned(rows, *, start_row, batch_size, **options):
        first = start_row // batch_size

        def damage(number, batch):
            inputs, labels, weights = batch
            if first + number in bad:
                weights = np.where(weights == 1, np.float32(value), weights)
            return inputs, labels, weights

        result = batches(rows, start_row=start_row, batch_size=batch_size, **options)
        return result.map_with_index(damage)

    monkeypatch.setattr(pretraining, "pretraining_batches", poisoned)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_a_poisoned_batch_is_skipped_and_reported(pretrain_flags, tmp_path, capsys, monkeypatch):
    """A logged line has no loss if all of its steps were skipped."""
    poison(monkeypatch, {3, 4, 5, 6}, np.nan)
    run = tmp_path / "run"
    assert main(["pretrain", *pretrain_flags(run, log_every=3)]) == 0
    out = capsys.readouterr().out
    for step in (4, 5, 6, 7):
        assert f"step {step} is skipped" in out
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["skipped"] for line in lines] == [0, 3, 1]
    assert [line["loss"] is None for line in lines] == [False, True, False]
    assert lines[1]["gradient_norm"] is None
    assert all(np.isfinite(line["loss"]) for line in [lines[0], *lines[2:]])
    assert read_metrics(run / "evaluations.jsonl")[-1]["held_out_loss"] < 6


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_model_that_may_not_be_read_ends_in_one_message(file, tmp_path, capsys, monkeypatch):
    """Files cannot be closed to root, who may run the tests, so opening them is what fails here."""
    opened = Path.open

    def refuse(path, *arguments, **options):
        if path.name == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    random_causal_lm(model := tmp_path / "model")
    monkeypatch.setattr(Path, "open", refuse)
    if file == "model.safetensors":  # the library opens it itself, and calls it missing
        monkeypatch.setattr(huggingface, "safe_open", Mock(side_effect=FileNotFoundError))
    assert main(["generate", "天气", "--model", str(model)]) == 2
    message = f"cannot open {model / file}: Permission denied."
    assert capsys.readouterr().err.splitlines()[-1] == f"roformer-tf generate: {message}"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR, errno.ENOTDIR])
def test_a_file_that_was_removed_or_replaced_ends_in_one_message(number, capsys, monkeypatch):
    error = OSError(number, os.strerror(number), "runs/a/metrics.jsonl")
    monkeypatch.setattr(comparison, "show", Mock(side_effect=error))
    monkeypatch.setattr(comparison, "find_runs", lambda folder: [])
    assert main(["runs", "runs"]) == 2
    message = f"cannot open runs/a/metrics.jsonl: {os.strerror(number)}."
    assert capsys.readouterr().err == f"roformer-tf runs: {message}\n"


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_too_many_poisoned_batches_stop_the_run(pretrain_flags, tmp_path, capsys, monkeypatch):
    poison(monkeypatch, range(3, 8), np.nan)
    run = tmp_path / "run"
    assert main(["pretrain", *pretrain_flags(run, max_skipped=2)]) == 1
    err = capsys.readouterr().err
    assert "the last 2 steps, up to step 5, were skipped" in err
    assert f"The last good checkpoint is {run / 'checkpoints' / 'step-00000003'}" in err
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003"]


@pytest.mark.slow
def test_a_missing_shard_ends_the_run_with_one_message(
    pretrain_flags, tmp_path, capsys, monkeypatch
):
    """Open shards for every read here, so that the missing file is noticed."""
    monkeypatch.setattr(shards, "OPEN_MAPS", 0)
    run = tmp_path / "run"
    evaluate = pretraining.evaluate

    def remove_shard(*arguments):
        if (run / "checkpoints").exists():
            (run / "rows" / "train-00000.npy").unlink(missing_ok=True)
        return evaluate(*arguments)

    monkeypatch.setattr(pretraining, "evaluate", remove_shard)
    assert main(["pretrain", *pretrain_flags(run, steps=10_000, save_every=5)]) == 2
    err = capsys.readouterr().err
    assert "train-00000.npy is not as it was written: it is missing" in err
    assert "Traceback" not in err
    assert any((run / "checkpoints").iterdir())


FULL = """
import io, json, os, subprocess, sys
from contextlib import redirect_stderr, redirect_stdout
import tensorflow as tf
from roformer_tf.cli import main
tf.config.run_functions_eagerly(True)  # tracing takes longer than so few steps
folder, *flags = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
ballast = os.path.join(folder, "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(1_400_000))
def run(*more):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["pretrain", *flags, *more])
    run = os.path.join(folder, "run")
    names = {name: sorted(os.listdir(os.path.join(run, name))) for name in ("", "checkpoints")}
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "names": names}
full = run()
os.remove(ballast)
print(json.dumps([full, run("--keep-checkpoints", "2")]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs util-linux to mount a small disk")
def test_a_full_disk_loses_nothing_and_the_run_resumes_once_there_is_space(
    pretrained, pretrain_flags, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    flags = pretrain_flags(
        disk / "run",
        rows=pretrained / "rows",
        corpus=None,
        vocab_size=None,
        steps=5,
        save_every=1,
        evaluation_rows=8,
        keep_checkpoints=100,
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", FULL, disk, *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=300,
        env=os.environ,
    )
    if "unshare" in done.stderr:
        pytest.skip("this machine does not allow users to mount")
    assert done.returncode == 0, done.stderr
    full, resumed = json.loads(done.stdout)
    assert full["code"] == 1, full
    assert "No space left on device. Completed files are intact. Free some space" in full["err"]
    assert "Traceback" not in full["err"]
    assert not [name for names in full["names"].values() for name in names if ".tmp" in name]
    *_, last = full["names"]["checkpoints"]  # the last one that was written before
    assert resumed["code"] == 0, resumed
    assert f"continuing from {disk / 'run' / 'checkpoints' / last}" in resumed["out"]
    assert resumed["names"]["checkpoints"] == ["step-00000004", "step-00000005"]


@pytest.fixture
def small_files():
    """Limit the size of files, which stops writes like a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def raise_tensorflow_error(target):
    """Raise an error as TensorFlow does: with the system's message, but without an error number."""
    raise RuntimeError(f"{target}.tmp; No space left on device")


WRITERS = {
    "an array": lambda target: shards.write_shard(
        target, "a", "train", np.ones((99, 3, 999), "u4")
    ),
    "tensors": lambda target: save_tensors({"a": np.ones(99_999)}, target / "a"),
    "TensorFlow": raise_tensorflow_error,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_write_to_a_full_disk_ends_in_a_message(
    kind, small_files, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cli, "load_function", lambda *_: lambda _: WRITERS[kind](tmp_path))
    monkeypatch.setattr(cli, "load_settings", lambda *_: ListConfig)
    assert main(["checkpoints", "list"]) == 1
    err = capsys.readouterr().err
    assert re.search("cannot write.*: .*(full|large|No space).* Completed files are intact", err)
    assert not list(tmp_path.glob(".*"))


OUT_OF_MEMORY = {
    "NumPy": lambda: np.empty(1 << 60, "u1"),
    "TensorFlow": lambda: raise_error("OOM when allocating tensor with shape[9999,9999]"),
    "JAX": lambda: raise_error("RESOURCE_EXHAUSTED: Out of memory allocating 99999999 bytes."),
}


def raise_error(message):
    raise RuntimeError(message)


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_a_command_without_memory_ends_in_a_message(kind, monkeypatch, capsys):
    """One with the flags that help; it was a traceback of a hundred lines."""
    monkeypatch.setattr(cli, "load_function", lambda *_: lambda _: OUT_OF_MEMORY[kind]())
    for settings, command, *words in (
        (PretrainConfig, "pretrain", "--corpus", "a", "--vocab", "b", "--output", "c"),
        (ListConfig, "checkpoints", "list"),
    ):
        monkeypatch.setattr(cli, "load_settings", lambda *_, settings=settings: settings)
        assert main([command, *words]) == 1
    pretrain, downloads = capsys.readouterr().err.split("\n\n")
    assert pretrain == (
        "\nroformer-tf pretrain: memory ran out. How much is needed depends on "
        "--batch-size, --length, --accumulate, --rematerialize, --workers."
    )
    assert downloads == "roformer-tf checkpoints list: memory ran out.\n"
