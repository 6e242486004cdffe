"""Tests of the CRF against an enumeration of all label sequences, in float64."""

from itertools import pairwise, product

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.kernels.crf import sequence_losses

C, OPENS, CLOSES = 3, 3, 4
EXAMPLES = [  # labels of six tokens; -1: none
    [OPENS, 0, 2, 1, 1, CLOSES],
    [OPENS, 2, -1, -1, 0, CLOSES],  # words of several tokens
    [-1, 1, 0, -1, -1, -1],  # a window from the middle of a text
    [OPENS, -1, 1, 2, -1, -1],  # a window at the start of a text
    [-1, -1, -1, 2, 0, CLOSES],  # a window at its end
    [OPENS, 1, CLOSES, -1, -1, -1],  # a single label, and padding
    [-1] * 6,  # an empty sequence
]
LABELS = np.array(EXAMPLES, "int32")


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
    for row, labels in zip(emissions, EXAMPLES, strict=True):
        labelled = [t for t, label in enumerate(labels) if 0 <= label < C]
        if not labelled:
            actual.append(0.0)
            continue
        rest = (row[labelled], start, transitions, end, OPENS in labels, CLOSES in labels)
        scores = [score(path, *rest) for path in product(range(C), repeat=len(labelled))]
        gold = score([labels[t] for t in labelled], *rest)
        actual.append(np.logaddexp.reduce(scores) - gold)
    return np.array(actual)


def losses(emissions, *rest):
    emissions, *rest = (ops.cast(x, "float32") for x in (emissions, *rest))
    return sequence_losses(emissions, ops.convert_to_tensor(LABELS), *rest)


def numerical_gradient(function, x, width=1e-5):
    """Compute the gradient by central differences."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = width
        gradient[index] = (function(x + step) - function(x - step)) / (2 * width)
    return gradient


def test_losses_equal_the_enumeration_and_are_at_labelled_positions():
    arguments = weights()
    got = ops.convert_to_numpy(losses(*arguments))
    assert got.dtype == np.float32
    np.testing.assert_allclose(
        got.sum(1), negative_log_likelihoods(*arguments), rtol=1e-5, atol=1e-6
    )
    labelled = (LABELS >= 0) & (LABELS < C)
    assert (got[~labelled] == 0).all()
    for row, mask in zip(got, labelled, strict=True):
        assert len(set(row[mask].tolist())) == bool(mask.any())


def test_an_empty_batch_has_no_losses():
    emissions, *rest = (ops.cast(x, "float32") for x in weights())
    assert sequence_losses(emissions[:0], ops.convert_to_tensor(LABELS[:0]), *rest).shape == (0, 6)


@pytest.mark.parametrize("index", range(4), ids=["emissions", "start", "transitions", "end"])
def test_gradients_equal_central_differences(index, gradient):
    """The upstream gradient differs between examples."""
    arguments = weights(seed=1)
    example_weights = np.arange(1.0, 1 + len(EXAMPLES))

    def with_argument(function, x):
        return function(*arguments[:index], x, *arguments[index + 1 :])

    want = numerical_gradient(
        lambda x: example_weights @ with_argument(negative_log_likelihoods, x), arguments[index]
    )
    upstream = example_weights[:, None].astype("float32")
    got = gradient(
        lambda x: with_argument(losses, x) * upstream, arguments[index].astype("float32")
    )
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
    unknown[0] = tf.TensorSpec((len(EXAMPLES), None, C))
    signature = [unknown[0], *[tf.TensorSpec(x.shape) for x in variables[1:]]]
    compiled = tf.function(both, jit_compile=True, input_signature=signature)
    for compiled_value, eager_value in zip(
        tf.nest.flatten(compiled(*variables)), tf.nest.flatten(both(*variables)), strict=True
    ):
        np.testing.assert_allclose(compiled_value, eager_value, atol=2e-5)


def test_large_scores_give_finite_losses_and_gradients(gradient):
    emissions, *rest = weights(seed=3, scale=1e3)
    rest[1][0, 1] = -1e4
    assert np.isfinite(ops.convert_to_numpy(losses(emissions, *rest))).all()
    slope = gradient(lambda x: losses(x, *rest), emissions.astype("float32"))
    assert np.isfinite(slope).all()
