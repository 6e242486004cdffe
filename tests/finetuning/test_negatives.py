"""Hard negatives are the nearest texts and never a positive of the example."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.finetuning.negatives import nearest_others, with_hard_negatives
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trial import Trial, complete_data
from roformer_tf.labelled.text_sides import EncodedSides, Positives, SideBatches, text_numbers
from roformer_tf.tasks.losses import VectorConfig
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.vectors.ranked_texts import unit


def data_of(pairs):
    """Return batches of pairs whose texts have one token each."""
    rows = [[[np.array([1, token, 2], np.int32)] for token in pair] for pair in pairs]
    encoded = EncodedSides.of(rows, np.full(len(pairs), 3))
    return SideBatches(encoded, positives=Positives(encoded.numbers))


def token(data, row):
    return int(data.encoded.token_ids[row][1])


@given(st.integers(0, 10_000))
def test_hard_negatives_equal_a_sort_of_all_other_texts(seed):
    rng = np.random.default_rng(seed)
    pairs = list(zip(rng.integers(10, 20, 30), rng.integers(15, 45, 30), strict=True))
    data = data_of(pairs)
    vectors = unit(list(rng.normal(size=(60, 5))))
    index_of_row = text_numbers(data.encoded.token_ids)
    vector_of = {token(data, row): vectors[index_of_row[row]] for row in range(60)}
    actual = nearest_others(data, index_of_row, vectors, 3)
    for (anchor, _), chosen in zip(pairs, actual, strict=True):
        positives = {anchor} | {b for a, b in pairs if a == anchor}
        positives |= {a for a, b in pairs if b == anchor}
        candidates = sorted({b for _, b in pairs} - positives)
        scores = {text: float(vector_of[text] @ vector_of[anchor]) for text in candidates}
        best = sorted(scores, key=lambda text: -scores[text])[:3]
        assert [token(data, row) for row in chosen] == best


def test_hard_negatives_are_computed_by_the_model(capsys):
    data = data_of([(10, 20), (11, 21), (12, 22), (10, 23)])
    angles = {10: 0, 20: 1, 23: 2, 21: 30, 22: 40, 11: 35, 12: 80}

    def model(inputs):
        degrees = np.radians([angles[int(row[1])] for row in inputs["token_ids"]])
        return np.stack([np.cos(degrees), np.sin(degrees)], 1).astype("float32")

    actual = with_hard_negatives(data, model, 2)
    output = [[token(data, row) for row in item] for item in actual.negatives]
    assert output == [[21, 22], [22, 23], [21, 23], [21, 22]]
    assert "nearest texts" in capsys.readouterr().out
    with pytest.raises(InputError, match="has only 2 other texts"):
        with_hard_negatives(data, model, 3)


@pytest.mark.parametrize(("micro_batches", "encoded_once"), [(1, ("side_1",)), (2, ())])
def test_complete_data_adds_negatives_and_encodes_repeated_texts_once(micro_batches, encoded_once):
    """A repeated text is encoded once per batch, except with micro-batches.

    Micro-batches cannot share an encoding.
    """
    data = data_of([(10, 20), (11, 20), (12, 21), (13, 22), (14, 22)])

    def model(inputs):
        return np.stack([inputs["token_ids"][:, 1], np.full(len(inputs["token_ids"]), 9.0)], 1)

    def completed(**settings):
        config = FinetuneConfig(train="", output="", vectors=VectorConfig(**settings))
        return complete_data(data, model, Trial(Path(), [], [], config, ACCURACY))

    actual = completed(hard_negatives=1, micro_batches=micro_batches)
    assert actual.negatives.shape == (5, 1)
    assert actual.varying == encoded_once
    without = completed(micro_batches=micro_batches)
    assert without.negatives is None
    assert without.varying == encoded_once


def test_hard_negatives_are_part_of_batches():
    data = data_of([(10, 20), (11, 21), (12, 22)])
    extended = dataclasses.replace(data, negatives=np.array([[3], [5], [1]]))
    inputs, targets, _ = extended.batches(3, 0)[0]
    assert inputs["side_2"].shape[:2] == (3, 1)
    assert targets.shape == (3, 6)


def test_passages_of_the_positive_document_are_not_negatives():
    def rows(*tokens):
        return [np.array([1, token, 2], np.int32) for token in tokens]

    texts = [[rows(10), rows(20, 21)], [rows(11), rows(22)], [rows(12), rows(23, 21)]]
    encoded = EncodedSides.of(texts, np.full(3, 4))
    data = SideBatches(encoded, positives=Positives(encoded.numbers))
    index_of_row = text_numbers(encoded.token_ids)
    vectors = np.ones((index_of_row.max() + 1, 1), "float32")  # all texts are equally near
    actual = nearest_others(data, index_of_row, vectors, 1)
    output = [token(data, row) for (row,) in actual]
    assert output[0] in (22, 23)  # 21 is also a passage of the positive document
    assert output[1] != 22
    assert output[2] in (20, 22)
