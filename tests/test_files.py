"""If a write is interrupted, either the old or the new content is complete."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from roformer_tf import files
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import (
    check_writable,
    leftovers,
    locked,
    parse_json,
    read_json,
    sweep,
    temporary_file,
    temporary_folder,
    write_text,
)
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.tasks.classification import Classification


class BrokenError(Exception):
    """An error in the middle of writing. KeyboardInterrupt is tested too: it is no Exception."""


@pytest.fixture(params=[BrokenError, KeyboardInterrupt])
def failure(request):
    return request.param


@pytest.fixture(params=[0o022, 0o077, 0o027])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def listing(folder):
    """Every path in a folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def put_file(target, text, failure=None):
    """Write a file through `temporary_file`; with a failure, only half of it."""
    with temporary_file(target) as temporary:
        temporary.write_text(text)
        if failure:
            raise failure


def put_folder(target, text, failure=None):
    """Write a folder with a file named after the text; with a failure, stop within the block."""
    with temporary_folder(target) as temporary:
        (temporary / f"{text}.txt").write_text(text)
        if failure:
            raise failure


def test_a_file_appears_when_the_block_ends_without_an_error(tmp_path):
    target = tmp_path / "new" / "deep" / "file.txt"
    with temporary_file(target) as temporary:
        assert temporary.parent == target.parent  # the same disk, so that the rename is atomic
        temporary.write_text("half")
        assert not target.exists()
        temporary.write_text("whole")
    assert listing(tmp_path / "new" / "deep") == {"file.txt": "whole"}


@pytest.mark.parametrize("before", [{}, {"file.txt": "old"}])
def test_an_exception_leaves_a_file_unchanged(before, failure, tmp_path):
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(failure):
        put_file(tmp_path / "file.txt", "half", failure)
    assert listing(tmp_path) == before


def test_while_a_file_is_written_the_old_one_remains(tmp_path):
    put_file(tmp_path / "file.txt", "old")
    with temporary_file(tmp_path / "file.txt") as temporary:
        temporary.write_text("new")
        assert (tmp_path / "file.txt").read_text() == "old"
    assert listing(tmp_path) == {"file.txt": "new"}


def test_a_folder_appears_complete(tmp_path):
    target = tmp_path / "new" / "folder"
    with temporary_folder(target) as temporary:
        (temporary / "a.txt").write_text("a")
        (temporary / "sub").mkdir()
        (temporary / "sub" / "b.txt").write_text("b")
        assert not target.exists()
    assert listing(target) == {"a.txt": "a", "sub": None, "sub/b.txt": "b"}
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_folder_is_replaced_completely(tmp_path):
    put_folder(tmp_path / "folder", "old")
    put_folder(tmp_path / "folder", "new")
    assert listing(tmp_path) == {"folder": None, "folder/new.txt": "new"}


def test_an_exception_leaves_a_folder_unchanged(failure, tmp_path):
    put_folder(tmp_path / "folder", "old")
    with pytest.raises(failure):
        put_folder(tmp_path / "folder", "new", failure)
    assert listing(tmp_path) == {"folder": None, "folder/old.txt": "old"}


def test_a_kill_between_the_two_renames_keeps_the_old_folder(tmp_path, monkeypatch):
    target = tmp_path / "folder"
    put_folder(target, "old")
    renames = []

    def rename_once(self, other):
        renames.append(other)
        if len(renames) == 2:
            raise KeyboardInterrupt
        return self.rename(other)

    monkeypatch.setattr("pathlib.Path.replace", rename_once)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # a kill cleans nothing up
    with pytest.raises(KeyboardInterrupt):
        put_folder(target, "new")
    assert sorted(text for text in listing(tmp_path).values() if text) == ["new", "old"]
    monkeypatch.undo()
    sweep(tmp_path)
    assert listing(tmp_path) == {"folder": None, "folder/old.txt": "old"}


def test_permissions_follow_the_umask(umask, tmp_path):
    put_file(tmp_path / "file.txt", "")
    with temporary_folder(tmp_path / "folder") as temporary:
        write_text(temporary / "inside.txt", "")
    assert mode(tmp_path / "file.txt") == 0o666 & ~umask
    assert mode(tmp_path / "folder" / "inside.txt") == 0o666 & ~umask
    assert mode(tmp_path / "folder") == 0o777 & ~umask
    assert os.umask(umask) == umask  # reading the umask has not changed it


