"""Hard negatives: texts with near vectors although they do not belong together.

FOLDER/negatives.npz   those of a training, for continuing it after it was killed
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import file_beside
from roformer_tf.labelled.text_sides import SideBatches, text_numbers
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.models.rows import run_rows
from roformer_tf.tasks.vectors.ranked_texts import unit
from roformer_tf.tokenizers.padding import Ints
from roformer_tf.top_k import top_k

FILE = "negatives.npz"
SCORES_AT_ONCE = 8_000_000  # float32: 32 MB


def with_hard_negatives(
    data: SideBatches, model: PretrainedModel, count: int, folder: Path, fingerprint: str
) -> SideBatches:
    """Give each example as negatives the `count` nearest texts that do not belong to its first.

    model: gives a vector (H,) of each row. They are looked for among all other second and third
    texts of the examples, by the cosine; where the folder has those of the same data they are
    read. Raises InputError where there are too few other texts.
    """
    path = folder / FILE
    if path.is_file():
        with np.load(path) as known:
            if str(known["fingerprint"]) == fingerprint:
                return dataclasses.replace(data, negatives=known["rows"])
    print(f"looking for the {count} nearest texts that do not belong to each")
    different, place = different_rows(data.encoded.token_ids)
    vectors = unit(run_rows(model, [data.encoded.token_ids[row] for row in different]))
    found = nearest_others(data, place, vectors, count)
    with file_beside(path) as beside, beside.open("wb") as file:
        np.savez(file, rows=found, fingerprint=fingerprint)
    return dataclasses.replace(data, negatives=found)


def different_rows(token_ids: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of each different text, and for each row the number of its text."""
    numbers = text_numbers(token_ids)
    _, rows, place = np.unique(numbers, return_index=True, return_inverse=True)
    return rows, place


def nearest_others(data: SideBatches, place: Ints, vectors: np.ndarray, count: int) -> Ints:
    """Rows (N, count) int64 of the texts nearest to each example's first, of those not its own.

    place (rows,): which of the vectors (…, H), float32 of length 1, is a row's.
    """
    assert data.positives is not None
    encoded, known = data.encoded, data.positives.of
    sides = encoded.places % encoded.sides
    candidates, first = np.unique(place[sides > 0], return_index=True)  # numbers of vectors
    rows = np.flatnonzero(sides > 0)[first]
    rows_of: dict[int, set[int]] = defaultdict(set)  # a text's number: its vectors
    for text, vector in zip(encoded.numbers.ravel()[encoded.places], place, strict=True):
        rows_of[int(text)].add(int(vector))
    documents = vectors[candidates]
    anchors = place[encoded.first_rows[:, 0]]
    found = np.empty((encoded.examples, count), np.int64)
    at_once = max(1, SCORES_AT_ONCE // len(candidates))
    for begin in range(0, len(found), at_once):
        some = slice(begin, begin + at_once)
        scores = vectors[anchors[some]] @ documents.T
        for number, anchor in enumerate(encoded.numbers[some, 0].tolist()):
            own = sorted({one for text in known[anchor] for one in rows_of[text]})
            scores[number, np.isin(candidates, own)] = -np.inf
        left = np.isfinite(scores).sum(axis=1).min()
        if left < count:
            raise InputError(
                f"hard_negatives is {count}, but an example has only {left} other texts that do "
                "not belong to it. Give fewer --hard-negatives, or more examples."
            )
        found[some] = rows[[top_k(row, count) for row in scores]]
    return found
