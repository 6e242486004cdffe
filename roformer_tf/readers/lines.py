"""Bytes in any encoding → lines of text, one at a time.

All lines of a file have one encoding: UTF-8, GB18030 or Big5, whichever most of the first lines
indicate. A line in another one becomes a `DamagedLine`, and reading continues with the next line.
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.readers.streams import LONGEST, UnreadableError, is_stdin, opened, too_long

# Bytes at the beginning of a file from which its encoding is detected.
SAMPLE = 1 << 18

# What is wrong with a damaged line.
NOT_ENCODED = "is not in the encoding of the rest of the file, or of --encoding"
HALVED = r"holds half of a character, such as the JSON escape \ud83d alone: write the whole one"

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BYTE_ORDER_MARK = "\ufeff"
_QUOTED = re.compile(r'"[^"]*(?:"|\Z)')
_THREE_BYTES = re.compile("[\u0800-\U0010ffff]")  # or four in UTF-8: Chinese, among others
_SURROGATE = re.compile("[\ud800-\udfff]")
_PRIVATE = re.compile("[\ue000-\uf8ff]")


class DamagedLine(str):
    """A line in another encoding than its file; lone surrogates replace its bytes (PEP 383)."""


class TextLines:
    r"""The lines of a file as text, with line ends and without byte order mark; to be read once.

    b"\xc4\xe3\xba\xc3\n" → "你好\n", and `encoding` is "gb18030"
    """

    def __init__(self, stream: Any, encoding: str = "auto", sample: int = SAMPLE) -> None:
        """`stream`: a binary file; `sample`: bytes to read ahead for the detection.

        Reading raises UnreadableError for a line that is too long, for lines that end in CR, and
        for what is no text.
        """
        self.encoding = None if encoding == "auto" else encoding
        """The encoding; None until it is detected."""
        # Lines; one that is too long is split into several chunks.
        self._chunks = iter(partial(stream.readline, LONGEST), b"")
        self._sample = sample

    def __iter__(self) -> Iterator[str]:
        lines = self._decoded()
        for first in lines:
            # `removeprefix` returns a plain str, but a DamagedLine has to stay one.
            yield type(first)(first.removeprefix(BYTE_ORDER_MARK))
            break
        yield from lines

    def _decoded(self) -> Iterator[str]:
        head, rest = _look_ahead(self._chunks, self._sample)
        start = b"".join(head)
        self.encoding = self.encoding or utf16_codec(start)
        wide = self.encoding if self.encoding and _is_wide(self.encoding) else ""
        # Before the encoding is known, latin-1 is enough: the bytes of CR, LF and quotes are no
        # part of other characters in UTF-8, GB18030 or Big5.
        if _ends_in_cr(start.decode(wide or "latin-1", "replace")):
            raise UnreadableError(
                "has lines that end in CR alone, as old programs of the Mac write them. Save it as "
                '"CSV UTF-8", or with other line ends'
            )
        if wide:
            return _wide_lines(chain(head, rest), wide)
        lines = _checked_lengths(chain(head, rest))
        if self.encoding:
            return map(partial(_decoded, encoding=self.encoding), lines)
        encoding = _majority_encoding(head)
        # A text may hold some bytes of zero, or some that do not decode; not both, and many.
        text = "" if encoding == "utf-8" else start.decode("gb18030", "replace")
        if "\0" in text and 50 * text.count("\ufffd") > len(text):
            raise UnreadableError(
                "is no text: unpack it, or name its --encoding, as utf-16-le or utf-16-be"
            )
        self.encoding = encoding
        return _consistent_lines(lines, encoding) if encoding else self._undecided(lines)

    def _undecided(self, lines: Iterator[bytes]) -> Iterator[str]:
        """Decode lines until one indicates an encoding, which holds for the rest."""
        for line in lines:
            self.encoding = encoding_of(line)
            if self.encoding:
                yield from _consistent_lines(chain([line], lines), self.encoding)
            else:
                yield _decoded(line, "utf-8")


def check_encoding(name: str) -> None:
    """Raise InputError unless the name is "auto", or an encoding that Python supports."""
    try:
        "".encode("utf-8" if name == "auto" else name)
    except LookupError:
        raise InputError(
            f"there is no text encoding {name!r}. Give one such as utf-8, gb18030, big5 or "
            "utf-16, or remove --encoding to detect it."
        ) from None


def text_lines(path: str | Path, encoding: str = "auto") -> Iterator[str]:
    """Yield the lines of a file, or of stdin for "-", with line ends and without byte order mark.

    On stdin the first line that indicates an encoding decides, without waiting for more lines.
    Raises InputError for what cannot be opened or decompressed.
    """
    with opened(path) as stream:
        yield from TextLines(stream, encoding, 1 if is_stdin(path) else SAMPLE)


def find_encoding(path: str | Path) -> str:
    """The encoding that `text_lines` detects; "utf-8" for pure ASCII."""
    with opened(path) as stream:
        lines = TextLines(stream)
        any(lines.encoding for _ in lines)  # reads until it is known
        return lines.encoding or "utf-8"


def utf16_codec(head: bytes) -> str | None:
    """UTF-16, if its byte order mark begins a file; None for anything else."""
    return "utf-16" if head.startswith(_UTF16_MARKS) else None


def damage(text: str) -> str:
    """Why a text is unreadable; "" if it is readable."""
    if "\0" in text:
        return "holds a NUL character: remove it, or name the --encoding of a UTF-16 file"
    if surrogate := _SURROGATE.search(text):
        # Those that replace bytes; other ones are in the text itself.
        return NOT_ENCODED if "\udc80" <= surrogate[0] <= "\udcff" else HALVED
    return ""


def _look_ahead(stream: Iterable[bytes], size: int) -> tuple[list[bytes], Iterator[bytes]]:
    """Read lines of `size` bytes ahead: these lines, and an iterator over the rest.

    An error, for example in truncated compressed data, is raised after the lines before it.
    """
    lines = iter(stream)
    head = []
    try:
        for line in lines:
            head.append(line)
            size -= len(line)
            if size <= 0:
                break
    except Exception as error:
        # Raised later, so that whole lines before the damage are still examples.
        return head, _failing(error)
    return head, lines


def _failing(error: Exception) -> Iterator[bytes]:
    """The rest of a stream that cannot be read: raises the error."""
    yield from ()
    raise error


def _majority_encoding(lines: list[bytes]) -> str | None:
    """The encoding that most lines indicate; None if no line does, though later ones may."""
    try:
        text = b"".join(lines).decode("utf-8")
    except UnicodeDecodeError:
        votes = Counter(map(encoding_of, lines))
        # Of encodings with equally many lines the first one is chosen.
        best = max(("utf-8", "gb18030", "cp950"), key=votes.__getitem__)
        return best if votes[best] else None
    if _THREE_BYTES.search(text):
        return "utf-8"
    # A line of GB18030 may look like UTF-8 by chance, but not a quarter of a megabyte.
    return "utf-8" if len(text) > SAMPLE // 4 and not text.isascii() else None


def encoding_of(line: bytes) -> str | None:
    """The encoding of a line; None if several are possible, or none."""
    text = _decoded(line, "utf-8")
    if type(text) is not DamagedLine:
        # A two-byte character of UTF-8 is a Chinese one in GB18030: it does not decide.
        return "utf-8" if _THREE_BYTES.search(text) else None
    text = _decoded(line, "gb18030")
    if type(text) is DamagedLine:
        return None
    # The most frequent characters of Big5 are private ones in GB18030, which texts rarely have.
    is_big5 = _PRIVATE.search(text) and type(_decoded(line, "cp950")) is not DamagedLine
    return "cp950" if is_big5 else "gb18030"


def _consistent_lines(lines: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Decode lines; those in another encoding are damaged."""
    if encoding == "utf-8":  # a line in GB18030 fails to decode
        return map(partial(_decoded, encoding=encoding), lines)
    # UTF-8 may decode as GB18030, to wrong characters. "ascii" makes such a line a damaged one.
    return (_decoded(line, "ascii" if encoding_of(line) == "utf-8" else encoding) for line in lines)


