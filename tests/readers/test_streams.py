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


def found(name):
    return find(str(name))


def test_a_file_is_known_by_its_content_and_not_by_its_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    before = found(path)
    os.utime(path, (1, 1))
    assert found(path) == before
    assert found(f"file://{path}")[0].stamp == before[0].stamp
    path.write_bytes(b"one\nTwo\n")
    assert found(path)[0].stamp != before[0].stamp


@pytest.mark.parametrize("pieces", [0, 0.5, 1, 1.5, 16, 16.5, 17, 40.3])
def test_a_small_file_is_hashed_whole_and_the_ends_of_any(pieces):
    size = int(pieces * streams.PIECE)
    content = np.random.default_rng(0).bytes(size)
    seen = np.zeros(size, int)

    def key(content):
        def part(start, stop):
            seen[start:stop] += 1
            return content[start:stop]

        return content_key(part, size)

    whole = key(content)
    assert key(content) == whole
    assert seen.sum() <= 2 * 18 * streams.PIECE
    if pieces <= 16:
        assert seen.all()
    if size:
        assert seen[0]
        assert seen[-1]
        for place in (0, size - 1, *np.flatnonzero(seen)[:: streams.PIECE // 2]):
            other = bytearray(content)
            other[place] ^= 1
            assert key(bytes(other)) != whole


def test_what_a_server_says_of_a_file_is_believed(monkeypatch):
    storage = fsspec.filesystem("memory")
    storage.pipe("/tagged/a.txt", b"x")
    info, tags = type(storage).info, ['"abc"', '"abc"', '"abd"']

    def tagged(self, path, **options):
        return info(self, path, **options) | {"ETag": tags[0], "LastModified": object()}

    monkeypatch.setattr(type(storage), "info", tagged)
    monkeypatch.setattr(type(storage), "cat_file", None)  # reading the content would fail
    first, again, other = [(found("memory://tagged/a.txt"), tags.pop(0))[0] for _ in "123"]
    assert first == again
    assert first[0].stamp != other[0].stamp


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("at", ["path", "memory", "file"])
def test_a_file_is_opened_decompressed_wherever_it_is(tmp_path, suffix, at):
    content = os.urandom(200_000)
    path = tmp_path / f"A.JSONL{suffix.upper()}"
    path.write_bytes(COMPRESSED[suffix](content))
    where = {"path": path, "file": f"file://{path}", "memory": f"memory:/{path}"}[at]
    fsspec.filesystem("memory").pipe(str(path), path.read_bytes())
    for _ in range(2):
        with opened(where) as stream:
            assert stream.read() == content
    file = StoredFile(str(where), 0, "")
    assert (file.kind, file.compression) == (".jsonl", suffix)


def test_a_minus_is_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x")))
    with opened("-") as stream:
        assert stream.read() == b"x"


def test_a_file_that_is_none_is_named(tmp_path):
    nothing = (
        r"cannot read .*/a\.gz: No such file or directory\. Check the path and its permissions"
    )
    with pytest.raises(InputError, match=nothing), opened(tmp_path / "a.gz"):
        pass
    nothing = r"cannot read memory://n/a: there is no such file\. Check the address and your access"
    with pytest.raises(InputError, match=nothing), opened("memory://n/a"):
        pass


def test_a_pattern_finds_files_and_a_name_with_brackets_itself(tmp_path):
    for name in ("a.txt", "[a].txt", "b.txt"):
        (tmp_path / name).write_text(name)
    assert {file.name for file in found(tmp_path / "[ab].txt")} == {"a.txt", "b.txt"}
    assert [file.name for file in found(tmp_path / "[a].txt")] == ["[a].txt"]
    assert {file.url for file in found(tmp_path / "?.txt")} == {
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    }
    assert found(tmp_path / "none*") == []
