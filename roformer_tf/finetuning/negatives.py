"""Hard negatives: texts that a model takes for near, though they do not belong together.

FOLDER/negatives.npz   those of a training, which goes on with the same when it was killed
"""

import dataclasses
from pathlib import Path

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import file_beside
from roformer_tf.labelled.apart import SideBatches
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.models.rows import run_rows
from roformer_tf.tokenizers.padding import Ints

FILE = "negatives.npz"
SCORES_AT_ONCE = 8_000_000  # float32: 32 MB


def with_hard_negatives(
    data: SideBatches, model: PretrainedModel, count: int, folder: Path, fingerprint: str
) -> SideBatches:
    """Hold against each example the `count` nearest texts that do not belong to its first.

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
    rows, first = unique_rows(data)
    vectors = unit(run_rows(model, [data.encoded.token_ids[row] for row in rows]))
    found = nearest_others(data, rows, vectors[first], count)
    with file_beside(path) as beside, beside.open("wb") as file:
        np.savez(file, rows=found, fingerprint=fingerprint)
    return dataclasses.replace(data, negatives=found)


def unique_rows(data: SideBatches) -> tuple[Ints, Ints]:
    """A row of each different text, in the order of the texts' numbers, and each row's place."""
    _, rows, place = np.unique(data.numbers, return_index=True, return_inverse=True)
    return rows, place


def unit(vectors: list[np.ndarray]) -> np.ndarray:
    """(N, H) float32 of length 1."""
    stacked = np.stack(vectors)
    return stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)


def nearest_others(data: SideBatches, rows: Ints, vectors: np.ndarray, count: int) -> np.ndarray:
    """Rows (N, count) int64 of the texts nearest to each example's first, of those not its own.

    rows: a row of each different text; vectors (all rows, H) float32 of length 1.
    """
    assert data.belonging is not None
    sides = np.arange(len(data.numbers)).reshape(-1, data.sides)
    candidates = np.unique(data.numbers[sides[:, 1:]])  # numbers of texts
    documents, present = vectors[rows[candidates]], set(candidates.tolist())
    known = data.belonging.of
    found = np.empty((len(sides), count), np.int64)
    at_once = max(1, SCORES_AT_ONCE // len(candidates))
    for begin in range(0, len(sides), at_once):
        some = sides[begin : begin + at_once, 0]
        scores = vectors[some] @ documents.T
        for number, anchor in enumerate(data.numbers[some].tolist()):
            own = np.searchsorted(candidates, [x for x in known[anchor] if x in present])
            scores[number, own] = -np.inf
        left = np.isfinite(scores).sum(axis=1).min()
        if left < count:
            raise InputError(
                f"hard_negatives is {count}, but an example has only {left} other texts that do "
                "not belong to it. Give fewer --hard-negatives, or more examples."
            )
        chosen = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(scores, chosen, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(chosen, order, axis=1)
        found[begin : begin + at_once] = rows[candidates[best]]
    return found
