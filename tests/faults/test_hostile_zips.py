"""Malicious and broken zips give one clear line and exit code 2, and write nothing.

These tests run commands as a user does. tests/checkpoints/test_archives.py tests details of
unpacking.
"""

import shutil
import tempfile
import zipfile

import numpy as np
import pytest

from roformer_tf.cli import main
from tests.support import hostile_zips as hostile

DATA = "bert_model.ckpt.data-00000-of-00001"
CASES = {  # what is wrong: parts of the message
    "encrypted": ["is encrypted", "download it again"],
    "bomb": ["would unpack to 10.7 GB", "give the folder"],
    "bomb that understates": ["Bad CRC-32", "download it again"],
    "flipped": ["Bad CRC-32", DATA, "download it again"],
    "flipped before it was packed": ["the tensor ", "Checksum does not match", "them again"],
    "shortened before it was packed": ["the tensor ", "bert_model.ckpt", "download them again"],
    "without vocabulary": ["has no vocab.txt", "Put the vocab.txt that belongs to its weights"],
    "without data": ["bert_model.ckpt", "download them again"],
    "without index": ["contains no checkpoint", ".index"],
    "without config": ["contains no checkpoint", "bert_config.json"],
}


def make(case, good, path):
    """Write the zip of a case from a valid one."""
    folder = good.stem
    missing = {
        "without vocabulary": "vocab.txt",
        "without data": DATA,
        "without index": ".index",
        "without config": "bert_config.json",
    }
    if case in missing:
        return hostile.copied(good, path, skip=[missing[case]])
    if case == "encrypted":
        return hostile.encrypted(good, path)
    if case == "bomb":
        return hostile.with_bomb(good, path, DATA, 10 * 1024)
    if case == "bomb that understates":
        return hostile.with_bomb(good, path, DATA, 10 * 1024, declared=305_652)
    with zipfile.ZipFile(good) as archive:
        info = archive.getinfo(f"{folder}/{DATA}")
        data = bytearray(archive.read(info))
    if case == "flipped":
        content = bytearray(good.read_bytes())
        content[info.header_offset + info.compress_size // 2] ^= 1
        path.write_bytes(content)
        return path
    data[len(data) // 2] ^= 1
    if case == "shortened before it was packed":
        del data[len(data) // 2 :]
    return hostile.copied(good, path, skip=[DATA], extra=[(f"{folder}/{DATA}", bytes(data))])


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def check(code, out, err, message):
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("roformer-tf fill-mask: ")
    assert all(part in line for part in message), line


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_zip_is_refused_in_one_line_and_nothing_is_written(
    case, released, tmp_path, temporary, capfd
):
    path = make(case, released("char"), tmp_path / "inputs.zip")
    before = everything(tmp_path)
    code = main(["fill-mask", "--model", str(path), "今天[MASK]"])
    check(code, *capfd.readouterr(), CASES[case])
    assert everything(tmp_path) == before
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_the_installed_command_refuses_a_bad_zip(released, tmp_path, temporary, start_command):
    """This case gets the farthest: TensorFlow reads the file and prints messages of its own."""
    case = "flipped before it was packed"
    path = make(case, released("char"), tmp_path / "typed.zip")
    before = everything(tmp_path)
    process = start_command("roformer-tf", "fill-mask", "--model", path, "今天[MASK]")
    out, err = process.communicate(timeout=300)
    check(process.returncode, out, err, CASES[case])
    assert everything(tmp_path) == before
    assert list(temporary.iterdir()) == []


def test_a_zip_cut_short_anywhere_is_refused(released, tmp_path, temporary, capfd):
    path = shutil.copy(released("char"), tmp_path / "cut.zip")
    sizes = np.random.default_rng(0).integers(path.stat().st_size, size=20)
    for size in sorted(sizes.tolist(), reverse=True):
        with path.open("rb+") as file:
            file.truncate(size)
        code = main(["fill-mask", "--model", str(path), "今天[MASK]"])
        check(code, *capfd.readouterr(), [str(path), "ownload it again"])
    assert list(temporary.iterdir()) == []
