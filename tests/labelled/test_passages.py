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
    return Passages([Example((text,), "belongs", "") for text in texts], TOKENIZER, max_length)


def decode(ids):
    return "".join(TOKENS[i] for i in ids)


SENTENCES = ["一丁丂，七丄丅丆。", "万丈三上！", "下丌不与，丏丐丑。", "丒专且丕世丗丘丙业。"]
CLAUSES = ["一丁丂，", "七丄丅丆。", "下丌不与，", "丏丐丑。"]


@given(st.integers(0, 10_000), st.integers(12, 64))
def test_a_query_is_part_of_the_text_or_removed_from_it(seed, max_length):
    data = passages(LONG, max_length=max_length)
    question, passage = map(decode, data.view(0, np.random.default_rng(seed)))
    assert any(question in sentence for sentence in SENTENCES)
    units = [x[: max_length - 2] for x in SENTENCES + CLAUSES]
    assert question in units or 2 <= len(question) <= 8
    assert 0 < len(passage) <= max_length - 2
    before, after = LONG.split(question)  # unique, because each letter occurs once
    cuts = range(len(passage) + 1)
    removed = any(before.endswith(passage[:i]) and after.startswith(passage[i:]) for i in cuts)
    assert removed or (passage in LONG and question in passage)
    if max_length == 64:
        assert len(passage) in (len(LONG), len(LONG) - len(question))


def test_queries_are_sentences_clauses_or_a_few_words():
    data = passages(LONG)
    views = [data.view(0, np.random.default_rng(seed)) for seed in range(600)]
    queries = [decode(query) for query, _ in views]
    assert 150 < sum(x in SENTENCES for x in queries) < 350
    assert 80 < sum(x in CLAUSES for x in queries) < 250
    assert 150 < sum(x not in SENTENCES + CLAUSES for x in queries) < 250
    assert 250 < sum(len(passage) < len(LONG) for _, passage in views) < 350


def test_epochs_have_different_pairs():
    data = passages(LONG, LONG[::-1])
    seen = set()
    for step in range(40):
        inputs, _, _ = data.batches(2, 0)[step]
        seen |= {tuple(map(bytes, pair)) for pair in zip(*inputs.values(), strict=True)}
    assert len(seen) > 20
    repeated = data.batches(2, 0)[7]
    for a, b in zip(data.batches(2, 0)[7][0].values(), repeated[0].values(), strict=True):
        assert np.array_equal(a, b)


def test_a_single_sentence_is_its_own_positive_and_evaluated_by_halves():
    data = passages("一丁丂七", "万", "")
    query, passage = data.view(0, np.random.default_rng(0))
    assert decode(query) == decode(passage) == "一丁丂七"
    rows = [decode(row[1:-1]) for row in data.evaluation_sides().token_ids]
    assert rows == ["一丁", "丂七", "万", "万", "[UNK]", "[UNK]"]


def test_the_evaluation_pair_of_a_text_depends_only_on_the_text():
    single, with_another = passages(LONG), passages("万丈三上", LONG)
    for a, b in zip(
        single.evaluation_sides().token_ids,
        with_another.evaluation_sides().token_ids[2:],
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_a_passage_containing_the_query_is_not_a_negative():
    same = "一丁丂七。"
    texts = f"{same}万丈三上。", f"{same}下丌不与。", "丏丐丑丒。丕世丗丘。", same
    data, ignored = passages(*texts), 0
    for step in range(40):
        inputs, targets, weights = data.batches(4, 0)[step]
        sides = [[decode(row[row > 4]) for row in side] for side in inputs.values()]
        assert weights.all()
        assert (np.diagonal(targets) == 1).all()
        for row, question in enumerate(sides[0]):
            for column in {0, 1, 2, 3} - {row}:
                letters = set(sides[0][column] + sides[1][column]) | {"。"}
                (source,) = [x for x in texts if set(x) == letters]
                contains_query = question in source
                assert targets[row, column] == (IGNORED if contains_query else 0)
                ignored += contains_query
    assert ignored > 40


def test_the_last_batch_is_padded():
    data = passages(LONG, LONG[::-1], "一丁丂七")
    batches = [data.batches(2, 0)[step] for step in range(2)]
    inputs, targets, weights = min(batches, key=lambda batch: batch[2].sum())
    assert weights.tolist() == [1, 0]
    assert not inputs["side_1"][1].any()
    assert targets.tolist() == [[1, IGNORED], [IGNORED, IGNORED]]


def test_batches_need_a_text():
    with pytest.raises(InputError, match="no example to train on"):
        passages().batches(2, 0)
