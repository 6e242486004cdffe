"""Windows of several lengths, for evaluating the same tokens in each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus.packing import Documents
from roformer_tf.pretraining.windowed_losses import NO_WORD, long_texts, windows


@given(size=st.integers(1, 200), max_tokens=st.integers(1, 50))
def test_every_token_is_scored_once_in_a_full_window(size, max_tokens):
    all_windows = list(windows(size, max_tokens))
    scored = [token for window in all_windows for token in range(window.fresh, window.stop)]
    assert scored == list(range(size))
    assert all(window.stop - window.start == min(max_tokens, size) for window in all_windows)
    assert all(window.start <= window.fresh < window.stop for window in all_windows)


def documents(*sizes, first=100):
    """Return documents of these sizes with words of two tokens; tokens count from `first`."""
    count = sum(sizes)
    return Documents(
        np.arange(first, first + count),
        np.concatenate([[]] + [7 + np.arange(n) // 2 for n in sizes]).astype(int),
        np.cumsum([0, *sizes]),
    )


def test_long_documents_have_their_own_rows_and_short_ones_are_joined():
    texts = list(long_texts([documents(3, 9, 0, 4), documents(5, 1, first=200)], 8, sep_id=1))
    assert [text.token_ids.tolist() for text in texts] == [
        list(range(103, 112)),
        [100, 101, 102, 1, 112, 113, 114, 115],
    ]
    assert texts[0].words.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert texts[1].words.tolist() == [1, 1, 2, NO_WORD, 3, 3, 4, 4]


def test_short_documents_are_excluded_if_not_joined():
    texts = long_texts([documents(3, 8, 4, 9, 30)], 9, sep_id=1, joined=False)
    assert [len(text.token_ids) for text in texts] == [9, 30]


@given(sizes=st.lists(st.integers(0, 12)), min_length=st.integers(1, 30))
def test_joined_texts_are_long_enough_and_lose_few_tokens(sizes, min_length):
    texts = list(long_texts([documents(*sizes)], min_length, sep_id=1))
    assert all(len(text.token_ids) >= min_length for text in texts)
    actual = sorted(token for text in texts for token in text.token_ids if token != 1)
    missing = sum(sizes) - len(actual)
    assert len(set(actual)) == len(actual)
    assert missing < min_length
