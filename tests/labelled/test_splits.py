from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import Duplicates, example_key, folds, split_examples
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.table import TASKS

SHORT = st.text("aｂb 　c", max_size=3)
EXAMPLES = st.lists(
    st.builds(lambda *x: Example(x[:2], x[2], ""), SHORT, SHORT, st.sampled_from("01"))
)


def plain(example):
    """Return the texts in half width and without white space, converted letter by letter."""
    half = {"ｂ": "b", " ": "", "　": ""}
    return tuple("".join(half.get(letter, letter) for letter in text) for text in example.texts)


def unordered(example):
    """Return the normalized texts of a pair independently of their order."""
    return sorted(plain(example))


def make(labels, prefix="text"):
    return [Example((f"{prefix} {i}",), label, f"f:{i}") for i, label in enumerate(labels)]


@given(EXAMPLES, EXAMPLES, EXAMPLES)
def test_duplicates_equal_a_pairwise_comparison(train, test, valid):
    actual = Duplicates(train, test, valid)
    keys, test_keys = list(map(unordered, train)), list(map(unordered, test))
    valid_keys = [key for key in map(unordered, valid) if key not in keys]
    assert actual.in_valid.tolist() == [key in valid_keys for key in test_keys]
    assert actual.in_train.tolist() == [any(key == k for k in keys) for key in test_keys]
    assert actual.repeated.tolist() == [key in test_keys[:i] for i, key in enumerate(test_keys)]
    assert actual.within == sum(key in keys[:i] for i, key in enumerate(keys))
    examples = [*train, *valid, *test]  # a pair in the other order may have another label
    labels = {
        plain(e): {other.label for other in examples if plain(other) == plain(e)} for e in examples
    }
    assert actual.contradicting == sum(len(x) > 1 for x in labels.values())
    assert (actual.unseen == ~(actual.in_train | actual.in_valid | actual.repeated)).all()
    assert actual.in_train.dtype == actual.repeated.dtype == bool


def test_equal_pairs_have_two_equal_texts():
    assert text_key(("ab", "c")) != text_key(("a", "bc"))
    assert text_key(("a b", "ｃ")) == text_key(("ab", "c"))


def test_swapped_pairs_and_triples_are_duplicates():
    train = [Example(("甲", "乙"), "1", ""), Example(("丙", "丁"), "0", "")]
    test = [
        Example(("乙", "甲 "), "1", ""),
        Example(("丙", "丁"), "1", ""),
        Example("甲丁", "1", ""),
    ]
    actual = Duplicates(train, test)
    assert actual.in_train.tolist() == [True, True, False]
    assert actual.unseen.tolist() == [False, False, True]
    assert Duplicates([], [*train, *test]).repeated.tolist() == [False, False, True, True, False]
    assert Duplicates(train, [], test).within == 0
    assert Duplicates([*train, *test], []).within == 2
    assert actual.contradicting == 1  # only 丙, 丁 occurs in the same order with two labels

    train = [Example(("甲", "乙", "丙"), "B", "")]
    test = [Example(texts, "C", "") for texts in (("甲", "丙", "乙"), ("乙", "甲", "丙"))]
    actual = Duplicates(train, test)
    assert (actual.in_train.tolist(), actual.contradicting) == ([True, False], 0)


def test_the_first_text_of_a_triple_is_not_swapped():
    assert example_key("甲乙丙") == example_key("甲丙乙") != example_key("乙甲丙")
    assert example_key("甲乙") == example_key("乙甲") != example_key("甲甲")
    assert example_key(["甲"]) == text_key(["甲"])


