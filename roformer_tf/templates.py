"""Pages and model cards from Jinja templates, and what goes into them."""

import base64
import functools
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roformer_tf.translation import Language, Translator

if TYPE_CHECKING:
    import jinja2


@functools.cache  # it keeps its compiled templates; compiling takes longer than a page
def environment(
    folder: Path, language: Language = "en", html: bool = False
) -> "jinja2.Environment":
    """The templates of a folder. In them `_("…")` translates, as in Python files.

    HTML pages escape all text. Markdown pages do it where they show text of the data, with
    `escape_markdown` or `code`.
    """
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=html,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.globals["_"] = Translator(language)
    templates.filters |= {
        "code": code,
        "data_url": data_url,
        "escape_markdown": escape_markdown,
        "thousands": "{:,}".format,
    }
    return templates


def markdown(templates: "jinja2.Environment", name: str, **context: Any) -> str:
    """A page in Markdown, with one empty line at most between its blocks."""
    page = templates.get_template(name).render(**context)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def escape_markdown(text: Any) -> str:
    """Text on one line, without meaning in Markdown."""
    # Some characters have a meaning in some positions only: # at the beginning, _ at the edge of a
    # word (not in snake_case), ] before ( [ or a colon.
    meaning = r"[\\`*<>|~]|^#|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])"
    return re.sub(meaning, r"\\\g<0>", " ".join(str(text).split()))


def code(text: str) -> str:
    """A name as Markdown code, whatever characters it has."""
    # CommonMark: a code span ends at as many ticks as it begins with, so it takes more than the
    # text has in a row. Spaces separate them from ticks at the ends of the text.
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{' '.join(text.split())}{pad}{ticks}"


def data_url(content: bytes, kind: str) -> str:
    """A file as a URL that contains it, for a page that needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def cut_font(characters: Iterable[str], serif: bool = False) -> bytes:
    """Noto Sans SC, or Serif, reduced to these characters, as WOFF.

    It takes some hundred bytes a character; the whole font has 8 MB.
    """
    import pylopdf_fonts_zh_cn
    from fontTools.subset import Options, Subsetter, load_font, save_font

    options = Options(flavor="woff", layout_features=[], notdef_outline=True, desubroutinize=True)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes={ord(character) for character in characters})
    path = pylopdf_fonts_zh_cn.serif_path() if serif else pylopdf_fonts_zh_cn.sans_path()
    buffer = io.BytesIO()
    with load_font(path, options) as font:
        subsetter.subset(font)
        save_font(font, buffer, options)
    return buffer.getvalue()
