"""What a labelled file holds: examples, and what a task reads in a row of it."""

from typing import Any, Literal, NamedTuple, TypeAlias

LongTexts = Literal["head", "head-tail", "windows"]
Label: TypeAlias = Any
"""As its task reads it: one label, several, one for each unit, or a number."""


GROUP = "group"
"""The label of texts of which one cell held several: all mean the same."""


class Example(NamedTuple):
    """One labelled example, as it stands in the data."""

    texts: tuple[str, ...]
    """One text, a pair, or A, B and C; several that mean the same; for tagging the units joined."""
    label: Label
    """None where the data has no label."""
    place: str
    """Where it stands, such as "train.tsv:12"."""
    units: tuple[str, ...] = ()
    """For tagging: what has a label each, characters or words."""
