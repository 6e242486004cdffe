"""Files of text in any encoding, gzipped or plain → lines, one at a time.

Every line of a file is in one encoding: of UTF-8 and GB18030 the one that more lines speak for.
What is not in it comes out as lone surrogates (PEP 383), which `damage` finds: so a bad line is
met where it stands, and the lines after it are read.
"""

import codecs
import gzip
import re
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from roformer_tf.errors import InputError

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MARK = "\ufeff"
_THREE_BYTES = re.compile("[\u0800-\U0010ffff]")  # or four in UTF-8: Chinese, among others
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_TEXT = {"Cn", "Co", "Cs"}  # characters not assigned, private ones, halves


def is_stdin(path: str | Path) -> bool:
    """Tell whether a path is the "-" that stands for stdin."""
    return str(path) == "-"


def check_encoding(name: str) -> None:
    """Raise InputError unless the name is "auto", or an encoding's that Python knows."""
    try:
        "".encode("utf-8" if name == "auto" else name)
    except LookupError:
        raise InputError(
            f"there is no text encoding {name!r}. Give one such as utf-8, gb18030, big5 or "
            "utf-16, or leave --encoding out to have it found."
        ) from None


def read_lines(path: str | Path, encoding: str = "auto") -> Iterator[str]:
    """Yield the lines of a file, or of stdin for "-", without line ends and byte order mark.

    Stdin cannot be read twice: its first line that speaks for an encoding decides. Raises
    InputError for what cannot be opened or unzipped.
    """
    sure = encoding != "auto"
    if not sure and not is_stdin(path):
        encoding = find_encoding(path)
    with opened(path) as stream:
        if _is_wide(encoding):
            lines = _wide_lines(stream, encoding, path)
        elif sure:
            lines = (line.decode(encoding, "surrogateescape") for line in stream)
        else:
            lines = _lines_alike(stream, None if encoding == "auto" else encoding)
        for number, line in enumerate(lines):
            yield (line if number else line.removeprefix(_MARK)).removesuffix("\n")


def find_encoding(path: str | Path) -> str:
    """Tell "utf-16" by its mark, and "utf-8" from "gb18030" by which more lines speak for."""
    with opened(path) as stream:
        first = next(iter(stream), b"")
        if first.startswith(_UTF16_MARKS):
            return "utf-16"
        votes = Counter(map(_speaks_for, stream))
    votes[_speaks_for(first)] += 1
    return "gb18030" if votes["gb18030"] > votes["utf-8"] else "utf-8"


def utf16_codec(head: bytes) -> str | None:
    """Tell from the first bytes of a file that it is UTF-16, and which; None for anything else.

    It is by its mark. Without one, it has zeros (in line ends, digits and Latin letters), is not
    UTF-8 or a quarter zeros, and holds, read as UTF-16, no character that there is none of.
    """
    if head.startswith(_UTF16_MARKS):
        return "utf-16"
    zeros = head.count(b"\0")
    if not zeros or (4 * zeros < len(head) and _is_utf8(head)):
        return None
    likely = ["utf-16-be", "utf-16-le"]
    if 2 * head[1::2].count(b"\0") > zeros:  # the likelier one first: as Latin letters have it
        likely.reverse()
    return next((codec for codec in likely if _is_text(head, codec)), None)


def utf16_lines(stream: Iterable[bytes], codec: str) -> Iterator[bytes]:
    r"""Yield the lines of a UTF-16 file in UTF-8; what is damaged there is no UTF-8 here either.

    Lines end in \n, whose byte may as well be half of a character: 上 is 0A 4E.
    """
    rest = ""
    try:
        for text in codecs.iterdecode(stream, codec, "surrogatepass"):
            *lines, rest = (rest + text).split("\n")
            yield from (f"{line}\n".encode("utf-8", "surrogatepass") for line in lines)
    except UnicodeDecodeError:  # it ends in the middle of a character
        rest += "\ud800"
    if rest:
        yield rest.encode("utf-8", "surrogatepass")


def damage(text: str) -> str:
    """Say what makes a text unreadable; "" if nothing does."""
    if "\0" in text:
        return "holds a NUL character, as UTF-16 does: name the file's --encoding"
    if _SURROGATE.search(text):
        return "is not in the encoding of the rest of the file, or of --encoding"
    return ""


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file, unzipped if its name says so, or stdin for "-"; errors become InputErrors."""
    if is_stdin(path):
        yield sys.stdin.buffer
        return
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream  # type: ignore[misc]  # a GzipFile is one in all but name
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(
            f"{path} is damaged: its gzip data is cut off, or none. Copy it again."
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}. Check the path and its permissions."
        ) from None


def _is_text(head: bytes, codec: str) -> bool:
    """Tell whether the beginning of a file has a meaning in UTF-16; it may be cut off."""
    text = head.decode(codec, "replace").rstrip("\ufffd")
    return not any(c in "\0\ufffd" or unicodedata.category(c) in _NO_TEXT for c in text)


def _is_utf8(head: bytes) -> bool:
    """Tell whether the beginning of a file is UTF-8; its last character may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _speaks_for(line: bytes) -> str | None:
    """Tell which encoding a line is in; None if it can be both, or neither.

    Two-byte characters of UTF-8 are Chinese in GB18030, so they alone say nothing.
    """
    if line.isascii():
        return None
    try:
        return "utf-8" if _THREE_BYTES.search(line.decode("utf-8")) else None
    except UnicodeDecodeError:
        pass
    try:
        line.decode("gb18030")
    except UnicodeDecodeError:
        return None
    return "gb18030"


def _lines_alike(lines: Iterable[bytes], encoding: str | None) -> Iterator[str]:
    """Decode lines, of which those that speak for another encoding are damaged.

    Without an encoding the first line that speaks for one decides.
    """
    for line in lines:
        own = _speaks_for(line)
        encoding = encoding or own
        codec = "ascii" if own not in (None, encoding) else encoding or "utf-8"
        yield line.decode(codec, "surrogateescape")


def _is_wide(encoding: str) -> bool:
    """Tell whether a line end is more than one byte, as in UTF-16."""
    return encoding != "auto" and len("\n".encode(encoding)) > 1


def _wide_lines(chunks: Iterable[bytes], encoding: str, path: str | Path) -> Iterator[str]:
    """Decode first, and split into lines then."""
    rest = ""
    try:
        for text in codecs.iterdecode(chunks, encoding, "surrogatepass"):
            *lines, rest = (rest + text).split("\n")
            yield from lines
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not {encoding}, or cut off: {error.reason}. Give another --encoding."
        ) from None
    if rest:
        yield rest
