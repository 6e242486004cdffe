"""`top_k` compared with a stable sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.top_k import top_k


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 9))
def test_top_k_equals_a_stable_sort(row, k):
    scores = np.array(row, np.float32)  # with many ties
    np.testing.assert_array_equal(top_k(scores, k), np.argsort(-scores, kind="stable")[:k])


def test_scores_of_minus_infinity_come_last():
    assert top_k(np.float32([-np.inf, 1, -np.inf, 2]), 3).tolist() == [3, 1, 0]
