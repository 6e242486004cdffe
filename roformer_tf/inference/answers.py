"""What is written of an answer: named cells, as a line of a TSV or of JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from roformer_tf.labelled.task import RANKED, Example, Prediction, Task, as_bioes, spans

MANY_LABELS = 20
"""More labels than these have no column each."""
ERROR = "error"


def columns(task: Task) -> list[str]:
    """Names of the cells: what was answered, its probabilities, and `error`.

    classification and pair: label, p(…) of each label. multilabel: labels, p(…). ranking: label,
    p(B), p(C), each being near to A for itself. regression: value. tagging: tags, and entities
    where the tags mark any. Of many labels, only the answered ones have a probability.
    """
    if task.name == "regression":
        return ["value", ERROR]
    if task.name == "tagging":
        return ["tags", *(["entities"] if marks_entities(task.labels) else []), ERROR]
    name = "labels" if task.name == "multilabel" else "label"
    if len(task.labels) > MANY_LABELS:
        return [name, "probabilities" if task.name == "multilabel" else "probability", ERROR]
    return [name, *(f"p({label})" for label in task.labels or RANKED), ERROR]


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
    return dict(zip(columns(task), [*_answer(example, prediction, task), None], strict=True))


def bad_cells(problem: str, task: Task) -> dict[str, Any]:
    """No answer, by column, and the reason."""
    return dict.fromkeys(columns(task)) | {ERROR: problem}


def json_line(cells: Mapping[str, Any], task: Task) -> str:
    """Cells as an object."""
    return json.dumps(cells, ensure_ascii=False)


def tsv_line(cells: Mapping[str, Any], task: Task) -> str:
    """Cells between tabs; several tags, or labels, are joined as they were in training."""
    between = " " if task.name == "tagging" else task.label_separator
    return "\t".join(_tsv_cell(value, between) for value in cells.values())


def one_line(text: str) -> str:
    """A text with its tabs and line breaks as they are spelled in Python: one cell of a TSV."""
    for raw, spelled in (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(raw, spelled)
    return text


def entities(text: str, units: Sequence[str], tags: Sequence[str]) -> list[list[Any]]:
    """[[start, end, type, text], …] of what tags of `tasks.MARKS` mark, in characters of the text.

    "北京你好", B-LOC I-LOC O O → [[0, 2, "LOC", "北京"]]. As seqeval, which judges the model, reads
    them: I after O begins an entity, too.
    """
    places = _places(text, units)
    found = [(places[first][0], places[end - 1][1], kind) for kind, first, end in spans(tags)]
    return [[start, end, kind, text[start:end]] for start, end, kind in found]


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether the tags are BIO, BIOES or the like, and not, say, parts of speech."""
    return all(map(as_bioes, labels))


def _answer(example: Example, prediction: Prediction, task: Task) -> list[Any]:
    """The cells without the error."""
    label, scores = prediction
    if task.name == "regression":
        return [shortest(scores[0])]
    if isinstance(label, tuple) and task.name == "tagging":
        marked = marks_entities(task.labels)
        return [label, *([entities(example.texts[0], example.units, label)] if marked else [])]
    if len(task.labels) <= MANY_LABELS:
        return [label, *map(shortest, scores)]
    if isinstance(label, tuple):
        return [label, tuple(shortest(scores[task.labels.index(one)]) for one in label)]
    return [label, shortest(scores.max())]


def _places(text: str, units: Sequence[str]) -> list[tuple[int, int]]:
    """Where each unit stands in the text, between them at most white space: (first, last + 1)."""
    places, end = [], 0
    for unit in units:
        start = text.index(unit, end)
        end = start + len(unit)
        places.append((start, end))
    return places


def _tsv_cell(value: Any, between: str) -> str:
    """A value in one line, without tabs."""
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return one_line(between.join(map(str, value)) if isinstance(value, tuple) else str(value))


def shortest(number: Any) -> float:
    """A float32 in as many digits as tell it from its neighbours: 0.1, not 0.10000000149."""
    return float(str(np.float32(number)))
