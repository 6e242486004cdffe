"""The released checkpoints by name: descriptions, locations, and downloads; and our own.

Our own is a folder of this package, so that it needs no download.

Downloads are stored in the cache: the folder in the environment variable ROFORMER_TF_CACHE, or the
user's cache folder. A zip can also be put there by hand. ROFORMER_TF_MIRROR is the URL of a mirror.

No checksums were published. Those in the zip are verified whenever it is read, and by `download`,
which also compares the model's sizes with the released ones.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from roformer_tf.checkpoints.archives import BERT_CONFIG, Files
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import leftovers, parse_json, remove, temporary_file, write_text
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message, either

if TYPE_CHECKING:
    import requests  # loaded when something is downloaded

CACHE = "ROFORMER_TF_CACHE"
MIRROR = "ROFORMER_TF_MIRROR"
BY_HAND = Path("checkpoints")
"""The folder of a clone, relative to the working directory, that has priority over the cache."""
MINI = "chinese_roformer-tf-mini"
"""The name of our own small pretrained checkpoint, and of its folder in this package."""
TIMEOUT = 60
"""Seconds without a response, or without a further byte, after which a connection is closed."""
CHUNK = 1 << 14
"""Bytes written at a time: the maximum that is lost when a connection breaks."""


@dataclass(frozen=True)
class Release:
    """One released checkpoint, as `registry.json` describes it."""

    name: str
    """The name of the zip without its suffix."""
    aliases: tuple[str, ...]
    """Shorter names."""
    family: str
    """ "word", "char", "gpt-char", "sim-char", "sim-char-ft" or "v2-char"."""
    size: str
    """ "small", "base" or "large"."""
    what_for: str
    file: str
    url: str
    baidu_url: str
    """The file on Baidu Netdisk, from where only a browser can download."""
    baidu_code: str
    """The extraction code that the page there asks for."""
    huggingface: str | None
    """The repository on Hugging Face with the same weights, if there is one."""
    config: Mapping[str, Any]
    """The part of the config that is known without the file."""


@cache
def releases() -> tuple[Release, ...]:
    """All released checkpoints."""
    entries = parse_json(Path(__file__).with_name("registry.json").read_text(encoding="utf-8"))
    return tuple(Release(**entry | {"aliases": tuple(entry["aliases"])}) for entry in entries)


def own() -> Path:
    """The folder of our own checkpoint."""
    return Path(__file__).with_name(MINI)


def find(name: str | Path) -> Release:
    """The release with this name or alias. Raises InputError for any other name."""
    for release in releases():
        if str(name) in (release.name, *release.aliases):
            return release
    raise InputError(unknown(name))


def locate(source: str | Path) -> Path:
    """The path of a source: an existing path, our own checkpoint, or the zip of a released name.

    The zip is searched in `checkpoints/`, then in the cache, and is downloaded otherwise. Raises
    InputError for anything else, and as `download` does.
    """
    if os.path.exists(source):  # noqa: PTH110 (False, too, for a name that no file can have)
        return Path(source)
    if str(source) == MINI:
        return own()
    release = find(source)
    if (BY_HAND / release.file).is_file():
        return BY_HAND / release.file
    return cached(release) or download(release.name)


def download(name: str, *, from_file: str | Path | None = None) -> Path:
    """Download a release into the cache, or copy it there from `from_file`; return the path.

    Our own checkpoint is where it is. A file that is in the cache already is checked again. Two
    processes wait for each other. Raises InputError for an unknown name, a failed download, a file
    that is not a complete zip of this release, and a cache that cannot be written.
    """
    if name == MINI and from_file is None:
        return own()
    release = find(name)
    with reserved(release.file, release.name):
        if from_file is not None:
            return _store(Path(from_file), release)
        if path := cached(release):
            _check_zip(path, release)
        return path or _download(release)


def folder() -> Path:
    """The folder of the cache."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("roformer-tf")


def cached(release: Release) -> Path | None:
    """The zip of a release in the cache, if it is there."""
    path = folder() / release.file
    return path if path.is_file() else None


def _download(release: Release) -> Path:
    """Download a release that is not in the cache."""
    mirror = os.environ.get(MIRROR)
    url = f"{mirror.rstrip('/')}/{release.file}" if mirror else release.url
    part = folder() / f"{release.file}.part"
    try:
        fetch(url, part)
    except TransferError as error:
        count = received(part)
        again = f"try again to continue after {count:,} bytes, or " if count else ""
        raise InputError(
            f"cannot download {release.name}: {error}; {again}download {release.file} from "
            f"{release.url} or {release.baidu_url} (extraction code {release.baidu_code}) and put "
            f"it into {folder()}."
        ) from None
    try:
        path = _store(part, release)
    except InputError as error:
        discard(part)  # to resume would not fix it
        raise InputError(f"the file that {url} sent cannot be used: {error}") from None
    discard(part)
    return path


def _store(source: Path, release: Release) -> Path:
    """Check a zip of a release, and copy it into the cache."""
    if not source.is_file():
        raise InputError(f"{source} is no file. Give the {release.file} that you downloaded.")
    _check_zip(source, release)
    path = folder() / release.file
    with temporary_file(path) as file:
        shutil.copyfile(source, file)
    return path


