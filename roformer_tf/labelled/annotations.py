"""Columns that annotate texts: a label for every character or word, or entities.

A unit is a character or a word. Entities may be nested or overlap.

layout of two columns                                   of
{"tokens": ["北", "京"], "ner_tags": ["B-LOC", "I-LOC"]}   `datasets`: a tag for every unit
{"text": "北京", "label": {"LOC": {"北京": [[0, 1]]}}}     CLUENER, read as tags or as entities

layout of a cell of entities                    of
[{"start": 0, "end": 2, "label": "LOC"}]        this package, spaCy, Prodigy; end exclusive
{"start": [0], "end": [2], "label": ["LOC"]}    `datasets`
[{"start": 0, "end": 2, "labels": ["LOC"]}]     Label Studio
[[0, 2, "LOC"]]                                 doccano
{"LOC": {"北京": [[0, 1]]}}                     CLUENER: first and last character
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from reprlib import repr as shortened
from typing import Any, NamedTuple

from roformer_tf.labelled.cells import BadCellError, is_missing, parsed, read_label, read_text
from roformer_tf.labelled.column_names import LABELS, TEXTS, folded
from roformer_tf.labelled.columns import find_column, find_texts, unclear_label
from roformer_tf.labelled.examples import UNLABELLED, Example, Span, ordered
from roformer_tf.labelled.headers import TableSample
from roformer_tf.readers.lines import damage
from roformer_tf.readers.records import TYPED, Row, renamed, tag_pattern, tag_problem

# A label for every unit

# Well-known names of a column of units, normalized by `folded`.
UNITS = tuple(map(folded, ("tokens", "words", "chars", "characters", "units", "字", "词", "分词")))


class UnitColumns(NamedTuple):
    """The column of units and the column of their labels."""

    units: str
    """A column of lists, or of texts whose characters are the units."""
    label: str | None
    """A column of lists, of tags with spaces between them, or of CLUENER's dictionaries; None if no
    labels are read."""
    tags: re.Pattern[str]
    """The pattern of the labels."""

    def read(self, row: Row) -> Example:
        """The example in a row. Raises BadCellError unless there is a label for every unit."""
        value = row.cells.get(self.units)
        if isinstance(value, list):
            units = tuple(
                # A unit may be white space, which `read_text` would refuse as an empty text.
                unit if str(unit).isspace() else read_text({self.units: unit}, self.units)
                for unit in value
            )
            text = read_text({self.units: "".join(units)}, self.units)  # which may not be blank
        else:
            text = read_text(row.cells, self.units)
            units = tuple(text)
        if self.label is None:
            # The task splits a text into units later, as it did with the training texts.
            return Example((text,), None, row.source_line, units if isinstance(value, list) else ())
        label = row.cells.get(self.label)
        if label is None:
            raise BadCellError("has no label")
        tags = _tags(text, label)
        # `predict` writes words with spaces between them, or a list if a word has a space in it.
        for words in (parsed(text), text.split()):
            if isinstance(label, str) and isinstance(words, list) and len(tags) == len(words):
                units = tuple(map(str, words))
        if len(tags) != len(units):
            raise BadCellError(f"has {len(tags)} instead of {len(units)} labels in {self.label!r}")
        for unit, tag in zip(units, tags, strict=True):
            if problem := damage(tag) or tag_problem([unit, tag], self.tags):
                raise BadCellError(problem)
        return Example((text,), tags, row.source_line, units)


def find_unit_columns(
    sample: TableSample, text: Sequence[str], label: str | None
) -> UnitColumns | None:
    """Find the columns by their content, or check the user's columns; None if there are none.

    Raises InputError for several columns of tags, none of which is called ner.
    """
    table, rows = sample.table, sample.rows
    if len(text) > 1 or not rows:
        return None
    labels = [find_column(table, label)] if label else list(table.columns)
    units = [find_column(table, text[0])] if text else list(table.columns)
    if not text:
        # If a table has both tokens and text, its tags are those of the tokens.
        units = [x for x in units if folded(x) in UNITS] or [x for x in units if folded(x) in TEXTS]
    for column in units:
        matches = [x for x in labels if x != column and _are_labels(rows, column, x, bool(label))]
        # Data with parts of speech, too, such as CoNLL-2003, call the entities ner_tags.
        matches = [x for x in matches if "ner" in folded(x)] or matches
        if len(matches) > 1:
            raise unclear_label(sample, matches)
        if matches:
            cells = [_split(row.get(matches[0])) for row in rows]
            lists = [tags for tags in cells if isinstance(tags, list)]
            values = [tag for tags in lists for tag in tags]
            pattern = tag_pattern(map(str, values)) if lists else TYPED
            return UnitColumns(column, matches[0], pattern)
    return None


def _split(label: Any) -> Any:
    """The list of tags that a text is in a .tsv or .csv of `predict`; any other label as it is."""
    return label.split() if isinstance(label, str) else label


def _are_aligned(units: Any, labels: Any, named: bool) -> bool | None:
    """Whether a list has a label for each unit of a list, or a tag for each character of a text.

    None where either is possible.

    named: whether the user, or the header of predictions.tsv, names the column of labels: then it
    may be tags with spaces between them.
    """
    if named and isinstance(labels, str) and isinstance(units, str):
        # Any label of a whole text is one tag for one word, which decides nothing.
        count = len(labels.split())
        return None if count < 2 else count in map(len, (units, units.split(), parsed(units)))
    if not isinstance(labels, list) or not isinstance(units, list | str):
        return False
    # Other labels than tags with types may be those of a whole text.
    are_tags = isinstance(units, list) or all(TYPED.fullmatch(str(x)) for x in labels)
    are_short = all(isinstance(x, str | int) or x is None for x in labels)
    return are_tags and are_short and len(units) == len(labels)


def _are_labels(rows: Sequence[dict[str, Any]], units: str, label: str, named: bool) -> bool:
    """Whether a column has a label for every unit of another column, in nearly all rows."""
    # CLUENER's labels are dictionaries next to plain texts; all other layouts are lists.
    pairs = [(row.get(units), row.get(label)) for row in rows if row.get(label) is not None]
    if folded(label) in LABELS and all(isinstance(x, str) and _is_cluener(y) for x, y in pairs):
        # At least one entity: dictionaries that are all empty may be anything.
        return any(any((y or {}).values()) for _, y in pairs)
    aligned = [_are_aligned(x, y, named) for x, y in pairs]
    decided = max(len(pairs) - aligned.count(None), len(pairs) / 2)
    # A tenth may be mistakes; doccano has columns of empty lists.
    return any(y for _, y in pairs) and aligned.count(True) >= 0.9 * decided


def _tags(text: str, label: Any) -> tuple[str, ...]:
    """The tags of a row. Raises BadCellError for entities that are not in its text."""
    label = _split(label)
    if isinstance(label, list):
        return tuple("" if tag is None else str(tag).strip() for tag in label)
    if not _is_cluener(label):
        raise BadCellError(f"has the label {label!r}, which is no list of tags")
    # CLUENER's entities, whose ends are their last characters, as BIO tags.
    tags = ["O"] * len(text)
    for kind, entity, first, last in _entities_of_cluener(label):
        if text[first : last + 1] != entity or not entity:
            raise BadCellError(f"has the entity {entity!r}, which is not at {first}")
        # BIO has one tag for a unit, so entities cannot overlap.
        if set(tags[first : last + 1]) != {"O"}:
            raise BadCellError(f"has the entity {entity!r} inside of another one")
        tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tuple(tags)


# Entities of CLUENER, which are read as tags of characters, too


def _is_cluener(value: Any) -> bool:
    """Whether a label is {type: {entity: [[first, last], …]}}; Parquet has None for no entity."""
    return isinstance(value, dict) and all(
        of_type is None or isinstance(of_type, dict) for of_type in value.values()
    )


def _entities_of_cluener(value: dict[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """Label, text, first and last character of each. Raises BadCellError without the last two."""
    for label, of_label in value.items():
        for entity, positions in (of_label or {}).items():
            for pair in positions or []:
                bounds = pair if isinstance(pair, list) else []
                # `type`, because True is an int
                if len(bounds) != 2 or not all(type(x) is int and x >= 0 for x in bounds):
                    raise BadCellError(
                        f"has the entity {entity!r} without its first and last character"
                    )
                yield label, entity, bounds[0], bounds[1]


# Entities

# Well-known names of a column of entities, normalized by `folded`.
ENTITIES = tuple(map(folded, ("entities", "entity", "spans", "mentions", "实体", "实体列表")))
# Keys of an entity, and their other names.
KEYS = {
    "start": ("start", "start_offset", "start_idx", "start_pos", "begin"),
    "end": ("end", "end_offset", "end_idx", "end_pos"),
    "label": ("label", "labels", "type", "entity_type", "label_type", "tag"),
    "text": ("text", "entity", "mention"),
}


class EntityColumns(NamedTuple):
    """The column of the texts, and the column of their entities."""

    text: str
    entities: str

    def read(self, row: Row) -> Example:
        """The example in a row; its label is a sorted list of `Span`s, outer entities first.

        Raises BadCellError for entities that are not in the text.
        """
        text = read_text(row.cells, self.text)
        cell = row.cells.get(self.entities)
        if is_missing(cell):
            raise BadCellError(UNLABELLED)
        spans = {_span(text, item) for item in _items(cell)}
        return Example((text,), ordered(spans), row.source_line)


def find_entities(
    sample: TableSample, text: Sequence[str], label: str | None, by_name: bool = False
) -> EntityColumns | None:
    """Find the column whose content is entities, or `by_name` the one that is called so.

    By name the user's, too, whatever its content: a test set may have no entity. Raises InputError
    for several.
    """
    table, rows = sample.table, sample.rows
    names = [find_column(table, label)] if label else list(table.columns)
    if by_name:
        matches = [name for name in names if label or folded(name) in ENTITIES]
    else:
        matches = [name for name in names if _are_entities(row.get(name) for row in rows)]
    if len(matches) > 1:
        raise unclear_label(sample, matches)
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


def _items(cell: Any) -> list[dict[str, Any]]:
    """The entities of a cell, with the keys of `KEYS`. Raises BadCellError for no entities."""
    cell = parsed(cell)
    if isinstance(cell, dict) and _is_cluener(cell):
        return [
            {"start": first, "end": last + 1, "label": label, "text": entity}
            for label, entity, first, last in _entities_of_cluener(cell)
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
    return renamed(item, KEYS)


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
