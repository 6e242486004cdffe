"""Tags of units: the entities that they mark, and the schemes by which they follow each other.

scheme   legal                                               tags of `MARKS`
IOB2     I-X after B-X or I-X alone                          B, I, O (called BIO, too); E is an I
BIOES    and B-X goes on, to I-X, until E-X; S-X is alone    B, I, E, S; BMES and BILOU

Tags without a type, as word segmentation has them (B, M, E, S), are of a single type.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.crf import NEVER, Chain

Span: TypeAlias = tuple[str, int, int]
"""Type, first unit, last unit + 1."""
Marked: TypeAlias = list[list[str]]
"""A text in segments, each with its entity type, or "": [["在", ""], ["北京", "LOC"]]."""

UNTYPED = "_"
"""The type of entities, or words, whose tags have none (B, I, O, or B, M, E, S), as of seqeval."""
MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}
"""What a tag of an entity begins with → how BIOES has it: M is of BMES, L and U are of BILOU."""
Scheme: TypeAlias = Literal["", "IOB2", "BIOES"]
"""The rule for legal sequences of tags; "" where all are legal."""

MOST_BROKEN = 0.01
"""Fraction of the sentences with entities that may break a scheme by mistake."""


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

    "北京你好", B-LOC I-LOC O O → [[0, 2, "LOC", "北京"]]. As in seqeval, by
    which the model is evaluated, I after O begins an entity, too.
    """
    offsets = _offsets(text, units)
    marked = [(offsets[first][0], offsets[end - 1][1], kind) for kind, first, end in spans(tags)]
    return [[start, end, kind, text[start:end]] for start, end, kind in marked]


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether the tags are BIO, BIOES or the like, and not, say, parts of speech."""
    return all(map(as_bioes, labels))


def mark(units: Sequence[str], entities: Sequence[Span], shown: range, between: str) -> Marked:
    """The units that are shown, with the entities among them marked; the rest is "…"."""
    segments: Marked = [["…", ""]] if shown.start else []
    at = shown.start
    for kind, first, end in entities:
        first, end = max(first, at), min(end, shown.stop)
        if first < end:
            segments += [
                [between.join(units[at:first]), ""],
                [between.join(units[first:end]), kind],
            ]
            at = end
    segments.append([between.join(units[at : shown.stop]), ""])
    if shown.stop < len(units):
        segments.append(["…", ""])
    return [segment for segment in segments if segment[0]]


def _offsets(text: str, units: Sequence[str]) -> list[tuple[int, int]]:
    """The (start, end) of each unit in the text; only white space is between them."""
    offsets, end = [], 0
    for unit in units:
        start = text.index(unit, end)
        end = start + len(unit)
        offsets.append((start, end))
    return offsets


def _tag(label: str) -> str:
    """The label in BIOES, or as an entity of one unit."""
    return as_bioes(label) or f"S-{label}"


class Broken(NamedTuple):
    """How many training sentences break a scheme."""

    sentences: int
    of: int
    """Sentences with an entity."""
    first: str
    """What is wrong in the first of them, and where: "I-LOC after O in train.conll:3"; or ""."""


def find_scheme(labels: Sequence[str], examples: Sequence[Example]) -> Scheme:
    """The strictest scheme that the sentences follow, except a few.

    "" where tags mark no entities, such as parts of speech, or many sentences follow none: those
    of IOB1 begin entities with I-.
    """
    for scheme in schemes(labels):
        broken = count_broken(labels, examples, scheme)
        if broken.sentences <= MOST_BROKEN * broken.of:
            return scheme
    return ""


def count_broken(labels: Sequence[str], examples: Sequence[Example], scheme: Scheme) -> Broken:
    """Count the sentences that break a scheme, of those with an entity."""
    chain = legal(tuple(labels), scheme)
    numbers = {label: number for number, label in enumerate(labels)}
    outside = numbers.get("O", -1)
    sentences, of, first = 0, 0, ""
    for example in examples:
        path = np.array([numbers[label] for label in example.label], np.int64)
        of += bool((path != outside).any())
        at = chain.first_illegal(path)
        if at is None:
            continue
        sentences += 1
        first = first or f"{_described(example.label, at)} in {example.place}"
    return Broken(sentences, of, first)


@lru_cache(16)
def legal(labels: tuple[str, ...], scheme: Scheme) -> Chain:
    """Scores of labels after each other: 0 where a scheme allows it, else NEVER."""
    tags = [_parsed(label) for label in labels]
    entered = np.array([mark in ("I", "E") for mark, _ in tags], np.bool_)
    is_open = np.array([mark in ("B", "I") for mark, _ in tags], np.bool_)
    kinds = np.array([kind for _, kind in tags])
    # I and E continue an entity: only after B or I of the same type.
    goes_on = is_open[:, None] & (kinds[:, None] == kinds)  # (from, to)
    steps = np.where(entered, goes_on, True)
    end = np.ones(len(tags), np.bool_)
    if scheme == "BIOES":  # and an open entity must be continued
        steps &= entered | ~is_open[:, None]
        end = ~is_open
    if not scheme:
        steps, entered = np.ones_like(steps), np.zeros_like(entered)
    return Chain(*(np.where(allowed, 0.0, NEVER) for allowed in (~entered, steps, end)))


def schemes(labels: Sequence[str]) -> list[Scheme]:
    """Schemes that have such tags, the strictest first; none for parts of speech."""
    marks = {mark for mark, _ in map(_parsed, labels)}
    typed = {dash for _, dash, _ in (one.partition("-") for one in labels if one != "O")}
    if "" in marks or len(typed) != 1:
        return []
    return ["BIOES", "IOB2"] if marks & {"E", "S"} else ["IOB2"]


def _parsed(label: str) -> tuple[str, str]:
    """Mark, as BIOES has it, and type: "M-LOC" → ("I", "LOC"); ("", "") for another tag."""
    mark, _, kind = label.partition("-")
    if label == "O":
        return "O", ""
    return (MARKS[mark], kind) if mark in MARKS else ("", "")


def _described(labels: Sequence[str], at: int) -> str:
    """What is wrong at an index of a sentence, or, after its last tag, with its end."""
    if at == len(labels):
        return f"{labels[-1]} at the end"
    return f"{labels[at]} " + (f"after {labels[at - 1]}" if at else "at the beginning")
