"""The examples run as they stand, and do what they say."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """run("file.py", *arguments) → what it prints, run in an empty folder."""

    def start(name, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return start


def test_finetune_with_keras(run, released, tmp_path):
    reviews = tmp_path / "reviews.tsv"
    rows = [f"第{number}条评论很{'好差'[number % 2]}\t{number % 2}" for number in range(60)]
    reviews.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    assert "of 12 held-out texts right" in run("finetune_with_keras.py", released("char"), reviews)
    assert {path.name for path in (tmp_path / "finetuned").iterdir()} >= {"task.json", "vocab.txt"}


def test_sentence_vectors(run, released):
    lines = run("sentence_vectors.py", released("sim_char")).splitlines()
    assert len(lines) == 2
    assert all(-1 <= float(line.split()[0]) <= 1 for line in lines)


def test_rotary_attention_in_your_model(run):
    last = run("rotary_attention_in_your_model.py").splitlines()[-1]
    assert float(last.split("val_accuracy: ")[1].split()[0]) > 0.6


def test_every_example_is_tested():
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in tested
