"""Training pairs sampled from unlabelled texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.passages import Passages
from roformer_tf.labelled.text_sides import IGNORED
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

LETTERS = [chr(ord("一") + i) for i in range(60)]
TOKENS = [*SPECIAL_TOKENS, *"，。！", *LETTERS]
TOKENIZER = RoFormerTokenizer({x: i for i, x in enumerate(TOKENS)}, "char")
LONG = "一丁丂，七丄丅丆。万丈三上！下丌不与，丏丐丑。丒专且丕世丗丘丙业。"


def passages(*texts, max_length=64):
    return Passages.of([Example((text,), "belongs", "") for text in texts], TOKENIZER, max_length)


def spelled(ids):
    return "".join(TOKENS[i] for i in ids)


SENTENCES = ["一丁丂，七丄丅丆。", "万丈三上！", "下丌不与，丏丐丑。", "丒专且丕世丗丘丙业。"]
CLAUSES = ["一丁丂，", "七丄丅丆。", "下丌不与，", "丏丐丑。"]


@given(st.integers(0, 10_000), st.integers(12, 64))
def test_a_question_and_its_context(seed, max_length):
    drawn = passages(LONG, max_length=max_length)
    view = drawn.view(0, np.random.default_rng(seed))
    question, passage = spelled(view.query), spelled(view.passage)
    assert any(question in sentence for sentence in SENTENCES)
    whole = [x[: max_length - 2] for x in SENTENCES + CLAUSES]
    assert question in whole or 2 <= len(question) <= 8
    assert 0 < len(passage) <= max_length - 2
    begin, end = LONG.split(question)  # unique, because each letter occurs once
    joins = range(len(passage) + 1)
    taken_out = any(begin.endswith(passage[:i]) and end.startswith(passage[i:]) for i in joins)
    assert taken_out or (passage in LONG and question in passage)
    if max_length == 64:
        assert len(passage) in (len(LONG), len(LONG) - len(question))


def test_sentences_clauses_and_a_few_words_are_asked_for_taken_out_and_not():
    drawn = passages(LONG)
    views = [drawn.view(0, np.random.default_rng(seed)) for seed in range(600)]
    asked = [spelled(view.query) for view in views]
    assert 150 < sum(x in SENTENCES for x in asked) < 350
    assert 80 < sum(x in CLAUSES for x in asked) < 250
    assert 150 < sum(x not in SENTENCES + CLAUSES for x in asked) < 250
    assert 250 < sum(len(view.passage) < len(LONG) for view in views) < 350


def test_both_ways_are_drawn_and_another_one_in_another_epoch():
    data = passages(LONG, LONG[::-1])
    seen = set()
    for step in range(40):
        inputs, _, _ = data.batches(2, 0)[step]
        seen |= {tuple(map(bytes, pair)) for pair in zip(*inputs.values(), strict=True)}
    assert len(seen) > 20
    again = data.batches(2, 0)[7]
    for a, b in zip(data.batches(2, 0)[7][0].values(), again[0].values(), strict=True):
        assert np.array_equal(a, b)


def test_a_text_of_one_sentence_is_its_own_positive_and_is_evaluated_by_its_halves():
    drawn = passages("一丁丂七", "万", "")
    view = drawn.view(0, np.random.default_rng(0))
    assert spelled(view.query) == spelled(view.passage) == "一丁丂七"
    rows = [spelled(row[1:-1]) for row in drawn.evaluation_sides().token_ids]
    assert rows == ["一丁", "丂七", "万", "万", "[UNK]", "[UNK]"]


def test_the_evaluation_pair_of_a_text_depends_only_on_the_text():
    alone, with_context = passages(LONG), passages("万丈三上", LONG)
    for a, b in zip(
        alone.evaluation_sides().token_ids,
        with_context.evaluation_sides().token_ids[2:],
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_no_passage_is_a_negative_of_a_question_from_its_text():
    same = "一丁丂七。"
    texts = f"{same}万丈三上。", f"{same}下丌不与。", "丏丐丑丒。丕世丗丘。", same
    data, several = passages(*texts), 0
    for step in range(40):
        inputs, targets, weights = data.batches(4, 0)[step]
        sides = [[spelled(row[row > 4]) for row in side] for side in inputs.values()]
        assert weights.all()
        assert (np.diagonal(targets) == 1).all()
        for row, question in enumerate(sides[0]):
            for column in {0, 1, 2, 3} - {row}:
                letters = set(sides[0][column] + sides[1][column]) | {"。"}
                (own,) = [x for x in texts if set(x) == letters]
                held = question in own
                assert targets[row, column] == (IGNORED if held else 0)
                several += held
    assert several > 40


def test_the_last_batch_is_filled_up():
    data = passages(LONG, LONG[::-1], "一丁丂七")
    both = [data.batches(2, 0)[step] for step in range(2)]
    inputs, targets, weights = min(both, key=lambda batch: batch[2].sum())
    assert weights.tolist() == [1, 0]
    assert not inputs["side_1"][1].any()
    assert targets.tolist() == [[1, IGNORED], [IGNORED, IGNORED]]


def test_without_texts_there_is_nothing_to_train_on():
    with pytest.raises(InputError, match="no example to train on"):
        passages().batches(2, 0)
