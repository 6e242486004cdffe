"""Folders and zips alike; a zip is unpacked without trust, into a folder that goes away.

Nothing is written outside that folder, whatever a zip's names say, and no more into it than a
checkpoint may hold, whatever its sizes say.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from roformer_tf.checkpoints import huggingface, tf1
from roformer_tf.errors import InputError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

MAX_BYTES = 16 << 30
"""What a zip may unpack to. The largest released model has 1.3 GB."""
MAX_RATIO = 100
"""Times its own size that a zip may unpack to, from `UNSUSPICIOUS` on. Released ones: below 2."""
UNSUSPICIOUS = 1 << 30
"""Bytes that any zip may unpack to: weights that are all zeros are deflated to a thousandth."""
MAX_SMALL_FILE = 64 << 20
"""Bytes of a file that is read into memory, such as a vocabulary."""
SMALL_FILES = (
    tf1.CONFIG,
    tf1.VOCABULARY,
    huggingface.CONFIG,
    huggingface.SHARDS,
    huggingface.TOKENIZER_CONFIG,
)
"""Files of a checkpoint that are read into memory whole."""


class Files:
    """The files under a path, which is opened once: those of a folder, or of a zip.

    A context: unpacked files are gone at its end, and after every error; an InputError raised in
    it names the zip in place of the folder where they lay. Nothing is read before it is asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = ExitStack()
        self._small: dict[str, bytes | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.__exit__(kind, error, trace)

    @cached_property
    def is_zip(self) -> bool:
        """Whether it is a zip, or is named like one: a truncated one is one, too.

        Raises OSError for a file that cannot be read.
        """
        if self.path.is_dir():
            return False
        self._file.seek(0)
        return self._file.read(4) == b"PK\x03\x04" or self.path.suffix == ".zip"

    def read(self, name: str) -> bytes | None:
        """One small file of a folder or, in whichever folder, of a zip; None without it.

        It is read once. Raises InputError for a zip that is damaged, or holds several files of the
        name, and for a file that would not be unpacked, or that is too large.
        """
        if name not in self._small:
            self._small[name] = self._read(name)
        return self._small[name]

    def _read(self, name: str) -> bytes | None:
        if self.path.is_dir():
            file = self.path / name
            return file.read_bytes() if file.is_file() else None
        with _explained(self.path):
            found = [info for info in self._archive.infolist() if _path(info).name == name]
            if not found:
                return None
            if len(found) > 1:
                several = ", ".join(info.filename for info in found)
                raise InputError(
                    f"{self.path} should hold one {name}, but holds several: {several}."
                )
            _check_member(found[0], self.path)
            _check_small(found[0], self.path)
            with self._archive.open(found[0]) as member:
                # Asked for all, zipfile inflates all, and only then cuts off what was not declared.
                return member.read(found[0].file_size + 1)

    @cached_property
    def folder(self) -> Path:
        """A folder with the files of one checkpoint: the path itself, or its zip unpacked.

        TensorFlow's reader can take its name. Raises InputError for a zip that is damaged, unsafe
        or too large, or holds no checkpoint or several.
        """
        folder = self.path
        if not self.path.is_dir():
            folder = Path(
                self._held.enter_context(
                    TemporaryDirectory(prefix="roformer-tf-", ignore_cleanup_errors=True)
                )
            )
            with _explained(self.path):
                for member in _checkpoint_files(self._archive, self.path):
                    _unpack(self._archive, member, folder)
            self._held.enter_context(_zip_in_errors(folder, self.path))
        return self._held.enter_context(tf1.plainly_named(folder))

    @cached_property
    def _file(self) -> BinaryIO:
        return self._held.enter_context(self.path.open("rb"))

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        """The zip. Raises InputError for another file."""
        try:
            whole = zipfile.is_zipfile(self._file)
        except OSError:
            whole = False
        if not whole:
            raise InputError(
                f"{self.path} is no whole zip file: another kind of file, or a broken download. "
                "Fetch it again, or give a folder."
            )
        with _explained(self.path):
            return self._held.enter_context(zipfile.ZipFile(self._file))


@contextmanager
def _zip_in_errors(folder: Path, path: Path) -> Iterator[None]:
    """Name the zip in an InputError in place of its folder: the user does not know that one."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(path))) from None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say in our words what is wrong with a zip that cannot be read."""
    try:
        yield
    except InputError:  # a ValueError, but ours
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path} cannot be unpacked: {error}. If it is damaged, fetch it again."
        ) from None


