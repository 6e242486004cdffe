"""R-Drop divergences and class weights; tests/finetuning tests the complete losses."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import (
    cosent,
    number_divergence,
    sigmoid_divergence,
    softmax_divergence,
    softmax_losses,
)
from roformer_tf.tasks.multilabel import Multilabel

C = 3
CLASSES, SEVERAL = (kind(labels=("a", "b", "c")).objective for kind in (Classification, Multilabel))


@pytest.mark.parametrize("divergence", [softmax_divergence, sigmoid_divergence, number_divergence])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_r_drop_is_symmetric_positive_and_zero_for_equal_inputs(divergence, seed):
    a, b = np.random.default_rng(seed).normal(scale=5, size=(2, 6, 4)).astype("float32")
    loss = keras.ops.convert_to_numpy(divergence(a, b))
    assert np.array_equal(loss, keras.ops.convert_to_numpy(divergence(b, a)))
    assert (loss > 0).all()
    assert (keras.ops.convert_to_numpy(divergence(a, a)) == 0).all()


@pytest.mark.parametrize("floatx", ["bfloat16", "float64"])
def test_losses_do_not_depend_on_keras_default_float(floatx):
    rng = np.random.default_rng(0)
    labels, logits = np.array([0, 2, 1]), rng.normal(size=(3, C)).astype("float32")
    scores, vectors = (x.astype("float32") for x in (rng.random(4), rng.normal(size=(4, 2, 5))))
    arguments = [(softmax_losses, labels, logits), (cosent, scores, vectors, scores)]

    def losses():
        tensors = [(loss, *map(keras.ops.convert_to_tensor, x)) for loss, *x in arguments]
        return [keras.ops.convert_to_numpy(loss(*x)) for loss, *x in tensors]

    want, usual = losses(), keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        got = losses()
    finally:
        keras.config.set_floatx(usual)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_balanced_weights_equal_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.random.default_rng(0).choice(C, 50, p=[0.7, 0.2, 0.1])
    want = compute_class_weight("balanced", classes=np.arange(C), y=labels)
    single_labels = [np.int32(label) for label in labels]
    label_sequences = np.split(labels, [3, 20])
    assert CLASSES.class_weights(single_labels) == pytest.approx(want)
    assert CLASSES.class_weights(label_sequences) == pytest.approx(want)
    binary = np.random.default_rng(1).integers(0, 2, (50, C))
    got = SEVERAL.class_weights(list(binary))
    for i in range(C):
        want = compute_class_weight("balanced", classes=np.arange(2), y=binary[:, i])
        assert got[i] == pytest.approx(want)


def test_weights_are_finite_if_a_label_is_missing():
    assert np.isfinite(CLASSES.class_weights([np.int32(0)] * 4)).all()
    assert np.isfinite(SEVERAL.class_weights([np.zeros(C)] * 4)).all()


def test_class_weights_of_multilabel_targets():
    examples = [Example(("x",), label, "f:1") for label in (("a", "b"), ("a",), ())]
    task = Multilabel.from_examples(examples)
    targets = [task.labelling.target(example) for example in examples]
    weights = task.objective.class_weights(targets)
    assert weights == pytest.approx(np.array([[3 / 2, 3 / 4], [3 / 4, 3 / 2]]))
