"""Units of a sentence in tagging, and the excerpt that a report shows."""

import numpy as np
import pytest

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.tagging import Tagging, words_are_units


def test_the_excerpt_starts_before_the_first_mistake():
    task = Tagging(labels=("B-X", "O"))
    units = tuple("甲" * 500)
    gold = ("O",) * 500
    logits = np.tile([0.0, 5.0], (500, 1))
    logits[300] = 9, 0
    shown = task.metrics.mistakes(
        [Example(("".join(units),), gold, "f:1", units)], [task.decoding.predict(logits)]
    )[0]
    assert shown["predicted"] == [
        ["…", ""],
        ["甲" * 60, ""],
        ["甲", "X"],
        ["甲" * 139, ""],
        ["…", ""],
    ]
    assert shown["sureness"] == pytest.approx(1, abs=1e-3)


def test_units_are_words_if_many_have_several_characters():
    words = Example(("",), None, "", ("New", "York", "\u3000"))
    assert words_are_units([words])
    assert not words_are_units([words._replace(units=(*"北京有1998", "NBA"))])


def test_raw_text_is_split_as_in_training():
    text = Example(("北京 你好",), None, "")
    assert Tagging().labelling.for_prediction(text).units == tuple("北京 你好")
    assert Tagging(spaced_units=True).labelling.for_prediction(text).units == ("北京", "你好")
    sentence = text._replace(units=("北京", "你好"))
    assert Tagging(spaced_units=True).labelling.for_prediction(sentence).texts == ("北京 你好",)
    assert Tagging().labelling.for_prediction(sentence).texts == ("北京你好",)
