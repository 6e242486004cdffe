"""Files and URLs, compressed or plain → bytes.

A URL is anything that fsspec opens, such as s3://bucket/part-*.jsonl.zst or https://…; the package
of its protocol has to be installed, too (s3fs, gcsfs, aiohttp, …).
"""

import glob
import gzip
import hashlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

from roformer_tf.errors import InputError

# Prefix of a URL: fsspec fetches the file into a folder that is removed with the process.
_FETCHED = "simplecache::"
# Bytes to read at a time.
PIECE = 2**16
PIECES = 16  # read from a file of more than a megabyte to identify its content

# Bytes of a line, or of the cells of a row: more than five million Chinese characters.
LONGEST = 1 << 24
# A file may unpack to this many times its size, if that is more than `UNSUSPICIOUS`. Usual texts
# unpack to 3 to 20 times their size.
MAX_RATIO = 100
# Every file may unpack to this many bytes.
UNSUSPICIOUS = 1 << 26


class UnreadableError(Exception):
    """A file is damaged or exceeds a limit. The message continues its name: "has …"."""


class Budget:
    """Counts the bytes that one file unpacks to."""

    def __init__(self, packed: int) -> None:
        """`packed`: bytes of the file."""
        self.packed = packed
        self._unpacked = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises UnreadableError if they are too many."""
        self._unpacked += size
        self.check(self._unpacked)

    def take_row(self, number: int, size: int) -> None:
        """Count a row. Raises UnreadableError as `take`, and if its cells are too large."""
        if size > LONGEST:
            raise UnreadableError(
                f"has more than {LONGEST >> 20} MiB in row {number:,}. Split its text"
            )
        self.take(size)

    def check(self, unpacked: int) -> None:
        """Raise UnreadableError if a file of this size may not unpack to this many bytes."""
        # The ratio alone would refuse small files: one line of zeros compresses a thousandfold.
        if unpacked > max(UNSUSPICIOUS, MAX_RATIO * self.packed):
            ratio = max(UNSUSPICIOUS / max(1, self.packed), MAX_RATIO)
            raise UnreadableError(
                f"has {self.packed / 1e6:,.2f} MB, but unpacks to more than {ratio:,.0f} times as "
                "much, which is not read. If you trust it, write it uncompressed, as .jsonl or .txt"
            )


def too_long(number: int) -> UnreadableError:
    """An error for a line that is too long."""
    return UnreadableError(
        f"has more than {LONGEST >> 20} MiB in line {number:,}. Put each text in a line of its own"
    )


class ReadError(InputError):
    """A file cannot be opened or read on, for example because a server is down.

    Results from the text before it are valid, and the same command continues.
    """

    def __init__(self, url: str, reason: object) -> None:
        self.reason = reason
        super().__init__(
            f"cannot read {url}: {reason}. What is done is kept: once the file can be read, the "
            "same command continues."
        )


@dataclass(frozen=True, order=True)
class StoredFile:
    """A local or remote file, in its state when it was listed."""

    url: str
    """An absolute path, or a URL."""
    size: int = 0
    """Bytes, as stored; 0 if unknown."""
    stamp: str = ""
    """Identifies the content: a hash (`content_key`), or its server's checksum or ETag; "" for
    none. It does not depend on the time of the last change: a copy is the same file."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(self.url).name

    @property
    def kind(self) -> str:
        """The suffix without that of a compression: ".txt" of "a.txt.gz"."""
        return Path(self.name.lower().removesuffix(self.compression)).suffix

    @property
    def compression(self) -> str:
        """A key of `DECOMPRESSORS`; "" for none."""
        suffix = Path(self.name.lower()).suffix
        return suffix if suffix in DECOMPRESSORS else ""

    def open(self) -> BinaryIO:
        """Open it without decompression; what was appended since it was listed is not read.

        Raises ReadError where that, or later reading, fails.
        """
        with _read_errors(self.url):
            file = _opened(self.url)
        return io.BufferedReader(_Reader(self.url, file, self.size or sys.maxsize), PIECE)


def find(pattern: str) -> list[StoredFile]:
    """List the files that match a path, a pattern or a URL.

    Raises InputError for a URL that cannot be looked up, for example without its package.
    """
    if is_url(pattern):
        with naming(pattern), _read_errors(pattern):
            import fsspec
            from fsspec.implementations.local import LocalFileSystem

            system, name = fsspec.core.url_to_fs(pattern)
            if not isinstance(system, LocalFileSystem):
                names = [name] if system.isfile(name) else filter(system.isfile, system.glob(name))
                return [_described(system, x) for x in names]
            pattern = name  # of file:// the path, so that a file that is named both ways is one
    path = Path(pattern).expanduser()
    paths = [path]
    if not path.is_file():  # the name of a file may have brackets: then it is no pattern
        paths = [Path(x) for x in glob.glob(str(path), recursive=True)]  # noqa: PTH207 (absolute)
    return [_local_file(x.resolve()) for x in paths if x.is_file()]


def is_url(text: str | Path) -> bool:
    """Whether fsspec has to open it."""
    return "://" in str(text)


