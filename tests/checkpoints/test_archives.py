"""Zips are unpacked as a whole or not at all, into a temporary folder and nowhere else."""

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
    """The folder in which temporary ones are made; nothing may stay there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@contextmanager
def opened(path):
    """The folder of one checkpoint's files."""
    with Files(path) as files:
        yield files.folder


def read_file(path, name):
    """One file, of a folder or zip that is open only so long."""
    with Files(path) as files:
        return files.read(name)


def is_zip(path):
    with Files(path) as files:
        return files.is_zip


def zip_of(path, **contents):
    """A zip with these members, `/` in their names being `__`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name.replace("__", "/").replace("_json", ".json"), content)
    return path


def refusal(path):
    """The message with which a zip is refused."""
    with pytest.raises(InputError) as caught, opened(path):
        pass
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_a_folder_is_taken_as_it_is(tmp_path):
    with opened(tmp_path) as folder:
        assert folder == tmp_path
    assert tmp_path.is_dir()


def test_a_zips_files_are_there_until_the_end_of_the_block(released, temporary):
    with opened(released("char")) as folder:
        assert folder.parent == temporary
        with zipfile.ZipFile(released("char")) as archive:
            inside = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
        actual = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert actual == {name.split("/")[1]: content for name, content in inside.items()}
    assert not folder.exists()


def test_they_are_also_removed_after_an_error(released):
    with pytest.raises(ZeroDivisionError), opened(released("char")) as folder:
        raise ZeroDivisionError
    assert not folder.exists()


def test_an_error_names_the_zip_in_place_of_the_folder(released):
    with pytest.raises(InputError) as caught, opened(released("char")) as folder:
        raise InputError(f"{folder / 'vocab.txt'} is odd.")
    assert str(caught.value) == f"{released('char') / 'vocab.txt'} is odd."


@pytest.mark.parametrize("weights", ["model.safetensors", "model.safetensors.index.json"])
def test_only_the_folder_of_the_checkpoint_is_unpacked(weights, tmp_path):
    contents = {f"a/{weights}": "", "a/config.json": "{}", "a/b/c.txt": "", "d.txt": ""}
    contents |= {"a/1_Pooling/config.json": "{}", "__MACOSX/a/._config.json": ""}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with opened(tmp_path / "x.zip") as folder:
        assert {path.name for path in folder.iterdir()} == {weights, "config.json"}


def test_a_zip_without_a_checkpoint_or_with_several_is_refused(tmp_path):
    photos = zip_of(tmp_path / "photos.zip", cat="meow", a__config_json="{}")
    assert "contains no checkpoint: no bert_config.json" in refusal(photos)
    exported = zip_of(tmp_path / "onnx.zip", **{"a__model.onnx": "", "a__config_json": "{}"})
    assert "Unpack an export, and give its folder." in refusal(exported)
    two = zip_of(tmp_path / "two.zip", a__bert_config_json="{}", b__bert_config_json="{}")
    assert "contains several checkpoints: a, b." in refusal(two)


def test_what_is_no_zip_is_refused(tmp_path):
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
def test_names_that_lead_elsewhere_lead_nowhere(name, folder, released, tmp_path, temporary):
    extra = [(hostile.named(f"{folder}{name}"), b"evil")]
    path = hostile.copied(released("char"), tmp_path / "x.zip", extra=extra)
    before = set(tmp_path.rglob("*"))
    with suppress(InputError), opened(path) as unpacked:
        assert {file.parent for file in temporary.rglob("*") if file.is_file()} == {unpacked}
    assert set(tmp_path.rglob("*")) == before


def test_links_become_files(released, tmp_path):
    extra = [(hostile.link(f"{released('char').stem}/bert_model.ckpt.extra"), b"/etc/passwd")]
    path = hostile.copied(released("char"), tmp_path / "x.zip", extra=extra)
    with opened(path) as folder:
        assert (folder / "bert_model.ckpt.extra").read_bytes() == b"/etc/passwd"
        assert not (folder / "bert_model.ckpt.extra").is_symlink()


def test_what_is_encrypted_or_packed_otherwise_is_refused(released, tmp_path):
    path = hostile.encrypted(released("char"), tmp_path / "x.zip")
    assert "is encrypted" in refusal(path)
    path = hostile.with_flags(released("char"), tmp_path / "x.zip", offset=10, value=99)
    assert "compression method is not supported" in refusal(path)


def test_ten_gigabytes_of_zeros_are_refused_unread(released, tmp_path, monkeypatch):
    path = hostile.with_bomb(released("char"), tmp_path / "x.zip", DATA, 10 * 1024)
    assert path.stat().st_size < 11e6
    monkeypatch.setattr(archives, "shutil", None)
    assert "has 0.011 GB, but would unpack to 10.7 GB" in refusal(path)


def test_a_size_that_is_not_the_declared_one_is_noticed_at_the_declared_one(
    released, tmp_path, temporary, monkeypatch
):
    sizes = []
    genuine = archives.shutil.copyfileobj

    def watched(source, target, length):
        try:
            genuine(source, target, length)
        finally:
            sizes.append(target.tell())

    monkeypatch.setattr(archives.shutil, "copyfileobj", watched)
    path = hostile.with_bomb(
        released("char"), tmp_path / "x.zip", DATA, 10 * 1024, declared=3_000_000
    )
    assert "Bad CRC-32" in refusal(path)
    assert max(sizes) <= 3_000_000


def test_the_bound_lets_every_weight_through_and_no_bomb(tmp_path, monkeypatch):
    zeros = zip_of(tmp_path / "x.zip", a__bert_config_json="{}")
    with zipfile.ZipFile(zeros, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data", bytes(1_000_000))  # in about a thousand bytes
    with opened(zeros) as folder:
        assert (folder / "data").stat().st_size == 1_000_000
    monkeypatch.setattr(archives, "UNSUSPICIOUS", 999_999)
    assert "would unpack to 0.001 GB" in refusal(zeros)
    packed = zeros.stat().st_size
    monkeypatch.setattr(archives, "MAX_RATIO", 1_000_002 // packed + 1)
    with opened(zeros):
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
    """The names and dates of files are not covered by their checksums."""
    content = bytearray(released("char").read_bytes())
    with zipfile.ZipFile(released("char")) as archive:
        contents = {archive.read(name) for name in archive.namelist()}
    rng = np.random.default_rng(seed)
    for place in rng.integers(content.index(b"PK\x01\x02"), len(content), 1 + seed % 3):
        content[place] = rng.integers(256)
    path = tmp_path / "changed.zip"
    path.write_bytes(content)
    try:
        with opened(path) as folder:
            assert {file.read_bytes() for file in folder.iterdir()} <= contents
    except InputError:
        return


def test_a_changed_byte_of_a_file_is_noticed(released, tmp_path):
    content = bytearray(released("char").read_bytes())
    with zipfile.ZipFile(released("char")) as archive:
        (info,) = (i for i in archive.infolist() if i.filename.endswith(DATA))
    rng = np.random.default_rng(0)
    for _ in range(20):
        place = info.header_offset + 200 + rng.integers(info.compress_size - 200)
        changed = bytearray(content)
        changed[place] ^= 1 << rng.integers(8)
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


def test_of_several_none_is_chosen(tmp_path):
    path = zip_of(tmp_path / "x.zip", a__x_json="", b__x_json="")
    with pytest.raises(
        InputError, match=r"one x\.json, but contains several: a/x\.json, b/x\.json"
    ):
        read_file(path, "x.json")


@pytest.fixture
def peak():
    """peak(call) → the error that the call gives, and the most bytes that were held meanwhile."""

    def measure(call):
        tracemalloc.start()
        try:
            with pytest.raises(InputError) as caught:
                call()
            return str(caught.value), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


@pytest.mark.parametrize(
    "by", [lambda p: read_file(p, "vocab.txt"), RoFormerTokenizer.from_pretrained]
)
def test_a_small_file_that_understates_its_size_is_not_inflated(by, tmp_path, peak):
    path = tmp_path / "x.zip"
    hostile.understating(path, "a/vocab.txt", 32, declared=1000)
    message, held = peak(lambda: by(path))
    assert "Bad CRC-32" in message
    assert message.startswith(f"{path} cannot be unpacked: ")
    assert held < 2 << 20


def test_a_zip_is_known_by_its_beginning_or_its_name(tmp_path, released):
    (tmp_path / "vocab.txt").write_text("[PAD]")
    (tmp_path / "empty.zip").touch()
    (tmp_path / "renamed").write_bytes(released("char").read_bytes())
    assert not is_zip(tmp_path)
    assert not is_zip(tmp_path / "vocab.txt")
    assert is_zip(tmp_path / "empty.zip")
    assert is_zip(tmp_path / "renamed")
