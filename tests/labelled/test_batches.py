from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import RowBatches
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.tokenizers.padding import bucket
from roformer_tf.training.fitting import prefetched


def rows_of(lengths, tagging=False):
    """Return encoded texts in which sequence i has the tokens 1 + i and the segments i % 2."""
    indices = np.arange(len(lengths), dtype=np.int32)
    return EncodedTexts(
        token_ids=[np.full(n, 1 + i, np.int32) for i, n in enumerate(lengths)],
        segment_ids=[np.full(n, i % 2, np.int32) for i, n in enumerate(lengths)],
        first_units=[np.arange(n, dtype=np.int32) for n in lengths] if tagging else [],
        example=indices,
        lengths=np.array(lengths, np.int32),
        units=np.array(lengths if tagging else [0] * len(lengths), np.int32),
    )


def batches_of(lengths, batch_size=4, seed=0, **settings):
    count = len(lengths)
    targets, weights = np.arange(count, dtype=np.int32), 1 + np.arange(count, dtype=np.float32)
    return RowBatches(rows_of(lengths), targets, weights).batches(batch_size, seed, **settings)


def indices(batch):
    """Return the indices of the sequences in a batch; -1 for padding."""
    return (batch[0]["token_ids"][:, 0] - 1).tolist()


def epoch(batches, number, steps):
    return [batches[step] for step in range(number * steps, (number + 1) * steps)]


def assert_equal(batch, other):
    for name in batch[0]:
        np.testing.assert_array_equal(batch[0][name], other[0][name])
    for array, expected in zip(batch[1:], other[1:], strict=True):
        np.testing.assert_array_equal(array, expected)


LENGTHS = np.clip(np.random.default_rng(0).lognormal(4, 0.8, 997), 3, 600).astype(int).tolist()


def test_the_tokens_of_a_step_are_a_mean_without_padding():
    data = RowBatches(rows_of([5, 9, 2, 4, 4]), np.arange(5), np.ones(5, np.float32))
    assert data.tokens_per_step(2, seed=0) == 24 / 3


shapes = st.tuples(
    st.lists(st.integers(2, 70), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 9)
)


@given(shapes, st.integers(0, 3))
def test_epochs_have_every_sequence_once_with_target_and_weight(shape_and_seed, number):
    lengths, batch_size, seed = shape_and_seed
    batches = batches_of(lengths, batch_size, seed)
    steps = -(-len(lengths) // batch_size)
    seen = []
    for inputs, targets, weights in epoch(batches, number, steps):
        assert {array.shape for array in inputs.values()} == {inputs["token_ids"].shape}
        assert inputs["token_ids"].shape[0] == len(targets) == len(weights) == batch_size
        for ids, segments, target, weight in zip(*inputs.values(), targets, weights, strict=True):
            if weight == 0:
                assert not ids.any()
                continue
            seen.append(int(target))
            assert weight == 1 + target
            assert ids.tolist() == [1 + target] * lengths[target] + [0] * (
                len(ids) - lengths[target]
            )
            assert segments.sum() == (target % 2) * lengths[target]
    assert sorted(seen) == list(range(len(lengths)))


def test_sequences_of_similar_length_are_batched():
    batches = batches_of(LENGTHS, batch_size=8)
    shapes = Counter(batch[0]["token_ids"].shape for batch in epoch(batches, 0, 125))
    assert {length for _, length in shapes} <= {bucket(length) for length in LENGTHS}
    positions = sum(rows * length * count for (rows, length), count in shapes.items())
    assert sum(LENGTHS) > 0.75 * positions
    unsorted = sum(8 * bucket(max(LENGTHS[i : i + 8])) for i in range(0, len(LENGTHS), 8))
    assert positions < 0.6 * unsorted


def test_batches_differ_between_epochs_and_seeds():
    def batched(seed, number):
        return [tuple(sorted(indices(b))) for b in epoch(batches_of(LENGTHS, 8, seed), number, 125)]

    orders = [batched(seed, number) for seed in range(2) for number in range(2)]
    assert len({tuple(order) for order in orders}) == 4
    common_batches = set(orders[0]).intersection(*orders[1:])
    assert len(common_batches) < 5  # batches are composed differently in each epoch
    lengths = [max(LENGTHS[i] for i in b if i >= 0) for b in orders[0]]
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) < 0.3  # lengths are shuffled


def test_a_batch_does_not_depend_on_earlier_requests():
    late = batches_of(LENGTHS)[1_000_003]
    batches = batches_of(LENGTHS)
    for step in (7, 1_000_003, 0):
        batches[step]
    assert_equal(batches[1_000_003], late)
    assert_equal(next(iter(batches[1_000_003:])), late)


def test_prefetching_does_not_change_batches():
    batches = batches_of(LENGTHS[:40])
    for step, batch in zip(range(30), prefetched(batches), strict=False):
        assert_equal(batch, batches[step])


def test_repeat_duplicates_the_sequences_of_a_batch():
    plain, repeated = (batches_of(LENGTHS[:10], repeat=repeat) for repeat in (1, 2))
    for step in range(6):
        (inputs, *rest), (repeated_inputs, *repeated_rest) = plain[step], repeated[step]
        for name in inputs:
            np.testing.assert_array_equal(
                np.concatenate([inputs[name], inputs[name]]), repeated_inputs[name]
            )
        for array, expected in zip(rest, repeated_rest, strict=True):
            np.testing.assert_array_equal(np.concatenate([array, array]), expected)


@pytest.mark.parametrize(("columns", "dtype"), [(3, np.float32), (1, np.float32)])
def test_batches_of_targets_with_several_columns(columns, dtype):
    targets = np.arange(10 * columns, dtype=dtype).reshape(10, columns)
    weights = np.ones(10, np.float32)
    batches = RowBatches(rows_of(LENGTHS[:10]), targets, weights).batches(4, 0)
    for batch in epoch(batches, 1, 3):
        assert (batch[1].shape, batch[1].dtype) == ((4, columns), dtype)
        for number, target, weight in zip(indices(batch), *batch[1:], strict=True):
            want = targets[number] if number >= 0 else np.zeros(columns)
            np.testing.assert_array_equal(target, want)
            assert weight == (number >= 0)


def test_batches_of_token_targets():
    lengths = LENGTHS[:10]
    targets = [np.arange(n, dtype=np.int32) for n in lengths]
    weights = [np.arange(n, dtype=np.float32) % 2 for n in lengths]
    batches = RowBatches(rows_of(lengths, tagging=True), targets, weights).batches(4, 0)
    for batch in epoch(batches, 0, 3):
        inputs, padded_targets, padded_weights = batch
        shape = inputs["token_ids"].shape
        assert (padded_targets.shape, padded_targets.dtype) == (shape, np.int32)
        assert (padded_weights.shape, padded_weights.dtype) == (shape, np.float32)
        for row, number in enumerate(indices(batch)):
            length = lengths[number] if number >= 0 else 0
            np.testing.assert_array_equal(padded_targets[row, :length], range(length))
            np.testing.assert_array_equal(padded_weights[row, :length], np.arange(length) % 2)
            assert not padded_weights[row, length:].any()
            assert not padded_targets[row, length:].any()


def test_batches_need_an_example():
    with pytest.raises(InputError, match="no example"):
        batches_of([])
