"""What a program says in Chinese, and the same in English: other text that a search model reads.

    python -m benchmarks.search.translations --output translations.jsonl    on Debian or Ubuntu

The strings of LibreOffice's menus and dialogs, from Debian's package libreoffice-l10n-zh-cn. They
are no part of the manual and belong to none of its pages: from them a model learns that 字体颜色 is
"Font Color", as passages of the manual say it that nobody has translated.
"""

import json
import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command_line import settings_of
from benchmarks.debian import CHINESE, unpack
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

PACKAGE = "libreoffice-l10n-zh-cn"
# What a catalogue of gettext begins with.
_MAGIC = 0x950412DE
_LETTERS = re.compile(r"[A-Za-z]{2}")
# Markup, and which key opens a menu: 打开(~O)... and ~Open...
_KEYS = re.compile(r"<[^>]*>|\((?:[~_]?[A-Z])\)|[~_]")


@dataclass(frozen=True)
class TranslationConfig:
    """Make pairs of a Chinese string and its English original."""

    output: Path
    """The file of pairs: {"chinese": …, "english": …} a line."""
    package: Path | None = None
    """A folder with the package's files, if it is unpacked already. Default: apt downloads it."""


def main(config: TranslationConfig) -> None:
    """Write the pairs. Raises InputError where there is no package, or another one."""
    with tempfile.TemporaryDirectory() as folder:
        if config.package is None:
            unpack(PACKAGE, Path(folder))
        actual = sorted(set(pairs(config.package or Path(folder))))
    if not actual:
        raise InputError(f"{config.package} holds no catalogue (.mo) of Chinese strings.")
    with temporary_file(config.output) as temporary, temporary.open("w", encoding="utf-8") as file:
        for chinese, english in actual:
            row = {"chinese": chinese, "english": english}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def pairs(folder: Path) -> Iterator[tuple[str, str]]:
    """Chinese strings and their originals in all catalogues below a folder."""
    for path in sorted(folder.rglob("*.mo")):
        for original, translation in catalogue(path):
            chinese, english = _plain(translation), _plain(original)
            if CHINESE.search(chinese) and _LETTERS.search(english):
                yield chinese, english


def catalogue(path: Path) -> Iterator[tuple[str, str]]:
    """Originals and translations of a catalogue, as GNU gettext's manual describes the file (.mo).

    Of plural forms the first, without contexts. Raises InputError for another kind of file.
    """
    data = path.read_bytes()
    if len(data) < 28 or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise InputError(f"{path} is no catalogue of gettext (.mo). Fetch {PACKAGE} again.")
    count, *tables = struct.unpack_from("<3I", data, 8)
    for number in range(count):
        original, translation = (_string(data, table + 8 * number) for table in tables)
        yield original.rpartition("\x04")[2], translation


def _string(data: bytes, entry: int) -> str:
    """The first string of an entry (length, offset) of a catalogue's table."""
    length, offset = struct.unpack_from("<2I", data, entry)
    return data[offset : offset + length].split(b"\0")[0].decode(errors="replace")


def _plain(text: str) -> str:
    return " ".join(_KEYS.sub("", text).split())


if __name__ == "__main__":
    main(settings_of(TranslationConfig))
