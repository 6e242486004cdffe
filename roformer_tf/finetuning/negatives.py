"""Hard negatives: texts with similar vectors although they do not match."""

import dataclasses
from collections import defaultdict

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.text_sides import SideBatches, text_numbers
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.models.rows import run_rows
from roformer_tf.tasks.vectors.ranked_texts import SCORES_AT_ONCE, unit
from roformer_tf.terminal import say
from roformer_tf.tokenizers.padding import Ints
from roformer_tf.top_k import top_k


def with_hard_negatives(data: SideBatches, model: PretrainedModel, count: int) -> SideBatches:
    """Add to each example, as negatives, the `count` nearest texts that do not belong to its first.

    model: gives a vector (H,) of each sequence. Candidates are all other second and third texts of
    the examples; the nearest have the largest cosines. Raises InputError if there are too few.
    """
    say("looking for the {count} nearest texts that do not belong to each", count=count)
    text_of = text_numbers(data.encoded.token_ids)
    _, different = np.unique(text_of, return_index=True)  # the first sequence of each text
    vectors = unit(run_rows(model, [data.encoded.token_ids[row] for row in different]))
    return dataclasses.replace(data, negatives=nearest_others(data, text_of, vectors, count))


def nearest_others(data: SideBatches, text_of: Ints, vectors: np.ndarray, count: int) -> Ints:
    """Rows (N, count) int64 of the texts nearest to each example's first, without its own.

    text_of (rows,): which of the vectors (…, H), float32 of length 1, is a row's.
    """
    assert data.positives is not None
    encoded, known = data.encoded, data.positives.of
    sides = encoded.text_of_row % encoded.sides
    candidates, first = np.unique(text_of[sides > 0], return_index=True)  # numbers of vectors
    # A row of each candidate: `first` counts only rows of second and third texts.
    rows = np.flatnonzero(sides > 0)[first]
    # `positives` numbers the texts of examples, which may be equal; a text's number: its vectors.
    vectors_of: dict[int, set[int]] = defaultdict(set)
    for text, vector in zip(encoded.numbers.ravel()[encoded.text_of_row], text_of, strict=True):
        vectors_of[int(text)].add(int(vector))
    documents = vectors[candidates]
    anchors = text_of[encoded.first_rows[:, 0]]
    nearest = np.empty((encoded.examples, count), np.int64)
    at_once = max(1, SCORES_AT_ONCE // len(candidates))
    for begin in range(0, len(nearest), at_once):
        chunk = slice(begin, begin + at_once)
        scores = vectors[anchors[chunk]] @ documents.T  # (chunk, candidates)
        for number, anchor in enumerate(encoded.numbers[chunk, 0].tolist()):
            own = sorted({vector for text in known[anchor] for vector in vectors_of[text]})
            scores[number, np.isin(candidates, own)] = -np.inf
        available = np.isfinite(scores).sum(axis=1).min()
        if available < count:
            raise InputError(
                f"hard_negatives is {count}, but an example has only {available} other texts that "
                "do not belong to it. Give fewer --hard-negatives, or more examples."
            )
        nearest[chunk] = rows[[top_k(row, count) for row in scores]]
    return nearest
