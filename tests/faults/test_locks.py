"""A second command in a folder is refused and does not disturb the first."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roformer_tf.cli import main
from roformer_tf.corpus import preparation
from roformer_tf.errors import InputError
from roformer_tf.files import locked
from roformer_tf.finetuning import command as finetuning
from roformer_tf.pretraining import training_loop as pretraining

ROOT = Path(__file__).parents[2]
PART_CHARACTERS = 1_000
SCRIPT = f"""
import sys
from roformer_tf.cli import main
from roformer_tf.corpus import preparation

preparation.PART_CHARACTERS = {PART_CHARACTERS}
sys.exit(main(sys.argv[1:]))
"""


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def suspended():
    """stopped(words, condition) → a process of the command, suspended once the condition holds."""
    processes = []

    def start(words, condition):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *words],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        deadline = time.monotonic() + 60
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="stops a process")
def test_a_second_preparation_is_refused_until_the_first_is_killed(
    suspended, write_corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(preparation, "PART_CHARACTERS", PART_CHARACTERS)
    corpus = write_corpus(tmp_path / "corpus.txt", 600, length=100)
    rows, reference = tmp_path / "rows", tmp_path / "peace"
    words = ["prepare", "--corpus", str(corpus), "--vocab-size", "150", "--tokenization", "char"]
    words += ["--workers", "1", "--length", "32", "--output"]
    parts = (rows / "unfinished").glob
    process = suspended([*words, str(rows)], lambda: any(parts("part-*.json")))
    assert len(list(parts("part-*.json"))) < 60

    before = snapshot(tmp_path)
    assert main([*words, str(rows)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"roformer-tf prepare: {rows} is in use: process {process.pid} on {socket.gethostname()} "
        "is writing into it. Wait until it has finished, or choose another --output.\n",
    )
    assert snapshot(tmp_path) == before

    process.kill()
    process.communicate()
    assert main([*words, str(rows)]) == 0
    assert main([*words, str(reference)]) == 0
    assert content(rows) == content(reference)  # the lock's file is removed as well

    with locked(rows):  # finished files can be used by several commands at once
        assert main([*words, str(rows)]) == 0
    assert "is prepared already" in capsys.readouterr().out


@pytest.mark.slow
def test_while_pretrain_runs_no_other_command_writes_into_its_folder(
    pretrain_flags, pretrained, tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    corpus = pretrain_flags(run)[1]
    rows = {"rows": pretrained / "rows", "corpus": None, "vocab_size": None}
    flags = pretrain_flags(run, steps=2, evaluation_rows=8, **rows)
    preparing = ["prepare", "--corpus", corpus, "--vocab-size", "99", "--output", str(run)]
    evaluate, exit_codes = pretraining.evaluate, []

    def run_other_commands(*arguments):
        monkeypatch.setattr(pretraining, "evaluate", evaluate)  # only once
        before = snapshot(run)
        exit_codes.append(main(["pretrain", *flags]))
        assert f"{run} is in use: process {os.getpid()}" in capsys.readouterr().err
        exit_codes.append(main(preparing))
        assert f"{run} exists and holds something else" in capsys.readouterr().err
        assert snapshot(run) == before
        return evaluate(*arguments)

    monkeypatch.setattr(pretraining, "evaluate", run_other_commands)
    assert main(["pretrain", *flags]) == 0
    assert exit_codes == [2, 2]
    assert not (run / ".lock").exists()


def test_pretrain_prepares_under_the_lock_of_prepare(pretrain_flags, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    flags = pretrain_flags(run)
    with locked(run / "rows"):
        assert main(["pretrain", *flags]) == 2
        assert f"{run / 'rows'} is in use" in capsys.readouterr().err
        assert [path.name for path in run.rglob("*")] == ["rows", ".lock"]


def test_a_second_fine_tuning_is_refused(tmp_path, capsys, monkeypatch):
    """The first command stops where it reads its files, because all of it runs under the lock."""
    train, run = tmp_path / "train.tsv", tmp_path / "run"
    train.write_text("text\tlabel\n这很好\t好\n这很差\t差\n", encoding="utf-8")
    words = ["finetune", "--checkpoint", "nowhere", "--train", str(train), "--output", str(run)]

    def run_again(config, layout):
        monkeypatch.undo()
        assert main(words) == 2
        assert f"{run} is in use: process {os.getpid()}" in capsys.readouterr().err
        raise InputError("that was enough")

    monkeypatch.setattr(finetuning, "read_sets", run_again)
    assert main(words) == 2
    assert "that was enough" in capsys.readouterr().err
    assert not run.exists()
