from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.labelled.encoding import (
    pick_max_length,
    predicting_windows,
    windows,
)
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

TOKENIZERS = {
    name: RoFormerTokenizer.from_pretrained(
        Path(__file__).parents[1] / "fixtures" / "tokenizer" / name
    )
    for name in ("word", "char")
}
WORD = TOKENIZERS["word"]
SENTENCE = "今天天气很好，我们去北京的公园学习中国经济。Playing 2022 unaffable!"

texts = st.text(st.sampled_from("今天气很好我们去北京公园 ab1,。\u3000龘"), max_size=80)
units = st.lists(st.sampled_from(["今", "天", "公园", " ", "\u200b", "playful", "龘", "2022"]))


def example(*texts, label=None, units=()):
    return Example(
        texts=texts or ("".join(units),), label=label, source_line="x:1", units=tuple(units)
    )


def task(name="classification", labels=("好", "坏"), **settings):
    return TASKS[name](labels=() if name in ("regression", "ranking") else labels, **settings)


def encoded_texts(*texts, tokenizer=WORD, **settings):
    return task(**settings).labelling.encode([example(text) for text in texts], tokenizer)


def plain_ids(text, tokenizer=WORD):
    """Return the ids of a text without special tokens, looked up by token."""
    find = tokenizer.vocabulary.get
    return [find(token, tokenizer.vocabulary["[UNK]"]) for token in tokenizer.tokenize(text)]


@pytest.mark.parametrize("name", ["word", "char"])
@pytest.mark.parametrize("max_length", [3, 8, 512])
def test_a_text_is_encoded_like_the_tokenizer_does(name, max_length):
    tokenizer = TOKENIZERS[name]
    inputs = [SENTENCE, "", "好", SENTENCE * 3]
    actual = encoded_texts(*inputs, tokenizer=tokenizer, max_length=max_length)
    want = [tokenizer.encode(text, max_length=max_length) for text in inputs]
    assert [ids.tolist() for ids in actual.token_ids] == [ids for ids, _ in want]
    assert [ids.tolist() for ids in actual.segment_ids] == [segments for _, segments in want]
    assert {ids.dtype for ids in actual.token_ids + actual.segment_ids} == {np.dtype(np.int32)}
    assert actual.example.tolist() == [0, 1, 2, 3]
    assert actual.lengths.tolist() == [len(tokenizer.encode(text)[0]) for text in inputs]
    assert actual.first_units == []
    assert not len(actual.units)


@pytest.mark.parametrize("max_length", [5, 20, 512])
@pytest.mark.parametrize("name", ["pair", "regression"])
def test_a_pair_is_encoded_like_the_tokenizer_does(name, max_length):
    pairs = [(SENTENCE, "好"), ("", SENTENCE * 2), (SENTENCE, SENTENCE)]
    actual = task(name, max_length=max_length).labelling.encode(
        [example(*pair) for pair in pairs], WORD
    )
    want = [WORD.encode(*pair, max_length=max_length) for pair in pairs]
    assert [ids.tolist() for ids in actual.token_ids] == [ids for ids, _ in want]
    assert [ids.tolist() for ids in actual.segment_ids] == [segments for _, segments in want]
    assert actual.lengths.tolist() == [len(WORD.encode(*pair)[0]) for pair in pairs]


def test_a_ranking_example_is_two_sequences():
    triples = [("今天", "天气", SENTENCE), ("北京", "公园", "中国")]
    actual = task("ranking", max_length=16).labelling.encode([example(*x) for x in triples], WORD)
    want = [WORD.encode(a, x, max_length=16)[0] for a, *rest in triples for x in rest]
    assert [ids.tolist() for ids in actual.token_ids] == want
    assert actual.example.tolist() == [0, 0, 1, 1]
    assert actual.lengths[0] == len(WORD.encode("今天", SENTENCE)[0])  # the longer sequence


