"""Write beside the target, then rename: the one way anything is saved.

A reader, a crash or a full disk never meets a half-written file: under the final name stands
either the old content, whole, or the new one, whole. A folder that a command works in for long is
its own so long: see `locked`.
"""

import errno
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError

LOCK = ".lock"
"""In a folder that is being written: the file whose lock the writer holds."""

DEEPEST = 100
"""Levels of lists and dictionaries that a JSON file may have."""

PAUSES = (0.1, 0.4, 1.5)
"""Seconds to wait after each try to rename what another program holds open."""

_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What a file system without locks says, such as NFS mounted without its lock service."""


@contextmanager
def file_beside(target: str | Path) -> Iterator[Path]:
    """Yield a path in the target's folder; when the block ends well, it becomes the target.

    After an exception the file is removed and the target is as it was. Raises InputError where
    another program holds the target open, and keeps the new file under a name beside it.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        _sync(beside)
        beside.chmod(0o666 & ~_umask())  # mkstemp makes it private; a result is not
        if not _renamed(beside, target):
            raise _kept(beside, target)
        _sync(target.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def folder_beside(target: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside the target; when the block ends well, it becomes the target.

    An existing target is replaced whole. A folder cannot be renamed over another one, so
    between the two renames the old one stands under a hidden name: a crash at that moment
    loses nothing. Raises InputError where another program holds a file of the target open, and
    keeps the new folder under a name beside it.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield beside
        for path in sorted(beside.rglob("*")):
            _sync(path)
        _sync(beside)
        beside.chmod(0o777 & ~_umask())
        if target.exists():
            old = Path(
                tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent)
            )
            if not _renamed(target, old / target.name):
                old.rmdir()
                raise _kept(beside, target)
            beside.replace(target)
            shutil.rmtree(old)
        else:
            beside.replace(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_text(target: str | Path, text: str) -> None:
    """Write UTF-8 text with Unix line endings, whole or not at all."""
    with file_beside(target) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def read_json(path: Path, advice: str) -> Any:
    """What a JSON file holds. Raises InputError, with the advice, for one that cannot be read."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. {advice}") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}. {advice}") from None


def parse_json(content: str | bytes, *, finite: bool = False) -> Any:
    """What JSON in UTF-8 holds; all files of the package are read by this.

    Raises ValueError for what is no JSON, nested more than `DEEPEST`, and, if it has to be
    `finite`, for NaN and infinity, which JSON does not have but Python reads.
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        value = json.loads(text, parse_constant=_refused if finite else None)
    except RecursionError:
        too_deep = True
    else:
        too_deep = _is_deeper(value, DEEPEST)  # what can be read may be too deep to be copied
    if too_deep:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    return value


def _refused(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is no number")


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and dictionaries are nested deeper than that."""
    level = [value]
    for _ in range(most + 1):
        containers = (x for x in level if isinstance(x, dict | list))
        inside = (x.values() if isinstance(x, dict) else x for x in containers)
        level = [item for items in inside for item in items]
    return bool(level)


def hash_file(path: Path) -> str:
    """Hash a file: BLAKE2b, 128 bits in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(
    folder: str | Path, guarded: str | Path | None = None, flag: str = "--output"
) -> Iterator[None]:
    """Make a folder if it is not there, and keep other commands from writing into it.

    Who replaces a folder whole takes the lock of one beside it, and names as `guarded` what it is
    for; flag: where another one is chosen.

    The lock is the operating system's: a killed owner's is free, and over NFS other machines see
    it. Its file goes in the end, and so does a folder that was made and got nothing written into
    it. Raises InputError, with nothing touched, while another command has the lock, and where
    nothing can be written.
    """
    from filelock import FileLock, Timeout, UnixFileLock

    folder = Path(folder)
    file = folder / LOCK
    made: list[Path] = []
    # Its fallback, a file whose being there is the lock, would outlive an owner that was killed.
    lock = FileLock(file, fallback_to_soft=False)
    try:
        made = _make(folder)
        lock.acquire(timeout=0)
        _sign(file)
    except Timeout:
        raise InputError(
            f"{guarded or folder} is in use: {_owner(file)} is writing into it. Wait until that "
            f"has ended, or choose another {flag}."
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            _remove_empty(made)
            raise _unwritable(Path(guarded or folder), error) from None
        print(
            f"{guarded or folder}: its file system knows no locks. See to it that no other "
            "command writes there meanwhile.",
            file=sys.stderr,
        )
    try:
        yield
    finally:
        # Removed while it is held: whoever has opened it by then sees, once the lock is free, that
        # the file is gone, and tries anew. On Windows `release` removes it.
        if isinstance(lock, UnixFileLock):
            with suppress(OSError):
                file.unlink()
        lock.release()
        _remove_empty(made)


def check_writable(target: str | Path) -> None:
    """Raise InputError unless a file or folder can be written under this name: it is tried.

    For what takes long before it writes.
    """
    target = Path(target)
    made: list[Path] = []
    # A folder that is there is written into, or moved away, which takes the right to write in it.
    folders = [target.parent, *([target] if is_folder(target) else [])]
    try:
        made = _make(target.parent)
        for folder in folders:
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=folder)
            os.close(handle)
            Path(name).unlink()
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        _remove_empty(made)


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder; no, too, for a name that no file system takes."""
    with suppress(OSError):
        return Path(path).is_dir()
    return False


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing in the folder, or had just replaced.

    What it had moved away and not yet replaced is the only copy: it gets its name back.
    """
    for path in leftovers(folder):
        target = folder / path.name[1:].rsplit(".", 2)[0]
        if path.suffix == ".old" and not target.exists():
            path.replace(target)
        else:
            remove(path)


def leftovers(folder: Path) -> set[Path]:
    """Find what a killed process was writing in the folder, or had just replaced."""
    return {*folder.glob(".*.????????.tmp"), *folder.glob(".*.????????.old")}


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _renamed(path: Path, target: Path) -> bool:
    """Rename, and tell whether that could be: Windows moves and replaces nothing that is open.

    A virus scanner or an indexer lets go soon, so it is tried for a while; Excel does not.
    """
    for pause in PAUSES:
        with suppress(PermissionError):
            path.replace(target)
            return True
        time.sleep(pause)
    return False


def _kept(beside: Path, target: Path) -> InputError:
    """Keep what could not get its name under another one, and say so."""
    names = (target.with_name(f"{target.stem}-{n}{target.suffix}") for n in count(2))
    kept = next(name for name in names if not name.exists())
    beside.chmod((0o777 if beside.is_dir() else 0o666) & ~_umask())
    beside.replace(kept)
    return InputError(
        f"{target} is open in another program, such as Excel, so it is as it was. What was to "
        f"replace it is whole, and is kept in {kept}. Close the other program, and rename that, "
        "or run the same command again."
    )


def _make(folder: Path) -> list[Path]:
    """Make a folder, and those above it; give those that were not there, the deepest first.

    Where that cannot be, none of them is left.
    """
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        _remove_empty(missing)
        raise
    return missing


def _remove_empty(folders: list[Path]) -> None:
    """Remove the folders, each unless something is in it."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _unwritable(target: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {target}: {error.strerror}. Choose another place.")


def _sign(file: Path) -> None:
    """Say in a lock's file whose it is, for the message to who comes second."""
    with suppress(OSError):  # the lock holds without it
        file.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", "utf-8")


def _owner(file: Path) -> str:
    """Who has a lock, as far as its file tells: Windows lets nobody read it meanwhile."""
    try:
        process, host = file.read_text("utf-8").split()[:2]
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"


def _sync(path: Path) -> None:
    """Have the file or folder on the disk before the rename that makes it visible."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    writable = os.name == "nt"  # which syncs nothing that is open for reading alone
    descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    with _reading_umask:  # two threads at it would leave the other's 0 behind
        mask = os.umask(0)
        os.umask(mask)
        return mask


_reading_umask = threading.Lock()
