"""A report's dictionary → Markdown, or one HTML file that needs no other."""

import re
from collections.abc import Callable
from importlib.resources import files

from roformer_tf.finetuning.report import phrases
from roformer_tf.finetuning.report.fonts import cut_font
from roformer_tf.finetuning.report.sections import sections
from roformer_tf.finetuning.report.words import Report
from roformer_tf.tasks.blocks import Picture, address
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import Language, in_language


def markdown_page(report: Report, language: Language = "en") -> str:
    """report.md: tables and mistakes, no pictures."""
    return _render("report.md.jinja", report, language, escape_text=_escape_markdown)


def html_page(report: Report, language: Language = "en") -> str:
    """report.html: everything, styles, pictures and the Chinese characters' shapes within it."""
    page = _render("report.html.jinja", report, language, unbroken=_unbroken)
    beyond_latin = {character for character in page if character > "\u02ff"}
    return page.replace("FONT", address("font/woff", cut_font(beyond_latin)), 1)


def _render(name: str, report: Report, language: Language, **filters: Callable[[str], str]) -> str:
    """Fill in one of the templates; HTML's escapes by itself."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=name.endswith("html.jinja"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= filters
    template = files("roformer_tf.finetuning.report").joinpath(name).read_text(encoding="utf-8")
    settings = report["settings"]
    source = "checkpoint" in settings and phrases.SOURCE.format(
        checkpoint=settings["checkpoint"], train=settings["train"]
    )
    said = {
        "title": phrases.REPORT.format(task=TASKS[report["task"]].full_name()),
        "source": source,
        "warning": phrases.WARNING,
        "colon": phrases.COLON,
        "language": phrases.PAGE_LANGUAGE,
    }
    shown = {
        title: blocks
        for title, blocks in sections(report, language).items()
        if environment.autoescape or not all(isinstance(block, Picture) for block in blocks)
    }
    filled = environment.from_string(template).render(**in_language(said, language), sections=shown)
    return f"{filled}\n"


def _unbroken(figure: str) -> str:
    """A figure with its interval, which may go onto a line of its own, but only whole."""
    return figure.replace(", ", ",\u00a0")


def _escape_markdown(text: str) -> str:
    """Text of the data, on one line, that means nothing but itself."""
    meaning = r"[\\`*<>|~]|^#|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])"
    return re.sub(meaning, r"\\\g<0>", " ".join(text.split()))
