"""Write beside the target, then rename: the one way anything is saved.

A reader, a crash or a full disk never meets a half-written file: under the final name stands
either the old content, whole, or the new one, whole.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_beside(target: str | Path) -> Iterator[Path]:
    """Yield a path in the target's folder; when the block ends well, it becomes the target.

    After an exception the file is removed and the target is as it was.
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
        beside.replace(target)
        _sync(target.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def folder_beside(target: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside the target; when the block ends well, it becomes the target.

    An existing target is replaced whole. A folder cannot be renamed over another one, so
    between the two renames the old one stands under a hidden name: a crash at that moment
    loses nothing.
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
            target.replace(old / target.name)
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
