import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus.batches import MixingConfig, endless_order, epoch_rows
from roformer_tf.errors import InputError

NAMES = [*"abcdefgh"]

corpora = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(
    lambda counts: dict(zip(NAMES, counts, strict=False))
)
weights = st.floats(1e-3, 1e3)


@st.composite
def mixtures(draw):
    """A strategy for the number of rows of each corpus and a mixing config."""
    rows = draw(corpora)
    if draw(st.booleans()):
        return rows, MixingConfig({name: draw(weights) for name in draw(st.permutations([*rows]))})
    return rows, MixingConfig(corpus_temperature=draw(st.floats(1, 20)))


def weights_of(rows, config):
    """Return the weight of each corpus as a fraction."""
    if config.corpus_weights:
        return [Fraction(config.corpus_weights[name]) for name in rows]
    return [Fraction(math.exp(math.log(n) / config.corpus_temperature)) for n in rows.values()]


def corpus_of(rows, row):
    """Return the corpus of a row and the row's index in it."""
    for name, count in rows.items():
        if row < count:
            return name, row
        row -= count
    raise AssertionError


@given(mixtures())
def test_rows_of_corpora_match_their_weights_within_one(mixture):
    rows, config = mixture
    total, corpus_weights = sum(rows.values()), weights_of(*mixture)
    shares = epoch_rows(rows, config)
    assert list(shares) == list(rows)
    assert sum(shares.values()) == total
    assert min(shares.values()) >= 1
    quotas = [total * part / sum(corpus_weights) for part in corpus_weights]
    if min(quotas) >= 1:
        for share, quota in zip(shares.values(), quotas, strict=True):
            assert abs(share - quota) < 1 + Fraction(1, 10**6)
    for share, quota in zip(shares.values(), quotas, strict=True):
        assert share < quota + 1 + Fraction(1, 10**6), "who gives to the poor, never gets"


@given(mixtures())
def test_a_larger_weight_never_gets_fewer_rows(mixture):
    rows, config = mixture
    corpus_weights = dict(zip(rows, weights_of(*mixture), strict=True))
    shares = epoch_rows(rows, config)
    for item in rows:
        for other in rows:
            if corpus_weights[item] > corpus_weights[other] * (1 + Fraction(1, 10**6)):
                assert shares[item] >= shares[other] - 1


def test_epoch_rows_of_examples():
    rows = {"news": 60, "wiki": 30, "law": 10}
    weighted = MixingConfig({"law": 1, "news": 2, "wiki": 1})
    assert epoch_rows(rows, weighted) == {"news": 50, "wiki": 25, "law": 25}
    thirds = MixingConfig(dict.fromkeys(rows, 0.7))
    assert epoch_rows(rows, thirds) == {"news": 34, "wiki": 33, "law": 33}
    squares = {"a": 81, "b": 9, "c": 1}
    assert epoch_rows(squares, MixingConfig(corpus_temperature=2)) == {"a": 63, "b": 21, "c": 7}
    tiny = MixingConfig({"news": 1e-300, "wiki": 1e300, "law": 1e-300})
    assert epoch_rows(rows, tiny) == {"news": 1, "wiki": 98, "law": 1}
    assert epoch_rows({"a": 1, "b": 1}, MixingConfig({"a": 1, "b": 9})) == {"a": 1, "b": 1}


@given(corpora)
def test_high_temperatures_equalize_corpora_and_1_keeps_them(rows):
    assert epoch_rows(rows, MixingConfig()) == rows
    shares = epoch_rows(rows, MixingConfig(corpus_temperature=1e9)).values()
    assert max(shares) - min(shares) <= 1


@given(corpora, st.floats(1, 10), st.floats(1, 10))
def test_a_higher_temperature_shrinks_the_largest_corpus(rows, first, second):
    largest = max(rows, key=lambda name: rows[name])
    cool, hot = (
        epoch_rows(rows, MixingConfig(corpus_temperature=t))[largest]
        for t in sorted([first, second])
    )
    assert hot <= cool + len(rows), "up to rounding"


@given(mixtures(), st.integers(0, 2**40), st.integers(1, 4))
def test_every_row_of_a_corpus_is_seen_equally_often(mixture, seed, epochs):
    rows, config = mixture
    total, shares = sum(rows.values()), epoch_rows(rows, config)
    row_at = endless_order(rows, config, seed)
    seen = Counter()
    for epoch in range(epochs):
        places = [row_at(epoch * total + i) for i in range(total)]
        assert Counter(corpus_of(rows, row)[0] for row, _ in places) == shares
        seen.update(row for row, _ in places)
        for name, count in rows.items():
            rows_of_corpus = [
                seen[row] for row in range(sum(rows.values())) if corpus_of(rows, row)[0] == name
            ]
            assert len(rows_of_corpus) == count
            assert max(rows_of_corpus) - min(rows_of_corpus) <= 1


@given(mixtures(), st.integers(0, 2**40), st.integers(1, 4))
def test_a_row_occurs_only_once_in_a_pass(mixture, seed, epochs):
    rows, config = mixture
    row_at = endless_order(rows, config, seed)
    places = [row_at(place) for place in range(epochs * sum(rows.values()))]
    assert len(set(places)) == len(places)
    passes = {}
    for row, pass_number in places:
        passes.setdefault(row, set()).add(pass_number)
    assert all(actual == set(range(len(actual))) for actual in passes.values())


