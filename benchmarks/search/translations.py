"""A program's strings in Chinese and English, as training pairs for a search model.

    python -m benchmarks.search.translations --output translations.jsonl    on Debian or Ubuntu

The pairs are strings of LibreOffice's menus and dialogs, from Debian's package
libreoffice-l10n-zh-cn. They are not part of the manual. From them the model learns that 字体颜色
means "Font Color", which occurs in untranslated passages of the manual.
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
# First bytes of a gettext catalogue.
_MAGIC = 0x950412DE
_LETTERS = re.compile(r"[A-Za-z]{2}")
# Markup and accelerator keys: 打开(~O)... and ~Open...
_KEYS = re.compile(r"<[^>]*>|\((?:[~_]?[A-Z])\)|[~_]")


@dataclass(frozen=True)
class TranslationConfig:
    """Write pairs of a Chinese string and its English original."""

    output: Path
    """File for the pairs: {"chinese": …, "english": …} a line."""
    package: Path | None = None
    """Folder with the unpacked package. Default: apt downloads it."""


def main(config: TranslationConfig) -> None:
    """Write the pairs. Raises InputError if the package is missing or has no catalogue."""
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
    """Yield Chinese strings and their originals from all catalogues below a folder."""
    for path in sorted(folder.rglob("*.mo")):
        for original, translation in catalogue(path):
            chinese, english = _plain(translation), _plain(original)
            if CHINESE.search(chinese) and _LETTERS.search(english):
                yield chinese, english


def catalogue(path: Path) -> Iterator[tuple[str, str]]:
    """Yield originals and translations of a gettext catalogue (.mo; see the GNU gettext manual).

    Only the first plural form is read; contexts are dropped. Raises InputError for other files.
    """
    data = path.read_bytes()
    if len(data) < 28 or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise InputError(f"{path} is no catalogue of gettext (.mo). Fetch {PACKAGE} again.")
    count, *tables = struct.unpack_from("<3I", data, 8)
    for number in range(count):
        original, translation = (_string(data, table + 8 * number) for table in tables)
        yield original.rpartition("\x04")[2], translation


def _string(data: bytes, entry: int) -> str:
    """Return the first string of an entry (length, offset) in a catalogue's table."""
    length, offset = struct.unpack_from("<2I", data, entry)
    return data[offset : offset + length].split(b"\0")[0].decode(errors="replace")


def _plain(text: str) -> str:
    return " ".join(_KEYS.sub("", text).split())


if __name__ == "__main__":
    main(settings_of(TranslationConfig))
