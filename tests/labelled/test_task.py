"""What a task keeps of its training examples, and in which order."""

import numpy as np
import pytest

from roformer_tf.labelled.task import RANKED, Example, Task, make_task

NUMBERS = tuple(map(str, range(-5, 40)))


def test_labels_have_one_order_numbers_by_size_and_then_words():
    """A killed run counts them anew: another order would be another model."""
    for words in (("a", "b"), ("nan", "nü"), ("NaN", "nan", "南")):
        examples = [Example((label,), label, "") for label in (*words[::-1], *NUMBERS[::-1])]
        assert make_task("classification", examples).labels == (*NUMBERS, *words)


@pytest.mark.parametrize("name", ["classification", "pair", "multilabel", "tagging", "ranking"])
def test_a_target_is_answered_by_its_own_label(name):
    """Each label has one place, the same in the target, in the probabilities and in the answer."""
    labels = RANKED if name == "ranking" else ("2", "10", "好", "差")
    task = Task(name=name, labels=() if name == "ranking" else labels)
    for place, label in enumerate(labels):
        several = name in ("multilabel", "tagging")
        target = task.target(Example(("x",), (label,) if several else label, ""))
        hot = target if name in ("multilabel", "ranking") else np.eye(4)[target]
        assert np.ravel(hot).tolist() == [float(i == place) for i in range(len(labels))]
        answer = task.answer(9 * (2 * hot - 1))
        assert answer.label == ((label,) if several else label)
        assert int(np.argmax(answer.scores)) == place


def test_a_folder_keeps_the_order_of_the_labels(tmp_path):
    task = Task(name="classification", labels=("好", "坏", "10", "2"), text_columns=("a",))
    task.save(tmp_path)
    assert Task.load(tmp_path) == task
