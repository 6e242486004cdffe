"""Tests of the CRF against an enumeration of all label sequences, in float64."""

from itertools import pairwise, product

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.crf import sequence_losses

C, OPENS, CLOSES = 3, 3, 4
ROWS = [  # labels of six tokens; -1: none
    [OPENS, 0, 2, 1, 1, CLOSES],
    [OPENS, 2, -1, -1, 0, CLOSES],  # words of several tokens
    [-1, 1, 0, -1, -1, -1],  # a window from the middle of a text
    [OPENS, -1, 1, 2, -1, -1],  # a window at the start of a text
    [-1, -1, -1, 2, 0, CLOSES],  # a window at its end
    [OPENS, 1, CLOSES, -1, -1, -1],  # a single label, and padding
    [-1] * 6,  # an empty sequence
]
LABELS = np.array(ROWS, "int32")


def weights(seed=0, scale=2.0):
    """Return emissions, start, transitions and end in float64."""
    rng = np.random.default_rng(seed)
    shapes = [(*LABELS.shape, C), (C,), (C, C), (C,)]
    return [rng.normal(scale=scale, size=shape) for shape in shapes]


def score(path, emissions, start, transitions, end, opens, closes):
    total = sum(row[label] for row, label in zip(emissions, path, strict=True))
    total += sum(transitions[a, b] for a, b in pairwise(path))
    return total + opens * start[path[0]] + closes * end[path[-1]]


def negative_log_likelihoods(emissions, start, transitions, end):
    """Compute the loss of each example (B,) by enumerating all label sequences."""
    actual = []
    for row, labels in zip(emissions, ROWS, strict=True):
        judged = [t for t, label in enumerate(labels) if 0 <= label < C]
        if not judged:
            actual.append(0.0)
            continue
        rest = (row[judged], start, transitions, end, OPENS in labels, CLOSES in labels)
        scores = [score(path, *rest) for path in product(range(C), repeat=len(judged))]
        gold = score([labels[t] for t in judged], *rest)
        actual.append(np.logaddexp.reduce(scores) - gold)
    return np.array(actual)


def losses(emissions, *rest):
    emissions, *rest = (ops.cast(x, "float32") for x in (emissions, *rest))
    return sequence_losses(emissions, ops.convert_to_tensor(LABELS), *rest)


def slopes(function, x, width=1e-5):
    """Compute the gradient by central differences."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = width
        gradient[place] = (function(x + step) - function(x - step)) / (2 * width)
    return gradient


def test_losses_are_those_of_all_sequences_and_are_placed_at_the_labels():
    arguments = weights()
    got = ops.convert_to_numpy(losses(*arguments))
    assert got.dtype == np.float32
    np.testing.assert_allclose(
        got.sum(1), negative_log_likelihoods(*arguments), rtol=1e-5, atol=1e-6
    )
    judged = (LABELS >= 0) & (LABELS < C)
    assert (got[~judged] == 0).all()
    for row, where in zip(got, judged, strict=True):
        assert len(set(row[where].tolist())) == bool(where.any())


@pytest.mark.parametrize("place", range(4), ids=["emissions", "start", "transitions", "end"])
def test_gradients_are_the_slopes(place, gradient):
    """The upstream gradient differs between examples."""
    arguments = weights(seed=1)
    of_rows = np.arange(1.0, 1 + len(ROWS))

    def with_one(function, x):
        return function(*arguments[:place], x, *arguments[place + 1 :])

    want = slopes(lambda x: of_rows @ with_one(negative_log_likelihoods, x), arguments[place])
    counted = of_rows[:, None].astype("float32")
    got = gradient(lambda x: with_one(losses, x) * counted, arguments[place].astype("float32"))
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX compiles all with XLA")
def test_xla_compiles_losses_and_gradients():
    """On a GPU the whole step is compiled by XLA, which cannot differentiate an unbounded loop."""
    import tensorflow as tf

    def both(*variables):
        with tf.GradientTape() as tape:
            tape.watch(variables)
            actual = losses(*variables)
        return actual, tape.gradient(actual, variables)

    variables = [tf.constant(x, "float32") for x in weights(seed=2)]
    unknown = [tf.TensorSpec([x.shape[0], *[None] * (len(x.shape) - 1)]) for x in variables]
    unknown[0] = tf.TensorSpec((len(ROWS), None, C))
    signature = [unknown[0], *[tf.TensorSpec(x.shape) for x in variables[1:]]]
    compiled = tf.function(both, jit_compile=True, input_signature=signature)
    for item, other in zip(
        tf.nest.flatten(compiled(*variables)), tf.nest.flatten(both(*variables)), strict=True
    ):
        np.testing.assert_allclose(item, other, atol=2e-5)


def test_far_scores_give_finite_losses_and_gradients(gradient):
    emissions, *rest = weights(seed=3, scale=1e3)
    rest[1][0, 1] = -1e4
    assert np.isfinite(ops.convert_to_numpy(losses(emissions, *rest))).all()
    slope = gradient(lambda x: losses(x, *rest), emissions.astype("float32"))
    assert np.isfinite(slope).all()
