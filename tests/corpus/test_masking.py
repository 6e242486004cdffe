from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus.objectives import (
    MaskedTokens,
    MaskingConfig,
    predictions_per_row,
    replacement_ids,
)
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.errors import InputError

CLS, SEP, MASK = 1, 2, 3
TEXT = np.arange(100, 200)  # ids of text
RANDOM = np.arange(200, 300, dtype=np.int32)  # not in TEXT, so that replacements are recognizable


def rows_of(word_sizes, length):
    """Return packed rows of documents with words of these sizes, such as [[1, 2], [1]].

    Neighbouring tokens differ.
    """
    tokens = [np.resize(TEXT, sum(sizes)) for sizes in word_sizes]
    sizes = [size for sizes in word_sizes for size in sizes]
    documents = Documents(
        token_ids=np.concatenate(tokens),
        words=np.repeat(np.arange(len(sizes)), sizes),
        bounds=np.cumsum([0, *map(len, tokens)]),
    )
    return pack(documents, length, cls_id=CLS, sep_id=SEP, dtype=np.uint16)[0]


class Masked(NamedTuple):
    token_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def mask_rows(rows, draws, config=MaskingConfig(), **settings):  # noqa: B008
    inputs, labels, weights = MaskedTokens(MASK, RANDOM, config)(rows, draws, **settings)
    return Masked(inputs["token_ids"], inputs["masked_positions"], labels, weights)


def mask(row, draw=(0, 0, 0), config=MaskingConfig(), **settings):  # noqa: B008
    masked = mask_rows(row[None], [draw], config, **settings)
    return Masked(*(array[0] for array in masked))


def chosen_words(row, masked):
    return set(row[2][masked.positions[masked.weights > 0]].tolist())


word_sizes = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=30), min_size=1, max_size=4)


