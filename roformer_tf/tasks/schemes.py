"""Which tag may follow which: legal sequences of the schemes that mark entities.

scheme   legal                                               tags of `entities.MARKS`
IOB2     I-X behind B-X or I-X alone                         B, I, O (called BIO, too); E is an I
BIOES    and B-X goes on, to I-X, until E-X; S-X is alone    B, I, E, S; BMES and BILOU

Tags without a type, as word segmentation has them (B, M, E, S), are of a single type.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.decoding import NEVER, Chain
from roformer_tf.tasks.entities import MARKS

Scheme: TypeAlias = Literal["", "IOB2", "BIOES"]
"""By which tags are legal; "" where all are."""

MOST_BROKEN = 0.01
"""Share of the sentences with entities that may be against a scheme by mistake."""


class Broken(NamedTuple):
    """How many training sentences are against a scheme."""

    sentences: int
    of: int
    """Sentences with an entity."""
    first: str
    """What stands in the first of them, and where: "I-LOC behind O in train.conll:3"; or ""."""


def find_scheme(labels: Sequence[str], examples: Sequence[Example]) -> Scheme:
    """The strictest scheme that the sentences follow, but for a few.

    "" where tags mark no entities, such as parts of speech, or many sentences follow none: those
    of IOB1 begin entities with I-.
    """
    for scheme in schemes(labels):
        broken = count_broken(labels, examples, scheme)
        if broken.sentences <= MOST_BROKEN * broken.of:
            return scheme
    return ""


def count_broken(labels: Sequence[str], examples: Sequence[Example], scheme: Scheme) -> Broken:
    """Count the sentences that are against a scheme, of those with an entity."""
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
    goes_on = is_open[:, None] & (kinds[:, None] == kinds)  # (before, behind)
    steps = np.where(entered, goes_on, True)
    end = np.ones(len(tags), np.bool_)
    if scheme == "BIOES":
        steps &= entered | ~is_open[:, None]
        end = ~is_open
    if not scheme:
        steps, entered = np.ones_like(steps), np.zeros_like(entered)
    return Chain(*(np.where(allowed, 0.0, NEVER) for allowed in (~entered, steps, end)))


def schemes(labels: Sequence[str]) -> list[Scheme]:
    """Schemes that such tags can be of, the strictest first; none for parts of speech."""
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
    """What is wrong at a place of a sentence, or, behind its last tag, with its end."""
    if at == len(labels):
        return f"{labels[-1]} at the end"
    return f"{labels[at]} " + (f"behind {labels[at - 1]}" if at else "at the beginning")
