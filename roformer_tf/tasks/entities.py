"""Entities that the labels of units mark: where they are, and how they are shown."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Span: TypeAlias = tuple[str, int, int]
"""Type, first unit, last unit + 1."""
Marked: TypeAlias = list[list[str]]
"""A text in pieces, each with what it is marked as, or "": [["在", ""], ["北京", "LOC"]]."""

UNTYPED = "_"
"""The type of entities, or words, whose tags have none (B, I, O, or B, M, E, S), as of seqeval."""
MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}
"""What a tag of an entity begins with → how BIOES has it: M is of BMES, L and U are of BILOU."""


def spans(labels: Sequence[str]) -> list[Span]:
    """Entities that labels of `MARKS` mark, as seqeval reads them: I- after O begins one.

    ("B-LOC", "I-LOC", "O") → [("LOC", 0, 2)]. Labels without such prefixes, as for parts of
    speech, mark every unit other than "O" by itself.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    return [(kind, first, last + 1) for kind, first, last in get_entities([*map(_tag, labels)])]


def as_bioes(tag: str) -> str | None:
    """A tag as BIOES spells it, "M-LOC" as "I-LOC"; None for one that marks no entity, as "NN".

    Tags without a type, as of word segmentation, are of the type `UNTYPED`.
    """
    mark, dash, kind = tag.partition("-")
    if tag == "O":
        return tag
    return f"{MARKS[mark]}-{kind if dash else UNTYPED}" if mark in MARKS else None


def entities(text: str, units: Sequence[str], tags: Sequence[str]) -> list[list[Any]]:
    """[[start, end, type, text], …] of what tags of `MARKS` mark, in characters of the text.

    "北京你好", B-LOC I-LOC O O → [[0, 2, "LOC", "北京"]]. As seqeval, which judges the model, reads
    them: I after O begins an entity, too.
    """
    places = _places(text, units)
    found = [(places[first][0], places[end - 1][1], kind) for kind, first, end in spans(tags)]
    return [[start, end, kind, text[start:end]] for start, end, kind in found]


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether the tags are BIO, BIOES or the like, and not, say, parts of speech."""
    return all(map(as_bioes, labels))


def mark(units: Sequence[str], entities: Sequence[Span], shown: range, between: str) -> Marked:
    """The units that are shown, the entities among them marked; what is left out is "…"."""
    pieces: Marked = [["…", ""]] if shown.start else []
    at = shown.start
    for kind, first, end in entities:
        first, end = max(first, at), min(end, shown.stop)
        if first < end:
            pieces += [[between.join(units[at:first]), ""], [between.join(units[first:end]), kind]]
            at = end
    pieces.append([between.join(units[at : shown.stop]), ""])
    if shown.stop < len(units):
        pieces.append(["…", ""])
    return [piece for piece in pieces if piece[0]]


def _places(text: str, units: Sequence[str]) -> list[tuple[int, int]]:
    """Where each unit stands in the text, between them at most white space: (first, last + 1)."""
    places, end = [], 0
    for unit in units:
        start = text.index(unit, end)
        end = start + len(unit)
        places.append((start, end))
    return places


def _tag(label: str) -> str:
    """The label in BIOES, or as an entity of one unit."""
    return as_bioes(label) or f"S-{label}"
