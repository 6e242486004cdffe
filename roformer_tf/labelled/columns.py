"""Which columns of a table hold the texts and the labels.

The user's flags decide first, then well-known column names, then the content of the columns. If
several columns remain possible, an InputError shows the first lines and the flags to add.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, get_args

from roformer_tf.errors import InputError, check_choice
from roformer_tf.labelled import column_names
from roformer_tf.labelled.cells import is_missing, listed, parsed, stripped, to_number
from roformer_tf.labelled.column_names import folded
from roformer_tf.labelled.headers import FirstLine, TableSample, header_finder
from roformer_tf.readers.lines import check_encoding
from roformer_tf.readers.tables import Table, open_table
from roformer_tf.terminal import printable
from roformer_tf.translation import Message, either

# Values are labels if there are at most this many different ones, even if none repeats.
FEW_LABELS = 50

# Whether an example has a label, where each label has a column or an element of a list.
BITS = {"0", "1", "0.0", "1.0", "True", "False", "TRUE", "FALSE"}

# Separators between labels, besides the default one; and signs that separate them in few files. A
# cell of a spreadsheet may have a label in each line.
OTHER_SEPARATORS = ";；、|，\n"
RARE_SEPARATORS = "/# "

# An id, a phone, a link, a date, a time.
# It needs a digit or a protocol, and \w is ASCII alone: words and Chinese texts are no codes.
_CODE = re.compile(r"(?=.*\d|\w+://)[\w.@:/?=&+%#年月日-]+( [\d:]+)?", re.ASCII)
_BY_CONTENT = Message("by its content")


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Which columns hold texts and labels. Default: chosen by name and content, and printed."""

    text_columns: tuple[str, ...] = ()
    """Columns of the texts, by name or by number from 1: one, a pair, or A, B and C."""
    label_column: str | None = None
    """Column of the labels, by name or by number from 1."""
    first_line: FirstLine = "auto"
    """Whether the first line of a tsv, csv or xlsx is a header or an example. auto: by names and
    content."""
    label_separator: str = ","
    """Separator between the labels of a multilabel example."""
    encoding: str = "auto"
    """Encoding of the files, such as gb18030. auto: detects UTF-8, UTF-16, GB18030 and Big5."""
    sheet: str | None = None
    """Sheet of an .xlsx file, by its name. Default: the first visible sheet with cells."""
    strict: bool = False
    """Stop at rows that give no example. Default: skip and report them."""

    def open(self, path: str | Path, names: Iterable[str | None]) -> Table:
        """Open a table; `names`: columns by which its header may be detected."""
        find_top = header_finder(names, self.first_line)
        return open_table(path, find_top, self.encoding, self.sheet)

    def with_columns_of_training(
        self, table: Table, texts: Sequence[str], label: str | None
    ) -> "ColumnsConfig":
        """The settings for a table other than that of training.

        Columns that the user does not name have the names of training, if the table has all of
        those. Otherwise they remain to be detected.
        """
        # Training without a header has numbers as names. In a table with names these mean nothing.
        own = self.text_columns or tuple(_match(table, x, not table.has_header) for x in texts)
        own_label = self.label_column or (label and _match(table, label, not table.has_header))
        if "" in (*own, own_label):
            return self
        # Training had no header either, so there is no doubt about the first line.
        is_example = texts and not table.has_header and all(map(str.isdecimal, texts))
        first_line = "example" if is_example else self.first_line
        return replace(self, text_columns=own, label_column=own_label, first_line=first_line)

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        # A command checks its flags. A Python program may give one name, whose characters were
        # taken for names.
        texts: Any = self.text_columns
        if isinstance(texts, str):
            object.__setattr__(self, "text_columns", (texts,))
        check_choice("first_line", self.first_line, get_args(FirstLine))
        if not self.label_separator:
            raise InputError(
                "label_separator is empty. Give the separator between labels: ',' or ';'."
            )


