"""The page of poems: one HTML file, with its font, that needs no other file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.poems.forms import Form, with_marks
from roformer_tf.templates import cut_font, data_url, environment


class ShownPoem(NamedTuple):
    """A poem to be shown."""

    # What it was written from: "first line", "form" or "nothing".
    kind: str
    form: Form
    lines: list[str]
    # The first line, if it was given.
    first_line: str = ""
    # Lines of the real poem that begins so, if it is known.
    original: Sequence[str] = ()
    # The control token: the form, and the rhyme if it has one.
    front: str = ""

    @property
    def text(self) -> str:
        """All lines, with marks, for screen readers."""
        return with_marks(self.lines)


# What a poem was written from: a title, and a few words in both languages.
KINDS = {
    "first line": ("續句", "给出首句和韵，由模型续完", "The first line and the rhyme were given"),
    "form": ("限韻", "只给体裁和韵", "The form and the rhyme were given"),
    "nothing": ("自作", "体裁和韵随机抽取", "Form and rhyme were drawn by chance"),
}


def page(poems: list[ShownPoem], facts: Mapping[str, Any]) -> str:
    """The page's HTML, with the shapes of its Chinese characters.

    facts: the figures below the poems, as `report` in __main__.py has them.
    """
    template = environment(Path(__file__).parent, html=True).get_template("poems.html.jinja")
    parts = [
        (words, chosen)
        for kind, words in KINDS.items()
        if (chosen := [poem for poem in poems if poem.kind == kind])
    ]
    filled = template.render(
        parts=parts,
        facts=facts,
        kept_from_it=any(poem.original for poem in poems),
    )
    # Only the characters of the page: the whole font has megabytes.
    font = cut_font({character for character in filled if character > "\u02ff"}, serif=True)
    return filled.replace("FONT", data_url(font, "font/woff"), 1) + "\n"
