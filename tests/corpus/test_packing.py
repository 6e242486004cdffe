from bisect import bisect_right
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus.packing import Documents, assign, pack
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.padding import check_length

CLS, SEP = 1, 2
FIRST = 10  # tokens are numbered from here, so each identifies its position


def documents_of(word_sizes):
    """Return documents with words of these sizes; [[1, 2], [1]] has tokens 10 11 12, and 13."""
    words = [np.repeat(np.arange(len(sizes)), sizes) for sizes in word_sizes]
    bounds = np.cumsum([0, *map(len, words)])
    tokens = np.arange(FIRST, FIRST + bounds[-1])
    return Documents(tokens, np.concatenate([[], *words]).astype(np.int32), bounds)


def tokens_of(documents):
    """Return the tokens of each document."""
    return [list(range(FIRST + a, FIRST + b)) for a, b in pairwise(documents.bounds.tolist())]


def chunks_of(rows):
    """Return the chunks of rows, [(row, tokens, words), …], without the code under test."""
    actual = []
    for number, (tokens, documents, words) in enumerate(rows.tolist()):
        used = sum(d > 0 for d in documents)
        assert not any(tokens[used:] + documents[used:] + words[used:]), "padding is at the end"
        start = 0
        for document in range(1, max(documents) + 1):
            stop = start + documents.count(document)
            assert documents[start:stop] == [document] * (stop - start), "chunks follow each other"
            assert (tokens[start], tokens[stop - 1]) == (CLS, SEP)
            assert (words[start], words[stop - 1]) == (0, 0)
            assert stop - start > 2, "no chunk is empty"
            actual.append((number, tokens[start + 1 : stop - 1], words[start + 1 : stop - 1]))
            start = stop
        assert start == used
        numbers = [w for w in words if w]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(1, max(numbers) + 1)), "words are numbered through"
    return actual


def rows_of(documents, length, **arguments):
    return pack(documents, length, cls_id=CLS, sep_id=SEP, **arguments)[0]


corpora = st.lists(st.lists(st.integers(1, 12), max_size=40), max_size=30)
fills = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


@given(corpora, st.integers(3, 40), fills)
def test_every_token_is_in_exactly_one_chunk_of_its_document(word_sizes, length, fill):
    documents = documents_of(word_sizes)
    rows = rows_of(documents, length, fill=fill)
    assert rows.shape[1:] == (3, length)
    chunks = chunks_of(rows)
    total = sum(map(sum, word_sizes))
    assert sorted(t for _, tokens, _ in chunks for t in tokens) == list(range(FIRST, FIRST + total))
    document_of = {token: i for i, tokens in enumerate(tokens_of(documents)) for token in tokens}
    for _, tokens, _ in chunks:
        assert tokens == list(range(tokens[0], tokens[-1] + 1)), "order is kept"
        assert document_of[tokens[0]] == document_of[tokens[-1]]


@given(corpora, st.integers(3, 40), fills)
def test_words_are_not_cut_unless_longer_than_a_row(word_sizes, length, fill):
    documents = documents_of(word_sizes)
    all_sizes = [size for sizes in word_sizes for size in sizes]
    firsts = accumulate(all_sizes, initial=FIRST)
    word_of_token = {  # token → (its word's first token, its word's size)
        first + i: (first, size)
        for first, size in zip(firsts, all_sizes, strict=False)
        for i in range(size)
    }
    for _, tokens, words in chunks_of(rows_of(documents, length, fill=fill)):
        first, size = word_of_token[tokens[0]]
        assert first == tokens[0] or size > length - 2
        word_starts = [word_of_token[token][0] for token in tokens]
        assert [a == b for a, b in pairwise(word_starts)] == [a == b for a, b in pairwise(words)]


@given(corpora, st.integers(3, 40))
def test_without_fill_no_document_that_fits_is_cut(word_sizes, length):
    documents = documents_of(word_sizes)
    chunks = chunks_of(rows_of(documents, length))
    starts = {tokens[0] for _, tokens, _ in chunks}
    for tokens in tokens_of(documents):
        if 0 < len(tokens) <= length - 2:
            assert starts & set(tokens) == {tokens[0]}