@pytest.mark.parametrize("task", ["pair", "regression", "ranking"])
def test_a_split_keeps_swapped_examples_together(task):
    rng = np.random.default_rng(0)
    orders = [("a{}", "b{}"), ("b{}", "a{}")]
    if task == "ranking":
        orders = [("x{}", *order) for order in orders]
    examples = [
        Example(tuple(text.format(i) for text in order), LABELS[task](rng), "")
        for i in range(60)
        for order in orders
    ]
    for sides in (
        split_examples(examples, TASKS[task], (0.2, 0.2)),
        *folds(examples, TASKS[task], 3),
    ):
        texts = [{example.texts[-1][1:] for example in side} for side in sides]
        assert sum(map(len, texts)) == len(set.union(*texts)) == 60


LABELS = {
    "classification": lambda rng: str(rng.choice(3, p=[0.7, 0.2, 0.1])),
    "pair": lambda rng: str(rng.integers(2)),
    "multilabel": lambda rng: tuple(np.array(["x", "y", "z"])[rng.random(3) < 0.3]),
    "regression": lambda rng: float(rng.normal()),
    "ranking": lambda rng: str(rng.choice(["B", "C"])),
    "tagging": lambda rng: ("O", *rng.choice(["B-LOC", "O"], 2)),
}


@pytest.mark.parametrize("task", LABELS)
def test_a_split_is_complete_and_separates_no_equal_texts(task):
    rng = np.random.default_rng(0)
    examples = [
        Example((f"{rng.integers(150)}{' ' * int(rng.integers(2))}",), LABELS[task](rng), f"f:{i}")
        for i in range(400)
    ]
    sides = split_examples(examples, TASKS[task], (0.2, 0.1), seed=3)
    assert sorted(e for side in sides for e in side) == sorted(examples)
    assert [len(side) for side in sides] == pytest.approx([280, 80, 40], abs=5)
    texts = [set(map(plain, side)) for side in sides]
    assert len(set.union(*texts)) == sum(map(len, texts))
    places = [[int(e.source_line[2:]) for e in side] for side in sides]
    assert places == [sorted(side) for side in places]


@pytest.mark.parametrize("task", ["classification", "multilabel", "tagging"])
def test_a_split_is_stratified_by_label(task):
    rng = np.random.default_rng(0)
    has_many_labels = task != "classification"
    examples = make([LABELS[task](rng) for _ in range(1000)])

    def label_counts(side):
        return Counter(label for e in side for label in (e.label if has_many_labels else [e.label]))

    total = label_counts(examples)
    for side, fraction in zip(split_examples(examples, TASKS[task]), (0.8, 0.1, 0.1), strict=True):
        for label, count in label_counts(side).items():
            assert count == pytest.approx(fraction * total[label], abs=6)


def test_a_split_is_stratified_by_number():
    numbers = np.random.default_rng(0).lognormal(size=1000)
    for side in split_examples(make(numbers.tolist()), TASKS["regression"]):
        side_numbers = [example.label for example in side]
        for tenth in range(1, 10):
            below = np.mean(side_numbers < np.quantile(numbers, tenth / 10))
            assert below == pytest.approx(tenth / 10, abs=0.02)


@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_single_labels_are_in_the_training_set(task):
    labels = ["common"] * 50 + [f"rare {i}" for i in range(10)]
    examples = make([(x, "common") for x in labels] if task == "multilabel" else labels)
    train, valid, test = split_examples(examples, TASKS[task], (0.2, 0.2))
    assert {e.label for e in train} == {e.label for e in examples}
    assert {e.label for e in (*valid, *test)} == {examples[0].label}


@pytest.mark.parametrize("task", ["classification", "pair", "multilabel", "tagging"])
@pytest.mark.parametrize("fractions", [(0.1, 0.1), (0.1, 0.0), (0.02, 0.3)])
def test_a_label_with_three_rows_is_in_every_set(task, fractions):
    """This holds for every seed, with frequent labels and repeated rows."""
    labels = ["common"] * 300 + ["often"] * 150 + ["rare"] * 3 + ["scarce"] * 4
    if task in ("multilabel", "tagging"):  # a rare label comes with a frequent one
        labels = [("common", label) for label in labels]
    examples = make(labels)
    examples += [item._replace(texts=(item.texts[0] + " ",)) for item in examples[::5]]
    for seed in range(10):
        for part in split_examples(examples, TASKS[task], fractions, seed):
            seen = {label for item in part for label in TASKS[task].labelling.labels_in(item.label)}
            assert not part or seen == {"common", "often", "rare", "scarce"}


