"""Separately encoded texts, and batches in which no positive is used as a negative."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import (
    IGNORED,
    Positives,
    SideBatches,
    encode_separately,
    fitting_rows,
)
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = RoFormerTokenizer({x: i for i, x in enumerate([*SPECIAL_TOKENS, *LETTERS])}, "char")


def encode(*pairs, max_length=64):
    return encode_separately(
        [Example(pair, "belongs", "") for pair in pairs], TOKENIZER, max_length
    )


def words(row):
    return "".join(TOKENIZER.decode([i for i in row.tolist() if i])).replace(" ", "")


def test_each_text_is_a_truncated_sequence():
    rows = encode(("a b c", "d e f g h"), max_length=6)
    assert [words(row) for row in rows.token_ids] == ["abc", "defg"]
    assert rows.lengths.tolist() == [7]
    assert rows.example.tolist() == [0, 0]


PAIRS = [("a b", "c d e"), ("a b", "f"), ("g", "c d e"), ("h", "i j"), ("i j", "k"), ("l", "m")]


def negatives_of(batch):
    """Return the text, the positives and the negatives of each anchor in a batch."""
    inputs, targets, weights = batch
    anchors = [words(row) for row in inputs["side_0"]]
    sides = [inputs[name] for name in sorted(inputs) if name != "side_0"]
    flat = [
        side if side.ndim == 2 else side.transpose(1, 0, 2).reshape(-1, side.shape[-1])
        for side in sides
    ]
    candidates = [words(row) for side in flat for row in side]
    actual = []
    for anchor, row_targets, weight in zip(anchors, targets, weights, strict=True):
        if weight:
            matching = [c for c, x in zip(candidates, row_targets, strict=True) if x == 1]
            negatives = [c for c, x in zip(candidates, row_targets, strict=True) if x == 0]
            actual.append((anchor, matching, negatives))
    return actual


@given(st.integers(0, 100), st.integers(2, 8))
def test_a_positive_is_never_a_negative(seed, batch_size):
    pairs = [*PAIRS, ("k", "n o")]  # k is an anchor here and a positive of i j in PAIRS
    rows = encode(*pairs)
    data = SideBatches(rows, positives=Positives(rows.numbers))
    known = {(a.replace(" ", ""), b.replace(" ", "")) for a, b in pairs}
    seen = []
    for step in range(data.steps_per_epoch(batch_size)):
        for anchor, matching, negatives in negatives_of(data.batches(batch_size, seed)[step]):
            (positive,) = matching
            seen.append((anchor, positive))
            for other in negatives:
                assert other
                assert other != anchor
                assert (anchor, other) not in known
                assert (other, anchor) not in known
    assert sorted(seen) == sorted(known)


def test_other_texts_of_the_batch_are_negatives():
    rows = encode(*PAIRS)
    data = SideBatches(rows, positives=Positives(rows.numbers))
    actual = {(a, b): sorted(rest) for a, (b,), rest in negatives_of(data.batches(6, 0)[0])}
    assert actual["l", "m"] == ["cde", "cde", "f", "ij", "k"]
    assert actual["ab", "cde"] == ["ij", "k", "m"]  # without f, its other positive, and cde of g
    assert actual["ij", "k"] == ["cde", "cde", "f", "m"]  # without ij, the positive of h
    assert actual["h", "ij"] == ["cde", "cde", "f", "k", "m"]


def test_third_texts_are_negatives_of_all_anchors():
    rows = encode(("a", "b", "c"), ("d", "e", "f"), ("g", "h", "b"))
    data = SideBatches(rows, positives=Positives(rows.numbers[:, :2]))
    actual = {a: (b, sorted(rest)) for a, (b,), rest in negatives_of(data.batches(3, 0)[0])}
    assert actual == {
        "a": ("b", ["c", "e", "f", "h"]),  # without b, although it is a third text of g
        "d": ("e", ["b", "b", "c", "f", "h"]),
        "g": ("h", ["b", "b", "c", "e", "f"]),
    }


def test_the_last_batch_is_padded_with_ignored_rows():
    rows = encode(*PAIRS)
    data = SideBatches(rows, positives=Positives(rows.numbers))
    batches = (data.batches(4, 0)[step] for step in range(2))
    inputs, targets, weights = min(batches, key=lambda batch: batch[2].sum())
    assert weights.tolist() == [1, 1, 0, 0]
    assert not inputs["side_0"][2:].any()
    assert (targets[2:] == IGNORED).all()
    assert (targets[:, 2:] == IGNORED).all()


def test_sides_are_padded_separately_and_scores_follow_their_pairs():
    long = " ".join("abcdefghijklmnopqrstuvwxyz" * 2)
    pairs = [(LETTERS[i], f"{LETTERS[i]} {long}") for i in range(10)]
    rows = encode(*pairs)
    data = SideBatches(rows, targets=np.arange(10, dtype="float32"))
    inputs, targets, weights = data.batches(10, 3)[0]
    assert inputs["side_0"].shape == (10, 16)
    assert inputs["side_1"].shape == (10, 64)
    assert weights.all()
    assert [LETTERS[int(x)] for x in targets] == [words(row) for row in inputs["side_0"]]
    assert data.tokens_per_step(10, 3) == 10 * (3 + 55)


def test_hard_negatives_are_a_separate_side():
    rows = encode(*PAIRS)
    negatives = np.array([[11, 9], [11, 7], [9, 7], [1, 3], [1, 11], [1, 3]])
    data = SideBatches(rows, positives=Positives(rows.numbers), negatives=negatives)
    inputs, targets, _ = batch = data.batches(6, 0)[0]
    assert inputs["side_2"].shape == (6, 2, 16)
    assert targets.shape == (6, 18)
    actual = {(a, b): rest for a, (b,), rest in negatives_of(batch)}
    assert sorted(actual["l", "m"]) == sorted(
        ["cde", "cde", "f", "ij", "k"]  # in-batch negatives
        + [x for x in words_of(rows, negatives.ravel()) if x != "m"]
    )


def words_of(rows, numbers):
    return [words(rows.token_ids[i]) for i in numbers]


def test_batches_are_a_function_of_seed_and_step():
    rows = encode(*PAIRS)
    make = lambda: SideBatches(  # noqa: E731
        rows, positives=Positives(rows.numbers)
    ).batches(2, 5)
    first, second = make(), make()
    for step in (0, 2, 7):
        for a, b in zip(first[step], second[step], strict=True):
            if isinstance(a, dict):
                assert all(np.array_equal(a[key], b[key]) for key in a)
            else:
                assert np.array_equal(a, b)


def test_documents_are_split_into_passages_and_queries_truncated():
    long = " ".join(LETTERS[:20])
    examples = [Example((long, long, "a b"), "belongs", ""), Example(("c", "d", long), "", "")]
    rows = encode_separately(examples, TOKENIZER, 12, passages=True)
    assert [words(row) for row in rows.token_ids] == [
        *("abcdefghij", "abcdefghij", "ijklmnopqr", "klmnopqrst", "ab"),
        *("c", "d", "abcdefghij", "ijklmnopqr", "klmnopqrst"),
    ]
    assert rows.text_of_row.tolist() == [0, 1, 1, 1, 2, 3, 4, 5, 5, 5]
    assert rows.counts.tolist() == [[1, 3, 1], [1, 1, 3]]
    assert rows.first_rows.tolist() == [[0, 1, 4], [5, 6, 7]]
    assert rows.numbers[0, 1] == rows.numbers[1, 2]  # the same text
    assert rows.numbers[0, 0] != rows.numbers[0, 1]  # truncated, it is a different text
    assert rows.lengths.tolist() == [22, 22]


def test_the_passage_with_the_words_of_the_query_is_chosen():
    long = " ".join(LETTERS)
    pairs = [("p q", long), ("a b", long), ("z", long), ("e f g", "e f g h")]
    examples = [Example(pair, "belongs", "") for pair in pairs]
    rows = encode_separately(examples, TOKENIZER, 12, passages=True)
    chosen = [words(rows.token_ids[row]) for row in fitting_rows(rows)[:, 1]]
    assert chosen == ["ijklmnopqr", "abcdefghij", "qrstuvwxyz", "efgh"]
    data = SideBatches(rows, positives=Positives(rows.numbers))
    actual = {a: (b, rest) for a, (b,), rest in negatives_of(data.batches(4, 0)[0])}
    # Other passages of its document are not negatives.
    assert actual["pq"] == ("ijklmnopqr", ["efgh"])
    assert sorted(actual["efg"][1]) == ["abcdefghij", "ijklmnopqr", "qrstuvwxyz"]


SHARED = [(LETTERS[i], f"{LETTERS[i % 5]} x") for i in range(20)]


def test_a_document_of_several_queries_is_encoded_once_per_batch():
    rows = encode(*SHARED)
    data = SideBatches(rows, positives=Positives(rows.numbers), shared=True)
    assert data.repeats == 4
    for epoch in range(3):
        seen = []
        for step in range(3):
            inputs, targets, weights = data.batches(8, 0)[3 * epoch + step]
            count = int(weights.sum())
            documents, index = inputs["side_1"], inputs["row_index_1"]
            assert len(documents) == 8
            texts = [words(row) for row in documents if row.any()]
            assert len(texts) == len(set(texts)) <= 4  # four queries share each document
            actual = [(words(inputs["side_0"][i]), texts[index[i]]) for i in range(count)]
            seen += actual
            for i, (query, document) in enumerate(actual):
                for j, (_, other) in enumerate(actual):
                    together = document == other or query in other
                    want = 1 if i == j else IGNORED if together else 0
                    assert targets[i, j] == want
        assert sorted(seen) == sorted((a, b.replace(" ", "")) for a, b in SHARED)
