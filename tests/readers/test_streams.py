import gzip
import io
import lzma
import os
import sys

import fsspec
import numpy as np
import pytest
from backports import zstd

from roformer_tf.errors import InputError
from roformer_tf.readers import streams
from roformer_tf.readers.streams import StoredFile, content_key, find, opened

COMPRESSED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}


def find_files(name):
    return find(str(name))


def test_a_stamp_depends_on_the_content_not_on_the_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    before = find_files(path)
    os.utime(path, (1, 1))
    assert find_files(path) == before
    assert find_files(f"file://{path}") == before  # one file, however it is named
    path.write_bytes(b"one\nTwo\n")
    assert find_files(path)[0].stamp != before[0].stamp


@pytest.mark.parametrize("pieces", [0, 0.5, 1, 1.5, 16, 16.5, 17, 40.3])
def test_small_files_are_hashed_completely_and_large_ones_in_part(pieces):
    size = int(pieces * streams.PIECE)
    content = np.random.default_rng(0).bytes(size)
    hashed = np.zeros(size, int)

    def key(content):
        def read_range(start, stop):
            hashed[start:stop] += 1
            return content[start:stop]

        return content_key(read_range, size)

    original_key = key(content)
    assert key(content) == original_key
    assert hashed.sum() <= 2 * 18 * streams.PIECE
    if pieces <= 16:
        assert hashed.all()
    if size:
        assert hashed[0]
        assert hashed[-1]
        for index in (0, size - 1, *np.flatnonzero(hashed)[:: streams.PIECE // 2]):
            changed = bytearray(content)
            changed[index] ^= 1
            assert key(bytes(changed)) != original_key


def test_the_etag_of_a_server_is_used_as_stamp(monkeypatch):
    storage = fsspec.filesystem("memory")
    storage.pipe("/tagged/a.txt", b"x")
    info, tags = type(storage).info, ['"abc"', '"abc"', '"abd"']

    def info_with_tag(self, path, **options):
        return info(self, path, **options) | {"ETag": tags[0], "LastModified": object()}

    monkeypatch.setattr(type(storage), "info", info_with_tag)
    monkeypatch.setattr(type(storage), "cat_file", None)  # reading the content would fail
    first, second, third = [(find_files("memory://tagged/a.txt"), tags.pop(0))[0] for _ in "123"]
    assert first == second
    assert first[0].stamp != third[0].stamp


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("location", ["path", "memory", "file"])
def test_local_and_remote_files_are_decompressed(tmp_path, suffix, location):
    content = os.urandom(200_000)
    path = tmp_path / f"A.JSONL{suffix.upper()}"
    path.write_bytes(COMPRESSED[suffix](content))
    address = {"path": path, "file": f"file://{path}", "memory": f"memory:/{path}"}[location]
    fsspec.filesystem("memory").pipe(str(path), path.read_bytes())
    for _ in range(2):
        with opened(address) as stream:
            assert stream.read() == content
    file = StoredFile(str(address), 0, "")
    assert (file.kind, file.compression) == (".jsonl", suffix)


@pytest.mark.parametrize("window", [27, 28, 31])
def test_a_file_of_zstd_long_is_decompressed(tmp_path, window):
    path = tmp_path / "a.txt.zst"
    # As from a pipe: a frame of known size would need no larger window than its content.
    with zstd.open(path, "w", options={zstd.CompressionParameter.window_log: window}) as file:
        file.write(b"x")
    with opened(path) as stream:
        assert stream.read() == b"x"


def test_a_hyphen_opens_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x")))
    with opened("-") as stream:
        assert stream.read() == b"x"


def test_a_missing_file_is_rejected(tmp_path):
    message = (
        r"cannot read .*/a\.gz: No such file or directory\. Check the path and its permissions"
    )
    with pytest.raises(InputError, match=message), opened(tmp_path / "a.gz"):
        pass
    message = r"cannot read memory://n/a: there is no such file\. Check the address and your access"
    with pytest.raises(InputError, match=message), opened("memory://n/a"):
        pass


def test_find_expands_patterns_unless_a_file_has_that_name(tmp_path):
    for name in ("a.txt", "[a].txt", "b.txt"):
        (tmp_path / name).write_text(name)
    assert {file.name for file in find_files(tmp_path / "[ab].txt")} == {"a.txt", "b.txt"}
    assert [file.name for file in find_files(tmp_path / "[a].txt")] == ["[a].txt"]
    assert {file.url for file in find_files(tmp_path / "?.txt")} == {
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    }
    assert find_files(tmp_path / "none*") == []
