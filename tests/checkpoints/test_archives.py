"""Zips are unpacked completely or not at all, and only into a temporary folder."""

import tempfile
import tracemalloc
import zipfile
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from roformer_tf.checkpoints import archives
from roformer_tf.checkpoints.archives import Files
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support import hostile_zips as hostile

DATA = "bert_model.ckpt.data-00000-of-00001"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The parent of temporary folders, which must be empty at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@contextmanager
def open_files(path):
    """Yield the folder of a checkpoint's files."""
    with Files(path) as files:
        yield files.folder


def read_file(path, name):
    """Return the content of one file of a folder or zip."""
    with Files(path) as files:
        return files.read(name)


def is_zip(path):
    with Files(path) as files:
        return files.is_zip


def zip_of(path, **contents):
    """Write a zip with these members; `__` in their names stands for `/`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name.replace("__", "/").replace("_json", ".json"), content)
    return path


def refusal(path):
    """Assert that a zip is refused with one line of text, and return it."""
    with pytest.raises(InputError) as error, open_files(path):
        pass
    message = str(error.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_a_folder_is_used_directly(tmp_path):
    with open_files(tmp_path) as folder:
        assert folder == tmp_path
    assert tmp_path.is_dir()


def test_a_zip_is_unpacked_until_the_end_of_the_block(released, temporary):
    with open_files(released("char")) as folder:
        assert folder.parent == temporary
        with zipfile.ZipFile(released("char")) as archive:
            members = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
        actual = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert actual == {name.split("/")[1]: content for name, content in members.items()}
    assert not folder.exists()


def test_unpacked_files_are_removed_after_an_error(released):
    with pytest.raises(ZeroDivisionError), open_files(released("char")) as folder:
        raise ZeroDivisionError
    assert not folder.exists()


def test_an_error_names_the_zip_instead_of_the_folder(released):
    with pytest.raises(InputError) as error, open_files(released("char")) as folder:
        raise InputError(f"{folder / 'vocab.txt'} is odd.")
    assert str(error.value) == f"{released('char') / 'vocab.txt'} is odd."


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_only_the_folder_of_the_checkpoint_is_unpacked(weights, tmp_path):
    contents = {f"a/{weights}": "", "a/config.json": "{}", "a/b/c.txt": "", "d.txt": ""}
    contents |= {"a/1_Pooling/config.json": "{}", "__MACOSX/a/._config.json": ""}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with open_files(tmp_path / "x.zip") as folder:
        assert {path.name for path in folder.iterdir()} == {weights, "config.json"}


def test_a_zip_without_a_checkpoint_or_with_several_is_refused(tmp_path):
    photos = zip_of(tmp_path / "photos.zip", cat="meow", a__config_json="{}")
    assert "contains no checkpoint: no bert_config.json" in refusal(photos)
    exported = zip_of(tmp_path / "onnx.zip", **{"a__model.onnx": "", "a__config_json": "{}"})
    assert "Unpack an export, and give its folder." in refusal(exported)
    two = zip_of(tmp_path / "two.zip", a__bert_config_json="{}", b__bert_config_json="{}")
    assert "contains several checkpoints: a, b." in refusal(two)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    assert "is not a complete zip file" in refusal(tmp_path / "vocab.txt")
    assert "No such file" in refusal(tmp_path / "nowhere.zip")


# --- Hostile zips ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "../../evil",
        "a/../../evil",
        "a/..",
        "/evil",
        "//server/evil",
        "C:/evil",
        "C:evil",
        "..\\evil",
        "a\\..\\..\\evil",
        "a/evil:stream",
        "vocab.txt\0.evil",
        "",
    ],
)
@pytest.mark.parametrize("folder", ["", "chinese_roformer-char_L-3_H-32_A-4/"])
def test_names_outside_the_folder_are_not_followed(name, folder, released, tmp_path, temporary):
    extra = [(hostile.member_with_exact_name(f"{folder}{name}"), b"evil")]
    path = hostile.copied(released("char"), tmp_path / "x.zip", extra=extra)
    before = set(tmp_path.rglob("*"))
    with suppress(InputError), open_files(path) as unpacked:
        assert {file.parent for file in temporary.rglob("*") if file.is_file()} == {unpacked}
    assert set(tmp_path.rglob("*")) == before


def test_links_become_files(released, tmp_path):
    extra = [(hostile.link(f"{released('char').stem}/bert_model.ckpt.extra"), b"/etc/passwd")]
    path = hostile.copied(released("char"), tmp_path / "x.zip", extra=extra)
    with open_files(path) as folder:
        assert (folder / "bert_model.ckpt.extra").read_bytes() == b"/etc/passwd"
        assert not (folder / "bert_model.ckpt.extra").is_symlink()


def test_encrypted_zips_and_unknown_methods_are_refused(released, tmp_path):
    path = hostile.encrypted(released("char"), tmp_path / "x.zip")
    assert "is encrypted" in refusal(path)
    path = hostile.with_flags(released("char"), tmp_path / "x.zip", offset=10, value=99)
    assert "compression method is not supported" in refusal(path)


def test_a_zip_bomb_is_refused_without_unpacking(released, tmp_path, monkeypatch):
    path = hostile.with_bomb(released("char"), tmp_path / "x.zip", DATA, 10 * 1024)
    assert path.stat().st_size < 11e6
    monkeypatch.setattr(archives, "shutil", None)
    assert "has 0.011 GB, but would unpack to 10.7 GB" in refusal(path)


def test_unpacking_stops_at_the_declared_size(released, tmp_path, temporary, monkeypatch):
    sizes = []
    original = archives.shutil.copyfileobj

    def recording_copy(source, target, length):
        try:
            original(source, target, length)
        finally:
            sizes.append(target.tell())

    monkeypatch.setattr(archives.shutil, "copyfileobj", recording_copy)
    path = hostile.with_bomb(
        released("char"), tmp_path / "x.zip", DATA, 10 * 1024, declared=3_000_000
    )
    assert "Bad CRC-32" in refusal(path)
    assert max(sizes) <= 3_000_000


def test_limits_of_size_and_ratio(tmp_path, monkeypatch):
    zeros = zip_of(tmp_path / "x.zip", a__bert_config_json="{}")
    with zipfile.ZipFile(zeros, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data", bytes(1_000_000))  # in about a thousand bytes
    with open_files(zeros) as folder:
        assert (folder / "data").stat().st_size == 1_000_000
    monkeypatch.setattr(archives, "UNSUSPICIOUS", 999_999)
    assert "would unpack to 0.001 GB" in refusal(zeros)
    packed = zeros.stat().st_size
    monkeypatch.setattr(archives, "MAX_RATIO", 1_000_002 // packed + 1)
    with open_files(zeros):
        pass
    monkeypatch.setattr(archives, "MAX_BYTES", 1_000_001)
    assert "unpack it and give the folder" in refusal(zeros)


# --- Broken zips -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 21, 1000, 20_000, 200_000, -400, -30, -1])
def test_a_truncated_zip_is_refused(size, released, tmp_path):
    path = tmp_path / "cut.zip"
    path.write_bytes(released("char").read_bytes()[:size])
    assert "ownload it again" in refusal(path)


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_directory_is_refused_or_harmless(seed, released, tmp_path):
    """A zip with a changed directory is refused, or its files are intact.

    Names and dates of files are not covered by checksums.
    """
    content = bytearray(released("char").read_bytes())
    with zipfile.ZipFile(released("char")) as archive:
        contents = {archive.read(name) for name in archive.namelist()}
    rng = np.random.default_rng(seed)
    for position in rng.integers(content.index(b"PK\x01\x02"), len(content), 1 + seed % 3):
        content[position] = rng.integers(256)
    path = tmp_path / "changed.zip"
    path.write_bytes(content)
    try:
        with open_files(path) as folder:
            assert {file.read_bytes() for file in folder.iterdir()} <= contents
    except InputError:
        return


def test_a_changed_byte_of_a_file_is_detected(released, tmp_path):
    content = bytearray(released("char").read_bytes())
    with zipfile.ZipFile(released("char")) as archive:
        (info,) = (i for i in archive.infolist() if i.filename.endswith(DATA))
    rng = np.random.default_rng(0)
    for _ in range(20):
        position = info.header_offset + 200 + rng.integers(info.compress_size - 200)
        changed = bytearray(content)
        changed[position] ^= 1 << rng.integers(8)
        path = tmp_path / "changed.zip"
        path.write_bytes(changed)
        assert "cannot be unpacked" in refusal(path)


# --- Single files ------------------------------------------------------------------------------


def test_a_small_file_is_read_from_folders_and_zips(tmp_path, released):
    (tmp_path / "vocab.txt").write_bytes(b"here")
    assert read_file(tmp_path, "vocab.txt") == b"here"
    assert read_file(tmp_path, "tokenizer_config.json") is None
    path = zip_of(tmp_path / "x.zip", a__b__tokenizer_config_json="{}")
    assert read_file(path, "tokenizer_config.json") == b"{}"
    assert read_file(path, "vocab.txt") is None
    assert read_file(released("char"), "vocab.txt").startswith(b"[PAD]\n")


def test_a_file_is_read_from_the_folder_of_the_checkpoint(tmp_path):
    contents = {"a/model.safetensors": "", "a/config.json": "a", "a/1_Pooling/config.json": "pool"}
    contents |= {"b/config.json": "b", "b/task.json": "{}"}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert read_file(tmp_path / "x.zip", "config.json") == b"a"
    assert read_file(tmp_path / "x.zip", "1_Pooling/config.json") == b"pool"
    assert read_file(tmp_path / "x.zip", "task.json") is None


def test_several_files_of_one_name_are_refused(tmp_path):
    path = zip_of(tmp_path / "x.zip", a__x_json="", b__x_json="")
    with pytest.raises(
        InputError, match=r"one x\.json, but contains several: a/x\.json, b/x\.json"
    ):
        read_file(path, "x.json")


@pytest.fixture
def error_and_peak():
    """A function that returns the error of a call and its peak of traced memory in bytes."""

    def measure(call):
        tracemalloc.start()
        try:
            with pytest.raises(InputError) as error:
                call()
            return str(error.value), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


@pytest.mark.parametrize(
    "by", [lambda p: read_file(p, "vocab.txt"), RoFormerTokenizer.from_pretrained]
)
def test_a_small_file_that_understates_its_size_is_not_inflated(by, tmp_path, error_and_peak):
    path = tmp_path / "x.zip"
    hostile.understating(path, "a/vocab.txt", 32, declared=1000)
    message, peak = error_and_peak(lambda: by(path))
    assert "Bad CRC-32" in message
    assert message.startswith(f"{path} cannot be unpacked: ")
    assert peak < 2 << 20


def test_a_zip_is_recognized_by_its_content_or_name(tmp_path, released):
    (tmp_path / "vocab.txt").write_text("[PAD]")
    (tmp_path / "empty.zip").touch()
    (tmp_path / "renamed").write_bytes(released("char").read_bytes())
    assert not is_zip(tmp_path)
    assert not is_zip(tmp_path / "vocab.txt")
    assert is_zip(tmp_path / "empty.zip")
    assert is_zip(tmp_path / "renamed")
