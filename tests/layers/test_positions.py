"""Tests of the alternatives to rotary positions, token by token in plain Python."""

import math

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers.positions import (
    SinusoidalPositions,
    document_positions,
    relative_bucket,
)
from tests.support.relative_bias import bias_layer


def bucket(distance, buckets, furthest, bidirectional):
    """Compute T5's bucket of one distance, key minus query, using a logarithm of any base."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, distance = buckets * (distance > 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = math.log(distance / exact, furthest / exact) * (buckets - exact)
    # rounding can make an integral logarithm slightly too small
    return first + min(exact + math.floor(steps + 1e-9), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 200), (8, 30), (4, 3)])
def test_buckets_equal_t5(buckets, furthest, bidirectional):
    distances = np.arange(-300, 301)
    got = ops.convert_to_numpy(relative_bucket(distances, buckets, furthest, bidirectional))
    want = [bucket(int(d), buckets, furthest, bidirectional) for d in distances]
    np.testing.assert_array_equal(got, want)
    assert got.max() < buckets


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_bias_depends_on_the_distance(length, bidirectional, gradient):
    layer = bias_layer(8, 20, bidirectional)
    table = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    layer.embeddings.assign(table)
    buckets = [
        [bucket(key - query, 8, 20, bidirectional) for key in range(length)]
        for query in range(length)
    ]
    want = table[np.array(buckets)].transpose(2, 0, 1)[None]  # (1, N, T, T)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(np.zeros((2, length)))), want)
    positions = np.arange(length)[None] + np.array([[7], [0]])
    between = ops.convert_to_numpy(layer.between(positions, positions))
    np.testing.assert_array_equal(between, np.repeat(want, 2, axis=0))
    if length == 40:  # a block of 10 queries, and the 20 or 30 keys that start 10 before it
        for keys in (20, 30):
            band = ops.convert_to_numpy(layer.of_band(10, keys))
            np.testing.assert_array_equal(band, want[:, :, 10:20, :keys])


def test_sines_and_cosines_are_adjacent():
    for features in (6, 5):
        layer = SinusoidalPositions(features)
        got = ops.convert_to_numpy(layer(np.array([[0, 3], [255, 512]])))
        for i, j, f in np.ndindex(got.shape):
            n = [[0, 3], [255, 512]][i][j]
            angle = n / 10_000 ** (2 * (f // 2) / features)
            want = (math.cos if f % 2 else math.sin)(angle) / math.sqrt(features)
            assert got[i, j, f] == pytest.approx(want, abs=2e-5)


def test_positions_restart_with_each_document():
    ids = np.array([[1, 1, 1, 2, 2, 0, 0], [5, 3, 3, 3, 3, 3, 3], [0, 0, 1, 1, 2, 1, 1]])
    want = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 0, 1]]
    np.testing.assert_array_equal(ops.convert_to_numpy(document_positions(ids)), want)
    np.testing.assert_array_equal(ops.convert_to_numpy(document_positions(ids[:, :1])), [[0]] * 3)
