"""The files of a checkpoint, in a folder or in a zip, which is unpacked into a temporary folder.

A zip is not trusted. Members of it are written under the last part of their names, into that
folder; links and the like become plain files. No more is unpacked than a checkpoint can have.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from roformer_tf.errors import InputError
from roformer_tf.files import json_object
from roformer_tf.translation import Message

VOCABULARY = "vocab.txt"
BERT_CONFIG = "bert_config.json"
"""The config of a TF1 checkpoint."""

# Hugging Face's layout, which is also our own format.
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
WEIGHT_FILES = (WEIGHTS, SHARDS, PICKLE)
"""Files that may contain the weights; if there are several, the first is read."""
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

TASK_FILE = "task.json"
"""File of a fine-tuned model: its task, labels, columns and maximum length."""
LEXICAL_FILE = "lexical.npz"
"""File of a fine-tuned model whose predictions are combined with those of TF-IDF."""
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
"""Files of sentence-transformers: what it computes, how it pools, the maximum number of tokens, and
what it puts before texts."""

# Limits of a zip. The largest released model has 1.3 GB, and all of them shrink to more than half.
MAX_BYTES = 16 << 30
"""Maximum number of unpacked bytes."""
MAX_RATIO = 100
"""Maximum ratio of unpacked to packed bytes, for zips that unpack to more than `UNSUSPICIOUS`."""
UNSUSPICIOUS = 1 << 30
"""Any zip may unpack to this many bytes: weights that are all zero shrink to a thousandth."""


class Files(ExitStack):
    """The files under a path, a folder or a zip, which is opened once; a context manager.

    A zip is unpacked only if `folder` is used, and the unpacked files are removed at the end. An
    InputError raised in the context names the zip instead of the temporary folder.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._small: dict[str, bytes | None] = {}

    @cached_property
    def is_zip(self) -> bool:
        """Whether the path is a zip, or has the name of one, as a truncated zip does.

        Raises OSError for a file that cannot be read.
        """
        if self.path.is_dir():
            return False
        # zipfile.is_zipfile looks for the end of a zip, which a truncated one lacks.
        self._file.seek(0)
        return self._file.read(4) == b"PK\x03\x04" or self.path.suffix == ".zip"

    def read(self, name: str) -> bytes | None:
        """Content of a small file; None if there is none, or if the path is another file.

        Of a zip with a checkpoint only that folder counts; of any other zip each folder.
        Raises InputError for a zip that is damaged or too large, or has several files of this name.
        """
        if name not in self._small:
            self._small[name] = self._read(name)
        return self._small[name]

    def read_object(self, name: str) -> dict[str, Any]:
        """Content of a small JSON file; empty if there is none."""
        content, file = self.read(name), self.path / name
        return {} if content is None else json_object(content, file, "Fix or remove it.")

    def _read(self, name: str) -> bytes | None:
        if not self.is_zip:
            file = self.path / name
            return file.read_bytes() if file.is_file() else None
        with _zip_errors(self.path):
            end = PurePosixPath(name).parts
            members = [x for x in self._archive.infolist() if _path(x).parts[-len(end) :] == end]
            folders = _checkpoint_folders([_path(x) for x in self._archive.infolist()])
            wanted = {folder / name for folder in folders}
            # In a zip without a checkpoint `wanted` is empty, and a file in any folder counts.
            members = [x for x in members if not wanted or _path(x) in wanted]
            if not members:
                return None
            if len(members) > 1:
                several = ", ".join(info.filename for info in members)
                raise InputError(
                    f"{self.path} should contain one {name}, but contains several: {several}."
                )
            _check_size(members, self.path)
            with self._archive.open(members[0]) as member:
                # Without a size, zipfile would inflate everything before it cuts off what
                # exceeds the declared size.
                return member.read(members[0].file_size + 1)

    @cached_property
    def folder(self) -> Path:
        """A folder with the files of one checkpoint: the path itself, or its unpacked zip.

        Raises InputError for a zip that is damaged or too large, or that contains no checkpoint or
        several.
        """
        if self.path.is_dir():
            return self.path
        temporary = TemporaryDirectory(prefix="roformer-tf-", ignore_cleanup_errors=True)
        folder = Path(self.enter_context(temporary))
        with _zip_errors(self.path):
            for member in _checkpoint_files(self._archive, self.path):
                target = folder / _path(member).name
                with self._archive.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
        self.enter_context(_zip_in_errors(folder, self.path))
        return folder

    @cached_property
    def _file(self) -> BinaryIO:
        return self.enter_context(self.path.open("rb"))

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        with _zip_errors(self.path):
            if not zipfile.is_zipfile(self._file):
                raise InputError(
                    Message(
                        "{path} is not a complete zip file: another kind of file, or a broken "
                        "download. Download it again, or give a folder.",
                        path=self.path,
                    )
                )
            return self.enter_context(zipfile.ZipFile(self._file))


@contextmanager
def _zip_in_errors(folder: Path, path: Path) -> Iterator[None]:
    """Name the zip in an InputError instead of its temporary folder, which the user never saw."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(path))) from None


@contextmanager
def _zip_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a zip that cannot be read into an InputError."""
    try:
        yield
    except InputError:  # it is a ValueError, too
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path} cannot be unpacked: {error}. If it is damaged, download it again."
        ) from None


def _checkpoint_files(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The files in the folder of a zip's one checkpoint."""
    # On Windows, a name with a colon would be on another drive.
    files = [info for info in archive.infolist() if ":" not in info.filename]
    files = [info for info in files if not info.filename.endswith("/")]
    folders = _checkpoint_folders([_path(info) for info in files])
    if not folders:
        raise InputError(
            f"{path} contains no checkpoint: no {BERT_CONFIG}, and no {CONFIG} next to "
            f"{WEIGHTS}. Give a released zip, or the folder of a checkpoint. Unpack an export, and "
            "give its folder."
        )
    if len(folders) > 1:
        names = ", ".join(sorted(map(str, folders)))
        raise InputError(
            f"{path} contains several checkpoints: {names}. Unpack it and give the folder of one."
        )
    files = [info for info in files if _path(info).parent in folders]
    _check_size(files, path)
    return files


def _checkpoint_folders(files: Sequence[PurePosixPath]) -> set[PurePosixPath]:
    """The folders in a zip that contain a checkpoint's config."""
    with_weights = {file.parent for file in files if file.name in WEIGHT_FILES}
    # A config.json alone is no checkpoint: other parts of a model have such a file, too.
    folders = {
        file.parent
        for file in files
        if file.name == BERT_CONFIG or (file.name == CONFIG and file.parent in with_weights)
    }
    # A folder within another is a part of it, such as a Dense module of sentence-transformers.
    return {folder for folder in folders if folders.isdisjoint(folder.parents)}


def _check_size(files: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Raise InputError for a zip whose files would unpack to more than a checkpoint has.

    The declared sizes can be relied on: zipfile returns no byte beyond them.
    """
    unpacked = sum(info.file_size for info in files)
    packed = path.stat().st_size
    if unpacked > min(MAX_BYTES, max(UNSUSPICIOUS, MAX_RATIO * packed)):
        raise InputError(
            f"{path} has {packed / 1e9:.2g} GB, but would unpack to {unpacked / 1e9:.3g} GB: no "
            "checkpoint is packed like that. If you trust it, unpack it and give the folder."
        )


def _path(info: zipfile.ZipInfo) -> PurePosixPath:
    return PurePosixPath(info.filename.replace("\\", "/"))  # old programs of Windows write "\"
