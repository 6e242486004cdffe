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

SOME = 18 * registry.CHUNK
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


def held(cache):
    """The files in the cache, without the empty lock file that stays."""
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


WHOLE = {FILE}


def refused(match, *arguments, **flags):
    with pytest.raises(InputError, match=match) as caught:
        registry.download(*(arguments or (NAME,)), **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- A download ---------------------------------------------------------------------------------


def test_it_lands_in_the_cache_whole(server, cache, content):
    assert registry.download(NAME) == cache / FILE
    assert (cache / FILE).read_bytes() == content
    assert held(cache) == WHOLE
    assert server.requests == [(FILE, "")]


def test_a_bar_on_a_terminal_shows_how_far_it_is(server, cache, capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    registry.download(NAME)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(rf"{FILE}: 100%\|.*\| 1\.05M/1\.05M \[.*B/s\]", err)


def test_after_that_the_server_is_not_needed(content, cache, monkeypatch):
    with Server({FILE: content}) as server:
        monkeypatch.setenv("ROFORMER_TF_MIRROR", server.url)
        registry.download(NAME)
    assert registry.download(NAME) == registry.locate(NAME) == cache / FILE
    assert len(server.requests) == 1


def test_a_name_used_as_a_source_is_fetched(server, cache, content):
    assert registry.locate(NAME).read_bytes() == content
    assert registry.locate(NAME) == registry.locate(FILE.removesuffix(".zip"))
    assert len(server.requests) == 1


def test_a_slash_at_the_end_of_the_mirror_is_no_matter(server, cache, monkeypatch):
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
    assert held(cache) == WHOLE


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


# --- A broken one -------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", ["etag", "date"])
def test_a_cut_connection_is_taken_up_in_the_middle(versions, server, cache, content):
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
    assert held(cache) == WHOLE


def test_a_later_call_goes_on_where_the_first_one_stopped(server, cache, content):
    server.cuts, server.statuses = [SOME], [None, 503]
    message = refused(rf"503 .*; try again to continue after {SOME:,} bytes, or download ")
    assert registry.find(NAME).baidu_code in message
    assert held(cache) == {f"{FILE}.part", f"{FILE}.part.json"}
    assert registry.cached(registry.find(NAME)) is None
    registry.download(NAME)
    assert server.requests[2:] == [(FILE, f"bytes={SOME}-")]
    assert (cache / FILE).read_bytes() == content
    assert held(cache) == WHOLE


@pytest.mark.parametrize("versions", ["etag", "date"])
def test_the_half_of_a_file_that_has_changed_since_is_not_used(
    versions, server, cache, content, other
):
    server.versions, server.cuts, server.statuses = versions, [SOME], [None, 503]
    refused("503")
    server.files[FILE] = other
    registry.download(NAME)
    assert (cache / FILE).read_bytes() == other


@pytest.mark.parametrize("versions", ["weak", "nothing"])
def test_without_a_version_it_starts_afresh(versions, server, cache, content):
    server.versions, server.cuts, server.statuses = versions, [SOME], [None, 503]
    refused("503")
    registry.download(NAME)
    assert [requested_range for _, requested_range in server.requests] == ["", "", ""]
    assert (cache / FILE).read_bytes() == content


def test_a_server_that_knows_no_ranges_sends_it_afresh(server, cache, content):
    server.ranges, server.cuts = False, [SOME]
    registry.download(NAME)
    assert server.requests == [(FILE, ""), (FILE, f"bytes={SOME}-")]
    assert (cache / FILE).read_bytes() == content


def test_another_mirror_does_not_go_on_with_the_half_of_the_first(
    server, cache, content, monkeypatch
):
    server.cuts, server.statuses = [SOME], [None, 503]
    refused("503")
    with Server({FILE: content}) as second:
        monkeypatch.setenv("ROFORMER_TF_MIRROR", second.url)
        registry.download(NAME)
    assert second.requests == [(FILE, "")]


def test_a_half_without_its_note_is_not_used(server, cache, content):
    cache.mkdir()
    (cache / f"{FILE}.part").write_bytes(b"x" * 100)
    registry.download(NAME)
    assert server.requests == [(FILE, "")]
    assert (cache / FILE).read_bytes() == content


def test_a_server_that_cuts_every_answer_at_once_is_given_up(server, cache):
    server.cuts = [SOME, 0]
    assert "closed the connection too early" in refused(f"{SOME:,} bytes")
    assert len(server.requests) == 2


def test_a_silent_server_is_given_up(server, cache, monkeypatch):
    monkeypatch.setattr(registry, "TIMEOUT", 0.2)
    server.pause = 1
    refused(r"cannot download .*: the connection to 127\.0\.0\.1:\d+ failed")


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
    assert held(cache) == WHOLE
    assert all(requested_range for _, requested_range in server.requests[1:]), (
        "it goes on where it was"
    )


def test_a_copy_that_was_killed_on_its_way_into_the_cache_is_swept(server, cache):
    cache.mkdir()
    (cache / f".{FILE}.abcdefgh.tmp").write_bytes(b"half")
    (cache / ".another_release.zip.abcdefgh.tmp").write_bytes(b"another process writes it")
    registry.download(NAME)
    assert held(cache) == {*WHOLE, ".another_release.zip.abcdefgh.tmp"}


def test_all_but_the_copy_was_done_before_the_kill(server, cache, content):
    server.cuts, server.statuses = [SOME], [None, 503]
    refused("503")
    (cache / f"{FILE}.part").write_bytes(content)
    registry.download(NAME)
    assert server.requests[2:] == [(FILE, f"bytes={len(content)}-")]
    assert (cache / FILE).read_bytes() == content


# --- No download --------------------------------------------------------------------------------


def test_offline_one_sentence_says_what_to_fetch_and_where_to_put_it(no_mirror, cache):
    release = registry.find(NAME)
    message = refused("^cannot download")
    for part in (FILE, release.url, release.baidu_url, release.baidu_code, str(cache)):
        assert part in message
    assert len(re.findall(r"[.!?] |[.!?]$", message)) == 1
    assert held(cache) == set()
    with pytest.raises(InputError) as caught:
        registry.locate(NAME)
    assert str(caught.value) == message


def test_and_what_it_says_works(no_mirror, cache, content):
    refused("^cannot download")
    (cache / FILE).write_bytes(content)
    assert registry.locate(NAME) == registry.download(NAME) == cache / FILE


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_the_servers_answer_is_reported(status, server, cache):
    server.statuses = [status]
    message = refused(rf"{server.url}/{FILE} responds with {status} \w+")
    assert "download" in message
    assert held(cache) == set()


def test_a_mirror_that_is_no_url_is_named(cache, monkeypatch):
    monkeypatch.setenv("ROFORMER_TF_MIRROR", "somewhere")
    assert "somewhere" in refused("^cannot download")


def test_a_page_instead_of_the_zip_is_refused_and_not_kept(server, cache):
    server.files[FILE] = b"<html>Please log in to this network.</html>"
    refused(rf"the file that {server.url}/{FILE} sent cannot be used: .*not a complete zip")
    assert held(cache) == set()


def test_a_command_ends_with_one_line_and_exit_code_2(no_mirror, cache, capfd):
    from roformer_tf.cli import main

    assert main(["fill-mask", "--model", NAME, "今天[MASK]"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"roformer-tf fill-mask: cannot download {FILE[:-4]}: ")


# --- A changed file -----------------------------------------------------------------------------


def change(path):
    """Change one byte in the middle of a file."""
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


def test_a_file_that_has_changed_in_the_cache_is_refused(server, cache, content):
    path = registry.download(NAME)
    change(path)
    assert str(path) in refused("CRC.*")
    with pytest.raises(InputError, match="CRC"):
        roformer_tf.load(NAME)
    assert len(server.requests) == 1
    path.unlink()
    assert registry.download(NAME).read_bytes() == content


# --- Fetched by hand ----------------------------------------------------------------------------


def test_a_zip_fetched_by_hand_is_copied_into_the_cache(no_mirror, cache, content, tmp_path):
    mine = tmp_path / "mine (1).zip"
    mine.write_bytes(content)
    assert registry.download(NAME, from_file=mine) == cache / FILE
    assert (cache / FILE).read_bytes() == mine.read_bytes() == content
    assert held(cache) == WHOLE
    assert registry.locate(NAME) == cache / FILE


@pytest.mark.parametrize("by_hand", ["given", "put there"])
@pytest.mark.parametrize(
    ("spoil", "match"),
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
def test_what_is_not_that_release_is_refused(by_hand, spoil, match, no_mirror, cache, tmp_path):
    path = tmp_path / "mine.zip" if by_hand == "given" else cache / FILE
    path.parent.mkdir(exist_ok=True)
    make_zip(path)
    spoil(path)
    message = refused(match, NAME, from_file=path if by_hand == "given" else None)
    assert str(path) in message
    assert held(cache) == (set() if by_hand == "given" else {FILE})


def test_a_missing_file_and_a_folder_are_refused(no_mirror, cache, tmp_path):
    refused("nowhere.zip is no file", NAME, from_file=tmp_path / "nowhere.zip")
    refused("is no file", NAME, from_file=tmp_path)


def test_a_cache_that_cannot_be_written_to_is_named(server, cache):
    cache.write_text("a file where the folder should be")
    refused(f"cannot store {FILE} in {cache}: .*ROFORMER_TF_CACHE")
