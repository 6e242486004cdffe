"""The baselines compared with a reference that uses dictionaries and fractions."""

import math
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest

from pretrain.demo.baselines import (
    UNSEEN,
    Baselines,
    MaskedTokens,
    Prediction,
    Score,
    masked_tokens,
    score,
    scored_slots,
    token_lengths,
)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
TOKENS = [*SPECIALS, *"甲乙丙丁戊己庚辛壬癸", "中国", "##a"]
SIZE = len(TOKENS)
VOCABULARY = {token: i for i, token in enumerate(TOKENS)}


def random_rows(seed: int, rows: int = 30, length: int = 16) -> np.ndarray:
    """Return packed rows of two documents each, with unknown tokens and padding."""
    rng = np.random.default_rng(seed)
    result = np.zeros((rows, 3, length), np.uint16)
    for row in result:
        start = 0
        for document in (1, 2):
            size = int(rng.integers(1, length // 2 - 1))
            ids = rng.choice(SIZE, size, p=np.r_[0, 0.1, 0, 0, 0, np.full(12, 0.9 / 12)])
            row[0, start : start + size + 2] = [CLS, *np.sort(ids)[:: rng.choice([-1, 1])], SEP]
            row[1, start : start + size + 2] = document
            row[2, start + 1 : start + size + 1] = 1
            start += size + 2
    return result


def positions_of_words(row: np.ndarray) -> list[int]:
    return [i for i in range(row.shape[1]) if row[2, i] and row[0, i] != UNK]


class Reference:
    """Baselines with counts in dictionaries, recursive smoothing and exact fractions."""

    def __init__(self, rows):
        self.counts = defaultdict(Counter)
        for row in rows:
            for i in positions_of_words(row):
                left, token, right = map(int, row[0, i - 1 : i + 2])
                for context in [(), ("left", left), ("right", right), (left, right)]:
                    self.counts[context][token] += 1

    def top(self, context):
        counts = self.counts[context]
        return max(counts, key=lambda token: (counts[token], self.counts[()][token], -token))

    def more_certain(self, left, right):
        def confidence(context):
            counts = self.counts.get(context)
            return Fraction(max(counts.values()), counts.total() + len(counts)) if counts else 0

        return max([("left", left), ("right", right)], key=confidence)  # left if equal

    def predict(self, left, right):
        for context in [(left, right), self.more_certain(left, right), ()]:
            if context in self.counts:
                return self.top(context)
        raise AssertionError("no counts at all")

    def probability(self, token, contexts):
        if not contexts:
            return Fraction(1, SIZE - len(SPECIALS))
        lower = self.probability(token, contexts[1:])
        counts = self.counts.get(contexts[0])
        if not counts:
            return lower
        return (counts[token] + len(counts) * lower) / (counts.total() + len(counts))


@pytest.mark.parametrize("seed", range(5))
def test_baselines_equal_the_reference(seed):
    rows = random_rows(seed)
    reference, baselines = Reference(rows), Baselines(rows, VOCABULARY)
    rng = np.random.default_rng([seed, 1])
    neighbours = np.array([UNSEEN, UNK, CLS, SEP, *range(5, SIZE)])
    masked = MaskedTokens(
        rng.integers(5, SIZE, 300), rng.choice(neighbours, 300), rng.choice(neighbours, 300)
    )
    frequent = baselines.most_frequent(masked)
    between = baselines.between_neighbours(masked)
    for n, (label, left, right) in enumerate(zip(*map(np.ndarray.tolist, masked), strict=True)):
        assert frequent.tokens[n] == reference.top(())
        assert frequent.probabilities[n] == pytest.approx(reference.probability(label, [()]))
        contexts = [(left, right), reference.more_certain(left, right), ()]
        assert between.tokens[n] == reference.predict(left, right)
        assert between.probabilities[n] == pytest.approx(reference.probability(label, contexts))


@pytest.mark.parametrize(("left", "right"), [(5, 6), (CLS, 7), (UNSEEN, 8), (UNSEEN, UNSEEN)])
def test_probabilities_of_all_tokens_sum_to_one(left, right):
    labels = np.arange(len(SPECIALS), SIZE)
    masked = MaskedTokens(labels, np.full_like(labels, left), np.full_like(labels, right))
    baselines = Baselines(random_rows(9), VOCABULARY)
    for prediction in (baselines.most_frequent(masked), baselines.between_neighbours(masked)):
        assert prediction.probabilities.min() > 0
        assert prediction.probabilities.sum() == pytest.approx(1)


def test_ids_whose_products_exceed_32_bits_are_distinguished():
    size = 60_000
    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    vocabulary |= {f"x{i}": i for i in range(len(SPECIALS), size)}
    row = np.zeros((3, 5), np.uint16)
    row[0], row[2] = [CLS, size - 1, size - 2, size - 3, SEP], [0, 1, 2, 3, 0]
    token_ids = row[:1].astype(np.int32)
    token_ids[0, 2] = MASK
    masked = masked_tokens(
        token_ids,
        np.array([[2, 0]], np.int32),
        np.array([[size - 2, 0]], np.int32),
        np.array([[1, 0]], np.float32),
        mask_id=MASK,
        unk_id=UNK,
    )
    prediction = Baselines(row[None], vocabulary).between_neighbours(masked)
    assert prediction.tokens.tolist() == [size - 2]
    assert prediction.probabilities[0] > 0.5


def test_masked_tokens_hides_masked_neighbours_and_skips_unknown_tokens_and_unused_slots():
    token_ids = np.array([[CLS, 5, MASK, MASK, 6, MASK, SEP, PAD], [CLS, MASK, 7, SEP, 0, 0, 0, 0]])
    positions = np.array([[2, 3, 5, 0], [1, 0, 0, 0]])
    labels = np.array([[8, 9, UNK, 0], [10, 0, 0, 0]])
    weights = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], np.float32)
    masked = masked_tokens(token_ids, positions, labels, weights, mask_id=MASK, unk_id=UNK)
    assert masked.labels.tolist() == [8, 9, 10]
    assert masked.left.tolist() == [5, UNSEEN, CLS]
    assert masked.right.tolist() == [UNSEEN, 6, 7]
    assert labels[scored_slots(labels, weights, UNK)].tolist() == masked.labels.tolist()


def test_bits_are_per_character_not_per_token():
    counts = token_lengths(VOCABULARY)
    assert [counts[VOCABULARY[token]] for token in ("甲", "中国", "##a")] == [1, 2, 1]
    labels = np.array([VOCABULARY["中国"], VOCABULARY["##a"]])
    prediction = Prediction(np.array([labels[0], UNK]), np.array([1 / 4, 1 / 16]))
    assert score(prediction, labels, counts) == Score(0.5, (math.log2(4) + math.log2(16)) / 3)
