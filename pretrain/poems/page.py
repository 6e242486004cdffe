"""The page of poems: one HTML file that needs no other, its font within it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pretrain.poems.forms import Form, with_marks
from pretrain.poems.measures import Judged
from roformer_tf.files import write_text
from roformer_tf.templates import cut_font, data_url, environment


class Piece(NamedTuple):
    """A poem to be shown."""

    kind: str
    """What it was written from: "first line", "form" or "nothing"."""
    form: Form
    lines: list[str]
    given: str = ""
    """The first line, if it was given."""
    original: Sequence[str] = ()
    """Lines of the real poem that begins so, if it is known."""
    front: str = ""
    """The token that stood in front: the form, and the rhyme if there was one."""

    @property
    def text(self) -> str:
        """All lines, with marks, for readers who hear the page."""
        return with_marks(self.lines)


class Facts(NamedTuple):
    """The figures below the poems."""

    model_bits: float
    """Per character of held-out poems."""
    kneser_ney_bits: float
    trained: int
    """Poems."""
    held_out: int
    judged: Judged
    real: Judged
    """How the held-out poems do in the same."""
    tries: int
    """Poems that were written for each one that is shown."""


KINDS = {
    "first line": ("續句", "给出首句和韵，由模型续完", "The first line and the rhyme were given"),
    "form": ("限韻", "只给体裁和韵", "The form and the rhyme were given"),
    "nothing": ("自作", "体裁和韵随机抽取", "Form and rhyme were drawn by chance"),
}
"""What a poem was written from: a title, and a few words in both languages."""


def write_page(target: Path, pieces: list[Piece], facts: Facts) -> None:
    """Write the page, whole or not at all."""
    write_text(target, page(pieces, facts))


def page(pieces: list[Piece], facts: Facts) -> str:
    """The page's HTML; the shapes of its Chinese characters are within it."""
    template = environment(Path(__file__).parent, html=True).get_template("poems.html.jinja")
    parts = [
        (words, chosen)
        for kind, words in KINDS.items()
        if (chosen := [piece for piece in pieces if piece.kind == kind])
    ]
    filled = template.render(
        parts=parts,
        facts=facts,
        tries=facts.tries,
        kept_from_it=any(piece.original for piece in pieces),
    )
    font = cut_font({character for character in filled if character > "\u02ff"}, serif=True)
    return filled.replace("FONT", data_url(font, "font/woff"), 1) + "\n"
