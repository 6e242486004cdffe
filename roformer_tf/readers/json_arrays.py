"""Files that hold one JSON array of objects → records."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import SAMPLE, encoding_of, utf16_codec
from roformer_tf.readers.records import Record, object_record, renamed
from roformer_tf.readers.streams import opened

# Keys of labels in annotations of Label Studio.
_CHOICES = ("choices", "rating", "number")
# The beginning of a file with an array that is, as in SQuAD, the value of "data"; in exports of
# Navicat that of "RECORDS".
_ARRAY = re.compile(r'\{[^\[{]*"(data|RECORDS)"\s*:\s*\[')

# Columns of a question, and their names in nested files.
_QUESTION = {
    "id": ("id", "query_id"),
    "context": ("context", "context_text"),
    "question": ("question", "query_text"),
    "answers": ("answers",),
}


def find_json(path: str | Path, encoding: str, nested: bool) -> tuple[str, bool]:
    """The encoding of a file, and whether it is one array, or `nested` an object with "data"."""
    with opened(path) as stream:
        head = stream.read(SAMPLE)
    codec = encoding
    if encoding == "auto":
        # Up to a quote, which is never a part of a character.
        codec = utf16_codec(head) or encoding_of(head.rpartition(b'"')[0]) or "utf-8"
    text = head.decode(codec, "replace").lstrip("\ufeff").lstrip()
    return codec, text.startswith("[") or (nested and _ARRAY.match(text) is not None)


def json_array(path: str | Path, encoding: str) -> Iterator[Record]:
    """Yield the objects of a file's array, numbered from 1; the file is read as a whole.

    Bytes in another encoding become lone surrogates (`damage`). Raises InputError for broken JSON.
    """
    with opened(path) as stream:
        text = stream.read().decode(encoding, "surrogateescape").lstrip("\ufeff")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is broken JSON: {error}. Write it again, or as .jsonl with an object in each "
            "line."
        ) from None
    if isinstance(content, dict):
        content = content.get("data") or content.get("RECORDS", [])
    objects = (cells for value in content for cells in _questions_of_c3(value))
    yield from (object_record(number, value) for number, value in enumerate(objects, start=1))


def _questions_of_c3(value: Any) -> list[Any]:
    """A text of C3, [[text, …], [{"question", "choice", "answer"}, …], id] → its questions.

    Any other value is the only one. The question is first because the end of a long text is cut.
    """
    if not isinstance(value, list) or [type(x) for x in value] != [list, list, str]:
        return [value]
    texts, questions, _ = value
    are_complete = [isinstance(x, dict) and {"question", "choice"} <= x.keys() for x in questions]
    if not questions or not all(are_complete):
        return [value]
    return [
        {
            "text": "\n".join(map(str, [x["question"], *texts])),
            "choices": x["choice"],
            "answer": x.get("answer"),
        }
        for x in questions
    ]


def _annotated(cells: dict[str, Any]) -> dict[str, Any]:
    """A task of Label Studio's JSON → its data with the first annotation as `label`."""
    data, annotations = cells.get("data"), cells.get("annotations")
    if not isinstance(data, dict) or not isinstance(annotations, list):
        return cells
    # A task that was skipped has such an annotation, too.
    annotations = [x for x in annotations if not (isinstance(x, dict) and x.get("was_cancelled"))]
    if not annotations:
        return data
    results = annotations[0].get("result") if isinstance(annotations[0], dict) else None
    if not isinstance(results, list):
        return cells
    values = [x["value"] for x in results if isinstance(x, dict) and "value" in x]
    choices = [choice for value in values for choice in _choices(value)]
    # One choice is a label, several are a list. Without any, values such as spans are the label.
    return data | {"label": choices[0] if len(choices) == 1 else choices or values}


def _choices(value: Any) -> list[Any]:
    """The labels in the value of an annotation: {"choices": […]}, {"rating": 5}, or one alone."""
    if isinstance(value, dict):
        value = next((value[name] for name in _CHOICES if value.get(name) is not None), [])
    return value if isinstance(value, list) else [value]


def questions_of(records: Iterable[Record]) -> Iterator[Record]:
    """SQuAD's articles → a record for each of their questions; other records as `_annotated`.

    {"paragraphs": [{"context", "qas": [{"question", "id", "answers"}]}]}, or a paragraph itself,
    also with the names `context_text`, `query_text` and `query_id` of CMRC 2018's trial data.
    What was not accepted in Prodigy is no example.
    """
    number = 0
    for record in records:
        if "_task_hash" in record.cells and record.cells.get("answer") in ("reject", "ignore"):
            problem = f"has the answer {record.cells['answer']!r} of Prodigy, not accept"
            yield Record(record.number, {}, problem)
            continue
        cells = _annotated(record.cells)
        paragraphs = cells.get("paragraphs", [cells] if "qas" in cells else None)
        if not isinstance(paragraphs, list):
            yield record._replace(cells=cells)
            continue
        for paragraph in paragraphs:
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            for question in questions if isinstance(questions, list) else [None]:
                number += 1
                if not isinstance(question, dict):
                    yield Record(number, {}, "is no question of a paragraph's 'qas'")
                    continue
                # If both have a key, such as id, the question's counts.
                # A test set has no answers, which does not mean that its questions have none.
                yield Record(number, renamed({**paragraph, **question}, _QUESTION))