def _check_zip(path: Path, release: Release) -> None:
    """Raise InputError unless it is a complete zip of a checkpoint with this release's sizes."""
    with Files(path) as files:
        # Unpacking verifies the checksums of all members.
        config = RoFormerConfig.from_file(files.folder / BERT_CONFIG)
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        if getattr(config, key) != release.config[key]:
            raise InputError(
                f"{path} is not {release.name}: its {BERT_CONFIG} has {key} "
                f"{getattr(config, key)}, not {release.config[key]}. "
                f"Give the {release.file} that was released."
            )


@contextmanager
def reserved(file: str, name: str) -> Iterator[None]:
    """Keep other processes from writing a file of the cache. A killed process loses its lock.

    name: of what the file is. Raises InputError, within the context too, for a cache that cannot
    be written.
    """
    from filelock import FileLock, Timeout

    path = folder() / file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f"{path.name}.lock"))
        try:
            # Without waiting first, so that the user learns why nothing happens.
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another process to download {name} …", file=sys.stderr)
            lock.acquire()
        try:
            for leftover in leftovers(path.parent):  # of a killed process, since we have the lock
                if leftover.name.startswith(f".{path.name}."):
                    remove(leftover)
            yield
        finally:
            lock.release()
    except OSError as error:
        raise InputError(
            f"cannot store {file} in {folder()}: {error}. "
            f"Free some space, or set another folder in the environment variable {CACHE}."
        ) from None


def unknown(source: str | Path) -> str:
    """The message for an unknown source: what a source can be, and similar names."""
    name = str(source)
    if Path(name).suffix == ".txt":
        return Message(
            "{name} does not exist. Give a vocab.txt, or a model that has one.", name=name
        )
    names = [MINI, *(name for r in releases() for name in (r.name, *r.aliases))]
    near = difflib.get_close_matches(Path(name).name.removesuffix(".zip"), names)
    return Message(
        "{name} does not exist. Give a released .zip, a folder with {config} or config.json and "
        "the weights, or a name that `roformer-tf checkpoints list` shows.{hint}",
        name=name,
        config=BERT_CONFIG,
        hint=Message(" Did you mean {names}?", names=either(near)) if near else "",
    )


# Downloads over HTTP that resume after a broken connection: pooch and urllib always start again.


class TransferError(Exception):
    """A failed download; the message is the reason, as a part of a sentence."""


def fetch(url: str, part: Path, headers: Mapping[str, str] | None = None) -> None:
    """Download a URL into `part`, with a progress bar on stderr; `headers`: of the request.

    `part` can contain the beginning of the file. The download resumes from there if the server
    confirms that its file has not changed, and starts again otherwise. A broken connection is
    repeated as long as each one brings some bytes. Then TransferError is raised, and `part` stays.
    """
    import requests

    while True:
        before = received(part)
        try:
            return _fetch_rest(url, part, headers or {})
        except requests.RequestException as error:
            # Progress resets the patience: on a bad line, a large file needs many connections.
            if received(part) <= before:
                raise TransferError(reason(url, error)) from None


def received(part: Path) -> int:
    """Bytes that were received so far."""
    return part.stat().st_size if part.exists() else 0


def discard(part: Path) -> None:
    """Remove a partial download: the next one starts again."""
    remove(part)
    finish(part)


def finish(part: Path) -> None:
    """Forget that a file was a partial download."""
    remove(_note(part))


def _fetch_rest(url: str, part: Path, headers: Mapping[str, str]) -> None:
    import requests

    # A compressed response cannot be resumed by bytes.
    headers = {**headers, "Accept-Encoding": "identity"}
    # With If-Range the server sends the rest only if its file is still this version; otherwise it
    # sends the whole file with status 200.
    if version := _version_of(part, url):
        headers |= {"Range": f"bytes={received(part)}-", "If-Range": version}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # the file is complete
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:  # it starts at the first byte
            discard(part)
            # Written before the first byte: without the note, the bytes cannot be trusted.
            note = {"url": url, "version": _version(response.headers)}
            write_text(_note(part), json.dumps(note))
        _append(response, part)


def _append(response: requests.Response, part: Path) -> None:
    """Append the body to the partial file, chunk by chunk."""
    # Content-Length is that of this response: of the rest, if a download is resumed.
    start, length = received(part), response.headers.get("Content-Length")
    with (
        part.open("ab") as file,
        Progress(
            desc=part.stem,
            initial=start,
            total=start + int(length) if length else None,
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


def _version(headers: Mapping[str, str]) -> str | None:
    """The validator of the server's version of the file; None if there is no reliable one."""
    tag = headers.get("ETag", "W/")  # a weak tag, W/"…", does not promise the same bytes
    return headers.get("Last-Modified") if tag.startswith("W/") else tag


def _version_of(part: Path, url: str) -> str | None:
    """The version of the file of which `part` is the beginning; None if it is of another URL."""
    try:
        note = parse_json(_note(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # An empty part has nothing to resume. The bytes from another mirror may be of another file.
    return note["version"] if received(part) and note["url"] == url else None


def _note(part: Path) -> Path:
    """The small file that records URL and version of a partial download."""
    return part.with_name(part.name + ".json")


def reason(url: str, error: requests.RequestException) -> str:
    """Why a request failed, as a part of a sentence."""
    import requests

    if error.response is not None:
        return f"{url} responds with {error.response.status_code} {error.response.reason}"
    host = urlsplit(url).netloc or url
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"{host} closed the connection too early"
    if isinstance(error, requests.Timeout):
        return f"{host} has sent nothing for {TIMEOUT} seconds"
    return f"the connection to {host} failed ({type(error).__name__})"