@given(word_sizes, st.integers(3, 64), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_only_whole_words_are_predicted(sizes, length, rate, seed):
    for row in rows_of(sizes, length):
        masked = mask(row, (seed, 0, 0), MaskingConfig(rate))
        used = int(masked.weights.sum())
        positions = masked.positions[:used]
        assert (np.diff(positions) > 0).all()
        assert (row[2, positions] > 0).all(), "neither special nor padding"
        np.testing.assert_array_equal(masked.labels[:used], row[0, positions])
        for unused in (masked.positions[used:], masked.labels[used:], masked.weights[used:]):
            assert not unused.any()
        for array in masked[1:]:
            assert array.shape == (predictions_per_row(length, rate),)

        everywhere = np.flatnonzero(np.isin(row[2], list(chosen_words(row, masked))))
        np.testing.assert_array_equal(everywhere, positions)  # each chosen word with all its tokens
        elsewhere = np.delete(np.arange(length), positions)
        np.testing.assert_array_equal(masked.token_ids[elsewhere], row[0, elsewhere])


@given(word_sizes, st.integers(3, 64), st.floats(0.01, 0.99))
def test_no_remaining_word_fits_into_the_mask_budget(sizes, length, rate):
    for row in rows_of(sizes, length):
        masked = mask(row, config=MaskingConfig(rate))
        limit = max(1, round(rate * np.count_nonzero(row[2])))
        space = limit - int(masked.weights.sum())
        assert space >= 0
        remaining = set(row[2].tolist()) - {0} - chosen_words(row, masked)
        assert all(np.count_nonzero(row[2] == word) > space for word in remaining)


@given(word_sizes, st.integers(3, 64))
def test_all_tokens_of_a_word_are_treated_alike(sizes, length):
    for row in rows_of(sizes, length):
        masked = mask(row, config=MaskingConfig(0.5, 0.4, 0.3))
        for word in chosen_words(row, masked):
            before, after = row[0, row[2] == word], masked.token_ids[row[2] == word]
            unchanged, hidden = (after == before).all(), (after == MASK).all()
            assert unchanged or hidden or np.isin(after, RANDOM).all()


def test_masking_has_the_given_rates():
    row = rows_of([[1, 2, 1, 1, 3, 1] * 60], 512)[0]
    words, tokens = np.zeros(3), 0  # words that are masked, replaced, kept
    for number in range(3_000):
        masked = mask(row, (0, 0, number))
        used = int(masked.weights.sum())
        tokens += used
        positions = masked.positions[:used]
        starts = positions[np.flatnonzero(np.diff(row[2, positions], prepend=0))]
        after = masked.token_ids[starts]
        replaced = after >= RANDOM[0]
        words += [np.sum(after == MASK), np.sum(replaced), np.sum((after != MASK) & ~replaced)]
    assert abs(tokens / 3_000 / np.count_nonzero(row[2]) - 0.15) < 0.001
    np.testing.assert_allclose(words / words.sum(), [0.8, 0.1, 0.1], atol=0.003)  # > 4 sigma


def test_words_and_replacements_are_chosen_uniformly():
    row = rows_of([[1] * 62], 64)[0]
    chosen, replacements = np.zeros(64), []
    for number in range(6_000):
        masked = mask(row, (0, 0, number), MaskingConfig(0.15, 0.0, 1.0))
        chosen[masked.positions] += 1
        replacements += masked.token_ids[masked.positions].tolist()
    assert chosen[0] == chosen[63] == 0
    np.testing.assert_allclose(chosen[1:63] / 6_000, 9 / 62, atol=0.02)  # > 4 sigma
    assert set(replacements) == set(RANDOM.tolist())
    np.testing.assert_allclose(np.bincount(replacements)[200:] / 54_000, 0.01, atol=0.002)


def test_masks_are_a_function_of_seed_epoch_and_row():
    row = rows_of([[1, 2] * 100], 128)[0]
    first = mask(row, (5, 6, 7))
    for array, second in zip(first, mask(row, (5, 6, 7)), strict=True):
        np.testing.assert_array_equal(array, second)
    for other in ((4, 6, 7), (5, 7, 7), (5, 6, 8), (7, 6, 5)):
        assert mask(row, other).positions.tolist() != first.positions.tolist()


def test_a_rows_mask_does_not_depend_on_its_batch():
    rows = rows_of([[1, 2, 1] * 40, [2] * 9, [1], [7]], 32)
    draws = [(0, 0, i) for i in range(len(rows))]
    batch = mask_rows(rows, draws)
    assert [array.dtype for array in batch] == [np.int32, np.int32, np.int32, np.float32]
    for i, row in enumerate(rows):
        for array, single in zip(batch, mask(row, (0, 0, i)), strict=True):
            np.testing.assert_array_equal(array[i], single)


def test_masking_does_not_change_its_input():
    rows = rows_of([[1, 2, 1] * 9], 32)
    before = rows.copy()
    rows.flags.writeable = False  # like the rows of a memory map
    mask(rows[0])
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("row", [rows_of([[5]], 9)[0], np.zeros((3, 9), np.uint8)])
def test_a_row_without_maskable_words_has_no_weight(row):
    masked = mask(row)
    assert not masked.weights.any()
    np.testing.assert_array_equal(masked.token_ids, row[0])


@given(word_sizes, st.integers(3, 64), st.floats(0.01, 0.99))
def test_there_are_slots_for_every_prediction(sizes, length, rate):
    predictions = predictions_per_row(length, rate)
    for row in rows_of(sizes, length):
        count = np.count_nonzero(row[2])
        assert max(1, round(rate * count)) <= predictions
    assert predictions == 1 or predictions <= rate * (length - 2) + 0.5


def test_at_the_end_of_a_run_masks_are_those_of_the_last_rate():
    """Held-out masks are: their random tokens depended on the number of slots of the first rate."""
    (row,) = rows_of([[1, 2, 3] * 67], 404)
    masked, want = (mask(row, config=MaskingConfig(rates)) for rates in ((0.3, 0.15), 0.15))
    used = int(want.weights.sum())
    assert masked.weights.sum() == used
    np.testing.assert_array_equal(masked.token_ids, want.token_ids)
    np.testing.assert_array_equal(masked.positions[:used], want.positions[:used])
    np.testing.assert_array_equal(masked.labels[:used], want.labels[:used])


@pytest.mark.parametrize("rates", [(0.3, 0.15), (0.1, 0.4)])
def test_the_mask_rate_changes_linearly_with_progress(rates):
    row = rows_of([[1] * 402], 404)[0]
    config = MaskingConfig(rates)
    first, last = rates
    for progress in (0.0, 0.25, 0.5, 0.9, 1.0):
        masked = mask(row, config=config, progress=progress)
        rate = first + progress * (last - first)
        assert masked.weights.sum() == pytest.approx(402 * rate, abs=0.51)
    assert mask(row, config=config).weights.sum() == round(402 * last)
    # Batches are prefetched beyond the last step.
    assert mask(row, config=config, progress=1.2).weights.sum() == round(402 * last)


def test_no_special_token_replaces_a_word():
    vocabulary = {"[PAD]": 0, "字": 1, "[unused1]": 2, "[": 3, "]": 4, "[MASK]": 5, "##x": 9}
    ids = replacement_ids(vocabulary)
    assert ids.tolist() == [1, 3, 4, 9]
    assert ids.dtype == np.int32


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0, 0.8, 0.1), "mask_rate is 0,"),
        ((1, 0.8, 0.1), "mask_rate is 1,"),
        (((0.3, 0.0), 0.8, 0.1), "mask_rate is 0,"),
        (((1.3, 0.1), 0.8, 0.1), "mask_rate is 1.3,"),
        ((0.15, 0.8, 0.3), "together at most 1"),
        ((0.15, -0.1, 0.3), "must be 0 or more"),
        ((0.15, float("nan"), 0.1), "must be 0 or more"),
        ((0.15, 0.8, float("nan")), "must be 0 or more"),
    ],
)
def test_contradicting_rates_are_refused(shares, message):
    with pytest.raises(InputError, match=message):
        MaskingConfig(*shares)
