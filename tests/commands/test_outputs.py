"""An output that cannot be written gives one message and exit code 2 before any work is done.

The inputs do not exist. A command that looked for them first would report them instead.
"""

import errno
import os
import sys
import tempfile
from pathlib import Path

import pytest

from roformer_tf.cli import main

COMMANDS = {
    "prepare": "prepare --corpus empty.txt --vocab-size 200 --output",
    "pretrain": "pretrain --corpus empty.txt --init-from nowhere --output",
    "finetune": "finetune --checkpoint nowhere --train nowhere.tsv --output",
    "predict": "predict --model nowhere --input nowhere.txt --output",
    "evaluate --corpus": "evaluate --model nowhere --corpus empty.txt --output",
    "export": "export --model nowhere --to savedmodel --output",
    "evaluate --data": "evaluate --model nowhere --data nowhere.tsv --output",
    "embed": "embed --model nowhere --input nowhere.txt --output",
    "similarity": "similarity --model nowhere --input nowhere.tsv --output",
    "generate": "generate --model nowhere --input nowhere.txt --output",
    "search": "search --model nowhere --documents nowhere.txt --queries nowhere.txt --output",
    "search --index": "search --model nowhere --documents nowhere.txt --index",
    "vocabulary": "checkpoints vocabulary --simplify --to own nowhere",
    "convert": "checkpoints convert nowhere --to own",
    "average": "checkpoints average nowhere nowhere --output",
}
KINDS = {
    "predict": ".tsv",
    "evaluate --data": ".json",
    "embed": ".npy",
    "similarity": ".tsv",
    "generate": ".tsv",
    "search": ".tsv",
}
OUTPUTS = {
    "a file above": "corpus.txt/deep/x.png",
    "too long": f"deep/{'长' * 100}/x.png",
    "too long itself": f"deep/{'x' * 300}.png",
    "no permission": "/sys/x.png",  # not even for root
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_unwritable_output_is_reported_before_any_work(
    command, output, tmp_path, monkeypatch, capsys
):
    if output == "no permission" and sys.platform != "linux":
        pytest.skip("only Linux has /sys")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("今天\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n")
    name = OUTPUTS[output]
    if command in KINDS:  # the format depends on the suffix
        name = str(Path(name).with_suffix(KINDS[command]))
    assert main([*COMMANDS[command].split(), name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"cannot write {name}: " in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "empty.txt"]


@pytest.fixture
def read_only(monkeypatch):
    """read_only(folder): refuse writing in a folder, even for root."""
    named_temporary_file = tempfile.NamedTemporaryFile

    def read_only(folder):
        def refuse(*words, dir=None, **more):  # noqa: A002 (tempfile's own name)
            if dir is not None and Path(dir) == folder:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))
            return named_temporary_file(*words, dir=dir, **more)

        monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)

    return read_only


def test_an_existing_folder_has_to_be_writable(tmp_path, read_only, capsys):
    (tmp_path / "out").mkdir()
    read_only(tmp_path / "out")
    words = ["export", "nowhere", "--to", "savedmodel", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "out: Read-only file system. Choose another place." in capsys.readouterr().err


@pytest.mark.parametrize("command", [*KINDS])
def test_an_output_that_is_the_input_is_refused(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kind = KINDS[command]
    (tmp_path / f"texts{kind}").write_text("今天\n", encoding="utf-8")
    (tmp_path / f"link{kind}").symlink_to(f"texts{kind}")
    words = COMMANDS[command].replace("nowhere.tsv", "nowhere.txt").split()
    words = [f"link{kind}" if word == "nowhere.txt" else word for word in words]
    assert main([*words, f"texts{kind}"]) == 2
    assert f"--output texts{kind} is also the input. Name" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [".xlsx", ".csv", ".jsonl", ".pdf"])
@pytest.mark.parametrize("command", ["similarity", "generate", "search"])
def test_a_tsv_has_no_name_of_another_format(command, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*COMMANDS[command].split(), f"results{kind}"]) == 2
    assert f"--output results{kind}: name a .tsv, .txt file." in capsys.readouterr().err
    assert main([*COMMANDS["evaluate --data"].split(), f"results{kind}"]) == 2
    assert f"--output results{kind}: name a .json, .txt file." in capsys.readouterr().err


def test_the_documents_of_a_search_are_not_its_output(tmp_path, capsys):
    documents = tmp_path / "documents.txt"
    documents.write_text("今天\n", encoding="utf-8")
    words = ["--documents", documents, "--queries", "天气", "--output", documents]
    assert main(["search", "--model", "nowhere", *map(str, words)]) == 2
    assert "documents.txt is also the input. Name" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    words = ["predict", "nowhere", "--input", "nowhere.txt", "--output", str(tmp_path / "pipe")]
    assert main(words) == 2
    assert "pipe: it is no regular file. Choose another place." in capsys.readouterr().err
