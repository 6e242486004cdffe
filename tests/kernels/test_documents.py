"""Tests of attention masks of packed documents against a rule for pairs of tokens."""

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers.masks import gather_positions, visible_keys

IDS = np.array(  # interrupted documents, one-token documents, padding at each position
    [
        [1, 1, 1, 2, 2, 3, 0, 0],
        [0, 1, 1, 0, 2, 1, 1, 2],
        [4, 4, 4, 4, 4, 4, 4, 4],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ],
    "int32",
)
SEGMENTS = np.array([[0, 0, 1, 0, 1, 1, 0, 0]] * 4, "int32")


def may_attend(kind, row, query, key):
    """Return whether a query may attend to a key."""
    if IDS[row, query] != IDS[row, key] or not IDS[row, key]:
        return False
    if kind == "causal":
        return key <= query
    segments_started = np.cumsum(SEGMENTS[row])
    return kind != "unilm" or segments_started[key] <= segments_started[query]


def mask(kind):
    rows, length = IDS.shape
    return np.array(
        [
            [[may_attend(kind, b, t, s) for s in range(length)] for t in range(length)]
            for b in range(rows)
        ]
    )


each_kind = pytest.mark.parametrize("kind", [None, "causal", "unilm"])


@each_kind
def test_masks_follow_the_rule(kind):
    got = visible_keys(kind, ops.array(IDS), ops.array(SEGMENTS))
    np.testing.assert_array_equal(ops.convert_to_numpy(got), mask(kind))


@each_kind
def test_masks_at_selected_positions(kind):
    positions = np.array([[7, 0, 2], [1, 1, 5], [3, 4, 0], [0, 1, 2]], "int32")
    visible = visible_keys(kind, ops.array(IDS), ops.array(SEGMENTS))
    got = gather_positions(visible, ops.array(positions))
    want = np.take_along_axis(mask(kind), positions[:, :, None], axis=1)
    np.testing.assert_array_equal(ops.convert_to_numpy(got), want)