def find_column(table: Table, wanted: str) -> str:
    """Find a column by its name or its number. Raises InputError without it."""
    column = _match(table, wanted)
    if not column:
        raise InputError(
            Message(
                "{problem}. Give --text-columns and --label-column by the names in a header, or by "
                "numbers from 1.",
                problem=_no_column(table, wanted),
            )
        )
    return column


def _match(table: Table, wanted: str, by_number: bool = True) -> str:
    """The column of this name, as it is or `folded`, or of this number; "" without it."""
    # Exact names first, so that "Text" and "text" may be two columns.
    if wanted in table.columns:
        return wanted
    matches = [name for name in table.columns if folded(name) == folded(wanted)]
    if len(matches) == 1:
        return matches[0]
    # Numbers come last: "2" is the column with this name if there is one, else the second column.
    if by_number and wanted.isdecimal() and 1 <= int(wanted) <= len(table.columns):
        return table.columns[int(wanted) - 1]
    return ""


def _no_column(table: Table, wanted: str) -> str:
    present = Message("its columns are {columns}", columns=printable(", ".join(table.columns)))
    if not table.has_header:
        present = Message("its first line names none of its {number}", number=len(table.columns))
    return Message(
        "{path} has no column {wanted!r}: {present}",
        path=table.path,
        wanted=wanted,
        present=present,
    )


class Profile:
    """The content of a column, without missing cells. A tenth may be mistakes, such as N/A."""

    def __init__(self, values: Iterable[Any]) -> None:
        cells = [value for value in values if not is_missing(value)]
        texts = [stripped(cell) for cell in cells]
        self.filled, self.distinct = len(cells), len(set(texts))
        numbers = [x for cell in cells if (x := to_number(cell, as_shown=True)) is not None]
        codes = sum(_CODE.fullmatch(text) is not None for text in texts)
        # At least 1, so that a column without values is neither numbers nor codes.
        enough = max(1, 0.9 * len(cells))
        # Row numbers are all different; scores of two or three rows may be, too, hence "> 2".
        are_indices = len(set(numbers)) == len(numbers) > 2 and all(map(float.is_integer, numbers))
        # The cells are numbers, but no row numbers.
        self.scores = len(numbers) >= enough and not are_indices
        # They are numbers, or codes: order numbers, addresses, times, links.
        self.coded = max(len(numbers), codes) >= enough
        # Mean number of characters of a cell; lists count as 0.
        self.length = sum(len(x) for x in cells if isinstance(x, str)) / max(1, len(cells))

    @property
    def like_labels(self) -> bool:
        """Few distinct values."""
        # A label has two examples on average. In a column of one value nothing can be learnt.
        return 1 < self.distinct <= min(FEW_LABELS, self.filled / 2)

    @property
    def like_texts(self) -> bool:
        """Most cells differ, and they are neither numbers nor codes."""
        return not self.coded and 2 * self.distinct > self.filled > 0

    @property
    def like_premises(self) -> bool:
        """Sentences that repeat, as premises of several hypotheses and titles of products do."""
        return not self.coded and not self.like_labels and self.distinct > 1 and self.length >= 10


def _profiles(sample: TableSample, columns: Iterable[str]) -> dict[str, Profile]:
    return {name: Profile(row.get(name) for row in sample.rows) for name in columns}


def find_label(
    sample: TableSample, texts: Iterable[str], label: str | None, optional: bool = False
) -> tuple[str | None, str]:
    """The label column, and a note if its content selected it.

    In this order: the user's; the only one except the user's texts; the one with a well-known name;
    the only one with few distinct values. `optional`: there may be none, and by their content only
    numbers are labels, such as scores of pairs. Columns with well-known names of matching texts
    need no label either. Raises InputError if several match, or none.
    """
    if label is not None:
        return find_column(sample.table, label), ""
    chosen = {find_column(sample.table, name) for name in texts}
    free = [name for name in sample.table.columns if name not in chosen]
    # Next to the user's text columns, the last column left is the label, whatever its name.
    if len(free) == 1 < len(sample.table.columns) and not optional:
        return free[0], ""
    if len(free) == 1 and not optional:
        raise InputError(
            Message(
                "{place} has one column, but a text and its label need two, with a tab or comma "
                "between. {sample}",
                place=sample.table.place,
                sample=sample.shown(),
            )
        )
    note = ""
    candidates = [name for name in free if folded(name) in column_names.LABELS]
    # `answer` is a label only next to a text and its choices; next to a question alone, a text.
    if not candidates and any({*map(folded, free)} > {*names} for names in column_names.CHOICES):
        candidates = [name for name in free if folded(name) == "answer"]
    if not candidates and not (optional and _positives(sample.table)):
        note = _BY_CONTENT
        profiles = _profiles(sample, free)
        candidates = [
            x
            for x in free
            if folded(x) not in column_names.TEXTS
            and (profiles[x].scores if optional else profiles[x].like_labels)
        ]
    if len(candidates) == 1:
        return candidates[0], note
    if not candidates and (optional or _positives(sample.table)):
        return None, ""
    raise unclear_label(sample, candidates or free)