def test_rare_labels_of_multilabel_data_are_in_every_set():
    rng = np.random.default_rng(0)
    labels = [tuple(np.flatnonzero(row).astype(str)) for row in rng.random((200, 40)) < 0.03]
    actual = Counter(label for item in labels for label in item)
    for part in split_examples(make(labels), TASKS["multilabel"]):
        seen = {label for item in part for label in item.label}
        assert seen >= {label for label, count in actual.items() if count >= 3}


def test_a_label_whose_texts_are_all_chosen_for_other_labels_is_in_the_training_set():
    """The two texts with c that are free go to validation and test for d and e."""
    labels = ["cd", "ade", "b", "ab", "bcd", "e", "ce"]
    train, *rest = split_examples(make(list(map(tuple, labels))), TASKS["multilabel"])
    assert {label for item in train for label in item.label} == set("abcde")
    assert all(rest)


def test_a_split_is_a_function_of_its_seed():
    examples = make(["0", "1"] * 50)
    assert split_examples(examples, TASKS["classification"], seed=1) == split_examples(
        examples, TASKS["classification"], seed=1
    )
    assert split_examples(examples, TASKS["classification"], seed=1) != split_examples(
        examples, TASKS["classification"], seed=2
    )


def test_a_fraction_of_zero_gives_an_empty_set():
    train, valid, test = split_examples(make(["0", "1"] * 50), TASKS["classification"], (0.0, 0.2))
    assert (len(train), len(valid), len(test)) == (80, 0, 20)


def test_too_few_examples_are_an_input_error():
    with pytest.raises(
        InputError, match=r"too few different texts to split: 3. None is left for validation"
    ):
        split_examples(make("010"), TASKS["classification"])
    repeated = [Example(("one",), "0", ""), Example(("two",), "1", "")] * 50
    with pytest.raises(InputError, match=r"texts to split: 2.*Give --valid and --test"):
        split_examples(repeated, TASKS["classification"])


@pytest.mark.parametrize("fractions", [(-0.1, 0.2), (0.5, 0.5)])
def test_impossible_fractions_are_an_input_error(fractions):
    with pytest.raises(InputError, match=r"both is .*, but must be at least 0 and below 1"):
        split_examples(make("01" * 50), TASKS["classification"], fractions)


@pytest.mark.parametrize("k", [2, 5])
def test_folds_hold_every_example_out_once(k):
    examples = make(np.random.default_rng(0).choice(["0", "1"], 103, p=[0.8, 0.2]).tolist())
    examples += [example._replace(texts=(example.texts[0] + " ",)) for example in examples[:9]]
    pairs = folds(examples, TASKS["classification"], k, seed=2)
    assert len(pairs) == k
    assert sorted(e for _, held_out in pairs for e in held_out) == sorted(examples)
    ones = sum(example.label == "1" for example in examples)
    for train, held_out in pairs:
        assert sorted(train + held_out) == sorted(examples)
        assert not set(map(plain, train)) & set(map(plain, held_out))
        assert len(held_out) == pytest.approx(len(examples) / k, abs=4)
        assert sum(e.label == "1" for e in held_out) == pytest.approx(ones / k, abs=3)


def test_impossible_folds_are_input_errors():
    with pytest.raises(InputError, match="folds is 1, but must be at least 2"):
        folds(make("0101"), TASKS["classification"], 1)
    with pytest.raises(InputError, match="too few examples for 5 folds"):
        folds(make("0101"), TASKS["classification"], 5)
    with pytest.raises(InputError, match="label '2' are in one of 2 folds"):
        folds(make("01012"), TASKS["classification"], 2)