def _checkpoint_files(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The files in the folder of a zip's one checkpoint, if all of the zip is harmless."""
    for info in archive.infolist():
        _check_member(info, path)
    files = [info for info in archive.infolist() if not info.is_dir()]
    inside = _checkpoint_folder([_path(info) for info in files], path)
    files = [info for info in files if _path(info).parent == inside]
    names = [_path(info).name.casefold() for info in files]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} cannot be unpacked: it holds {twice} twice. Fetch it again.")
    for info in files:
        if _path(info).name in SMALL_FILES:
            _check_small(info, path)
    _check_size(sum(info.file_size for info in files), path)
    return files


def _check_member(info: zipfile.ZipInfo, path: Path) -> None:
    """Refuse a member that means harm."""
    if objection := _objection(info):
        raise InputError(
            f"{path} cannot be unpacked: {info.orig_filename!r} in it {objection}. "
            "Fetch it again from where it was released."
        )


def _check_small(info: zipfile.ZipInfo, path: Path) -> None:
    """Refuse a file to be read into memory that is too large for it, by its declared size."""
    if info.file_size > MAX_SMALL_FILE:
        raise InputError(
            f"{path} holds a {_path(info).name} of {info.file_size:,} bytes, which can be none. "
            "Fetch it again from where it was released."
        )


def _objection(info: zipfile.ZipInfo) -> str | None:
    """Say why a member of a zip is not unpacked, if so."""
    name = info.orig_filename  # zipfile has mended the other one
    if any(mark in name for mark in "\\:\0") or name[:1] in ("", "/") or ".." in name.split("/"):
        return "does not stay in its folder"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is neither stored nor deflated"
    return None


def _checkpoint_folder(files: Sequence[PurePosixPath], path: Path) -> PurePosixPath:
    """The folder in a zip that a checkpoint's config stands in."""
    beside_weights = {file.parent for file in files if file.name in huggingface.WEIGHT_FILES}
    found = {
        file.parent
        for file in files
        if file.name == tf1.CONFIG
        or (file.name == huggingface.CONFIG and file.parent in beside_weights)
    }
    if len(found) == 1:
        return found.pop()
    if not found:
        raise InputError(
            f"{path} holds no checkpoint: no {tf1.CONFIG}, and no {huggingface.CONFIG} beside "
            f"{huggingface.WEIGHTS}. Give a released zip, or the folder of a checkpoint."
        )
    folders = ", ".join(sorted(map(str, found)))
    raise InputError(
        f"{path} holds several checkpoints: {folders}. Unpack it and give the folder of one."
    )


def _check_size(unpacked: int, path: Path) -> None:
    """Refuse what no checkpoint unpacks to, by the sizes that the zip declares.

    They bind: zipfile gives no byte beyond a member's declared size.
    """
    packed = path.stat().st_size
    if unpacked > min(MAX_BYTES, max(UNSUSPICIOUS, MAX_RATIO * packed)):
        raise InputError(
            f"{path} has {packed / 1e9:.2g} GB, but would unpack to {unpacked / 1e9:.3g} GB: no "
            "checkpoint is packed like that. If you trust it, unpack it and give the folder."
        )


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> None:
    with archive.open(info) as source, (folder / _path(info).name).open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _path(info: zipfile.ZipInfo) -> PurePosixPath:
    return PurePosixPath(info.filename)