def find_texts(
    sample: TableSample, texts: Iterable[str], label: str | None, matching: bool = False
) -> tuple[tuple[str, ...], str]:
    """The text columns, and a note if their content selected them.

    In this order: the user's; those with well-known names; the only one except the label; the only
    one whose cells look like texts. Next to a well-known name, other texts may be the second of a
    pair. `matching`: rows may hold matching texts, so two or three columns of texts are all used,
    whatever their names. Raises InputError if several or none match.
    """
    if named := tuple(find_column(sample.table, name) for name in texts):
        return named, ""
    # Several candidates are never reduced to one by a guess: a wrong text column trains unnoticed.
    free = tuple(name for name in sample.table.columns if name != label)
    profiles = _profiles(sample, free)
    candidates, note = _positives(sample.table) if matching else [], ""
    candidates = candidates or _named_texts(free)
    # Without a well-known pair or triple, two or three columns of texts match each other. Of more
    # columns it would be a guess which ones do.
    if matching and not any(len(names) > 1 for names in candidates):
        several = tuple(x for x in free if profiles[x].filled and not profiles[x].coded)
        if len(several) in (2, 3):
            return several, "" if len(several) == len(free) else _BY_CONTENT
    # A single well-known name, such as text. Another column with a text in nearly every row makes
    # it doubtful: the error at the end shows both.
    if [len(names) for names in candidates] == [1]:
        candidates += _second_texts(profiles, candidates[0][0], len(sample.rows))
    elif len(candidates) == 1 and tuple(map(folded, candidates[0])) in column_names.CHOICES:
        # So does a passage next to a question and its choices: it would be ignored. It may repeat.
        text, choices = candidates[0]
        longer = [x for x in free if x != choices and profiles[x].length > profiles[text].length]
        candidates += [(x,) for x in longer if not profiles[x].coded]
    elif not candidates and len(free) == 1:
        candidates = [free]
    elif not candidates:
        candidates, note = [(x,) for x in free if profiles[x].like_texts], _BY_CONTENT
        if len(candidates) == 1:
            candidates = [(x,) for x in free if (x,) in candidates or profiles[x].like_premises]
    if len(candidates) == 1:
        return candidates[0], note
    names = candidates or [(name,) for name in free]
    columns = tuple(chain(*names))
    if len(names) == len(columns) == 2 and not any(profiles[x].coded for x in columns):
        names = [*names, columns]  # they may be a pair
    raise _unclear(sample, Message("which columns hold the texts"), names, "--text-columns")


def _second_texts(profiles: dict[str, Profile], first: str, rows: int) -> list[tuple[str, ...]]:
    """Columns with another text in nearly every row, but no names, keywords or remarks.

    The first may also have numbers: those of questions in 问题.
    """
    # Names of people and things have fewer characters than this on average.
    length = min(10, 2 / 3 * profiles[first].length)
    return [
        (name,)
        for name, x in profiles.items()
        if name != first and x.like_texts and x.filled >= 0.9 * rows and x.length >= length
        if folded(name) not in column_names.REMARKS
    ]


