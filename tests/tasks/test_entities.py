"""Entities and spans from the labels of units."""

import pytest

from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.tags.schemes import character_spans, entities, marked, spans


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("B-LOC I-LOC O B-PER", [("LOC", 0, 2), ("PER", 3, 4)]),
        ("B-LOC B-LOC I-PER", [("LOC", 0, 1), ("LOC", 1, 2), ("PER", 2, 3)]),
        ("B-LOC E-LOC S-PER", [("LOC", 0, 2), ("PER", 2, 3)]),
        ("B-LOC M-LOC E-LOC S-PER", [("LOC", 0, 3), ("PER", 3, 4)]),  # BMES
        ("B-LOC I-LOC L-LOC U-PER", [("LOC", 0, 3), ("PER", 3, 4)]),  # BILOU
        ("B_LOC I_LOC E_LOC S_A_B", [("LOC", 0, 3), ("A_B", 3, 4)]),
        ("n v n O", [("n", 0, 1), ("v", 1, 2), ("n", 2, 3)]),  # parts of speech
        ("I I O B", [("span", 0, 2), ("span", 3, 4)]),  # as in word segmentation
        ("", []),
    ],
)
def test_spans_follow_the_labels(labels, expected):
    assert spans(labels.split()) == expected


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O O O", []),
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER I-PER O", [(0, 1, "PER"), (1, 3, "PER")]),
        ("O I-LOC I-LOC I-PER", [(1, 3, "LOC"), (3, 4, "PER")]),
        ("S-LOC B-PER E-PER O", [(0, 1, "LOC"), (1, 3, "PER")]),
    ],
)
def test_entities_have_positions_in_the_text(tags, expected):
    """The text may have white space between units, and a unit may occur twice."""
    text, starts = "甲 甲\u3000乙丙", [0, 2, 4, 5]
    want = [
        [starts[first], starts[last - 1] + 1, kind, text[starts[first] : starts[last - 1] + 1]]
        for first, last, kind in expected
    ]
    actual = entities(text, ["甲", "甲", "乙", "丙"], tags.split())
    assert [list(x.values()) for x in actual] == want
    assert all([*x] == ["start", "end", "label", "text"] for x in actual)


def test_marks_entities_needs_a_typed_prefix():
    assert Tagging(labels=("O", "B-LOC", "I-LOC")).has_entities
    assert Tagging(labels=("S-LOC", "E-LOC")).has_entities
    assert not Tagging(labels=("n", "v", "O")).has_entities
    assert not Tagging(labels=("NN", "B")).has_entities


def test_entities_are_marked_within_the_excerpt():
    text = "他在北京大学见李白"
    spans_of_text = [("LOC", 2, 6), ("PER", 7, 9)]
    all_marks = [["他在", ""], ["北京大学", "LOC"], ["见", ""], ["李白", "PER"]]
    assert marked(text, spans_of_text, range(9)) == all_marks
    excerpt_marks = [["…", ""], ["大学见", ""], ["李白", "PER"]]
    assert marked(text, spans_of_text, range(4, 8)) == excerpt_marks
    spans_of_text = character_spans("New York is", ["New", "York", "is"], ["B-LOC", "I-LOC", "O"])
    assert marked("New York is", spans_of_text, range(11)) == [["New York", "LOC"], [" is", ""]]
