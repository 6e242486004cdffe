"""Atomic writing: a file or folder is written under a temporary name, then renamed.

All files of the package are written like this. After a crash or on a full disk, the final name has
either the old content or the new one, never a part. `locked` reserves a folder for a command.
"""

import errno
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.translation import Message

LOCK = ".lock"
"""Lock file in a folder that a command is writing."""

RECIPES = Path(__file__).with_name("recipes")
"""Settings of `pretrain` and `finetune` (.yaml), and architectures (.json), that have names."""

PAUSES = (0.1, 0.4, 1.5)
"""Seconds to wait after each failed attempt to rename a file that another program has open."""

_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of a file system without locks, such as NFS mounted without its lock service."""


@contextmanager
def temporary_file(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the target's folder, which is renamed to the target at the end.

    After an exception the temporary file is removed, and the target is unchanged. Raises InputError
    if another program has the target open, and keeps the new file under another name.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _unused(target, ".tmp")
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode
    try:
        yield temporary
        # The content, then the name, then the folder that lists it. After a power failure the name
        # never refers to content that is not on the disk.
        _sync(temporary)
        temporary.chmod(mode)  # safetensors replaces it by a file that only the user can read
        if not _renamed(temporary, target):
            raise _kept(temporary, target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary, empty folder, which is renamed to the target at the end.

    An existing target is replaced as a whole. A folder cannot be renamed to an existing one. So the
    old one is renamed to a hidden name first, where `sweep` finds it after a crash. Raises
    InputError if another program has a file of the target open, and keeps the new folder under
    another name.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = _unused(target, ".tmp")
    new.mkdir()
    try:
        yield new
        for path in sorted(new.rglob("*")):
            _sync(path)
        _sync(new)
        old = _unused(target, ".old")
        if target.exists() and not _renamed(target, old):
            raise _kept(new, target)
        if not _renamed(new, target):
            raise _kept(new, target)
        remove(old)
        _sync(target.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_text(target: str | Path, text: str) -> None:
    """Write UTF-8 text with Unix line endings, atomically."""
    write_bytes(target, text.encode())


def write_json(target: str | Path, value: Any) -> None:
    """Write a JSON file, readable and in UTF-8; a name that is not Unicode gets escapes."""
    write_bytes(target, json_text(value).encode("utf-8", "backslashreplace"))


def json_text(value: Any) -> str:
    """A JSON value as the files of the package have it."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n"


def write_bytes(target: str | Path, content: bytes) -> None:
    """Write a file atomically. Another name of an existing file keeps the old content."""
    with temporary_file(target) as file:
        file.write_bytes(content)


def find_recipe(name: str | Path, suffix: str = ".yaml") -> Path:
    """The file that `--config` or `--architecture` (suffix ".json") names: a path or a recipe.

    A word without a suffix or a folder is the name of a recipe, unless there is such a file.
    Raises InputError for a name that no recipe has.
    """
    path = Path(name)
    if path.suffix or path.name != str(name) or path.is_file():
        return path
    recipe = RECIPES / f"{name}{suffix}"
    if not recipe.exists():
        known = ", ".join(sorted(file.stem for file in RECIPES.glob(f"*{suffix}")))
        raise InputError(
            Message(
                "there is no recipe {name!r}. Give a path to a {suffix} file, or one of the "
                "recipes {known}.",
                name=str(name),
                suffix=suffix,
                known=known,
            )
        )
    return recipe


def read_json(path: Path, advice: str) -> Any:
    """Content of a JSON file. Raises InputError, with the advice, if it cannot be read."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. {advice}") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}. {advice}") from None


def parse_json(content: str | bytes, *, finite: bool = False) -> Any:
    """Parse JSON in UTF-8; all JSON files of the package are read with this function.

    Raises ValueError for invalid JSON and, with `finite`, for NaN and infinity, which are no JSON.
    """
    # Notepad may begin a file with a byte order mark.
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    try:
        return json.loads(text, parse_constant=_refuse if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def json_object(content: bytes, name: str | Path, advice: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InputError, with the name and the advice, for anything else."""
    try:
        values = parse_json(content)
    except ValueError as error:
        raise InputError(f"{name} is not valid JSON: {error}. {advice}") from None
    if not isinstance(values, dict):
        raise InputError(f"{name} contains no JSON object. {advice}")
    return values


def _refuse(constant: str) -> None:
    raise ValueError(f"it contains {constant}, which is no number")


