"""The released checkpoints by name: descriptions, locations, and downloads.

A download lands in the cache: the folder of the environment variable ROFORMER_TF_CACHE, or else
the user's cache folder, where a zip may also be put by hand. ROFORMER_TF_MIRROR, a URL, is asked
for the files instead of where they were released.

Nobody published checksums, so each zip's is recorded beside it when it is first used, as
`NAME.zip.json`, and outlives it: later uses and later downloads must agree. Hashing a large zip
takes a second, so `locate` does it only where size or time of change are no longer those
recorded; `download` always does.
"""

import difflib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints import archives, tf1
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside, leftovers, parse_json, remove, write_text

CACHE = "ROFORMER_TF_CACHE"
MIRROR = "ROFORMER_TF_MIRROR"
BY_HAND = Path("checkpoints")
"""The folder of a clone (in the working directory) that is looked into before the cache."""


@dataclass(frozen=True)
class Baidu:
    """A file on Baidu's netdisk, which only a browser can fetch."""

    url: str
    code: str
    """The extraction code that the page asks for."""


@dataclass(frozen=True)
class Release:
    """One released checkpoint, as `registry.json` describes it."""

    name: str
    """The zip's stem."""
    aliases: tuple[str, ...]
    """Shorter names."""
    family: str
    """ "word", "char", "gpt-char", "sim-char", "sim-char-ft" or "v2-char"."""
    size: str
    """ "small", "base" or "large"."""
    what_for: str
    file: str
    url: str
    bytes: int | None
    """Size of the file; None where it was not published."""
    sha256: str | None
    """Checksum of the file; None where it was not published."""
    baidu: Baidu
    huggingface: str | None
    """The repository there that holds the same weights; None where there is none."""
    config: Mapping[str, Any]
    """What is known without the file: its name's numbers and the published conversions'."""


@dataclass(frozen=True)
class CachedFile:
    """What was written down when a file in the cache was last hashed."""

    sha256: str
    bytes: int
    mtime_ns: int


@cache
def releases() -> tuple[Release, ...]:
    """Give every released checkpoint."""
    entries = parse_json(Path(__file__).with_name("registry.json").read_text(encoding="utf-8"))
    return tuple(
        Release(**entry | {"aliases": tuple(entry["aliases"]), "baidu": Baidu(**entry["baidu"])})
        for entry in entries
    )


def find(name: str) -> Release | None:
    """Give the release of this name or alias, if there is one."""
    return next((r for r in releases() if name in (r.name, *r.aliases)), None)


def locate(source: str | Path) -> Path:
    """Give a source's path: one that exists, or the zip of a released name, fetched if need be.

    Looks for a name's zip in `checkpoints/`, which is the user's own and is not checked, then in
    the cache. Raises InputError for anything else, and as `cached` and `download` do.
    """
    if _exists(source):
        return Path(source)
    release = find(str(source))
    if release is None:
        raise InputError(_unknown(source))
    if (BY_HAND / release.file).is_file():
        return BY_HAND / release.file
    return cached(release) or download(release.name)


def download(name: str, *, from_file: str | Path | None = None) -> Path:
    """Fetch a release into the cache, or copy it there from a zip fetched by hand; give the path.

    What is there already is hashed once more. Two processes asking at once do it one after the
    other. Raises InputError for an unknown name, where the file cannot be had, is no whole zip of
    this release or not the one recorded, and where the cache cannot be written to.
    """
    release = find(name)
    if release is None:
        raise InputError(_unknown(name))
    try:
        with _alone(release):
            if from_file is not None:
                return _store(Path(from_file), release)
            return cached(release, thoroughly=True) or _download(release)
    except OSError as error:
        raise InputError(
            f"cannot keep {release.file} in {folder()}: {error}. "
            f"Make room or give another folder in the environment variable {CACHE}."
        ) from None


def folder() -> Path:
    """Give the cache's folder."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("roformer-tf"))


def cached(release: Release, *, thoroughly: bool = False) -> Path | None:
    """Give a release's zip in the cache, if it is there; `thoroughly` hashes it in any case.

    Raises InputError where it has changed since it was recorded, and where one that is not
    recorded yet, put there by hand, is not this release.
    """
    path = folder() / release.file
    if not path.is_file():
        return None
    record = _record(path)
    if not thoroughly and record and record == _stamp(path, record.sha256):
        return path
    if record is None:
        _check_zip(path, release)
    checksum = _checksum(path, release)
    with suppress(OSError):  # in a cache that others keep, and one may only read
        _write_record(path, checksum)
    return path


def _download(release: Release) -> Path:
    """Fetch a release that is not in the cache."""
    from roformer_tf.checkpoints import transfer

    url = _url(release)
    part = folder() / f"{release.file}.part"
    try:
        transfer.fetch(url, part)
    except transfer.TransferError as error:
        kept = f"try again to go on after {transfer.kept(part):,} bytes, or "
        raise InputError(
            f"cannot download {release.name}: {error}; {kept if transfer.kept(part) else ''}"
            f"{_how_to_get(release)}"
        ) from None
    try:
        path = _store(part, release)
    except InputError as error:
        transfer.discard(part)  # to fetch more of it would not mend it
        raise InputError(f"what {url} sent cannot be used: {error}") from None
    transfer.discard(part)
    return path


def _store(source: Path, release: Release) -> Path:
    """Copy a release's zip into the cache, checked and recorded."""
    if not source.is_file():
        raise InputError(f"{source} is no file. Give the {release.file} that you fetched.")
    _check_zip(source, release)
    path = folder() / release.file
    checksum = _checksum(source, release)
    with file_beside(path) as beside:
        shutil.copyfile(source, beside)
    _write_record(path, checksum)
    return path


