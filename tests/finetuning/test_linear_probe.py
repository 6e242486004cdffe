"""The head that a training on few examples starts from."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

import roformer_tf
from roformer_tf.finetuning.linear_probe import FEW, STRENGTH, fit_head, suits
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.regression import Regression
from roformer_tf.training.run_files import read_metrics
from tests.support.random_model import LETTERS, random_model

pytestmark = pytest.mark.usefixtures("eager_steps")


def examples(labels, count, texts=1):
    rng = np.random.default_rng(0)
    draw = lambda: "".join(rng.choice(list(LETTERS), rng.integers(2, 9)))  # noqa: E731
    return [
        Example(tuple(draw() for _ in range(texts)), labels[i % len(labels)], f"line {i}")
        for i in range(count)
    ]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("known", [2, 3])
@pytest.mark.parametrize("kind", [Classification, Pair])
def test_the_head_is_the_logistic_regression_on_its_inputs(kind, known, pooling):
    """Of labels that no example has, the probability is low, but not 0."""
    labels = ("甲", "乙", "丙")
    task = kind(labels=labels, max_length=32)
    model = random_model(task, pooling=pooling)
    few = examples(labels[:known], 12, texts=2 if kind is Pair else 1)
    fit_head(model, task, model.tokenizer, few)
    inputs = model.tokenizer([x.texts if kind is Pair else x.texts[0] for x in few])
    hidden = np.asarray(model.encoder(inputs), "float64")
    if pooling == "cls":
        features = np.asarray(model.classifier.activation(model.classifier.dense(hidden[:, 0])))
    else:
        real = (inputs["token_ids"] != 0)[..., None]
        features = (hidden * real).sum(axis=1) / real.sum(axis=1)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    expected = LogisticRegression(C=STRENGTH, max_iter=1000).fit(features, [x.label for x in few])
    order = [labels.index(label) for label in expected.classes_]
    got = softmax(np.asarray(model(inputs))[:, order], axis=1)
    np.testing.assert_allclose(got, expected.predict_proba(features), atol=2e-4)
    if known == 2:
        unknown = softmax(np.asarray(model(inputs)), axis=1)[:, 2]
        assert 0 < unknown.max() < 0.5


def test_it_is_for_few_examples_of_several_labels():
    labels = ("甲", "乙")
    task = Classification(labels=labels)
    assert suits(task, examples(labels, 2 * FEW))
    assert not suits(task, examples(labels, 2 * FEW + 1))
    assert not suits(task, examples(labels[:1], 4))
    assert not suits(Regression(), examples([0.5, 1.5], 4))


@pytest.mark.parametrize(("count", "first"), [(10, 0), (12, 1)])
def test_a_training_on_few_examples_is_evaluated_before_its_first_step(
    shallow, tmp_path, count, first
):
    rows = [(x.texts[0], x.label) for x in examples(("好", "坏"), count)]
    sets = {"train": rows, "valid": rows[:6], "test": rows[:6], "output": tmp_path / "run"}
    roformer_tf.finetune(shallow, **sets, epochs=1, baseline=False)
    assert read_metrics(tmp_path / "run" / "evaluations.jsonl")[0]["epoch"] == first