@given(mixtures(), st.integers(0, 2**40), st.integers(0, 10**12))
def test_an_epoch_continues_after_the_previous_one(mixture, seed, epoch):
    """An epoch continues each corpus after the rows of the previous epoch.

    The reference counts the passes over each corpus directly.
    """
    rows, config = mixture
    total, shares = sum(rows.values()), epoch_rows(rows, config)
    row_at = endless_order(rows, config, seed)
    actual = [row_at(epoch * total + i) for i in range(total)]
    assert len(set(actual)) == total  # no row twice in one pass
    passes = Counter((corpus_of(rows, row)[0], pass_number) for row, pass_number in actual)
    expected = Counter(
        (name, place // count)
        for name, count in rows.items()
        for place in range(epoch * shares[name], (epoch + 1) * shares[name])
    )
    assert passes == expected


def test_a_corpus_with_a_small_share_is_shuffled():
    """A corpus with a small share is shuffled, so that a partial pass also has its last rows.

    Passes have different orders.
    """
    row_at = endless_order({"a": 1000, "b": 1000}, MixingConfig({"a": 1, "b": 9}), seed=0)
    epochs = [[row_at(2000 * epoch + i) for i in range(2000)] for epoch in range(10)]
    rows_of_corpus = [[row for row, _ in epoch if row < 1000] for epoch in epochs]
    assert [len(rows) for rows in rows_of_corpus] == [200] * 10
    assert all(400 < np.mean(rows) < 600 for rows in rows_of_corpus)
    assert set(rows_of_corpus[0]) != set(rows_of_corpus[5])


def test_the_orders_of_a_small_corpus_are_computed_once(monkeypatch):
    seeds = []
    generator = np.random.default_rng

    def recorded(seed):
        seeds.append(seed)
        return generator(seed)

    monkeypatch.setattr(np.random, "default_rng", recorded)
    row_at = endless_order({"a": 997, "b": 3}, MixingConfig({"a": 1, "b": 1}), seed=0)
    assert len({row_at(place) for place in range(1000)}) == 1000
    assert len(seeds) == 1 + 1 + 167, "the epoch, a pass of the first corpus, and 500 rows of 3"


@given(corpora, st.integers(0, 2**40), st.integers(0, 3), st.booleans())
def test_without_mixing_all_rows_are_shuffled_together(rows, seed, epoch, single_corpus):
    rows = {"a": sum(rows.values())} if single_corpus else rows
    config = MixingConfig({"a": 0.3}) if single_corpus else MixingConfig()
    total = sum(rows.values())
    row_at = endless_order(rows, config, seed)
    numbers = np.arange(total, dtype=np.uint32)
    want = np.random.default_rng([seed, epoch]).permutation(numbers)
    assert [row_at(epoch * total + i) for i in range(total)] == [(row, epoch) for row in want]


def test_orders_differ_by_epoch_and_by_seed_and_mix_the_corpora():
    rows, config = {"a": 500, "b": 30}, MixingConfig(corpus_temperature=3)
    orders = {
        tuple(order(epoch * 530 + i) for i in range(530))
        for order in (endless_order(rows, config, seed) for seed in range(3))
        for epoch in range(3)
    }
    assert len(orders) == 9
    from_b = np.array([row >= 500 for row, _ in min(orders)])
    share = epoch_rows(rows, config)["b"] / 530
    assert all(abs(np.mean(third) - share) < 0.12 for third in np.split(from_b[:528], 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus_temperature": 0.9}, r"corpus_temperature is 0\.9, but must be at least 1"),
        ({"corpus_temperature": math.inf}, "corpus_temperature is inf"),
        ({"corpus_temperature": math.nan}, "corpus_temperature is nan"),
        ({"corpus_weights": {"a": 0.0}}, r"weight of the corpus 'a' is 0, but must be above 0"),
        ({"corpus_weights": {"a": -1.0, "b": 1.0}}, r"corpus 'a' is -1"),
        ({"corpus_weights": {"a": math.nan}}, "corpus 'a' is nan"),
        ({"corpus_weights": {"a": math.inf}}, "corpus 'a' is inf"),
        (
            {"corpus_weights": {"a": 1.0}, "corpus_temperature": 2.0},
            "either corpus_weights or a corpus_temperature, but not both",
        ),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        MixingConfig(**settings)


@pytest.mark.parametrize(
    ("rows", "weights", "message"),
    [
        ({"a": 2, "b": 1}, {"a": 1, "c": 1}, "weights for 'a', 'c', but rows of 'a', 'b'. Give"),
        ({"a": 2}, {"a": 1, "blank": 1}, "omit those without text"),
        ({"a": 2, "b": 1}, {"a": 1}, "weights for 'a', but rows of 'a', 'b'. Give every corpus"),
        ({"": 2, "b": 1}, {"b": 1}, "rows of a corpus without a name, 'b'.*'news=data/news"),
        ({"": 2}, {"b": 1}, "weights for 'b', but rows of a corpus without a name"),
    ],
)
def test_weights_that_do_not_fit_the_corpora_are_refused(rows, weights, message):
    for refuse in (epoch_rows, lambda *arguments: endless_order(*arguments, seed=0)):
        with pytest.raises(InputError, match=message):
            refuse(rows, MixingConfig(weights))
