"""Columns with a label for every character or word, in the layouts of `datasets` and CLUENER.

{"tokens": ["北", "京"], "ner_tags": ["B-LOC", "I-LOC"]}: a tag for every unit,
{"text": "北京", "label": {"LOC": {"北京": [[0, 1]]}}}: first and last character of each entity.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, read_text
from roformer_tf.labelled.column_names import LABELS, TEXTS, folded
from roformer_tf.labelled.columns import find_column
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.headers import TableSample
from roformer_tf.readers.lines import damage
from roformer_tf.readers.records import TYPED, Row, tag_pattern, tag_problem

# Well-known names of a column of units, normalized by `folded`.
UNITS = tuple(map(folded, ("tokens", "words", "chars", "characters", "units", "字", "词", "分词")))


class UnitColumns(NamedTuple):
    """The column of units and the column of their labels."""

    units: str
    """A column of lists, or of texts whose characters are the units."""
    label: str | None
    """A column of lists, or of CLUENER's dictionaries; None if no labels are read."""
    tags: re.Pattern[str]
    """The pattern of the labels."""
    numbers: bool = False
    """Whether the labels are integers that no schema names."""


def find_unit_columns(
    sample: TableSample, text: Sequence[str], label: str | None
) -> UnitColumns | None:
    """Find the columns by their content, or check the user's columns; None if there are none.

    Raises InputError for several columns of tags, none of which is called ner.
    """
    table, rows = sample
    if len(text) > 1 or not rows:
        return None
    labels = [find_column(table, label)] if label else list(table.columns)
    units = [find_column(table, text[0])] if text else list(table.columns)
    if not text:
        # If a table has both tokens and text, its tags are those of the tokens.
        units = [x for x in units if folded(x) in UNITS] or [x for x in units if folded(x) in TEXTS]
    for column in units:
        matches = [x for x in labels if x != column and _are_labels(rows, column, x)]
        # Data with parts of speech, too, such as CoNLL-2003, call the entities ner_tags.
        matches = [x for x in matches if "ner" in folded(x)] or matches
        if len(matches) > 1:
            raise InputError(
                f"{table.path}: cannot tell which column holds the tags of {column}: "
                f"{' or '.join(matches)}. Give --label-column."
            )
        if matches:
            lists = [row[matches[0]] for row in rows if isinstance(row.get(matches[0]), list)]
            values = [tag for tags in lists for tag in tags]
            pattern = tag_pattern(map(str, values)) if lists else TYPED
            numbers = bool(lists) and all(type(tag) is int for tag in values)
            return UnitColumns(column, matches[0], pattern, numbers)
    return None


def _are_aligned(units: Any, labels: Any) -> bool:
    """Whether a list has a label for each unit of a list, or a tag for each character of a text."""
    if not isinstance(labels, list) or not isinstance(units, list | str):
        return False
    # Other labels than tags with types may be those of a whole text.
    are_tags = isinstance(units, list) or all(TYPED.fullmatch(str(x)) for x in labels)
    are_short = all(isinstance(x, str | int) or x is None for x in labels)
    return are_tags and are_short and len(units) == len(labels)


def _are_labels(rows: Sequence[dict[str, Any]], units: str, label: str) -> bool:
    """Whether a column has a label for every unit of another column, in nearly all rows."""
    # CLUENER's labels are dictionaries next to plain texts; all other layouts are lists.
    pairs = [(row.get(units), row.get(label)) for row in rows if row.get(label) is not None]
    if folded(label) in LABELS and all(isinstance(x, str) and is_cluener(y) for x, y in pairs):
        # At least one entity: dictionaries that are all empty may be anything.
        return any(any((y or {}).values()) for _, y in pairs)
    aligned = [_are_aligned(x, y) for x, y in pairs]
    # A tenth may be mistakes; doccano has columns of empty lists.
    return any(y for _, y in pairs) and sum(aligned) >= 0.9 * len(aligned)


def is_cluener(value: Any) -> bool:
    """Whether a label is {type: {entity: [[first, last], …]}}; Parquet has None for no entity."""
    return isinstance(value, dict) and all(
        of_type is None or isinstance(of_type, dict) for of_type in value.values()
    )


def read_units(row: Row, columns: UnitColumns) -> Example:
    """The example in a row. Raises BadCellError unless there is a label for every unit."""
    cells, source_line = row.cells, row.source_line
    value = cells.get(columns.units)
    if isinstance(value, list):
        units = tuple(
            # A unit may be white space, which `read_text` would refuse as an empty text.
            unit if str(unit).isspace() else read_text({columns.units: unit}, columns.units)
            for unit in value
        )
        text = read_text({columns.units: "".join(units)}, columns.units)  # which may not be blank
    else:
        text = read_text(cells, columns.units)
        units = tuple(text)
    if columns.label is None:
        # The task splits a text into units later, as it did with the training texts.
        return Example((text,), None, source_line, units if isinstance(value, list) else ())
    label = cells.get(columns.label)
    if label is None:
        raise BadCellError("has no label")
    tags = _tags(text, label)
    if len(tags) != len(units):
        raise BadCellError(f"has {len(tags)} instead of {len(units)} labels in {columns.label!r}")
    for unit, tag in zip(units, tags, strict=True):
        if problem := damage(tag) or tag_problem([unit, tag], columns.tags):
            raise BadCellError(problem)
    return Example((text,), tags, source_line, units)


def _tags(text: str, label: Any) -> tuple[str, ...]:
    """The tags of a row. Raises BadCellError for entities that are not in its text."""
    if isinstance(label, list):
        return tuple("" if tag is None else str(tag).strip() for tag in label)
    if not is_cluener(label):
        raise BadCellError(f"has the label {label!r}, which is no list of tags")
    # CLUENER's entities, whose ends are their last characters, as BIO tags.
    tags = ["O"] * len(text)
    for kind, of_type in label.items():
        for entity, positions in (of_type or {}).items():
            for first, last in first_and_last(entity, positions):
                if text[first : last + 1] != entity or not entity:
                    raise BadCellError(f"has the entity {entity!r}, which is not at {first}")
                # BIO has one tag for a unit, so entities cannot overlap.
                if set(tags[first : last + 1]) != {"O"}:
                    raise BadCellError(f"has the entity {entity!r} inside of another one")
                tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tuple(tags)


def first_and_last(entity: str, positions: Any) -> list[tuple[int, int]]:
    """First and last characters. Raises BadCellError for anything else."""
    pairs = [tuple(x) if isinstance(x, list) else () for x in positions or []]
    for pair in pairs:
        # `type`, because True is an int
        if len(pair) != 2 or not all(type(x) is int and x >= 0 for x in pair):
            raise BadCellError(f"has the entity {entity!r} without its first and last character")
    return pairs
