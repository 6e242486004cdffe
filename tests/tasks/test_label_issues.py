"""Confident learning against hand-computed values and results of cleanlab."""

import tracemalloc

import numpy as np
import pytest

from roformer_tf.finetuning.label_issues import CheckedSet, calibrated, find_issues
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.probabilities import (
    confident_labels,
    confident_thresholds,
    find_label_issues,
    fit_temperature,
)
from roformer_tf.tasks.table import TASKS

# Thresholds by hand: label 0 (0.9 + 0.8 + 0.1) / 3 = 0.6, label 1 (0.7 + 0.9 + 0.35) / 3 = 0.65.
LABELS = np.array([0, 0, 0, 1, 1, 1])
SECOND = np.array([0.1, 0.2, 0.9, 0.7, 0.9, 0.35])
PROBABILITIES = np.stack([1 - SECOND, SECOND], axis=1)


def test_thresholds_are_mean_confidences():
    assert confident_thresholds(LABELS, PROBABILITIES) == pytest.approx([0.6, 0.65])
    three_labels = np.hstack([PROBABILITIES, np.zeros((6, 1))])
    assert confident_thresholds(LABELS, three_labels)[2] == np.inf  # occurs nowhere


def confident_joint(labels, probabilities):
    """Count the examples with label i whose confident label is j: (C, C)."""
    actual, classes = confident_labels(labels, probabilities), probabilities.shape[1]
    joint = np.zeros((classes, classes), np.int64)
    np.add.at(joint, (labels[actual >= 0], actual[actual >= 0]), 1)
    return joint


def test_the_confident_joint_equals_hand_counts():
    assert confident_labels(LABELS, PROBABILITIES).tolist() == [0, 0, 1, 1, 1, 0]
    assert confident_joint(LABELS, PROBABILITIES).tolist() == [[2, 1], [1, 2]]


def test_issues_are_sorted_by_doubt():
    first, second = find_label_issues(LABELS, PROBABILITIES)
    assert first == (2, 1, pytest.approx(0.9), pytest.approx(0.1))
    assert second == (5, 0, pytest.approx(0.65), pytest.approx(0.35))


def test_examples_below_all_thresholds_are_not_counted():
    """Both thresholds are 0.8; the third example has probabilities 0.6 and 0.4."""
    labels = np.array([0, 1, 0, 1])
    second = np.array([0.0, 1.0, 0.4, 0.6])
    probabilities = np.stack([1 - second, second], axis=1)
    assert confident_labels(labels, probabilities).tolist() == [0, 1, -1, -1]
    assert find_label_issues(labels, probabilities) == []


def test_the_most_probable_label_is_no_issue():
    """The thresholds are 0.7 and 0.3. Example 1 has 0.6 and 0.4: above the threshold of label 1
    only, but its own label 0 is more probable."""
    labels = np.array([0, 0, 1, 1])
    second = np.array([0.2, 0.4, 0.3, 0.3])
    probabilities = np.stack([1 - second, second], axis=1)
    assert confident_labels(labels, probabilities)[1] == 1
    assert 1 not in [item.example for item in find_label_issues(labels, probabilities)]


