"""Embedding losses and their gradients against NumPy in float64."""

import numpy as np
import pytest

from roformer_tf.tasks.losses import classifier_features, cosent, in_batch_softmax
from roformer_tf.tasks.vectors.retrieval import Retrieval


def cosines(a, b):
    return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)[None]


def softmax_reference(targets, vectors, weights):
    candidates = np.concatenate([vectors[:, side] for side in range(1, vectors.shape[1])])
    scores = 20 * cosines(vectors[:, 0], candidates)
    losses = [
        weight * (np.log(np.exp(row[row_targets >= 0]).sum()) - row[row_targets > 0].sum())
        for row, row_targets, weight in zip(scores, targets, weights, strict=True)
        if weight
    ]
    return sum(losses) / weights.sum()


def cosent_reference(targets, vectors, weights):
    scores = 20 * np.diagonal(cosines(vectors[:, 0], vectors[:, 1]))
    total = 1.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if targets[i] < targets[j] and weights[i] and weights[j]:
                total += np.exp(scores[i] - scores[j])
    return np.log(total)


def softmax_batch(rows=5, sides=3):
    rng = np.random.default_rng(0)
    targets = np.zeros((rows, rows * (sides - 1)), "int8")
    targets[np.arange(rows), np.arange(rows)] = 1
    targets[1, 3], targets[2, 7] = -1, -1  # ignored: other positives of an anchor
    weights = np.array([1, 1, 1, 1, 0], "float32")
    targets[-1], targets[:, rows - 1 :: rows] = -1, -1
    return targets, rng.normal(size=(rows, sides, 6)).astype("float32"), weights


def cosent_batch():
    rng = np.random.default_rng(0)
    targets = np.array([0.5, 2, 2, 1, 9], "float32")
    return targets, rng.normal(size=(5, 2, 6)).astype("float32"), np.array([1, 1, 1, 1, 0.0], "f4")


CASES = {
    "softmax": (in_batch_softmax, softmax_reference, softmax_batch()),
    "cosent": (cosent, cosent_reference, cosent_batch()),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_the_formula(name, gradient):
    loss, reference, (targets, vectors, weights) = CASES[name]
    exact = vectors.astype("float64")
    want = reference(targets, exact, weights.astype("float64"))
    assert float(loss(targets, vectors, weights)) == pytest.approx(want, rel=2e-6)
    slope = gradient(lambda x: loss(targets, x, weights)[None], vectors)
    width, expected = 1e-6, np.zeros_like(exact)
    for index in np.ndindex(exact.shape):
        step = np.zeros_like(exact)
        step[index] = width
        high, low = (reference(targets, exact + sign * step, weights) for sign in (1, -1))
        expected[index] = (high - low) / (2 * width)
    np.testing.assert_allclose(slope, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert np.abs(slope[-1]).max() < 1e-6  # weight 0, and not used as a negative


@pytest.mark.parametrize("name", CASES)
def test_losses_do_not_depend_on_vector_lengths(name):
    loss, _, (targets, vectors, weights) = CASES[name]
    scaled = vectors * np.random.default_rng(1).uniform(0.1, 30, vectors.shape[:2])[..., None]
    want = float(loss(targets, vectors, weights))
    assert float(loss(targets, scaled.astype("float32"), weights)) == pytest.approx(want, rel=1e-5)


def test_the_loss_is_the_mean_over_dimensions():
    targets, vectors, weights = softmax_batch()
    objective = Retrieval(dimensions=(2, 4)).objective
    got = float(objective.batch_loss(targets, vectors, weights, {}))
    each = [softmax_reference(targets, vectors[..., :n].astype("f8"), weights) for n in (2, 4, 6)]
    assert got == pytest.approx(np.mean(each), rel=1e-5)


def test_classifier_features_are_both_vectors_and_their_difference():
    vectors = np.array([[[1.0, 2.0], [4.0, -1.0]]], "float32")
    assert np.asarray(classifier_features(vectors)).tolist() == [[1, 2, 4, -1, 3, 3]]


@pytest.mark.hf
def test_cosent_equals_sentence_transformers(torch, record_property):
    from sentence_transformers.losses import CoSENTLoss

    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(16, 2, 8)).astype("float32")
    scores = rng.integers(0, 5, 16).astype("float32")
    theirs = CoSENTLoss(model=None)
    actual = theirs.compute_loss_from_embeddings(
        [torch.tensor(vectors[:, side]) for side in range(2)], torch.tensor(scores)
    )
    ours = float(cosent(scores, vectors, np.ones(16, "float32")))
    difference = abs(ours - float(actual)) / float(actual)
    record_property("difference", ("CoSENT", "loss", difference, 1e-6))
    assert difference <= 1e-6