def hash_file(path: Path, digest: Any = None) -> str:
    """Hash a file in hexadecimal; digest: of hashlib, by default BLAKE2b of 128 bits."""
    digest = digest or hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Create a folder if needed, and keep other commands from writing into it.

    The lock is the operating system's, so a killed command loses it, and over NFS other machines
    respect it. At the end its file is removed, as is a new folder that is still empty. Raises
    InputError, without any change, if another command has the lock or if the folder is not
    writable.
    """
    from filelock import FileLock, Timeout, UnixFileLock

    folder = Path(folder)
    file = folder / LOCK
    created: list[Path] = []
    # The fallback of filelock, a file whose existence is the lock, would survive a killed owner.
    lock = FileLock(file, fallback_to_soft=False)
    try:
        created = _create_folder(folder)
        lock.acquire(timeout=0)
        _write_owner(file)
    except Timeout:
        raise InputError(
            f"{folder} is in use: {_owner(file)} is writing into it. Wait until it has finished, "
            "or choose another --output."
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            _remove_empty(created)
            raise _unwritable(folder, error) from None
        print(
            f"{folder}: its file system has no locks. Make sure that no other command "
            "writes there at the same time.",
            file=sys.stderr,
        )
    try:
        yield
    finally:
        # Removed before the release: a process that has opened the file already notices, once it
        # gets the lock, that the file was removed, and tries again. On Windows `release` does it.
        if isinstance(lock, UnixFileLock):
            with suppress(OSError):
                file.unlink()
        lock.release()
        _remove_empty(created)


def check_writable(target: str | Path) -> None:
    """Raise InputError unless a file or folder with this name can be written, which is tried.

    For commands that run for a long time before they write.
    """
    target = Path(target)
    created: list[Path] = []
    # An existing folder is written into, or renamed, which also needs the right to write in it.
    folders = [target.parent, *([target] if is_folder(target) else [])]
    try:
        # A rename would replace even /dev/null.
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise OSError(errno.EINVAL, Message("it is no regular file"))
        created = _create_folder(target.parent)
        for folder in folders:
            # Named like a leftover (tempfile adds 8 characters), for `sweep` after a crash.
            with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", suffix=".tmp", dir=folder):
                pass
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        _remove_empty(created)


def is_folder(path: str | Path) -> bool:
    """Whether the folder exists; False, too, for a name that is too long for a file system."""
    return os.path.isdir(path)  # noqa: PTH112


def sweep(folder: Path) -> None:
    """Remove the temporary files and folders of killed processes.

    If a process was killed between the two renames of `temporary_folder`, only the old folder is
    left: it gets its name back.
    """
    for path in leftovers(folder):
        # .model.1a2b3c4d.old → model
        target = folder / path.name[1:].rsplit(".", 2)[0]
        if path.suffix == ".old" and not target.exists():
            path.replace(target)
        else:
            remove(path)


def leftovers(folder: Path) -> set[Path]:
    """Temporary files and folders of killed processes, new and replaced ones."""
    return {*folder.glob(".*.????????.tmp"), *folder.glob(".*.????????.old")}


def remove(path: Path) -> None:
    """Remove a file, a folder or a link if it exists; what a link refers to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unused(target: Path, suffix: str) -> Path:
    """A hidden name in the target's folder that nothing has; `leftovers` knows its form."""
    # Not tempfile's: its files and folders are private, whatever the user's umask.
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}{suffix}")


def _renamed(path: Path, target: Path) -> bool:
    """Rename, and return whether it was possible: Windows renames and replaces no open file.

    Virus scanners and indexers close a file soon, so several attempts are made; Excel does not.
    """
    for pause in PAUSES:
        with suppress(PermissionError):
            path.replace(target)
            return True
        time.sleep(pause)
    return False


def _kept(new: Path, target: Path) -> InputError:
    """Keep a file or folder that could not replace the target, under another name."""
    names = (target.with_name(f"{target.stem}-{n}{target.suffix}") for n in count(2))
    kept = next(name for name in names if not name.exists())
    new.replace(kept)
    return InputError(
        f"{target} is open in another program, such as Excel, so it was not replaced. The new "
        f"content is complete and is stored in {kept}. Close the other program and rename it, or "
        "run the same command again."
    )


def _create_folder(folder: Path) -> list[Path]:
    """Create a folder with its parents; return the new ones, the deepest first.

    If that fails, none of them is left.
    """
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        _remove_empty(missing)
        raise
    return missing


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _unwritable(target: Path, error: OSError) -> InputError:
    values = {"target": target, "reason": error.strerror}
    return InputError(Message("cannot write {target}: {reason}. Choose another place.", **values))


def _write_owner(file: Path) -> None:
    """Write the owner of a lock into its file, for the error message of other commands."""
    with suppress(OSError):  # the lock works without it
        file.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", "utf-8")


def _owner(file: Path) -> str:
    """The owner of a lock, if its file can be read: on Windows it cannot while it is locked."""
    try:
        process, host = file.read_text("utf-8").split()[:2]
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"


def _sync(path: Path) -> None:
    """Write the file or folder to the disk before the rename that makes it visible."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    writable = os.name == "nt"  # Windows syncs only files that are open for writing
    descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
