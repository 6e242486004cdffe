"""Decision thresholds of multilabel classification against a brute-force search."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import STEPS, Multilabel

LABELS = ("甲", "乙", "丙")
THRESHOLDS = [step / 20 for step in range(1, 20)]


def make_scores(count, frequencies, seed=0):
    """Return labels (N, C) bool and probabilities that are too low, most of all those of 乙."""
    rng = np.random.default_rng(seed)
    gold = rng.random((count, 3)) < frequencies
    noise = rng.normal(size=gold.shape)
    scores = 1 / (1 + np.exp(2.2 - 2 * gold + (0, 1.5, 0) - noise))
    return gold, scores.astype(np.float32)


def tune(gold, scores):
    names = [
        tuple(label for label, present in zip(LABELS, row, strict=True) if present) for row in gold
    ]
    predictions = [Prediction((), row) for row in scores]
    return Multilabel(labels=LABELS).decoding.with_choices(names, predictions)


def micro_f1(gold, scores, at):
    return f1_score(gold, scores > np.array(at), average="micro", zero_division=0)


@pytest.mark.parametrize("count", [200, 2000])
def test_all_labels_have_the_best_threshold(count):
    gold, scores = make_scores(count, (0.3, 0.2, 0.1))
    actual = tune(gold, scores).thresholds
    best = max(micro_f1(gold, scores, step) for step in THRESHOLDS)
    assert len(set(actual)) == 1
    assert micro_f1(gold, scores, actual) == pytest.approx(best)
    assert best > micro_f1(gold, scores, 0.5) + 0.05


def test_ties_are_resolved_towards_one_half():
    gold = np.array([[True, False, True]] * 4)
    assert tune(gold, np.where(gold, 0.97, 0.01).astype(np.float32)).thresholds == (0.5,) * 3
    assert tune(gold, np.where(gold, 0.42, 0.01).astype(np.float32)).thresholds == (0.4,) * 3
    no_labels = np.zeros((4, 3), bool)
    assert tune(no_labels, np.full((4, 3), 0.3, np.float32)).thresholds == (0.5,) * 3


def test_other_tasks_have_no_thresholds():
    task = Classification(labels=LABELS)
    assert task.decoding.with_choices(["甲"], [Prediction("甲", np.ones(3, np.float32))]) is task
    multilabel = Multilabel(labels=LABELS)
    assert multilabel.decoding.with_choices([], []) is multilabel


def test_confidence_of_mistakes_depends_on_the_threshold():
    task = Multilabel(labels=LABELS, thresholds=(0.7, 0.2, 0.5))
    scores = np.array([0.6, 0.3, 0.1], np.float32)
    prediction = task.decoding.reread(Prediction((), scores))
    assert prediction.label == ("乙",)
    for label, confidence in ((("甲", "乙"), 1 - 0.6), ((), 0.3), (("甲",), 1 - 0.6)):
        [actual] = task.metrics.mistakes([Example(("x",), label, "")], [prediction])
        assert actual["sureness"] == pytest.approx(confidence)
    assert STEPS.size == 19
