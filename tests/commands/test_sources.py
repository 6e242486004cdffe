"""Each command opens its zip once, whatever it reads from it."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.conversion import verify

opened_paths: list[str] | None = None
"""All paths that were opened while a test counts, otherwise None."""


def record_opened_path(event, arguments):
    if opened_paths is not None and event == "open" and isinstance(arguments[0], str | Path):
        opened_paths.append(str(arguments[0]))


# It detects every way to open a file in Python, and cannot be removed again.
sys.addaudithook(record_opened_path)


@pytest.fixture
def opened():
    """opened(path) → how often the file was opened in this test."""
    global opened_paths
    opened_paths = []
    yield lambda path: opened_paths.count(str(path))
    opened_paths = None


@pytest.fixture
def files(released, tmp_path, monkeypatch):
    """Fill the working directory with zips, a corpus, labelled examples and words."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(released("word"), "x.zip")
    shutil.copy(released("word"), "y.zip")
    sentences = [f"今天天气很好，我们去公园散步，看见了{number}只鸟。" for number in range(40)]
    Path("corpus.txt").write_text("\n\n".join(sentences), encoding="utf-8")
    lines = [f"{text}\t{'好' if number % 2 else '坏'}" for number, text in enumerate(sentences)]
    Path("train.tsv").write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8")
    Path("words.txt").write_text("阿里巴巴\n", encoding="utf-8")


def other_library(against, folder, scratch, options):
    """A fake run of the other library, with outputs that differ from ours."""
    assert any(folder.iterdir())
    shape = np.load(scratch / "inputs.npz")["token_ids"].shape
    np.savez(scratch / "outputs.npz", embeddings=np.zeros((*shape, 32)))


PREPARE = "--corpus corpus.txt --length 32 --workers 1 --output run"
PRETRAIN = f"pretrain {PREPARE} --init-from x.zip --steps 1 --batch-size 2 --precision float32"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("fill-mask --model x.zip 今天[MASK]很好", 0),
        (f"prepare {PREPARE} --vocab x.zip", 0),
        pytest.param(PRETRAIN, 0, marks=pytest.mark.slow),
        (f"{PRETRAIN} --extend-vocab words.txt", 0),
        ("finetune --checkpoint x.zip --train train.tsv --output run --epochs 1", 0),
        ("checkpoints inspect x.zip", 0),
        ("checkpoints convert x.zip new --to own", 0),
        ("checkpoints vocabulary x.zip new --to own --add words.txt", 0),
        ("checkpoints average x.zip y.zip --output new", 0),
        ("checkpoints verify x.zip --against bert4keras", 1),  # because there is a difference
        ("checkpoints verify x.zip --against transformers", 1),
    ],
)
@pytest.mark.usefixtures("files", "eager_steps")
def test_a_command_opens_its_zip_once(command, code, opened, monkeypatch, capsys):
    monkeypatch.setattr(verify, "find_spec", lambda name: True)
    monkeypatch.setattr(verify.metadata, "version", lambda name: "1")
    monkeypatch.setattr(verify, "_run", other_library)
    assert main(command.split()) == code, capsys.readouterr().err
    assert opened("x.zip") == 1
