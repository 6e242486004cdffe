import numpy as np
import pytest

from roformer_tf.checkpoints.whitening import FILE, parse, whitening_of
from roformer_tf.errors import InputError


def vectors(count=400, size=6, seed=0):
    """In a narrow cone, as those of an encoder: a mean far larger than what varies."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, size)) @ rng.normal(size=(size, size))
    return (mixed + 50 * rng.normal(size=size)).astype(np.float32)


def whiten(whitening, x):
    return (x.astype(np.float64) - whitening.mean) @ whitening.matrix


@pytest.mark.parametrize("pieces", [1, 7])
def test_what_is_whitened_has_no_mean_and_no_covariance(pieces):
    x = vectors()
    white = whiten(whitening_of(np.array_split(x, pieces), "mean"), x)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(6), atol=1e-3)


def test_the_first_directions_are_those_of_a_singular_value_decomposition():
    x = vectors()
    actual = whitening_of([x], "mean", dimensions=3)
    assert actual.matrix.shape == (6, 3)
    centred = x - x.mean(axis=0, dtype=np.float64)
    left, *_ = np.linalg.svd(centred, full_matrices=False)
    want = left[:, :3] * np.sqrt(len(x))
    got = whiten(actual, x)
    np.testing.assert_allclose(np.abs(got), np.abs(want), atol=1e-3)  # signs are free


def test_a_direction_that_is_rounding_is_left_out():
    x = vectors()
    x[:, 5] = x[:, :5].sum(axis=1)  # as after a layer norm: one number says what the others do
    assert whitening_of([x], "cls").matrix.shape == (6, 5)
    with pytest.raises(InputError, match="5 independent directions"):
        whitening_of([x], "cls", dimensions=6)


@pytest.mark.parametrize(
    ("x", "dimensions"),
    [
        (vectors(6), None),
        (vectors(1), 1),
        (np.ones((50, 6), np.float32), None),
        (np.ones((50, 6), np.float32), 2),
    ],
)
def test_too_few_texts_are_refused(x, dimensions):
    with pytest.raises(InputError, match="too few to whiten"):
        whitening_of([x], "mean", dimensions)


def test_no_texts_are_refused():
    with pytest.raises(InputError, match="too few to whiten"):
        whitening_of([], "mean")


def test_what_is_saved_is_read_for_its_own_pooling_alone(tmp_path):
    actual = whitening_of([vectors()], "mean", 4)
    actual.save(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    again = parse(content, "it", 6, "mean")
    np.testing.assert_array_equal(again.mean, actual.mean)
    np.testing.assert_array_equal(again.matrix, actual.matrix)
    with pytest.raises(InputError, match="computed from vectors of the pooling mean, not cls"):
        parse(content, "it", 6, "cls")
    with pytest.raises(InputError, match="for vectors of 6 numbers, but the model's have 8"):
        parse(content, "it", 8, "mean")
    for damaged in (b"", content[:40], content[:-8], b"\xff" * 200):
        with pytest.raises(InputError, match="it is damaged"):
            parse(damaged, "it", 6, "mean")