def _check_zip(path: Path, release: Release) -> None:
    """Raise InputError unless it is a whole zip of a checkpoint of this release's sizes."""
    with archives.Files(path) as files:
        config = RoFormerConfig.from_file(files.folder / tf1.CONFIG)  # every byte of it is read
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        if getattr(config, key) != release.config[key]:
            raise InputError(
                f"{path} is not {release.name}: its {tf1.CONFIG} has {key} "
                f"{getattr(config, key)}, not {release.config[key]}. "
                f"Give the {release.file} that was released."
            )


def _checksum(path: Path, release: Release) -> str:
    """SHA-256 of a file. Raises InputError where another one is recorded or published."""
    import pooch

    checksum = pooch.file_hash(str(path), alg="sha256")
    stored = folder() / release.file
    record = _record(stored)
    known = record.sha256 if record else release.sha256
    if known not in (None, checksum):
        raise InputError(
            f"{path} is not the {release.file} that was first used here: its SHA-256 is "
            f"{checksum}, not {known}. Remove it and fetch it again; if it is the right one after "
            f"all, remove {_record_path(stored)}."
        )
    return checksum


def _record(path: Path) -> CachedFile | None:
    """What is recorded of a file in the cache, which may be gone itself; None where nothing is."""
    try:
        return CachedFile(**parse_json(_record_path(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise InputError(
            f"{_record_path(path)} is damaged. Remove it: the checksum is then recorded anew."
        ) from None


def _write_record(path: Path, checksum: str) -> None:
    write_text(_record_path(path), json.dumps(asdict(_stamp(path, checksum)), indent=2) + "\n")


def _stamp(path: Path, checksum: str) -> CachedFile:
    """The record of a file as it is now."""
    status = path.stat()
    return CachedFile(checksum, status.st_size, status.st_mtime_ns)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


@contextmanager
def _alone(release: Release) -> Iterator[None]:
    """Keep other processes from writing this release. The lock of a killed one is free again."""
    from filelock import FileLock, Timeout

    folder().mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder() / f"{release.file}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process to fetch {release.name} …", file=sys.stderr)
        lock.acquire()
    try:
        for path in leftovers(folder()):  # of a killed process: its own, as nobody else writes
            if path.name.startswith(f".{release.file}."):
                remove(path)
        yield
    finally:
        lock.release()


def _exists(source: str | Path) -> bool:
    """Whether a path exists. Raises InputError for one that cannot even be looked for."""
    try:
        return Path(source).exists()
    except OSError as error:  # a name too long, or a folder that others may not look into
        raise InputError(
            f"cannot look for {source}: {error.strerror}. Give a released .zip, a folder with a "
            "checkpoint, or a name that `roformer-tf checkpoints list` shows."
        ) from None


def _url(release: Release) -> str:
    """Where the file is asked for."""
    mirror = os.environ.get(MIRROR)
    return f"{mirror.rstrip('/')}/{release.file}" if mirror else release.url


def _how_to_get(release: Release) -> str:
    """How somebody with a browser gets a release to where it is looked for."""
    return (
        f"fetch {release.file} from {release.url} or {release.baidu.url} (extraction code "
        f"{release.baidu.code}) and put it into {folder()}."
    )


def _unknown(source: str | Path) -> str:
    """Say what a source may be, and which names are near to what was given."""
    named = str(source)
    for release in releases():
        if release.huggingface == named:
            return (
                f"{named} does not exist here. Give {release.name}, which holds the same weights, "
                "or a folder into which you fetched that repository from Hugging Face."
            )
    names = [name for release in releases() for name in (release.name, *release.aliases)]
    near = difflib.get_close_matches(Path(named).name.removesuffix(".zip"), names)
    return (
        f"{named} does not exist. Give a released .zip, a folder with {tf1.CONFIG} or "
        "config.json and the weights, or a name that `roformer-tf checkpoints list` shows."
        + (f" Did you mean {' or '.join(near)}?" if near else "")
    )
