"""Decision thresholds of multilabel classification against a brute-force search."""

from itertools import product

import numpy as np
import pytest
from sklearn.metrics import f1_score

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import ENOUGH, STEPS, Multilabel

LABELS = ("甲", "乙", "丙")
EVERY = [step / 20 for step in range(1, 20)]


def made(count, shares, seed=0):
    """Return labels (N, C) bool and probabilities that are too low, most of all those of 乙."""
    rng = np.random.default_rng(seed)
    gold = rng.random((count, 3)) < shares
    noise = rng.normal(size=gold.shape)
    scores = 1 / (1 + np.exp(2.2 - 2 * gold + (0, 1.5, 0) - noise))
    return gold, scores.astype(np.float32)


def chosen(gold, scores):
    names = [
        tuple(label for label, there in zip(LABELS, row, strict=True) if there) for row in gold
    ]
    answers = [Prediction((), row) for row in scores]
    return Multilabel(labels=LABELS).decoding.with_choices(names, answers)


def micro_f1(gold, scores, at):
    return f1_score(gold, scores > np.array(at), average="micro", zero_division=0)


def test_few_examples_have_one_threshold_the_best_of_all():
    gold, scores = made(200, (0.3, 0.2, 0.1))
    assert gold.sum(axis=0).max() < ENOUGH
    actual = chosen(gold, scores).thresholds
    best = max(micro_f1(gold, scores, step) for step in EVERY)
    assert len(set(actual)) == 1
    assert micro_f1(gold, scores, actual) == pytest.approx(best)
    assert best > micro_f1(gold, scores, 0.5) + 0.05


def test_labels_with_enough_examples_have_a_threshold_each():
    gold, scores = made(900, (0.4, 0.4, 0.05))
    assert (gold.sum(axis=0) >= ENOUGH).tolist() == [True, True, False]
    actual = chosen(gold, scores).thresholds
    shared = max(EVERY, key=lambda step: micro_f1(gold, scores, step))
    assert actual[2] == shared
    assert actual[1] < actual[0]
    own = [max(EVERY, key=lambda step: micro_f1(gold, scores, (step, shared, shared)))]
    own += [max(EVERY, key=lambda step: micro_f1(gold, scores, (own[0], step, shared)))]
    assert list(actual) == [*own, shared]
    every = product(EVERY, EVERY)
    best = max(micro_f1(gold, scores, (*two, shared)) for two in [*every][::7])
    assert micro_f1(gold, scores, actual) >= best - 0.005


def test_of_equally_good_thresholds_the_nearest_to_a_half_is_taken():
    gold = np.array([[True, False, True]] * 4)
    assert chosen(gold, np.where(gold, 0.97, 0.01).astype(np.float32)).thresholds == (0.5,) * 3
    assert chosen(gold, np.where(gold, 0.42, 0.01).astype(np.float32)).thresholds == (0.4,) * 3
    nothing = np.zeros((4, 3), bool)
    assert chosen(nothing, np.full((4, 3), 0.3, np.float32)).thresholds == (0.5,) * 3


def test_other_tasks_have_none():
    task = Classification(labels=LABELS)
    assert task.decoding.with_choices(["甲"], [Prediction("甲", np.ones(3, np.float32))]) is task
    several = Multilabel(labels=LABELS)
    assert several.decoding.with_choices([], []) is several


def test_how_sure_a_wrong_answer_was_knows_of_the_threshold():
    task = Multilabel(labels=LABELS, thresholds=(0.7, 0.2, 0.5))
    scores = np.array([0.6, 0.3, 0.1], np.float32)
    answer = task.decoding.reread(Prediction((), scores))
    assert answer.label == ("乙",)
    for label, sureness in ((("甲", "乙"), 1 - 0.6), ((), 0.3), (("甲",), 1 - 0.6)):
        [actual] = task.metrics.mistakes([Example(("x",), label, "")], [answer])
        assert actual["sureness"] == pytest.approx(sureness)
    assert STEPS.size == 19