@given(text=texts, max_length=st.integers(4, 40))
def test_head_tail_truncation_keeps_both_ends(text, max_length):
    actual = encoded_texts(text, max_length=max_length, long_texts="head-tail")
    (row,) = actual.token_ids
    ids, content = plain_ids(text), row[1:-1].tolist()
    assert (row[0], row[-1]) == (WORD.cls_id, WORD.sep_id)
    if len(ids) + 2 <= max_length:
        assert content == ids
        return
    assert len(row) == max_length
    head = (max_length - 2) // 4
    assert content[:head] == ids[:head]
    assert content[head:] == ids[len(ids) - len(content[head:]) :]


@given(text=texts, max_length=st.integers(3, 40))
def test_windows_cover_a_text_and_overlap(text, max_length):
    actual = encoded_texts(text, max_length=max_length, long_texts="windows")
    assert set(actual.example.tolist()) == {0}
    contents = [row[1:-1].tolist() for row in actual.token_ids]
    ids, room = plain_ids(text), max_length - 2
    assert actual.lengths.tolist() == [len(ids) + 2]
    if len(ids) <= room:
        assert contents == [ids]
        return
    assert {len(content) for content in contents} == {room}
    assert contents[-1] == ids[-room:]
    step = room - room // 4
    for number, content in enumerate(contents[:-1]):
        assert content == ids[number * step : number * step + room]
    assert (len(contents) - 2) * step + room < len(ids) <= (len(contents) - 1) * step + room


