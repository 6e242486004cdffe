"""Tags of units: the entities that they mark, and schemes: rules for their order.

scheme   legal                                               tags of `MARKS`
IOB2     I-X only after B-X or I-X                           B, I, O (also called BIO); E is an I
BIOES    also: after B-X or I-X comes I-X or E-X             B, I, E, S; BMES and BILOU

Tags without a type, as in word segmentation (B, M, E, S), have a single type.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example, Span, ordered
from roformer_tf.tasks.tags.chain import NEVER, Chain

# A text in segments, each with its entity type, or "": [["在", ""], ["北京", "LOC"]].
Marked: TypeAlias = list[list[str]]

# The type of entities, or words, whose tags have none (B, I, O, or B, M, E, S), for reports.
UNTYPED = "span"
# First letter of an entity's tag → its letter in BIOES: M is of BMES, L and U are of BILOU.
MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}
# The rule for legal sequences of tags; "" where all are legal.
Scheme: TypeAlias = Literal["", "IOB2", "BIOES"]

# A scheme is accepted if at most this fraction of the sentences with entities breaks it.
MAX_BROKEN = 0.01


def spans(labels: Sequence[str]) -> list[Span]:
    """The entities that labels mark, in units. As in seqeval, I- after O begins an entity, too.

    ("B-LOC", "I-LOC", "O") → [("LOC", 0, 2)]. If labels have no such prefixes, as for parts of
    speech, every unit other than "O" is an entity.
    """
    # Imported here: seqeval brings scikit-learn, which takes a second.
    from seqeval.metrics.sequence_labeling import get_entities

    # A label that marks no entity becomes an entity of one unit.
    tags = [as_bioes(label) or f"S-{label}" for label in labels]
    return [(kind, first, last + 1) for kind, first, last in get_entities(tags)]


def as_bioes(tag: str) -> str | None:
    """A tag as BIOES spells it, "M_LOC" as "I-LOC"; None for one that marks no entity, as "NN".

    Tags without a type, as in word segmentation, have the type `UNTYPED`.
    """
    mark, dash, kind = tag[:1], tag[1:2], tag[2:]
    if tag == "O":
        return tag
    is_mark = mark in MARKS and dash in ("", "-", "_")
    return f"{MARKS[mark]}-{kind if dash else UNTYPED}" if is_mark else None


def entities(text: str, units: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """The entities that tags mark, as `as_dictionaries`.

    "北京你好", B-LOC I-LOC O O → [{"start": 0, "end": 2, "label": "LOC", "text": "北京"}].
    """
    return as_dictionaries(text, character_spans(text, units, tags))


def as_dictionaries(text: str, spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Spans of characters as predictions have them: start, end, label and text of each."""
    return [
        {"start": start, "end": end, "label": label, "text": text[start:end]}
        for label, start, end in spans
    ]


def character_spans(text: str, units: Sequence[str], tags: Sequence[str]) -> list[Span]:
    """The entities that tags mark, in characters of the text."""
    bounds = offsets(text, units)
    return [(kind, bounds[first][0], bounds[end - 1][1]) for kind, first, end in spans(tags)]


def marked(text: str, spans: list[Span], shown: range) -> Marked:
    """The shown characters, with entities marked; those inside of others are in their marks.

    北京市委 with ORG 0–4 and LOC 0–2 → [["北京市委", "ORG; 北京 LOC"]].
    """
    segments: Marked = [["…", ""]] if shown.start else []
    done, rest = shown.start, [x for x in ordered(spans) if shown.start <= x[1] < shown.stop]
    while rest:
        begin, end = rest[0][1:]
        group = []
        while rest and rest[0][1] < end:  # it overlaps those before it
            group.append(rest.pop(0))
            end = max(end, group[-1][2])
        names = [kind if (a, b) == (begin, end) else f"{text[a:b]} {kind}" for kind, a, b in group]
        segments += [[text[done:begin], ""], [text[begin:end], "; ".join(names)]]
        done = end
    segments.append([text[done : shown.stop], ""])
    if max(done, shown.stop) < len(text):
        segments.append(["…", ""])
    return [segment for segment in segments if segment[0]]