def _positives(table: Table) -> list[tuple[str, ...]]:
    """Columns with well-known names of matching texts, such as query and document."""
    groups = (_columns_called(names, table.columns) for names in column_names.POSITIVES)
    return next((group for group in groups if group), [])


def _named_texts(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns with well-known names: a triple, else pairs, else every single text."""
    # A file with text_a and text_b is one of pairs, even if it also has a column called title.
    for groups in (
        column_names.CHOICES + column_names.DOCUMENTS,
        column_names.TRIPLES,
        column_names.PAIRS,
        tuple(
            (name,) for name in dict.fromkeys(map(folded, columns)) if name in column_names.TEXTS
        ),
    ):
        matches = [match for names in groups for match in _columns_called(names, columns)]
        if matches:
            return matches
    return []


def _columns_called(names: Sequence[str], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns with these folded names; several, if columns such as text and Text share a name."""
    return list(product(*([x for x in columns if folded(x) == name] for name in names)))


def find_texts_to_predict(
    table: Table, usual: Sequence[str], columns: ColumnsConfig
) -> tuple[tuple[str, ...], str]:
    """The text columns of a file to predict, and how they were selected.

    They are the user's, or `usual`, those of training. In a file with other names the rules of
    training select them, if their number is the same. The user has to confirm a file without a
    header. Raises InputError if the columns are not certain.
    """
    if named := columns.with_columns_of_training(table, usual, None).text_columns:
        return tuple(find_column(table, name) for name in named), ""
    sample = TableSample(table)
    if table.has_header or columns.first_line != "auto":
        labels = [name for name in table.columns if folded(name) in column_names.LABELS]
        label = labels[0] if len(labels) == 1 else None
        try:
            names, note = find_texts(sample, (), label)
        except InputError:
            names = ()
        if len(names) == len(usual):
            return names, note or (Message("by its name") if table.has_header else "")
    if columns.first_line == "example" and len(table.columns) == len(usual):
        return tuple(table.columns), ""  # no header, and exactly as many columns as texts
    candidates = [table.columns[: len(usual)]] if len(usual) > 1 else [(x,) for x in table.columns]
    missing = next(name for name in usual if not _match(table, name, not table.has_header))
    raise _asking(sample, _no_column(table, missing), candidates, "--text-columns")


# Messages


def _asking(
    sample: TableSample, problem: str, candidates: Sequence[tuple[str, ...]], flag: str
) -> InputError:
    """An error that shows the first lines and the flags to add."""
    flags = [f"{flag} {_typed(names)}" for names in candidates[:4]] or [flag]
    asked = Message(", and --first-line header if that line is one")
    return InputError(
        Message(
            "{problem}. {sample} Give {flags}, by name or by number from 1{asked}.",
            problem=problem,
            sample=sample.shown(),
            flags=either(flags),
            asked="" if sample.table.has_header else asked,
        )
    )


def _unclear(
    sample: TableSample, what: str, candidates: Sequence[tuple[str, ...]], flag: str
) -> InputError:
    shown = either([" ".join(names) for names in candidates] or [Message("none is left")])
    place = sample.table.place
    problem = Message("{place}: cannot tell {what}: {shown}", place=place, what=what, shown=shown)
    return _asking(sample, problem, candidates, flag)


def unclear_label(sample: TableSample, candidates: Sequence[str]) -> InputError:
    """An error for several columns, or none, that may hold the labels, with the first lines."""
    what, names = Message("which column holds the labels"), [(name,) for name in candidates]
    error = _unclear(sample, what, names, "--label-column")
    cells = {str(row.get(name)) for row in sample.rows for name in candidates}
    if cells <= BITS and len(candidates) > 1:
        more = "Or write all labels of a text in one column, such as a,b."
        return InputError(Message("{sentences} {more}", sentences=error.args[0], more=more))
    return error


def _typed(names: Iterable[str]) -> str:
    """Names as a shell needs them, quoted if necessary."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else shlex.quote(name) for name in names)


class LabelSample:
    """The columns of a labelled file, from which tasks guess whether it is theirs.

    texts, label: names of columns. labels: the cells of the label column, without missing ones.
    separator: between the labels of an example that has several.
    """

    def __init__(
        self, texts: Sequence[str], label: str, labels: Sequence[Any], separator: str
    ) -> None:
        self.texts, self.label, self.labels, self.separator = texts, label, labels, separator
        # How many different labels there are.
        self.distinct = len({stripped(value) for value in labels})
        # The labels as numbers; None for any other label.
        self.numbers = [to_number(value, as_shown=True) for value in labels]

    @property
    def has_decimals(self) -> bool:
        """Whether all labels but a tenth, such as "?", are numbers, and not all of them whole."""
        # Ratings of 4.0 and 5.0 are whole: pandas writes integers like this.
        numbers = [x for x in self.numbers if x is not None]
        return len(numbers) >= 0.9 * len(self.labels) and any(x % 1 for x in numbers)

    @property
    def has_few(self) -> bool:
        """Whether the labels are so few, or repeat so often, that each is a class."""
        # Words may be many classes if they repeat; numbers would rather be a regression.
        several_times = 2 * self.distinct <= len(self.labels)
        return self.distinct <= FEW_LABELS or (several_times and None in self.numbers)

    @cached_property
    def why_several(self) -> str:
        """Why examples of a single text have several labels each; "" if they do not."""
        if len(self.texts) != 1 or self.has_decimals:
            return ""
        if any(isinstance(parsed(value), list | tuple) for value in self.labels):
            return Message("the labels are lists")
        if folded(self.label) in column_names.SEVERAL:
            return Message("the column is called {name}", name=self.label)
        if separated := self._separated_by(self.separator):
            return Message(
                "{separator!r} separates several in {number:,} of {of:,} examples",
                separator=self.separator,
                number=separated,
                of=len(self.labels),
            )
        return ""

    def _separated_by(self, separator: str) -> int:
        """In how many cells a separator is between labels; 0 if it is part of their names."""
        # Commas also occur in names of classes. In lists of labels the parts repeat: there are not
        # more of them than different cells.
        texts = [str(value) for value in self.labels]
        separated = sum(separator in text for text in texts)
        parts = {stripped(part) for text in texts for part in text.split(separator)}
        return separated if 10 * separated >= len(texts) and len(parts) <= len(set(texts)) else 0

    def check_separator(self, path: str | Path, are_several: bool) -> None:
        """Raise InputError if another separator than the default one is between the labels.

        And where a list does not name the labels, but has 0 or 1 for each. `are_several`: whether
        an example may have several labels, by the task that is chosen or guessed.
        """
        if len(self.texts) != 1:
            return
        lists = [[str(x).strip() for x in listed(y, self.separator)] for y in self.labels]
        are_texts = all(isinstance(parsed(value), str) for value in self.labels)
        if are_texts and self.separator == ",":
            signs = OTHER_SEPARATORS + (RARE_SEPARATORS if are_several else "")
            self._check_other_signs(path, {*chain(*lists)}, signs)
        bits = max(lists, key=len, default=[])
        if len(bits) > 1 and {*chain(*lists)} <= BITS:
            raise InputError(
                f"{path}: the labels are 0 or 1 for each label, as {','.join(bits)}. Write the "
                "names of the labels that are 1, such as price,service."
            )

    def _check_other_signs(self, path: str | Path, labels: set[str], signs: str) -> None:
        """Raise InputError if some of the labels between commas are several with another sign."""
        # Where commas separate labels already, how often another sign occurs proves nothing: it
        # counts only between labels that are known from other cells.
        usual = "" if self._separated_by(",") else OTHER_SEPARATORS
        for sign in signs:
            # Even in a single cell, a sign between labels of other cells separates them.
            several = any(sign in x and {*map(stripped, x.split(sign))} <= labels for x in labels)
            if several or (sign in usual and self._separated_by(sign)):
                typed = shlex.quote(sign) if sign.isprintable() else f"${sign!r}"
                raise InputError(
                    f"{path}: {sign!r} is between labels. Write one separator in all rows, and "
                    f"give --label-separator {typed} if it is this one, or --task "
                    "classification if these are single labels."
                )