unit_sizes = st.integers(1, 40).flatmap(
    lambda room: st.tuples(
        st.just(room), st.lists(st.integers(1, max(1, room // 4)), min_size=1, max_size=90)
    )
)


@given(unit_sizes)
def test_windows_cover_all_units_and_fit(room_and_sizes):
    room, sizes = room_and_sizes
    bounds = np.cumsum([0, *sizes])
    spans = windows(bounds, room)
    assert {u for first, last in spans for u in range(first, last)} == set(range(len(sizes)))
    assert all(sum(sizes[first:last]) <= room for first, last in spans)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(spans))  # both ends increase


@given(unit_sizes)
def test_a_unit_is_predicted_in_the_window_with_most_context(room_and_sizes):
    room, sizes = room_and_sizes
    bounds = np.cumsum([0, *sizes])
    spans = windows(bounds, room)
    for unit, window in enumerate(predicting_windows(bounds, spans)):
        context = [
            min(sum(sizes[first:unit]), sum(sizes[unit + 1 : last])) if first <= unit < last else -1
            for first, last in spans
        ]
        assert context[window] == max(context) >= 0


@given(units=units, max_length=st.integers(3, 30), name=st.sampled_from(["word", "char"]))
def test_every_unit_is_predicted_once_at_its_first_token(units, max_length, name):
    """Round trip: if a model outputs its input tokens, a unit's prediction is its first token."""
    tokenizer = TOKENIZERS[name]
    tagging = task("tagging", labels=("O",), max_length=max_length)
    actual = tagging.labelling.encode([example(units=units)], tokenizer)
    assert all(len(ids) <= max_length for ids in actual.token_ids)
    predicted = np.concatenate([units[units >= 0] for units in actual.first_units])
    assert sorted(predicted) == list(range(len(units)))
    rows = [ids[:, None].astype("float32") for ids in actual.token_ids]
    (answer,) = tagging.decoding.combine(rows, actual)
    want = [(plain_ids(unit, tokenizer) or [tokenizer.unk_id])[0] for unit in units]
    assert answer.tolist() == [[number] for number in want]


def test_the_tokens_of_a_unit_stay_together():
    units = ["今天", "playful", " ", "龘", "2022"]
    actual = task("tagging").labelling.encode([example(units=units)], WORD)
    ids = [plain_ids(unit) or [WORD.unk_id] for unit in units]
    assert len(ids[1]) > 1
    (row,), (first_units,) = actual.token_ids, actual.first_units
    assert row.tolist() == [
        WORD.cls_id,
        *(number for tokens in ids for number in tokens),
        WORD.sep_id,
    ]
    want = [-1]
    for number, tokens in enumerate(ids):
        want += [number] + [-1] * (len(tokens) - 1)
    assert first_units.tolist() == [*want, -1]


def test_logits_of_windows_are_averaged_and_those_of_triples_concatenated():
    actual = encoded_texts("好", SENTENCE, max_length=10, long_texts="windows")
    assert len(actual.token_ids) > 3
    logits = np.random.default_rng(0).normal(size=(len(actual.token_ids), 2)).astype("float32")
    single, averaged = task().decoding.combine(logits, actual)
    np.testing.assert_array_equal(single, logits[0])
    np.testing.assert_allclose(averaged, logits[1:].mean(axis=0), rtol=1e-6)

    triples = [example("甲", "乙", "丙"), example("丁", "戊", "己")]
    ranked = task("ranking").labelling.encode(triples, WORD)
    answers = task("ranking").decoding.combine(np.float32([[1], [2], [3], [4]]), ranked)
    assert [answer.tolist() for answer in answers] == [[1, 2], [3, 4]]


def test_targets_and_weights_of_rows():
    def targets_of(name, *examples, **settings):
        the_task = task(name, **settings)
        return the_task.labelling.row_targets(the_task.labelling.encode(examples, WORD), examples)

    targets, weights = targets_of(
        "classification",
        example("好", label="坏"),
        example("今天" * 10, label="好"),
        max_length=10,
        long_texts="windows",
    )
    assert targets.tolist() == [1, 0, 0]
    assert targets.dtype == np.int32
    np.testing.assert_array_equal(weights, np.float32([1, 1 / 2, 1 / 2]))
    assert weights.dtype == np.float32

    targets, _ = targets_of("multilabel", example("好", label=("坏",)), example("好", label=()))
    np.testing.assert_array_equal(targets, np.float32([[0, 1], [0, 0]]))
    targets, _ = targets_of("regression", example("好", label=5.0), mean=1.0, deviation=2.0)
    np.testing.assert_array_equal(targets, np.float32([[2]]))
    targets, weights = targets_of("ranking", example("甲", "乙", "丙", label="C"))
    np.testing.assert_array_equal(targets, np.float32([[0], [1]]))
    np.testing.assert_array_equal(weights, np.float32([1, 1]))
    (target,), (weight,) = targets_of(
        "tagging", example(units=["playful", "好"], label=("坏", "坏"))
    )
    first = [1, 1 + len(plain_ids("playful"))]
    assert np.flatnonzero(weight).tolist() == first == np.flatnonzero(target).tolist()
    assert (target.dtype, weight.dtype, weight.max()) == (np.int32, np.float32, 1)


@given(units=units, max_length=st.integers(3, 30))
def test_the_label_of_each_unit_is_a_target_once(units, max_length):
    labels = tuple(f"T{number}" for number in range(len(units)))
    tagged, tagging = example(units=units, label=labels), task("tagging", labels=labels)
    actual = tagging.labelling.encode([tagged], WORD)
    targets, weights = tagging.labelling.row_targets(actual, [tagged])
    weighted_targets = np.concatenate([t[w > 0] for t, w in zip(targets, weights, strict=True)])
    assert sorted(weighted_targets) == list(range(len(units)))
    assert sum(weight.sum() for weight in weights) == len(units)


def test_encoding_no_examples_gives_no_sequences():
    actual = task().labelling.encode([], WORD)
    assert (actual.examples, actual.row_lengths.tolist(), actual.token_ids) == (0, [], [])
    assert task().decoding.combine([], actual) == []


def test_an_example_without_units_has_no_prediction():
    actual = task("tagging").labelling.encode([example(units=())], WORD)
    assert [ids.tolist() for ids in actual.token_ids] == [[WORD.cls_id, WORD.sep_id]]
    (answer,) = task("tagging").decoding.combine([np.ones((2, 2), "float32")], actual)
    assert answer.shape == (0, 2)


def test_a_very_long_text_gives_many_windows():
    actual = encoded_texts("今天天气很好，" * 15_000, max_length=512, long_texts="windows")
    assert len(actual.token_ids) == -(-(actual.lengths[0] - 2 - 510) // (510 - 127)) + 1
    assert actual.row_lengths.max() == 512


@pytest.mark.parametrize(
    ("lengths", "picked"),
    [([20] * 99 + [900], 24), ([20] * 98 + [300, 900], 384), ([5000] * 3, 1024), ([7], 16)],
)
def test_max_length_fits_99_percent_of_texts(lengths, picked):
    assert pick_max_length(np.array(lengths)) == picked
