"""Columns of entities, which may be nested or overlap.

layout of a cell                                of
[{"start": 0, "end": 2, "label": "LOC"}]        this package, spaCy, Prodigy; end exclusive
{"start": [0], "end": [2], "label": ["LOC"]}    `datasets`
[{"start": 0, "end": 2, "labels": ["LOC"]}]     Label Studio
[[0, 2, "LOC"]]                                 doccano
{"LOC": {"北京": [[0, 1]]}}                     CLUENER: first and last character
"""

from collections.abc import Iterable, Sequence
from reprlib import repr as shortened
from typing import Any, NamedTuple

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, is_missing, parsed, read_label, read_text
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.columns import find_column, find_texts
from roformer_tf.labelled.examples import UNLABELLED, Example, Span, ordered
from roformer_tf.labelled.headers import TableSample
from roformer_tf.labelled.token_labels import (
    UnitColumns,
    find_unit_columns,
    first_and_last,
    is_cluener,
)
from roformer_tf.readers.records import Row

# Well-known names of a column of entities, normalized by `folded`.
ENTITIES = tuple(map(folded, ("entities", "entity", "spans", "mentions", "实体", "实体列表")))
# Keys of an entity, and their other names.
KEYS = {
    "start": ("start", "start_offset", "start_idx", "begin"),
    "end": ("end", "end_offset", "end_idx"),
    "label": ("label", "labels", "type", "entity_type", "tag"),
    "text": ("text", "entity", "mention"),
}


class EntityColumns(NamedTuple):
    """The column of the texts, and the column of their entities."""

    text: str
    entities: str


def find_units_or_entities(
    sample: TableSample, text: Sequence[str], label: str | None
) -> EntityColumns | UnitColumns | None:
    """Find the columns for a task of entities, or check the user's; None if there are none.

    In this order: a column whose content is entities; units and their labels; a column with a
    well-known name, or the user's, whatever its content: a test set may have no entity. Raises
    InputError for several columns of entities.
    """
    args = sample, text, label
    return find_entities(*args) or find_unit_columns(*args) or find_entities(*args, by_name=True)


def find_entities(
    sample: TableSample, text: Sequence[str], label: str | None, by_name: bool = False
) -> EntityColumns | None:
    """Find the column whose content is entities, or `by_name` the one that is called so."""
    table, rows = sample
    names = [find_column(table, label)] if label else list(table.columns)
    if by_name:
        matches = [name for name in names if label or folded(name) in ENTITIES]
    else:
        matches = [name for name in names if _are_entities(row.get(name) for row in rows)]
    if len(matches) > 1:
        raise InputError(
            f"{table.path}: cannot tell which column holds the entities: {' or '.join(matches)}. "
            "Give --label-column."
        )
    if not matches:
        return None
    texts, _ = find_texts(sample, text, matches[0])
    return EntityColumns(texts[0], matches[0]) if len(texts) == 1 else None


def _are_entities(values: Iterable[Any]) -> bool:
    """Whether the cells of a column are entities, in nearly all rows, and some row has one."""
    cells = [value for value in values if not is_missing(value)]
    items = [_items_or_none(cell) for cell in cells]
    fit = sum(each is not None for each in items)
    return any(items) and fit >= 0.9 * len(cells)  # a tenth may be mistakes


def _items_or_none(cell: Any) -> list[dict[str, Any]] | None:
    try:
        items = _items(cell)
    except BadCellError:
        return None
    return items if all({"start", "end", "label"} <= item.keys() for item in items) else None


def read_entities(row: Row, columns: EntityColumns) -> Example:
    """The example in a row; its label is a sorted list of `Span`s, those of outer entities first.

    Raises BadCellError for entities that are not in the text.
    """
    text = read_text(row.cells, columns.text)
    cell = row.cells.get(columns.entities)
    if is_missing(cell):
        raise BadCellError(UNLABELLED)
    spans = {_span(text, item) for item in _items(cell)}
    return Example((text,), ordered(spans), row.source_line)


def _items(cell: Any) -> list[dict[str, Any]]:
    """The entities of a cell, with the keys of `KEYS`. Raises BadCellError for no entities."""
    cell = parsed(cell)
    if isinstance(cell, dict) and is_cluener(cell):
        return [
            {"start": first, "end": last + 1, "label": label, "text": entity}
            for label, of_label in cell.items()
            for entity, positions in (of_label or {}).items()
            for first, last in first_and_last(entity, positions)
        ]
    if isinstance(cell, dict) and all(isinstance(value, list) for value in cell.values()):
        # {"start": [0, 3], "end": [2, 5]} → [{"start": 0, "end": 2}, {"start": 3, "end": 5}]
        columns = list(cell.values())
        if len(set(map(len, columns))) > 1:
            raise BadCellError(f"has lists of different lengths as entities: {shortened(cell)}")
        cell = [dict(zip(cell, values, strict=True)) for values in zip(*columns, strict=True)]
    if not isinstance(cell, list):
        raise BadCellError(f"has {shortened(cell)} instead of a list of entities")
    return [_item(item) for item in cell]


def _item(item: Any) -> dict[str, Any]:
    """An entity of a list, with the keys of `KEYS`."""
    is_list = isinstance(item, list | tuple) and len(item) == 3
    if is_list and isinstance(item[2], str) and not isinstance(item[0], str):  # CHID has 3 texts
        # The first three keys are start, end and label, in the order of doccano's lists.
        return dict(zip(KEYS, item, strict=False))
    if not isinstance(item, dict):
        raise BadCellError(f"has {shortened(item)} as an entity, which needs start, end and label")
    return {
        key: next(item[name] for name in names if name in item)
        for key, names in KEYS.items()
        if not item.keys().isdisjoint(names)
    }


def _span(text: str, item: dict[str, Any]) -> Span:
    """The span of an entity. Raises BadCellError where the text does not have it."""
    start, end, label = (item.get(key) for key in ("start", "end", "label"))
    # Label Studio has a list of labels for each entity, usually of one.
    label = label[0] if isinstance(label, list) and len(label) == 1 else label
    if type(start) is not int or type(end) is not int:  # True is an int, too
        shown = shortened(item)
        raise BadCellError(f"has {shown} as an entity, without whole numbers start and end")
    if not 0 <= start < end <= len(text):
        raise BadCellError(
            f"has an entity from {start} to {end}, but a text of length {len(text)}: the end is "
            "the character after its last"
        )
    quoted = item.get("text")
    if isinstance(quoted, str) and quoted != text[start:end]:
        raise BadCellError(
            f"has the entity {quoted!r}, but {text[start:end]!r} from {start} to {end}: the end "
            "is the character after its last"
        )
    return read_label(label), start, end
