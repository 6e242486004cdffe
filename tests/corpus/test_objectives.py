import numpy as np
import pytest

from roformer_tf.corpus.objectives import (
    MaskedTokens,
    MaskingConfig,
    make_objective,
    next_tokens,
    predicted_ids,
    predictions_per_row,
    rows_of_next_tokens,
)
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = {"[PAD]": PAD, "[UNK]": UNK, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
VOCABULARY |= {character: 5 + i for i, character in enumerate("今天气很好去公园")}
LENGTH = 16


@pytest.fixture
def rows():
    """Packed rows of documents of 1 to 14 tokens; an id encodes the document and the position."""
    sizes = np.random.default_rng(0).integers(1, LENGTH - 1, 40)
    ids = np.concatenate([100 * (i + 1) + np.arange(size) for i, size in enumerate(sizes)])
    documents = Documents(ids, np.arange(len(ids)), np.cumsum([0, *sizes]))
    return pack(documents, LENGTH, cls_id=CLS, sep_id=SEP, fill=0.0)[0]


def draws(rows, seed=0):
    return [(seed, 0, number) for number in range(len(rows))]


def test_labels_are_the_next_tokens_within_a_document(rows):
    inputs, labels, weights = next_tokens(rows, draws(rows))
    assert set(inputs) == {"token_ids", "sequence_ids"}
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype("int32")}
    assert weights.dtype == np.float32
    for row, (tokens, documents, _) in enumerate(rows):
        np.testing.assert_array_equal(inputs["token_ids"][row], tokens)
        np.testing.assert_array_equal(inputs["sequence_ids"][row], documents)
        for position in range(LENGTH):
            last = position + 1 == LENGTH or documents[position + 1] != documents[position]
            counts = documents[position] != 0 and not last
            assert weights[row, position] == counts
            assert labels[row, position] == (tokens[position + 1] if counts else 0)


def test_every_token_of_a_document_but_the_first_is_a_label(rows):
    inputs, labels, weights = next_tokens(rows, draws(rows))
    multiple = 0
    for row, document in ((i, d) for i in range(len(rows)) for d in range(1, rows[i, 1].max() + 1)):
        in_document = inputs["sequence_ids"][row] == document
        labelled = labels[row][in_document & (weights[row] == 1)]
        np.testing.assert_array_equal(labelled, inputs["token_ids"][row][in_document][1:])
        assert labelled[-1] == SEP
        multiple += document > 1
    assert multiple > 10  # rows with several documents do occur
    assert CLS not in labels
    assert (weights.sum(1) == (rows[:, 1] > 0).sum(1) - rows[:, 1].max(1)).all()


def test_a_batch_has_as_many_slots_as_the_mask_rate_needs(rows):
    config, random_ids = MaskingConfig(mask_rate=0.3), np.arange(7, 12, dtype=np.int32)
    inputs, labels, weights = MaskedTokens(MASK, random_ids, config)(rows, draws(rows, seed=3))
    slots = predictions_per_row(LENGTH, 0.3)
    for array in (inputs["masked_positions"], labels, weights):
        assert array.shape == (len(rows), slots)
    np.testing.assert_array_equal(inputs["sequence_ids"], rows[:, 1])


@pytest.mark.parametrize("rows", [8, 24, 64, 512])
@pytest.mark.parametrize("length", [16, 128, 512, 1536])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_causal_evaluation_has_as_many_predictions_as_masked(rows, length, parts):
    actual = rows_of_next_tokens(rows, length, parts)
    assert actual % parts == 0
    assert 1 <= actual <= rows
    slots = rows * predictions_per_row(length, 0.15)
    assert actual * length <= max(slots, parts * length)
    assert (actual + parts) * length > slots


def test_predicted_ids_are_those_of_texts_and_for_causal_also_ends():
    tokenizer = RoFormerTokenizer(VOCABULARY, "char")
    texts = {UNK, *range(5, len(VOCABULARY))}  # words that the vocabulary lacks are masked, too
    assert set(predicted_ids("masked", tokenizer)) == texts
    assert set(predicted_ids("causal", tokenizer)) == texts | {SEP}


def test_an_objective_is_created_by_name():
    tokenizer = RoFormerTokenizer(VOCABULARY, "char")
    assert make_objective("causal", tokenizer, MaskingConfig()) is next_tokens
    masked = make_objective("masked", tokenizer, MaskingConfig(mask_rate=0.2))
    assert (masked.mask_id, masked.masking.mask_rate) == (MASK, 0.2)
    assert masked.random_ids.tolist() == [*range(5, len(VOCABULARY))]