def is_stdin(path: str | Path) -> bool:
    """Whether a path is "-", which means stdin."""
    return str(path) == "-"


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file, or stdin for "-"; decompress it if its suffix is that of a compression.

    A URL is fetched once, however often it is opened; the copy is removed when the process ends.
    Raises InputError for what cannot be opened, read on or decompressed.
    """
    if is_stdin(path):
        with naming("stdin"):
            yield sys.stdin.buffer
        return
    compression = StoredFile(str(path)).compression
    with naming(path), opened_as_stored(path) as raw, decompressed(raw, compression) as stream:
        yield stream


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Convert errors of reading into an InputError that names the file."""
    try:
        yield
    except UnreadableError as error:
        raise InputError(f"{path} {error}.") from None
    except ReadError as error:
        what = "address and your access to it" if is_url(path) else "path and its permissions"
        raise InputError(f"cannot read {path}: {error.reason}. Check the {what}.") from None


def opened_as_stored(path: str | Path) -> BinaryIO:
    """Open a file or URL without decompression; a URL is fetched once, as by `opened`.

    Raises InputError if opening fails, ReadError if reading does.
    """
    with naming(path):
        return StoredFile(f"{_FETCHED}{path}" if is_url(path) else str(path)).open()


@contextmanager
def decompressed(raw: BinaryIO, compression: str) -> Iterator[Any]:
    """Decompress while reading; `compression` is a key of `DECOMPRESSORS`, or "" for none.

    Raises UnreadableError at the position where the data is truncated or broken, and if it is far
    larger than the file.
    """
    try:
        yield io.BufferedReader(_Decompressed(raw, compression), PIECE) if compression else raw
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, ZstdError):
        raise UnreadableError(
            f"is damaged: its {compression} data is cut off, or none. Copy it again"
        ) from None


DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lzma.LZMAFile,
    # The limit of the library, for files of `zstd --long=31`; by default it stops at --long=27.
    ".zst": partial(ZstdFile, options={DecompressionParameter.window_log_max: 31}),
}


def content_key(read: Callable[[int, int], bytes], size: int) -> str:
    """Hash the content of a file: 128 bits. From more than a megabyte, 16 or 17 chunks are read.

    `read(start, stop)` returns the bytes between two positions.
    """
    digest = hashlib.blake2b(digest_size=16)
    last = max(0, size - PIECE)  # the first and the last chunk are always read
    # A small file is read without gaps, a large one at equal distances.
    step = PIECE if size <= PIECES * PIECE else last // (PIECES - 1)
    for start in sorted({*range(0, last, step), last}):
        digest.update(read(start, min(start + PIECE, size)))
    return digest.hexdigest()


def _local_file(path: Path) -> StoredFile:
    """Describe a local file. Raises ReadError if it cannot be read."""
    # Without a stamp first, because the hash needs an open file.
    file = StoredFile(str(path), path.stat().st_size, "")
    with file.open() as raw:

        def read(start: int, stop: int) -> bytes:
            raw.seek(start)
            return raw.read(stop - start)

        return replace(file, stamp=content_key(read, file.size))


def _described(system: Any, path: str) -> StoredFile:
    """Describe a file of an fsspec file system, by its checksum there or by its content."""
    about = {name.lower(): value for name, value in system.info(path).items()}
    size = about["size"] or 0
    names = ("etag", "md5hash", "content-md5", "digest")  # of the protocols
    stamp = next((str(about[name]) for name in names if about.get(name)), "")
    if not stamp and size:
        stamp = content_key(lambda start, stop: bytes(system.cat_file(path, start, stop)), size)
    return StoredFile(system.unstrip_protocol(path), size, stamp)


def _opened(url: str) -> Any:
    """Open a path or a URL. Raises its protocol's errors."""
    if not is_url(url):
        return Path(url).open("rb", buffering=0)
    import fsspec

    return fsspec.open(url, "rb").open()


class _Reader(io.RawIOBase):
    """An open file that raises ReadError for all errors.

    The library of each protocol has its own errors. Some of them, such as EOFError, would otherwise
    look like damaged content.
    """

    def __init__(self, url: str, file: Any, size: int) -> None:
        """`size`: bytes to read at most. A log may grow, but all passes must read the same."""
        self._url, self._file, self._size = url, file, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(place, whence)
        return self.tell()

    def readinto(self, buffer: Any) -> int:
        with _read_errors(self._url):
            data = self._file.read(min(len(buffer), max(0, self._size - self._file.tell())))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Decompressed(io.RawIOBase):
    """The decompressed data of an open file, counted."""

    def __init__(self, raw: BinaryIO, compression: str) -> None:
        self._raw = raw
        self._stream = DECOMPRESSORS[compression](raw)
        self._budget = Budget(0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._stream.readinto1(buffer))  # what is there before any damage
        # Bytes read so far instead of the size, which a server may not know.
        self._budget.packed = max(1, self._raw.tell())
        self._budget.take(count)
        return count


def _reason(error: Exception) -> str:
    """The message of an error, or at least its class."""
    message = getattr(error, "strerror", None)
    if isinstance(error, FileNotFoundError) and not message:  # fsspec's message is only the path
        message = "there is no such file"
    return message or str(error).rstrip(".") or type(error).__name__


@contextmanager
def _read_errors(url: str) -> Iterator[None]:
    """Convert all errors into a ReadError; a missing package into an InputError."""
    try:
        yield
    except ImportError as error:  # its message names the package to install
        raise InputError(f"cannot open {url.removeprefix(_FETCHED)}: {error}") from None
    except Exception as error:  # the library of each protocol has its own exceptions
        raise ReadError(url, _reason(error)) from None
