"""Files and URLs, compressed or plain → bytes.

A URL is anything that fsspec opens, such as s3://bucket/part-*.jsonl.zst or https://…; what its
protocol needs is installed beside this package (s3fs, gcsfs, aiohttp, …).
"""

import glob
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from backports.zstd import ZstdError, ZstdFile

from roformer_tf.errors import InputError


class DamagedError(Exception):
    """Compressed data that cannot be read on; the text says of which kind."""


@dataclass(frozen=True, order=True)
class StoredFile:
    """A file, here or elsewhere, as it was when it was found."""

    url: str
    """An absolute path, or a URL."""
    size: int
    """Bytes, as it lies there; 0 where that is not told."""
    stamp: int | str
    """What changes when the file does."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(self.url).name

    @property
    def kind(self) -> str:
        """What its name ends in but for the compression: ".txt" of "a.txt.gz"."""
        return Path(self.name.lower().removesuffix(self.compression)).suffix

    @property
    def compression(self) -> str:
        """A key of `DECOMPRESSORS`; "" for none."""
        suffix = Path(self.name.lower()).suffix
        return suffix if suffix in DECOMPRESSORS else ""

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open it as it lies there. Raises InputError where that fails, or reading it does."""
        try:
            with _opened(self.url) as raw:
                yield raw
        except OSError as error:
            raise InputError(
                f"cannot read {self.url}: {error.strerror or error}. Make it readable, or leave "
                "it out."
            ) from None


def find(pattern: str) -> list[StoredFile]:
    """List the files that a path, a pattern or a URL names; none if there are none.

    A file whose own name has brackets is itself. Raises InputError for a URL that cannot be
    looked up, as for want of a package.
    """
    if is_url(pattern):
        with _explained(pattern):
            return _found_elsewhere(pattern)
    path = Path(pattern).expanduser()
    names = [path]
    if not path.is_file():
        names = [Path(x) for x in glob.glob(str(path), recursive=True)]  # noqa: PTH207 (absolute)
    found = [name.resolve() for name in names if name.is_file()]
    return [StoredFile(str(x), x.stat().st_size, x.stat().st_mtime_ns) for x in found]


def is_url(text: str) -> bool:
    """Whether it is to be opened by fsspec."""
    return "://" in text


@contextmanager
def decompressed(raw: BinaryIO, compression: str) -> Iterator[Any]:
    """Decompress while reading; `compression` is a key of `DECOMPRESSORS`, or "" for none.

    Raises DamagedError where the data is cut off or broken, once that place is reached.
    """
    try:
        yield DECOMPRESSORS[compression](raw) if compression else raw
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, ZstdError):
        raise DamagedError(f"{compression[1:]} data cut off or damaged here") from None


DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lzma.LZMAFile,
    ".zst": ZstdFile,
}


def _found_elsewhere(pattern: str) -> list[StoredFile]:
    import fsspec

    system, path = fsspec.core.url_to_fs(pattern)
    paths = [path] if system.isfile(path) else filter(system.isfile, system.glob(path))
    return [
        StoredFile(system.unstrip_protocol(x), system.info(x)["size"] or 0, str(system.ukey(x)))
        for x in paths
    ]


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    if not is_url(url):
        with Path(url).open("rb") as raw:
            yield raw
        return
    import fsspec

    with _explained(url):
        file = fsspec.open(url, "rb").open()
    with file:
        yield file


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn what fsspec and its protocols raise into a message."""
    try:
        yield
    except ImportError as error:  # its text says what to install
        raise InputError(f"cannot open {url}: {error}") from None
    except (ValueError, OSError) as error:
        raise InputError(
            f"cannot open {url}: {error}. Check the address and your access to it."
        ) from None
