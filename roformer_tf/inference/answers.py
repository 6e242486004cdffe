"""What is written of an answer: named cells, as a line of a TSV or of JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task

ERROR = "error"


def cell_names(task: Task) -> list[str]:
    """Names of the cells: the task's own, and `error`."""
    return [*task.decoding.cell_names(), ERROR]


def text_names(texts: Sequence[str], ours: Collection[str]) -> tuple[str, ...]:
    """Names of the texts' columns beside ours: one that we have, too, gets "text:" in front."""
    taken, names = {*texts, *ours}, []
    for name in texts:
        other = name
        while name in ours and other in taken:
            other = f"text:{other}"
        names.append(other)
    return tuple(names)


def cells(example: Example, prediction: Prediction, task: Task) -> dict[str, Any]:
    """An answer by column: texts, numbers, tuples of them, and entities; no error."""
    return dict(
        zip(cell_names(task), [*task.decoding.cells(example, prediction), None], strict=True)
    )


def bad_cells(problem: str, task: Task) -> dict[str, Any]:
    """No answer, by column, and the reason."""
    return dict.fromkeys(cell_names(task)) | {ERROR: problem}


def json_line(cells: Mapping[str, Any], task: Task) -> str:
    """Cells as an object."""
    return json.dumps(cells, ensure_ascii=False)


def tsv_line(cells: Mapping[str, Any], task: Task) -> str:
    """Cells between tabs; several tags, or labels, are joined as they were in training."""
    between = task.decoding.joined_by or task.label_separator
    return "\t".join(_tsv_cell(value, between) for value in cells.values())


def one_line(text: str) -> str:
    """A text with its tabs and line breaks as they are spelled in Python: one cell of a TSV."""
    for raw, spelled in (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(raw, spelled)
    return text


def _tsv_cell(value: Any, between: str) -> str:
    """A value in one line, without tabs."""
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return one_line(between.join(map(str, value)) if isinstance(value, tuple) else str(value))