def _decoded(line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return DamagedLine(line.decode("ascii", "surrogateescape"))


def _is_wide(encoding: str) -> bool:
    """Whether a line end has several bytes, as in UTF-16."""
    # The difference of two lengths does not count a byte order mark.
    return len("\n\n".encode(encoding)) - len("\n".encode(encoding)) > 1


def _wide_lines(chunks: Iterable[bytes], encoding: str) -> Iterator[str]:
    r"""Decode first, then split into lines.

    The byte of \n may also be half of a character: 上 is 0A 4E.
    """
    rest = ""
    number = 1
    try:
        for text in codecs.iterdecode(chunks, encoding, "surrogatepass"):
            *lines, rest = (rest + text).split("\n")
            yield from (_checked(f"{line}\n") for line in lines)
            number += len(lines)
            # A character has at least two bytes here.
            if 2 * len(rest) > LONGEST:
                raise too_long(number)
    except UnicodeDecodeError:  # the file ends inside a character
        # By a lone surrogate `_checked` recognizes the line as damaged.
        rest += "\ud800"
    except UnicodeError:  # of UTF-16 without a byte order mark
        reason = f"has no byte order mark: name its --encoding as {encoding}-le or {encoding}-be"
        raise UnreadableError(reason) from None
    if rest:
        yield _checked(rest)


def _ends_in_cr(head: str) -> bool:
    """Whether CR alone ends the lines of a file, from its beginning.

    Then LF is only in quoted cells: Excel on a Mac writes line breaks in cells as LF. A text that
    merely contains a CR has lines that end in LF.
    """
    if head.count("\r") == head.count("\r\n"):
        return False
    bare = _QUOTED.sub("", head)
    return "\r" in bare and "\n" not in bare


def _checked_lengths(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Raise UnreadableError at a chunk that is not a whole line."""
    for number, line in enumerate(lines, start=1):
        if len(line) >= LONGEST:
            raise too_long(number)
        yield line


def _checked(line: str) -> str:
    return DamagedLine(line) if _SURROGATE.search(line) else line