def test_text_is_utf8_with_unix_line_endings(tmp_path):
    write_text(str(tmp_path / "file.txt"), "第一行\n第二行\n")
    assert (tmp_path / "file.txt").read_bytes() == "第一行\n第二行\n".encode()


def test_an_encoding_error_leaves_the_old_text(tmp_path):
    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file.txt", "\ud800")
    assert listing(tmp_path) == {"file.txt": "old"}


@pytest.fixture
def open_elsewhere(monkeypatch):
    """open_elsewhere(path) → a list of the refused attempts to rename or replace that path.

    Windows behaves like this while a program has a file open. With `tries`, the file is released
    after that many attempts.
    """

    def hold(path, tries=None):
        refused, replace = [], Path.replace

        def guarded(source, target):
            if path in (source, Path(target)) and (tries is None or len(refused) < tries):
                refused.append(source)
                raise PermissionError(errno.EACCES, "The process cannot access the file", path)
            return replace(source, target)

        monkeypatch.setattr(Path, "replace", guarded)
        monkeypatch.setattr(files, "PAUSES", (0, 0, 0))
        return refused

    return hold


@pytest.mark.parametrize("put", [put_file, put_folder])
def test_if_the_target_is_open_the_new_content_gets_another_name(put, open_elsewhere, tmp_path):
    target = tmp_path / "answers.xlsx"
    put(target, "old")
    put(tmp_path / "answers-2.xlsx", "somebody's")
    before = listing(tmp_path)
    refused = open_elsewhere(target)
    with pytest.raises(InputError, match=r"(?s)answers\.xlsx is open .* stored .*answers-3\.xlsx"):
        put(target, "new")
    assert len(refused) == 3
    after = listing(tmp_path)
    put(tmp_path / "right", "new")
    added = {name: text for name, text in after.items() if name not in before}
    assert {name.replace("answers-3.xlsx", "right") for name in added} == {
        name for name in listing(tmp_path) if name.startswith("right")
    }
    assert "new" in added.values()
    assert {name: after[name] for name in before} == before
    assert mode(tmp_path / "answers-3.xlsx") == mode(tmp_path / "right")


@pytest.mark.parametrize("put", [put_file, put_folder])
def test_a_briefly_open_target_is_waited_for(put, open_elsewhere, tmp_path):
    target = tmp_path / "answers.xlsx"
    put(target, "old")
    refused = open_elsewhere(target, tries=2)
    put(target, "new")
    assert len(refused) == 2
    assert "new" in listing(tmp_path).values()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("put", [put_file, put_folder])
@pytest.mark.parametrize("old", [[], ["old"]])
def test_new_content_that_a_virus_scanner_reads_is_waited_for(put, old, monkeypatch, tmp_path):
    target, refused, replace = tmp_path / "answers.xlsx", [], Path.replace
    for text in old:
        put(target, text)

    def scanned(source, other):
        if source.suffix == ".tmp" and len(refused) < 2:
            refused.append(source)
            raise PermissionError(errno.EACCES, "The process cannot access the file", source)
        return replace(source, other)

    monkeypatch.setattr(Path, "replace", scanned)
    monkeypatch.setattr(files, "PAUSES", (0, 0, 0))
    put(target, "new")
    assert len(refused) == 2
    assert "new" in listing(tmp_path).values()
    assert len(list(tmp_path.iterdir())) == 1


def test_sweep_removes_only_leftovers_of_killed_processes(tmp_path, monkeypatch):
    unrelated = {"file.tmp": "a", ".hidden": "b", ".notes.tmp": "c"}
    for name, content in unrelated.items():
        (tmp_path / name).write_text(content)
    with monkeypatch.context() as killed:  # a killed process cleans nothing up
        killed.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        killed.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(BrokenError):
            put_file(tmp_path / "file.txt", "half", BrokenError)
        with pytest.raises(BrokenError):
            put_folder(tmp_path / "folder", "half", BrokenError)
        put_folder(tmp_path / "twice", "old")
        put_folder(tmp_path / "twice", "new")
    assert len(leftovers(tmp_path)) == 3
    sweep(tmp_path)
    assert listing(tmp_path) == unrelated | {"twice": None, "twice/new.txt": "new"}


