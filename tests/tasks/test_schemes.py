"""Allowed transitions between tags, against regular expressions for each scheme."""

import re
from itertools import product

import numpy as np
import pytest

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.tags.schemes import broken, find_scheme, legal, with_entities

IOB2 = ("B-X", "B-Y", "I-X", "I-Y", "O")
BIOES = (*IOB2, "E-X", "S-X", "E-Y", "S-Y")
BMES = ("B-X", "M-X", "E-X", "S-X", "O")
BILOU = ("B-X", "I-X", "L-X", "U-X", "O")
SEGMENTATION = ("B", "M", "E", "S")
LEGAL = {  # sequences of tags, each followed by a space, that a scheme allows
    IOB2: r"(O |B-(.)( I-\2)* )*",
    BIOES: r"(O |S-. |B-(.) (I-\2 )*E-\2 )*",
    BMES: r"(O |S-. |B-(.) (M-\2 )*E-\2 )*",
    BILOU: r"(O |U-. |B-(.) (I-\2 )*L-\2 )*",
    SEGMENTATION: r"(S |B (M )*E )*",
}


def example(tags, place="f:1"):
    return Example(("",), tuple(tags.split() if isinstance(tags, str) else tags), place)


@pytest.mark.parametrize("labels", LEGAL, ids=["IOB2", "BIOES", "BMES", "BILOU", "segmentation"])
def test_legal_sequences_match_the_scheme(labels):
    chain = legal(labels, "IOB2" if labels == IOB2 else "BIOES")
    numbers = range(len(labels))
    for length in (1, 2, 3, 4):
        for path in product(numbers, repeat=length):
            tags = "".join(f"{labels[i]} " for i in path)
            actual = chain.first_illegal(np.array(path)) is None
            assert actual == bool(re.fullmatch(LEGAL[labels], tags)), tags


@pytest.mark.parametrize(
    ("labels", "sentences", "scheme"),
    [
        (IOB2, ["O B-X I-X O", "B-Y B-X"], "IOB2"),
        (IOB2, ["O I-X I-X O", "B-X I-X I-Y"], ""),  # IOB1
        (("I-X", "O"), ["O I-X I-X"], ""),  # IOB1 data may contain no B- tag at all
        (BIOES, ["S-X B-Y I-Y E-Y", "O"], "BIOES"),
        (BMES, ["B-X M-X E-X O S-X"], "BIOES"),
        (BMES, ["B-X O B-X M-X"], "IOB2"),  # neither E- nor S- occurs
        (BILOU, ["U-X B-X I-X L-X"], "BIOES"),
        (("B_X", "I_X", "O"), ["B_X I_X O"], "IOB2"),
        (SEGMENTATION, ["S B M E B E"], "BIOES"),
        (("B", "I", "O"), ["O B I I"], "IOB2"),
        (("n", "v", "O"), ["n v O"], ""),
        (("B", "NN"), ["B NN"], ""),
        (("B-X", "I", "O"), ["B-X O"], ""),
    ],
)
def test_the_scheme_is_detected_from_sentences(labels, sentences, scheme):
    assert find_scheme(labels, [example(item) for item in sentences]) == scheme


def test_scheme_detection_tolerates_one_percent_of_errors():
    right, wrong = example("B-X I-X O"), example("O I-X O", "f:7")
    without_entities = [example("O O")] * 1000  # no evidence for a scheme
    assert find_scheme(IOB2, [right] * 198 + [wrong] * 2 + without_entities) == "IOB2"
    assert find_scheme(IOB2, [right] * 197 + [wrong] * 3 + without_entities) == ""
    mixed = [right] * 5 + [wrong] * 2 + without_entities
    assert broken(IOB2, mixed, "IOB2") == ["I-X after O in f:7"] * 2
    assert with_entities(mixed) == 7
    assert broken(IOB2, [example("I-X")], "IOB2") == ["I-X at the beginning in f:1"]
    assert broken(BMES, [example("O B-X")], "BIOES") == ["B-X at the end in f:1"]
