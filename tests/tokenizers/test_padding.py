import numpy as np

from roformer_tf.tokenizers.padding import bucket, padded


def test_buckets_are_few_and_pad_little():
    lengths = range(1, 5000)
    buckets = [bucket(length) for length in lengths]
    assert all(length <= b for length, b in zip(lengths, buckets, strict=True))
    assert all(
        3 * length > 2 * b for length, b in zip(lengths, buckets, strict=True) if length > 16
    )
    assert buckets == sorted(buckets)
    assert len(set(buckets)) < 20
    assert all(bucket(b) == b for b in buckets)


def test_padding_is_zero_at_the_end():
    got = padded([np.int32([1, 2]), np.int32([3])], (3, 4))
    np.testing.assert_array_equal(got, [[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0]])
    assert got.dtype == np.int32
    np.testing.assert_array_equal(padded(np.float32([5]), (2,)), [5, 0])
