"""What the sections of a report consist of; the templates know how each is written."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from roformer_tf.tasks.wording import Wording

MOST_LABELS = 40
"""Rows of a table by label, at most."""


@dataclass(frozen=True)
class Text:
    """A paragraph: "text", the "lead" that everybody reads, or a "note" in small letters."""

    words: Wording
    kind: str = "text"


@dataclass(frozen=True)
class Definitions:
    """What some words mean."""

    entries: Sequence[tuple[Wording, Wording]]
    kind: str = "definitions"


@dataclass(frozen=True)
class Warnings:
    """What to know before quoting a figure."""

    sentences: Sequence[Wording]
    kind: str = "warnings"


class Tile(NamedTuple):
    """A figure to see first."""

    name: Wording
    value: str
    detail: str
    ours: bool


@dataclass(frozen=True)
class Tiles:
    """Figures to see first, side by side."""

    tiles: Sequence[Tile]
    kind: str = "tiles"


@dataclass(frozen=True)
class ReportTable:
    """Rows of words and figures."""

    head: Sequence[Wording]
    rows: Sequence[Sequence[Wording]]
    words: int = 1
    """How many of the columns are words; the others are figures."""
    shades: Sequence[Sequence[float]] = ()
    """How dark, from 0 to 1, each cell beyond those of words is."""
    kind: str = "table"


@dataclass(frozen=True)
class Picture:
    """A drawing, which Markdown does without: it is drawn where it is shown."""

    draw: Callable[[], bytes]
    """→ SVG."""
    words: Wording
    kind: str = "picture"

    @property
    def source(self) -> str:
        """The drawing within its own address: an image runs no scripts."""
        return address("image/svg+xml", self.draw())


@dataclass(frozen=True)
class Scatter:
    """Predicted values by true ones, which the report draws as a picture."""

    points: Sequence[Sequence[float]]
    words: Wording


@dataclass(frozen=True)
class Histograms:
    """How often values lie between edges, for several kinds of them: the report draws it."""

    edges: Sequence[float]
    counts: Sequence[tuple[Wording, Sequence[int]]]
    """Of each kind its name, and how many lie between each two edges."""
    words: Wording


@dataclass(frozen=True)
class Mistake:
    """A wrong answer: what is known of it, and texts under names, in pieces that may be marked."""

    place: str
    facts: Sequence[tuple[Wording, Wording]]
    texts: Sequence[tuple[Wording, Sequence[Sequence[str]]]]
    kind: str = "mistake"


Block: TypeAlias = (
    Text | Definitions | Warnings | Tiles | ReportTable | Picture | Scatter | Histograms | Mistake
)


def address(kind: str, content: bytes) -> str:
    """A file as an address that holds it, for a page that needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
