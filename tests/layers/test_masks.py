"""Tests of the block masks of a local attention window against the full mask."""

import numpy as np
import pytest
from keras import ops

from roformer_tf.config import block_length
from roformer_tf.layers.masks import visible_band, visible_keys


@pytest.mark.parametrize("attention_type", ["bidirectional", "causal", "unilm"])
@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_band_masks_equal_the_full_mask_within_the_window(attention_type, window, length):
    rng = np.random.default_rng(length + window)
    ids = np.sort(rng.integers(0, 3, (2, length)), axis=1)[:, ::-1].astype("int32")
    segments = (rng.random((2, length)) < 0.2).astype("int32")
    band = ops.convert_to_numpy(visible_band(attention_type, ids, segments, window))
    rows = block_length(window)
    sides = 2 if attention_type == "causal" else 3
    assert band.shape == (2, -(-length // rows), rows, sides * rows)
    got = np.zeros((2, length, length), bool)
    for b, block, row, key in zip(*np.nonzero(band), strict=True):
        # visible keys are within the sequence, never in its padding
        got[b, block * rows + row, (block - 1) * rows + key] = True
    assert got.sum() == band.sum()
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= window
    want = ops.convert_to_numpy(visible_keys(attention_type, ids, segments)) & near
    np.testing.assert_array_equal(got, want)