def test_a_link_to_a_folder_is_replaced_and_its_folder_stays(tmp_path):
    put_folder(tmp_path / "elsewhere", "old")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    put_folder(tmp_path / "folder", "new")
    assert listing(tmp_path / "folder") == {"new.txt": "new"}
    assert listing(tmp_path / "elsewhere") == {"old.txt": "old"}
    assert leftovers(tmp_path) == set()


HOLDER = """
import sys, time
from roformer_tf.files import locked
with locked(sys.argv[1]):
    print("open_elsewhere", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of `run`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run"],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout.readline().strip() == b"open_elsewhere"
    yield process
    process.kill()
    process.communicate()


def test_a_lock_is_free_when_its_owner_is_killed(holder, tmp_path):
    run = tmp_path / "run"
    for _ in range(2):  # a refused process removes neither the lock nor the name of its owner
        with (
            pytest.raises(InputError, match=f"run is in use: process {holder.pid} on"),
            locked(run),
        ):
            pass
    sweep(run)
    assert [path.name for path in run.iterdir()] == [".lock"]
    holder.kill()
    holder.wait()
    with locked(run):
        (run / "mine.txt").write_text("")
    assert listing(tmp_path) == {"run": None, "run/mine.txt": ""}


def test_an_unused_new_folder_is_removed_and_an_existing_one_stays(failure, tmp_path):
    for folder in (tmp_path / "new" / "deep", tmp_path / "new"):
        with pytest.raises(failure), locked(folder):
            raise failure
        assert listing(tmp_path) == {}
    (tmp_path / "empty").mkdir()
    with locked(tmp_path / "empty"):
        pass
    assert listing(tmp_path) == {"empty": None}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_without_file_locks_a_message_is_printed_and_work_continues(
    number, tmp_path, monkeypatch, capsys
):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "mine.txt").write_text("")
    assert "has no locks" in capsys.readouterr().err
    assert listing(tmp_path) == {"run": None, "run/mine.txt": ""}


@pytest.mark.parametrize("name", ["file.txt/deep/x", f"{'长' * 100}/x", "x" * 250])
def test_an_unwritable_path_is_refused_and_leaves_nothing(name, tmp_path):
    """A name of 250 bytes is valid, but the longer temporary name is not."""
    (tmp_path / "file.txt").write_text("old")
    with pytest.raises(InputError, match="cannot write"):
        check_writable(tmp_path / "new" / name if "file" not in name else tmp_path / name)
    if len(name) != 250:
        with pytest.raises(InputError, match="cannot write"), locked(tmp_path / name):
            pass
    assert listing(tmp_path) == {"file.txt": "old"}
    check_writable(tmp_path / "new" / "x")
    check_writable(tmp_path / "file.txt")
    assert listing(tmp_path) == {"file.txt": "old"}


DEEP = "[" * 200_000


@pytest.mark.parametrize("text", [DEEP, "{", "", '"\ud800"', b"\xff", b"\x00"])
def test_unusable_json_raises_one_kind_of_error(text, tmp_path):
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    with pytest.raises(ValueError, match=r"."):
        parse_json(content)
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json is damaged: .*Make it anew\."):
        read_json(path, "Make it anew.")


def test_json_may_begin_with_a_byte_order_mark():
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_finite_refuses_nan():
    assert parse_json('{"a": NaN}')["a"] != 1
    with pytest.raises(ValueError, match="NaN"):
        parse_json('{"a": NaN}', finite=True)


DAMAGED = {  # damaged file in a model's folder: a command that reads it
    "task.json": "predict --model MODEL --input x.tsv --output y.tsv",
    "config.json": "predict --model MODEL --input x.tsv --output y.tsv",
    "tokenizer_config.json": "checkpoints inspect MODEL",
    "embedding.json": "embed --model MODEL --input x.tsv --output y.npy",
    "model.safetensors.index.json": "checkpoints inspect MODEL",
    "manifest.json": "pretrain --rows MODEL --output out",
    "report.json": "runs MODEL",
    "settings.yaml": "runs MODEL",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_deep_nesting_is_reported_for_every_kind_of_file(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    config = RoFormerConfig(9, 8, 1, 2, 8)
    RoFormerEncoder(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n好\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    if name != "task.json" and DAMAGED[name].startswith("predict"):
        Classification(labels=("a", "b")).save(folder)
    (folder / name).write_text(DEEP)
    (tmp_path / "x.tsv").write_text("text\n好\n", encoding="utf-8")
    words = DAMAGED[name].replace("MODEL", str(folder)).split()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert name in err
    assert "Traceback" not in err
