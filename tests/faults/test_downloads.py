"""Downloads from a local server that breaks off, changes files, or is missing."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import roformer_tf
from roformer_tf.checkpoints import registry
from roformer_tf.errors import InputError
from tests.support.download_server import CONFIG, FILE, NAME, Server, make_zip

CUT_AT = 18 * registry.CHUNK
"""Bytes after which a connection breaks: a multiple of the chunk size, so that no byte is lost."""


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return make_zip(tmp_path_factory.mktemp("release") / FILE)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A different file of the same length."""
    return make_zip(tmp_path_factory.mktemp("other") / FILE, seed=1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def server(content, cache, monkeypatch):
    with Server({FILE: content}) as server:
        monkeypatch.setenv("ROFORMER_TF_MIRROR", server.url)
        yield server


@pytest.fixture
def no_mirror(cache, monkeypatch):
    """The URL of a mirror that nothing listens on."""
    with Server({}) as server:
        url = server.url
    monkeypatch.setenv("ROFORMER_TF_MIRROR", url)
    return url


def files_in(cache):
    """The files in the cache, without the empty lock file that stays."""
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


COMPLETE = {FILE}


def error_of(match, *arguments, **flags):
    with pytest.raises(InputError, match=match) as caught:
        registry.download(*(arguments or (NAME,)), **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Complete downloads -------------------------------------------------------------------------


def test_a_download_is_complete_in_the_cache(server, cache, content):
    assert registry.download(NAME) == cache / FILE
    assert (cache / FILE).read_bytes() == content
    assert files_in(cache) == COMPLETE
    assert server.requests == [(FILE, "")]


def test_a_terminal_shows_a_progress_bar(server, cache, capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    registry.download(NAME)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(rf"{FILE}: 100%\|.*\| 1\.05M/1\.05M \[.*B/s\]", err)


def test_a_cached_file_needs_no_server(content, cache, monkeypatch):
    with Server({FILE: content}) as server:
        monkeypatch.setenv("ROFORMER_TF_MIRROR", server.url)
        registry.download(NAME)
    assert registry.download(NAME) == registry.locate(NAME) == cache / FILE
    assert len(server.requests) == 1


def test_a_model_name_as_a_source_is_downloaded(server, cache, content):
    assert registry.locate(NAME).read_bytes() == content
    assert registry.locate(NAME) == registry.locate(FILE.removesuffix(".zip"))
    assert len(server.requests) == 1


def test_the_mirror_may_end_with_a_slash(server, cache, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_MIRROR", server.url + "/")
    registry.download(NAME)
    assert server.requests == [(FILE, "")]


def test_two_processes_at_once_get_one_good_file(server, cache, content):
    server.pause = 0.05
    processes = [start() for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [out for out, _ in outputs] == [f"{cache / FILE}\n"] * 2, outputs
    assert ["waiting for another process" in err for _, err in outputs].count(True) == 1
    assert (cache / FILE).read_bytes() == content
    assert len(server.requests) == 1
    assert files_in(cache) == COMPLETE


def start():
    """Start a process that downloads."""
    code = f"from roformer_tf.checkpoints import registry; print(registry.download({NAME!r}))"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- Interrupted downloads ----------------------------------------------------------------------


@pytest.mark.parametrize("versions", ["etag", "date"])
def test_a_broken_connection_is_resumed(versions, server, cache, content):
    server.versions = versions
    half = len(content) // 2 // registry.CHUNK * registry.CHUNK
    server.cuts = [half, registry.CHUNK]
    registry.download(NAME)
    assert [requested_range for _, requested_range in server.requests] == [
        "",
        f"bytes={half}-",
        f"bytes={half + registry.CHUNK}-",
    ]
    assert (cache / FILE).read_bytes() == content
    assert files_in(cache) == COMPLETE


def test_a_later_call_resumes(server, cache, content):
    server.cuts, server.statuses = [CUT_AT], [None, 503]
    message = error_of(rf"503 .*; try again to continue after {CUT_AT:,} bytes, or download ")
    assert registry.find(NAME).baidu_code in message
    assert files_in(cache) == {f"{FILE}.part", f"{FILE}.part.json"}
    assert registry.cached(registry.find(NAME)) is None
    registry.download(NAME)
    assert server.requests[2:] == [(FILE, f"bytes={CUT_AT}-")]
    assert (cache / FILE).read_bytes() == content
    assert files_in(cache) == COMPLETE


@pytest.mark.parametrize("versions", ["etag", "date"])
def test_a_part_of_a_changed_file_is_not_used(versions, server, cache, content, other):
    server.versions, server.cuts, server.statuses = versions, [CUT_AT], [None, 503]
    error_of("503")
    server.files[FILE] = other
    registry.download(NAME)
    assert (cache / FILE).read_bytes() == other


@pytest.mark.parametrize("versions", ["weak", "nothing"])
def test_without_a_version_the_download_restarts(versions, server, cache, content):
    server.versions, server.cuts, server.statuses = versions, [CUT_AT], [None, 503]
    error_of("503")
    registry.download(NAME)
    assert [requested_range for _, requested_range in server.requests] == ["", "", ""]
    assert (cache / FILE).read_bytes() == content


def test_without_range_support_the_download_restarts(server, cache, content):
    server.ranges, server.cuts = False, [CUT_AT]
    registry.download(NAME)
    assert server.requests == [(FILE, ""), (FILE, f"bytes={CUT_AT}-")]
    assert (cache / FILE).read_bytes() == content


def test_another_mirror_does_not_resume_the_part_of_the_first(server, cache, content, monkeypatch):
    server.cuts, server.statuses = [CUT_AT], [None, 503]
    error_of("503")
    with Server({FILE: content}) as second:
        monkeypatch.setenv("ROFORMER_TF_MIRROR", second.url)
        registry.download(NAME)
    assert second.requests == [(FILE, "")]


def test_a_part_without_its_metadata_is_not_used(server, cache, content):
    cache.mkdir()
    (cache / f"{FILE}.part").write_bytes(b"x" * 100)
    registry.download(NAME)
    assert server.requests == [(FILE, "")]
    assert (cache / FILE).read_bytes() == content


def test_a_server_that_closes_every_connection_is_an_error(server, cache):
    server.cuts = [CUT_AT, 0]
    assert "closed the connection too early" in error_of(f"{CUT_AT:,} bytes")
    assert len(server.requests) == 2


def test_a_silent_server_times_out(server, cache, monkeypatch):
    monkeypatch.setattr(registry, "TIMEOUT", 0.2)
    server.pause = 1
    error_of(r"cannot download .*: the connection to 127\.0\.0\.1:\d+ failed")


@pytest.mark.skipif(os.name == "nt", reason="kills with a signal")
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_a_killed_download_leaves_nothing_that_looks_finished(share, server, cache, content):
    server.pause = 0.02
    part = cache / f"{FILE}.part"
    process = start()
    deadline = time.monotonic() + 60
    while not part.exists() or part.stat().st_size < share * len(content):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if (cache / FILE).exists():  # the download was faster than the kill, so it is complete
        assert (cache / FILE).read_bytes() == content
    else:
        assert registry.cached(registry.find(NAME)) is None
    assert registry.download(NAME).read_bytes() == content
    assert files_in(cache) == COMPLETE
    assert all(requested_range for _, requested_range in server.requests[1:]), (
        "the download did not resume"
    )


def test_an_interrupted_copy_into_the_cache_is_removed(server, cache):
    cache.mkdir()
    (cache / f".{FILE}.abcdefgh.tmp").write_bytes(b"half")
    (cache / ".another_release.zip.abcdefgh.tmp").write_bytes(b"another process writes it")
    registry.download(NAME)
    assert files_in(cache) == {*COMPLETE, ".another_release.zip.abcdefgh.tmp"}


def test_a_complete_part_is_only_copied(server, cache, content):
    server.cuts, server.statuses = [CUT_AT], [None, 503]
    error_of("503")
    (cache / f"{FILE}.part").write_bytes(content)
    registry.download(NAME)
    assert server.requests[2:] == [(FILE, f"bytes={len(content)}-")]
    assert (cache / FILE).read_bytes() == content


# --- Failed downloads ---------------------------------------------------------------------------


def test_offline_one_sentence_names_the_url_and_the_target(no_mirror, cache):
    release = registry.find(NAME)
    message = error_of("^cannot download")
    for part in (FILE, release.url, release.baidu_url, release.baidu_code, str(cache)):
        assert part in message
    assert len(re.findall(r"[.!?] |[.!?]$", message)) == 1
    assert files_in(cache) == set()
    with pytest.raises(InputError) as caught:
        registry.locate(NAME)
    assert str(caught.value) == message


def test_a_manual_download_to_that_target_works(no_mirror, cache, content):
    error_of("^cannot download")
    (cache / FILE).write_bytes(content)
    assert registry.locate(NAME) == registry.download(NAME) == cache / FILE


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_the_status_of_the_server_is_reported(status, server, cache):
    server.statuses = [status]
    message = error_of(rf"{server.url}/{FILE} responds with {status} \w+")
    assert "download" in message
    assert files_in(cache) == set()


def test_a_mirror_that_is_not_a_url_is_reported(cache, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_MIRROR", "somewhere")
    assert "somewhere" in error_of("^cannot download")


def test_a_page_instead_of_the_zip_is_refused_and_not_kept(server, cache):
    server.files[FILE] = b"<html>Please log in to this network.</html>"
    error_of(rf"the file that {server.url}/{FILE} sent cannot be used: .*not a complete zip")
    assert files_in(cache) == set()


def test_a_command_ends_with_one_line_and_exit_code_2(no_mirror, cache, capfd):
    from roformer_tf.cli import main

    assert main(["fill-mask", "--model", NAME, "今天[MASK]"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"roformer-tf fill-mask: cannot download {FILE[:-4]}: ")


# --- Damaged files ------------------------------------------------------------------------------


def change(path):
    """Change one byte in the middle of a file."""
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


def test_a_file_that_has_changed_in_the_cache_is_refused(server, cache, content):
    path = registry.download(NAME)
    change(path)
    assert str(path) in error_of("CRC.*")
    with pytest.raises(InputError, match="CRC"):
        roformer_tf.load(NAME)
    assert len(server.requests) == 1
    path.unlink()
    assert registry.download(NAME).read_bytes() == content


# --- Manual downloads ---------------------------------------------------------------------------


def test_a_zip_fetched_by_hand_is_copied_into_the_cache(no_mirror, cache, content, tmp_path):
    zip_file = tmp_path / "mine (1).zip"
    zip_file.write_bytes(content)
    assert registry.download(NAME, from_file=zip_file) == cache / FILE
    assert (cache / FILE).read_bytes() == zip_file.read_bytes() == content
    assert files_in(cache) == COMPLETE
    assert registry.locate(NAME) == cache / FILE


@pytest.mark.parametrize("by_hand", ["given", "put there"])
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: os.truncate(path, 500_000), "not a complete zip"),
        (change, "CRC"),
        (lambda path: make_zip(path, config="{}"), "lacks"),
        (
            lambda path: make_zip(path, config=CONFIG.replace("384", "768")),
            f"not {FILE[:-4]}: .*hidden_size 768, not 384",
        ),
    ],
)
def test_another_or_damaged_zip_is_refused(by_hand, damage, match, no_mirror, cache, tmp_path):
    path = tmp_path / "mine.zip" if by_hand == "given" else cache / FILE
    path.parent.mkdir(exist_ok=True)
    make_zip(path)
    damage(path)
    message = error_of(match, NAME, from_file=path if by_hand == "given" else None)
    assert str(path) in message
    assert files_in(cache) == (set() if by_hand == "given" else {FILE})


def test_a_missing_file_and_a_folder_are_refused(no_mirror, cache, tmp_path):
    error_of("nowhere.zip is no file", NAME, from_file=tmp_path / "nowhere.zip")
    error_of("is no file", NAME, from_file=tmp_path)


def test_an_unwritable_cache_is_reported(server, cache):
    cache.write_text("a file where the folder should be")
    error_of(f"cannot store {FILE} in {cache}: .*ROFORMER_TF_CACHE")
