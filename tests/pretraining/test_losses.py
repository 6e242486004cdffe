import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.pretraining.train_step import MaskedTokenLoss

VOCABULARY = 7


def batch(seed=0, rows=3, slots=5):
    """Return labels (B, P), logits (B, P, V) and weights (B, P), with unused slots in most rows."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(rows, slots, VOCABULARY)).astype("float32")
    used = rng.integers(1, slots, rows)
    used[0] = slots
    weights = (np.arange(slots) < used[:, None]).astype("float32")
    return rng.integers(0, VOCABULARY, (rows, slots)), logits, weights


def reference(labels, logits, weights):
    """Return the loss in float64 and its gradient: (softmax − one-hot) · weight / Σ weight."""
    x = logits.astype("float64")
    probabilities = np.exp(x - x.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    label_probabilities = np.take_along_axis(probabilities, labels[..., None], -1)[..., 0]
    scale = weights / weights.sum()
    gradient = (probabilities - np.eye(VOCABULARY)[labels]) * scale[..., None]
    return (-np.log(label_probabilities) * scale).sum(), gradient


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 6))
def test_the_loss_is_the_mean_over_the_used_slots(seed, rows, slots):
    labels, logits, weights = batch(seed, rows, slots)
    got = float(MaskedTokenLoss()(labels, logits, sample_weight=weights))
    # The absolute tolerance is the rounding error of logits of about 10.
    assert got == pytest.approx(reference(labels, logits, weights)[0], rel=1e-6, abs=1e-6)


def test_losses_computed_by_the_model_have_the_same_mean():
    labels, logits, weights = batch()
    losses = MaskedTokenLoss().call(labels, logits)
    got = float(MaskedTokenLoss()(labels, losses, sample_weight=weights))
    assert got == float(MaskedTokenLoss()(labels, logits, sample_weight=weights))


def test_the_gradient_is_that_of_the_mean(gradient):
    labels, logits, weights = batch()
    got = gradient(lambda x: MaskedTokenLoss()(labels, x, sample_weight=weights), logits)
    want = reference(labels, logits, weights)[1]
    assert np.abs(got - want).max() < 1e-7
    assert (got[weights == 0] == 0).all()


def test_unused_slots_do_not_change_the_loss():
    labels, logits, weights = batch()
    before = float(MaskedTokenLoss()(labels, logits, sample_weight=weights))
    labels[weights == 0] = 3
    logits[weights == 0] = 100
    assert float(MaskedTokenLoss()(labels, logits, sample_weight=weights)) == before


def test_keras_default_would_divide_by_all_slots():
    labels, logits, weights = batch()
    default = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    want = reference(labels, logits, weights)[0]
    assert float(default(labels, logits, sample_weight=weights)) == pytest.approx(
        want * weights.sum() / weights.size, rel=1e-6
    )
    assert weights.sum() < weights.size


def test_without_weights_every_slot_counts():
    labels, logits, weights = batch()
    want = reference(labels, logits, np.ones_like(weights))[0]
    assert float(MaskedTokenLoss()(labels, logits)) == pytest.approx(want, rel=1e-6)


def test_a_batch_without_predictions_has_no_loss():
    labels, logits, weights = batch()
    assert float(MaskedTokenLoss()(labels, logits, sample_weight=0 * weights)) == 0


def test_half_precision_logits_are_computed_in_float32():
    labels, logits, weights = batch()
    rounded = keras.ops.cast(logits, "bfloat16")
    loss = MaskedTokenLoss()(labels, rounded, sample_weight=weights)
    want = reference(
        labels, keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32")), weights
    )
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(want[0], rel=1e-6)


def test_keras_reports_the_loss_unchanged():
    """Keras reports the loss as the mean over the steps, without dividing it again."""
    labels, logits, weights = batch()
    model = keras.Sequential([keras.layers.Input((5, VOCABULARY)), keras.layers.Identity()])
    model.compile("sgd", MaskedTokenLoss())
    want = reference(labels, logits, weights)[0]
    assert model.evaluate(logits, labels, sample_weight=weights, verbose=0) == pytest.approx(
        want, rel=1e-6
    )


def test_the_loss_survives_serialization():
    loss = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(MaskedTokenLoss(name="mlm"))
    )
    assert isinstance(loss, MaskedTokenLoss)
    assert loss.name == "mlm"
