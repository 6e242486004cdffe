"""The n-gram model compared with NLTK and with Chen and Goodman's formulas in plain Python."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from pretrain.poems.kneser_ney import KneserNey, bits, estimated_discounts

START, END = 0, 1
SIZE = 9


def documents(seed, count):
    """Return documents of START, letters that depend on earlier ones, and END."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        letters = [int(rng.integers(2, SIZE))]
        for _ in range(int(rng.integers(3, 12))):
            step = int(rng.choice([1, 2, 5], p=[0.6, 0.3, 0.1]))
            letters.append(2 + (letters[-1] - 2 + step) % (SIZE - 2))
        result.append([START, *letters, END])
    return result


def stream(docs):
    tokens = np.array([token for doc in docs for token in doc])
    return tokens, tokens == START


def grams(docs, order):
    """Yield (context of order − 1 tokens, token) for every token except the first ones."""
    for doc in docs:
        padded = [START] * (order - 2) + doc
        for i in range(order - 1, len(padded)):
            yield tuple(padded[i - order + 1 : i]), padded[i]


TRAIN, OTHERS = documents(0, 60), documents(1, 20)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_probabilities_equal_those_of_nltk(order):
    lm = pytest.importorskip("nltk.lm", reason="NLTK is not installed: pip install -e '.[dev]'")
    discount = 0.6
    peer = lm.KneserNeyInterpolated(order, discount=discount)
    whole = [(*context, token) for context, token in grams(TRAIN, order)]
    pieces = [tuple(map(str, gram[n:])) for gram in whole for n in range(order)]  # of 1 to order
    peer.fit([pieces], vocabulary_text=list(map(str, range(SIZE))))
    each = [(0.0, 0.0, 0.0), *[(discount,) * 3] * (order - 1)]
    model = KneserNey(*stream(TRAIN), order, SIZE, discounts=each)
    actual = model.probabilities(*stream(OTHERS))
    expected = [
        peer.unmasked_score(str(token), tuple(map(str, context)))
        for context, token in grams(OTHERS, order)
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def reference(order):
    """Interpolated modified Kneser–Ney (Chen and Goodman, 1998), recursive with dictionaries."""
    counts = {order: Counter((*c, t) for c, t in grams(TRAIN, order))}
    for n in range(order - 1, 0, -1):
        counts[n] = Counter(gram[1:] for gram in counts[n + 1])

    def discount_of(n, count):
        return estimated_discounts(np.array([*counts[n].values()]))[min(count, 3) - 1]

    after = defaultdict(list)
    for n in counts:
        for gram, count in counts[n].items():
            after[gram[:-1]].append((gram[-1], count, discount_of(n, count)))

    def probability(context, token):
        if context not in after:
            return probability(context[1:], token)
        total = sum(count for _, count, _ in after[context])
        kept = sum(count - discount for other, count, discount in after[context] if other == token)
        removed = sum(discount for _, _, discount in after[context])
        shorter = probability(context[1:], token) if context else 1 / SIZE
        return (kept + removed * shorter) / total

    return probability


@pytest.mark.parametrize("order", [2, 3, 5])
def test_probabilities_equal_the_formulas_with_three_discounts(order):
    probability = reference(order)
    model = KneserNey(*stream(TRAIN), order, SIZE)
    actual = model.probabilities(*stream(OTHERS))
    np.testing.assert_allclose(
        actual, [probability(*gram) for gram in grams(OTHERS, order)], rtol=1e-12
    )
    actual = model.probabilities(*stream(OTHERS), instead=5)
    np.testing.assert_allclose(
        actual, [probability(c, 5) for c, _ in grams(OTHERS, order)], rtol=1e-12
    )


def test_probabilities_of_all_tokens_sum_to_one():
    model = KneserNey(*stream(TRAIN), 4, SIZE)
    total = sum(model.probabilities(*stream(OTHERS), instead=token) for token in range(SIZE))
    np.testing.assert_allclose(total, 1, rtol=1e-12)


def test_discounts_equal_values_computed_by_hand():
    counts = np.repeat([1, 2, 3, 4], [8, 4, 2, 1])  # Y = 8 / (8 + 2 · 4) = 1/2
    assert estimated_discounts(counts) == (1 - 4 / 8, 2 - 3 / 2 * 2 / 4, 3 - 4 / 2 * 1 / 2)
    assert estimated_discounts(np.array([1, 1, 2])) == (0.75, 0.75, 0.75)
    steep = np.repeat([1, 2, 3, 4], [1, 1, 9, 99])  # 2 - 9 and 3 - 44 / 3 are below 0
    assert estimated_discounts(steep) == pytest.approx((1 / 3, 0, 0))


def test_bits_of_letters_exclude_the_probability_of_punctuation():
    model = KneserNey(*stream(TRAIN), 3, SIZE)
    tokens, begins = stream(OTHERS)
    never = [START, END]
    actual = bits(model, tokens, begins, never)
    real = tokens[~begins]
    probabilities = model.probabilities(tokens, begins)
    wasted = sum(model.probabilities(tokens, begins, instead=x) for x in never)
    letters = ~np.isin(real, never)
    np.testing.assert_allclose(2 ** -actual[letters], (probabilities / (1 - wasted))[letters])
    np.testing.assert_allclose(2 ** -actual[~letters], probabilities[~letters])
    # The difference is large enough to matter.
    assert actual[letters].mean() < -np.log2(probabilities[letters]).mean() - 0.05
