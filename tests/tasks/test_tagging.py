"""What a report shows of a tagged sentence."""

import numpy as np
import pytest

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.tagging import Tagging


def test_a_sentence_is_shown_from_before_its_first_mistake():
    task = Tagging(labels=("B-X", "O"))
    units = tuple("甲" * 500)
    gold = ("O",) * 500
    said = np.tile([0.0, 5.0], (500, 1))
    said[300] = 9, 0
    shown = task.mistakes([Example(("".join(units),), gold, "f:1", units)], [task.answer(said)])[0]
    assert shown["predicted"] == [
        ["…", ""],
        ["甲" * 60, ""],
        ["甲", "X"],
        ["甲" * 139, ""],
        ["…", ""],
    ]
    assert shown["sureness"] == pytest.approx(1, abs=1e-3)
