"""Batches of paraphrase pairs: order, masking, targets and padding."""

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.labelled.text_sides import IGNORED
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = RoFormerTokenizer({x: i for i, x in enumerate([*SPECIAL_TOKENS, *LETTERS])}, "char")
GROUPS = [("a b c", "d e", "f g h"), ("i j", "k l m n"), ("o", "p q"), ("k l m n", "r")]


def data(*groups, max_length=32):
    examples = [Example(group, "belongs", "") for group in groups]
    return ParaphraseBatches(examples, TOKENIZER, max_length)


def letters_of(ids):
    return " ".join(LETTERS[i - 5] if i > 4 else "*" for i in ids)


def pairs_of(batch):
    """Return the first and second text of each sequence with a weight; masked letters are stars."""
    inputs, _, weights = batch
    actual = []
    for ids, segments in zip(inputs["token_ids"][weights > 0], inputs["segment_ids"], strict=False):
        first, second = ids[(segments == 0) & (ids > 0)], ids[segments == 1]
        assert (first[0], first[-1], second[-1]) == (2, 3, 3)
        actual.append((letters_of(first[1:-1]), letters_of(second[:-1])))
    return actual


def test_both_orders_of_two_texts_are_adjacent():
    batches, seen = data(*GROUPS).batches(4, 0), set()
    for step in range(30):
        inputs, targets, weights = batches[step]
        rows = pairs_of(batches[step])
        assert weights.tolist() == [1] * 8
        for (_, a), (_, b) in zip(rows[::2], rows[1::2], strict=True):
            assert sum(a in group and b in group for group in GROUPS) == 1
            assert a != b
            seen.add((a, b))
        assert (np.diagonal(targets) == IGNORED).all()
        assert (targets == 1).nonzero()[1].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
        labels = inputs["labels"]
        assert (labels[:, :-1] == inputs["token_ids"][:, 1:]).all()
        assert not labels[:, -1].any()
    assert len(seen) == 6 + 3 * 2  # every two texts of a group, in both orders


def test_half_of_the_first_texts_are_masked():
    batches, clean, masked, letters, changed = data(*GROUPS[:3]).batches(3, 1), 0, 0, 0, 0
    texts = {text for group in GROUPS for text in group}
    for step in range(200):
        for first, second in pairs_of(batches[step]):
            assert second in texts
            clean += first in texts
            masked += first.count("*")
            letters += len(first.split())
            changed += first not in texts and "*" not in first
    # A text has about 2.3 letters, so masking selects at least one in 28 % of the texts.
    assert clean / 1200 == pytest.approx(1 - 0.5 * 0.28, abs=0.06)
    assert masked / letters == pytest.approx(0.5 * 0.15 * 0.8, abs=0.015)
    assert 0 < changed < 100


def test_texts_of_equal_meaning_are_not_negatives():
    """k l m n is in two groups, so the texts of both are its positives."""
    actual = data(GROUPS[1], GROUPS[3])
    _, targets, _ = batch = actual.batches(2, 0)[0]
    firsts = [second for _, second in pairs_of(batch)]
    firsts = [firsts[row ^ 1] for row in range(4)]
    for row, a in enumerate(firsts):
        for column, b in enumerate(firsts):
            together = a == b or any(a in group and b in group for group in GROUPS)
            want = 1 if column == row ^ 1 else IGNORED if together else 0
            assert targets[row, column] == want, (a, b)


def test_targets_with_a_teacher_are_its_cosines():
    rng = np.random.default_rng(0)
    distilled = data(*GROUPS)
    vectors = rng.normal(size=(len(distilled.texts), 5)).astype("float32")
    distilled.teacher = vectors
    vector_of = dict(zip(distilled.spelled, vectors, strict=True))  # equal texts: the last vector
    vectors[[distilled.spelled.index("k l m n")]] = vector_of["k l m n"]
    _, targets, weights = batch = distilled.batches(3, 4)[0]
    seconds = [second for _, second in pairs_of(batch)]
    firsts = np.stack([vector_of[seconds[row ^ 1]] for row in range(len(seconds))])
    count = len(seconds)
    np.testing.assert_allclose(targets[:count, :count], firsts @ firsts.T, rtol=1e-5, atol=1e-6)
    assert not targets[count:].any()
    assert weights.sum() == count


def test_texts_are_truncated_separately_and_the_last_batch_is_padded():
    actual = data(("a b c d e f g", "h i j k l m"), ("n", "o"), max_length=5)
    shortest = min((actual.batches(2, 0)[step] for step in range(1)), key=lambda x: x[2].sum())
    assert {text for row in pairs_of(shortest) for text in row[1:]} == {"a b c", "h i j", "n", "o"}
    groups = data(*GROUPS[:3])
    batch = min((groups.batches(2, 0)[step] for step in range(2)), key=lambda x: x[2].sum())
    assert batch[2].tolist() == [1, 1, 0, 0]
    assert (batch[1][2:] == IGNORED).all()
    assert (batch[1][:, 2:] == IGNORED).all()
    with pytest.raises(InputError, match="no example"):
        data().batches(2, 0)