@given(corpora, st.integers(3, 40), fills)
def test_rows_are_filled_with_few_cuts(word_sizes, length, fill):
    documents = documents_of(word_sizes)
    uncut_rows = rows_of(documents, length)
    rows, cut_documents = pack(documents, length, cls_id=CLS, sep_id=SEP, fill=fill)
    chunks = chunks_of(rows)
    if uncut_rows.size and np.mean(uncut_rows[:, 1] > 0) >= fill:
        np.testing.assert_array_equal(rows, uncut_rows)
    assert len(rows) <= len(uncut_rows)
    # Filling a row takes one cut, and at most one row is broken up only partly.
    assert len(chunks) - len(chunks_of(uncut_rows)) <= len(rows)
    starts = Counter(bisect_right(documents.bounds, tokens[0] - FIRST) for _, tokens, _ in chunks)
    assert cut_documents == sum(count > 1 for count in starts.values())


def test_the_largest_gaps_are_filled_first_up_to_the_fill():
    documents = documents_of([[1] * size for size in (8, 7, 6, 5, 4)])  # rows have 10 positions
    assert sorted(np.count_nonzero(rows_of(documents, 10)[:, 0], 1)) == [6, 7, 8, 9, 10]
    # The shortest row is broken up: the gap of 3 takes one of its tokens with [CLS] and [SEP].
    rows, cut_documents = pack(documents, 10, cls_id=CLS, sep_id=SEP, fill=0.8)
    assert (len(rows), cut_documents) == (5, 0)
    rows, cut_documents = pack(documents, 10, cls_id=CLS, sep_id=SEP, fill=0.81)
    assert (sorted(np.count_nonzero(rows[:, 0], 1)), cut_documents) == ([5, 8, 9, 10, 10], 1)


def test_the_row_of_the_modules_docstring():
    documents = Documents(
        token_ids=np.array([11, 12, 13, 14, 15]),
        words=np.array([0, 1, 1, 2, 0]),
        bounds=np.array([0, 4, 5]),
    )
    rows = rows_of(documents, 10, dtype=np.uint8)
    assert rows.dtype == np.uint8
    assert rows.tolist() == [
        [
            [CLS, 11, 12, 13, 14, SEP, CLS, 15, SEP, 0],
            [1, 1, 1, 1, 1, 1, 2, 2, 2, 0],
            [0, 1, 2, 2, 3, 0, 0, 4, 0, 0],
        ]
    ]


@pytest.mark.parametrize("length", [64, 128, 512, 1536])
def test_rows_are_nearly_full_for_news(length):
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(5.8, 0.8, 2_000), 10, 8_000).astype(int)
    documents = documents_of([rng.choice([1, 1, 1, 1, 2, 3], size).tolist() for size in sizes])
    assert np.mean(rows_of(documents, length)[:, 1] > 0) >= 0.96
    rows, cut_documents = pack(documents, length, cls_id=CLS, sep_id=SEP, fill=0.99)
    assert np.mean(rows[:, 1] > 0) >= 0.99
    too_long = np.sum(np.diff(documents.bounds) > length - 2)
    assert too_long <= cut_documents <= too_long + 0.03 * len(sizes)


def test_documents_of_two_thirds_of_a_row_are_cut():
    """Documents of two thirds of a row are cut, because no two of them fit into one row."""
    documents = documents_of([[1] * 340] * 300)
    assert np.mean(rows_of(documents, 512)[:, 1] > 0) < 0.67
    rows, cut_documents = pack(documents, 512, cls_id=CLS, sep_id=SEP, fill=0.99)
    assert np.mean(rows[:, 1] > 0) >= 0.99
    assert len(chunks_of(rows)) <= 300 + len(rows)
    assert cut_documents <= 150  # every second document, split over two rows


@given(st.lists(st.integers(1, 30), max_size=100))
def test_rows_are_within_capacity_and_no_two_can_be_merged(sizes):
    rows = assign(sizes, 30)
    assert sorted(item for row in rows for item in row) == list(range(len(sizes)))
    loads = sorted(sum(sizes[item] for item in row) for row in rows)
    assert all(load <= 30 for load in loads)
    assert len(loads) < 2 or loads[0] + loads[1] > 30


def test_a_corpus_without_tokens_gives_no_rows():
    assert rows_of(documents_of([[], []]), 8).shape == (0, 3, 8)


@pytest.mark.parametrize("length", [-1, 0, 1, 2])
def test_too_short_rows_are_refused(length):
    with pytest.raises(InputError, match=f"length is {length}, but must be at least 3"):
        check_length(length)
    with pytest.raises(InputError):
        rows_of(documents_of([[1]]), length)
