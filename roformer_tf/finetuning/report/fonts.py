"""The packaged Chinese font, cut down to the characters of one page."""

import io
from collections.abc import Iterable

import pylopdf_fonts_zh_cn


def cut_font(characters: Iterable[str], serif: bool = False) -> bytes:
    """Noto Sans SC, or Serif, with no more than the characters it has among these, as WOFF.

    Some hundred bytes a character, where the whole font has 8 MB.
    """
    from fontTools.subset import Options, Subsetter, load_font, save_font

    options = Options(flavor="woff", layout_features=[], notdef_outline=True, desubroutinize=True)
    cutter = Subsetter(options)
    cutter.populate(unicodes={ord(character) for character in characters})
    buffer = io.BytesIO()
    fonts = pylopdf_fonts_zh_cn
    with load_font(fonts.serif_path() if serif else fonts.sans_path(), options) as font:
        cutter.subset(font)
        save_font(font, buffer, options)
    return buffer.getvalue()