def offsets(text: str, units: Sequence[str]) -> list[tuple[int, int]]:
    """The (start, end) of each unit in the text; only white space is between them."""
    # The search begins after the previous unit: equal units are found in their order.
    bounds, end = [], 0
    for unit in units:
        start = text.index(unit, end)
        end = start + len(unit)
        bounds.append((start, end))
    return bounds


def find_scheme(labels: Sequence[str], examples: Sequence[Example]) -> Scheme:
    """The strictest scheme that all but `MAX_BROKEN` of the sentences follow.

    "" if tags mark no entities, or if too many sentences break every scheme. In IOB1, for example,
    entities begin with I-.
    """
    for scheme in schemes_of(labels):
        if len(broken(labels, examples, scheme)) <= MAX_BROKEN * with_entities(examples):
            return scheme
    return ""


def with_entities(examples: Sequence[Example]) -> int:
    """How many sentences have a label other than O."""
    return sum(any(label != "O" for label in example.label) for example in examples)


def broken(labels: Sequence[str], examples: Sequence[Example], scheme: Scheme) -> list[str]:
    """The first mistake of each sentence that breaks a scheme: "I-LOC after O in a.conll:3"."""
    chain = legal(tuple(labels), scheme)
    numbers = {label: number for number, label in enumerate(labels)}
    paths = [np.array([numbers[label] for label in x.label], np.int64) for x in examples]
    return [
        f"{_described(example.label, mistake)} in {example.source_line}"
        for example, mistake in zip(examples, map(chain.first_illegal, paths), strict=True)
        if mistake is not None
    ]


@lru_cache(16)
def legal(labels: tuple[str, ...], scheme: Scheme) -> Chain:
    """Scores of the order of labels: 0 if the scheme allows it, else NEVER."""
    tags = [_parsed(label) for label in labels]
    entered = np.array([mark in ("I", "E") for mark, _ in tags], np.bool_)
    is_open = np.array([mark in ("B", "I") for mark, _ in tags], np.bool_)
    kinds = np.array([kind for _, kind in tags])
    # I and E continue an entity: they need B or I of the same type before them.
    continues = is_open[:, None] & (kinds[:, None] == kinds)  # (from, to)
    # `entered` is of the second label. B, S and O may follow any label in IOB2.
    steps = np.where(entered, continues, True)
    end = np.ones(len(tags), np.bool_)
    if scheme == "BIOES":  # an open entity must be continued, and closed before the end
        # B-LOC → O is legal in IOB2, but not here: after an open label only I or E may follow.
        steps &= entered | ~is_open[:, None]
        end = ~is_open
    if not scheme:
        steps, entered = np.ones_like(steps), np.zeros_like(entered)
    # A text cannot begin within an entity, so I and E are illegal at the start.
    return Chain(*(np.where(allowed, 0.0, NEVER) for allowed in (~entered, steps, end)))


def schemes_of(labels: Sequence[str]) -> list[Scheme]:
    """The schemes that have these tags, the strictest first; none for parts of speech."""
    marks = {mark for mark, _ in map(_parsed, labels)}
    typed = {len(label) > 1 for label in labels if label != "O"}
    if "" in marks or len(typed) != 1:  # a mixture of B and B-LOC is no scheme
        return []
    return ["BIOES", "IOB2"] if marks & {"E", "S"} else ["IOB2"]


def _parsed(label: str) -> tuple[str, str]:
    """Letter in BIOES, and type: "M-LOC" → ("I", "LOC"); ("", "") for another tag."""
    mark, _, kind = (as_bioes(label) or "").partition("-")
    return mark, kind


def _described(labels: Sequence[str], index: int) -> str:
    """The mistake at an index of a sentence; after its last tag: at its end."""
    if index == len(labels):
        return f"{labels[-1]} at the end"
    return f"{labels[index]} " + (f"after {labels[index - 1]}" if index else "at the beginning")
