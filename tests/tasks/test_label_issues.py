"""Confident learning, against what is counted by hand and what cleanlab has found."""

import tracemalloc

import numpy as np
import pytest

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.label_issues import (
    confident_labels,
    confident_thresholds,
    find_label_issues,
)
from roformer_tf.tasks.table import TASKS

# By hand. Thresholds: of 0 (0.9 + 0.8 + 0.1) / 3 = 0.6, of 1 (0.7 + 0.9 + 0.35) / 3 = 0.65.
LABELS = np.array([0, 0, 0, 1, 1, 1])
SECOND = np.array([0.1, 0.2, 0.9, 0.7, 0.9, 0.35])
PROBABILITIES = np.stack([1 - SECOND, SECOND], axis=1)


def test_thresholds_are_the_mean_confidence_in_each_label():
    assert confident_thresholds(LABELS, PROBABILITIES) == pytest.approx([0.6, 0.65])
    three = np.hstack([PROBABILITIES, np.zeros((6, 1))])
    assert confident_thresholds(LABELS, three)[2] == np.inf  # stands nowhere


def confident_joint(labels, probabilities):
    """How many examples that have label i are confidently of label j: (C, C)."""
    found, classes = confident_labels(labels, probabilities), probabilities.shape[1]
    joint = np.zeros((classes, classes), np.int64)
    np.add.at(joint, (labels[found >= 0], found[found >= 0]), 1)
    return joint


def test_the_confident_joint_by_hand():
    assert confident_labels(LABELS, PROBABILITIES).tolist() == [0, 0, 1, 1, 1, 0]
    assert confident_joint(LABELS, PROBABILITIES).tolist() == [[2, 1], [1, 2]]


def test_the_most_doubtful_comes_first():
    first, second = find_label_issues(LABELS, PROBABILITIES)
    assert first == (2, 1, pytest.approx(0.9), pytest.approx(0.1))
    assert second == (5, 0, pytest.approx(0.65), pytest.approx(0.35))


def test_who_is_confident_of_no_label_is_not_counted():
    """Thresholds 0.8 and 0.8; the third example has 0.6 and 0.4."""
    labels = np.array([0, 1, 0, 1])
    second = np.array([0.0, 1.0, 0.4, 0.6])
    probabilities = np.stack([1 - second, second], axis=1)
    assert confident_labels(labels, probabilities).tolist() == [0, 1, -1, -1]
    assert find_label_issues(labels, probabilities) == []


def test_a_label_that_the_model_itself_finds_likelier_is_not_doubted():
    """Confident of 1 from 0.3 on, of 0 from 0.7: the last has 0.6 and 0.4 and is labelled 0."""
    labels = np.array([0, 0, 1, 1])
    second = np.array([0.2, 0.4, 0.3, 0.3])
    probabilities = np.stack([1 - second, second], axis=1)
    assert confident_labels(labels, probabilities)[1] == 1
    assert 1 not in [one.example for one in find_label_issues(labels, probabilities)]


def noisy(seed=0, size=60, classes=3):
    """Probabilities of a model that is right more often than the labels are."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, size)
    labels = np.where(rng.random(size) < 0.15, rng.integers(0, classes, size), true)
    logits = 4.0 * np.eye(classes)[true] + rng.normal(size=(size, classes))
    shares = np.exp(logits)
    return true, labels, shares / shares.sum(axis=1, keepdims=True)


CLEANLAB = {  # of cleanlab 2.9.0: compute_confident_joint(calibrate=False), and find_label_issues(
    # filter_by="confident_learning", return_indices_ranked_by="normalized_margin")
    0: ([[16, 0, 1], [1, 17, 0], [0, 2, 17]], [2, 32, 39, 29]),
    1: ([[18, 1, 0], [0, 13, 1], [1, 1, 16]], [25, 45, 6, 1]),
    2: ([[15, 1, 0], [1, 12, 0], [1, 1, 19]], [59, 58, 54, 18]),
}


@pytest.mark.parametrize("seed", CLEANLAB)
def test_joint_and_issues_are_those_of_cleanlab(seed):
    _, labels, probabilities = noisy(seed)
    joint, issues = CLEANLAB[seed]
    assert confident_joint(labels, probabilities).tolist() == joint
    assert [one.example for one in find_label_issues(labels, probabilities)] == issues


def test_wrong_labels_are_found_among_right_ones():
    true, labels, probabilities = noisy(size=2000)
    found = [one.example for one in find_label_issues(labels, probabilities)]
    wrong = set(np.flatnonzero(labels != true).tolist())
    assert len(set(found) & wrong) > 0.8 * len(wrong)
    first = found[: len(wrong) // 2]
    assert len(set(first) & wrong) > 0.9 * len(first)  # the most doubtful are the surest finds


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_tasks_of_one_label_name_their_issues(name):
    task = TASKS[name](labels=("坏", "好"))
    texts = ("一", "二") if name == "pair" else ("一",)
    examples = [Example(texts, task.labels[i], f"t:{i}") for i in LABELS]
    predictions = [Prediction(task.labels[int(p.argmax())], np.float32(p)) for p in PROBABILITIES]
    found = task.label_issues(examples, predictions)
    assert [(one.example, one.suggested) for one in found] == [(2, 1), (5, 0)]
    assert task.label_issues([], []) == []


def test_other_tasks_doubt_no_label():
    others = set(TASKS) - {"classification", "pair"}
    assert others == {"multilabel", "regression", "ranking", "tagging", "embedding", "paraphrase"}
    assert all(TASKS[name]().label_issues([], []) is None for name in others)


def test_many_labels_need_no_matrix_of_labels_by_labels():
    """30,000 labels took 12 GB: a one-hot row for each label."""
    size = 4000
    probabilities = np.full((40, size), 1 / size, np.float32)
    tracemalloc.start()
    find_label_issues(np.arange(40), probabilities)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * probabilities.nbytes