def noisy(seed=0, size=60, classes=3):
    """Return true labels, noisy labels and probabilities of a model better than the labels."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, size)
    labels = np.where(rng.random(size) < 0.15, rng.integers(0, classes, size), true)
    logits = 4.0 * np.eye(classes)[true] + rng.normal(size=(size, classes))
    exponentials = np.exp(logits)
    return true, labels, exponentials / exponentials.sum(axis=1, keepdims=True)


def test_a_second_model_must_suggest_the_same_label():
    """The order depends on both models: the first alone puts example 2 before example 5."""
    agrees, differs = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    second = np.stack([differs, differs, agrees, agrees, agrees, differs])
    assert [item.example for item in find_label_issues(LABELS, PROBABILITIES, second)] == [2, 5]
    second[2] = differs
    assert [item.example for item in find_label_issues(LABELS, PROBABILITIES, second)] == [5]
    second[2] = [0.49, 0.51]
    issues = find_label_issues(LABELS, PROBABILITIES, second)
    assert [item.example for item in issues] == [5, 2]
    assert issues[0].probability == pytest.approx(0.65)  # of the first model


def test_the_second_model_must_agree_on_the_suggestion():
    labels = np.array([0, 0, 1, 1, 2, 2])
    first_rows = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], *([[0.1, 0.8, 0.1]] * 2)])
    probabilities = np.concatenate([first_rows, [[0.1, 0.1, 0.8]] * 2])
    other = probabilities.copy()
    assert [item.example for item in find_label_issues(labels, probabilities, other)] == [1]
    other[1] = [0.1, 0.8, 0.1]  # neither the given label nor the suggested one
    assert find_label_issues(labels, probabilities, other) == []


CLEANLAB = {  # of cleanlab 2.9.0: compute_confident_joint(calibrate=False), and find_label_issues(
    # filter_by="confident_learning", return_indices_ranked_by="normalized_margin")
    0: ([[16, 0, 1], [1, 17, 0], [0, 2, 17]], [2, 32, 39, 29]),
    1: ([[18, 1, 0], [0, 13, 1], [1, 1, 16]], [25, 45, 6, 1]),
    2: ([[15, 1, 0], [1, 12, 0], [1, 1, 19]], [59, 58, 54, 18]),
}


@pytest.mark.parametrize("seed", CLEANLAB)
def test_joint_and_issues_equal_cleanlab(seed):
    _, labels, probabilities = noisy(seed)
    joint, issues = CLEANLAB[seed]
    assert confident_joint(labels, probabilities).tolist() == joint
    assert [item.example for item in find_label_issues(labels, probabilities)] == issues


def test_most_wrong_labels_are_detected():
    true, labels, probabilities = noisy(size=2000)
    actual = [item.example for item in find_label_issues(labels, probabilities)]
    wrong = set(np.flatnonzero(labels != true).tolist())
    assert len(set(actual) & wrong) > 0.8 * len(wrong)
    first = actual[: len(wrong) // 2]
    assert len(set(first) & wrong) > 0.9 * len(first)  # precision is higher at the top


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_find_issues_of_single_label_tasks(name):
    task = TASKS[name](labels=("坏", "好"))
    texts = ("一", "二") if name == "pair" else ("一",)
    examples = [Example(texts, task.labels[i], f"t:{i}") for i in LABELS]
    predictions = [Prediction(task.labels[int(p.argmax())], np.float32(p)) for p in PROBABILITIES]
    actual = find_issues(task, [CheckedSet(examples, predictions, predictions)], 6, "", True)
    assert [(item.example, item.suggested) for item in actual.issues] == [(2, 1), (5, 0)]
    assert find_issues(task, [CheckedSet([], [], [])], 6, "", True).issues == []


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_calibration_recovers_the_temperature(factor):
    """If logits are scaled by a factor, the fitted temperature is that factor.

    Predicted labels do not change.
    """
    rng = np.random.default_rng(0)
    task = TASKS["classification"](labels=("a", "b", "c"))
    logits = 1.5 * rng.normal(size=(2000, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = [task.labels[rng.choice(3, p=row)] for row in true]
    examples = [Example(("x",), label, "") for label in gold]
    predictions = [task.decoding.predict(factor * row) for row in logits]
    labels, actual = calibrated(task, examples, predictions)
    assert [task.labels[i] for i in labels] == gold
    scores = np.array([x.scores for x in predictions])
    assert (actual.argmax(axis=1) == scores.argmax(axis=1)).all()
    assert fit_temperature(labels, scores) == pytest.approx(factor, rel=0.1)
    assert np.abs(actual - true).mean() < 0.02


def test_calibration_of_certain_predictions():
    task = TASKS["classification"](labels=("a", "b"))
    for right in (20, 15):
        examples = [Example(("x",), "ab"[i >= right], "") for i in range(20)]
        scores = np.array([1.0, 0.0], np.float32)
        _, actual = calibrated(task, examples, [Prediction("a", scores)] * 20)
        assert actual[0].tolist() == pytest.approx([right / 20, 1 - right / 20], abs=0.01)


def test_other_tasks_have_no_label_issues():
    rest = set(TASKS) - {"classification", "pair"}
    assert rest >= {"multilabel", "regression", "ranking", "tagging", "embedding", "paraphrase"}
    assert all(find_issues(TASKS[name](), [], 0, "", True) is None for name in rest)


def test_memory_is_linear_in_the_number_of_labels():
    """One-hot rows for each label took 12 GB with 30,000 labels."""
    size = 4000
    probabilities = np.full((40, size), 1 / size, np.float32)
    tracemalloc.start()
    find_label_issues(np.arange(40), probabilities)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * probabilities.nbytes
