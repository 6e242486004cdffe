import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, rankdata, spearmanr
from seqeval.metrics import f1_score as entity_f1
from seqeval.metrics import precision_score as entity_precision
from seqeval.metrics import recall_score as entity_recall
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    mean_absolute_error,
    precision_recall_fscore_support,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.preprocessing import MultiLabelBinarizer

from roformer_tf.tasks import metrics
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.metrics import by_kind, ranks
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.translation import Translator

NOTHING = np.zeros(1, np.float32)
TAGS = ("B-LOC", "B-PER", "E-LOC", "I-LOC", "I-PER", "O", "S-PER")


def intervals(task, *labelled_set):
    return task.metrics.intervals(*labelled_set)


def unscored(labels):
    return [Prediction(label, NOTHING) for label in labels]


def scored(labels):
    """Return predictions of two labels with probabilities 0 and 1."""
    return [Prediction(item, np.float32([item == "a", item == "b"])) for item in labels]


def labelled(name, labels, examples=60, seed=0):
    """Return a task, gold labels and random predictions, about half of which are right."""
    rng = np.random.default_rng(seed)
    task = TASKS[name](labels=labels)
    gold = rng.integers(0, len(labels), examples)
    logits = rng.normal(size=(examples, len(labels))).round(1)  # rounding gives ties
    logits[np.arange(examples), gold] += 1
    return task, [labels[i] for i in gold], [task.decoding.predict(item) for item in logits]


def multilabel_set(examples=80, seed=0):
    rng = np.random.default_rng(seed)
    task = Multilabel(labels=("a", "b", "c", "d"))
    gold = rng.random((examples, 4)) < (0.1, 0.3, 0.5, 0.2)
    logits = np.where(gold, 1, -1) + rng.normal(size=gold.shape)
    names = [tuple(np.array(task.labels)[row].tolist()) for row in gold]
    return task, names, [task.decoding.predict(row) for row in logits]


def tagging_set(sentences=40, seed=0):
    rng = np.random.default_rng(seed)
    task = Tagging(labels=TAGS)
    gold = [rng.integers(0, len(TAGS), rng.integers(1, 20)) for _ in range(sentences)]
    logits = [rng.normal(size=(len(row), len(TAGS))) + 2 * np.eye(len(TAGS))[row] for row in gold]
    return (
        task,
        [tuple(TAGS[i] for i in row) for row in gold],
        [task.decoding.predict(x) for x in logits],
    )


def regression_set(examples=50, seed=0):
    rng = np.random.default_rng(seed)
    gold = rng.normal(5, 2, examples).round(1)  # rounding gives ties
    return (
        Regression(),
        gold.tolist(),
        unscored((gold + rng.normal(size=examples)).round(1)),
    )


def ranking_set(examples=40, seed=0):
    rng = np.random.default_rng(seed)
    task = Ranking()
    gold = [str(x) for x in rng.choice(["B", "C"], examples)]
    return task, gold, [task.decoding.predict(item) for item in rng.normal(size=(examples, 2))]


@pytest.fixture(params=["classification", "pair", "multilabel", "regression", "ranking", "tagging"])
def labelled_set(request):
    """A task, gold labels and predictions, for each kind of task."""
    kinds = {
        "multilabel": multilabel_set,
        "regression": regression_set,
        "ranking": ranking_set,
        "tagging": tagging_set,
    }
    return kinds.get(request.param, lambda: labelled(request.param, ("0", "1")))()


@pytest.mark.parametrize("labels", [("0", "1"), ("好", "坏", "一般")])
@pytest.mark.parametrize("name", ["classification", "pair"])
def test_classification_equals_scikit_learn(name, labels):
    task, gold, predictions = labelled(name, labels)
    guessed = [item.label for item in predictions]
    want = {
        "accuracy": accuracy_score(gold, guessed),
        "macro_f1": f1_score(gold, guessed, average="macro"),
    }
    if len(labels) == 2:
        want["roc_auc"] = roc_auc_score(
            [item == "1" for item in gold], [item.scores[1] for item in predictions]
        )
    assert task.metrics.compute(gold, predictions) == pytest.approx(want, abs=1e-12)


def test_macro_f1_averages_over_the_training_labels():
    """If a label is missing from the data, macro F1 is None, even if the model predicts it."""
    task = Classification(labels=("a", "b", "c"))
    gold, guessed = ["a", "a", "b", "c"], ["a", "b", "b", "b"]
    want = f1_score(gold, guessed, average="macro", labels=task.labels, zero_division=0)
    assert task.metrics.compute(gold, unscored(guessed))["macro_f1"] == pytest.approx(want)
    for guessed in (["a", "b", "b"], ["a", "c", "b"]):
        assert task.metrics.compute(["a", "a", "b"], unscored(guessed))["macro_f1"] is None
    assert "c" in task.metrics.why_undefined(["a", "a", "b"])["macro_f1"]


def test_macro_f1_of_units_needs_every_label():
    task = Tagging(labels=("n", "r", "v"))
    assert task.metrics.compute([("n", "v")], unscored([("n", "v")]))["macro_f1"] is None
    assert "r" in task.metrics.why_undefined([("n", "v")])["macro_f1"]


def test_multilabel_equals_scikit_learn():
    task, gold, predictions = multilabel_set()
    binary = MultiLabelBinarizer(classes=task.labels)
    truth = binary.fit_transform(gold)
    guessed = binary.transform([item.label for item in predictions])
    assert task.metrics.compute(gold, predictions) == pytest.approx(
        {
            "micro_f1": f1_score(truth, guessed, average="micro"),
            "macro_f1": f1_score(truth, guessed, average="macro"),
            "exact_match": accuracy_score(truth, guessed),
        },
        abs=1e-12,
    )


def test_the_order_of_several_labels_does_not_matter():
    task = Multilabel(labels=("a", "b"))
    assert task.metrics.compute([("b", "a")], unscored([("a", "b")]))["exact_match"] == 1


def test_regression_equals_scipy():
    task, gold, predictions = regression_set()
    guessed = [item.label for item in predictions]
    assert task.metrics.compute(gold, predictions) == pytest.approx(
        {
            "pearson": pearsonr(gold, guessed).statistic,
            "spearman": spearmanr(gold, guessed).statistic,
            "mae": mean_absolute_error(gold, guessed),
            "rmse": root_mean_squared_error(gold, guessed),
        },
        abs=1e-12,
    )


# Metrics that the data leave undefined

UNDEFINED = [
    ("classification", ("a", "b"), ["a"] * 30, "a", {"macro_f1", "roc_auc"}, "b"),
    ("pair", ("a", "b"), ["b"] * 30, "b", {"macro_f1", "roc_auc"}, "a"),
    ("pair", ("a", "b", "c"), ["b", "a"] * 15, "b", {"macro_f1"}, "c"),
    ("multilabel", ("a", "b"), [("a",)] * 30, ("a",), {"macro_f1"}, "b"),
    ("multilabel", ("a", "b"), [()] * 30, (), {"macro_f1", "micro_f1"}, "a, b"),
    ("regression", (), [3.0] * 30, 2.5, {"pearson", "spearman"}, "same"),
    ("regression", (), [3.0], 3.0, {"pearson", "spearman"}, "same"),
    ("tagging", TAGS, [("O", "O")] * 30, ("O", "O"), {"f1", "precision", "recall"}, "entit"),
    ("tagging", TAGS, [("O", "O")] * 30, ("S-PER", "O"), {"f1", "recall"}, "entit"),
]


@pytest.mark.parametrize(("name", "labels", "gold", "guessed", "undefined", "reason"), UNDEFINED)
def test_an_undefined_metric_has_a_reason(name, labels, gold, guessed, undefined, reason):
    task = TASKS[name](labels=labels)
    scores = np.float32([[0.4, 0.6]] * 2 if name == "tagging" else [0.4, 0.6, 0])
    predictions = [Prediction(guessed, scores)] * len(gold)
    actual = task.metrics.compute(gold, predictions)
    ends = task.metrics.intervals(gold, predictions)
    assert {metric for metric, value in actual.items() if value is None} == undefined
    assert all(ends[metric] is None for metric in undefined)
    for metric in undefined:
        why = task.metrics.reason(task.metrics.named(metric), gold)
        assert reason in why or (metric == "precision" and "predicted" in why)
        assert Translator("zh")(why) != why


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e9 / 3])
def test_constant_numbers_have_no_correlation(constant):
    task, gold, _ = regression_set()
    actual = task.metrics.compute(gold, unscored([constant] * len(gold)))
    assert actual["pearson"] is actual["spearman"] is None
    assert "predictions" in task.metrics.reason(task.metrics.named("pearson"), gold)
    actual = task.metrics.compute([constant] * len(gold), unscored(gold))
    assert actual["pearson"] is actual["spearman"] is None


def test_without_a_prediction_there_is_no_precision():
    task = Tagging(labels=TAGS)
    actual = task.metrics.compute([("S-PER", "O")], unscored([("O", "O")]))
    assert actual == {"f1": 0, "precision": None, "recall": 0, "accuracy": 0.5}
    rows = {
        row["label"]: row
        for row in by_kind(task.metrics.count_items([("S-PER",)], unscored(["O"])))
    }
    assert rows["PER"] | {"precision": None, "recall": 0, "f1": 0} == rows["PER"]
    assert rows["LOC"] | dict.fromkeys(("precision", "recall", "f1")) == rows["LOC"]


@pytest.mark.parametrize(
    ("right", "total", "want"),
    [
        (30, 30, (0.886, 1)),
        (0, 30, (0, 0.114)),
        (1, 1, (0.207, 1)),
        (1, 2, (0.095, 0.905)),
        (9, 10, (0.596, 0.982)),
    ],
)
def test_the_interval_of_a_fraction_is_wilsons(right, total, want):
    guessed = ["a"] * right + ["b"] * (total - right)
    task = Classification(labels=("a", "b"))
    assert task.metrics.intervals(["a"] * total, scored(guessed))["accuracy"] == pytest.approx(
        want, abs=5e-4
    )
    multilabel, label_sets = Multilabel(labels=("a", "b")), [(item,) for item in guessed]
    actual = multilabel.metrics.intervals([("a",)] * total, unscored(label_sets))["exact_match"]
    assert actual == pytest.approx(want, abs=5e-4)


def test_entities_and_units_of_a_text_are_no_independent_trials():
    task = Tagging(labels=TAGS)
    gold = [("S-PER", "S-PER", "S-PER")] * 10 + [("O",)] * 20
    perfect = task.metrics.intervals(gold, unscored(gold))
    assert perfect == dict.fromkeys(("f1", "precision", "recall", "accuracy"))
    guessed = [("S-PER", "O", "O")] * 5 + gold[5:]
    actual = task.metrics.intervals(gold, unscored(guessed))
    # Of 10 texts with entities, 2 to 8 have two wrong units: (50 − 2 · 8) / 50 = 0.68.
    assert actual["accuracy"] == pytest.approx((0.68, 0.92))


def test_no_interval_has_zero_width(labelled_set):
    task, gold, predictions = labelled_set
    perfect = [Prediction(x, item.scores) for x, item in zip(gold, predictions, strict=True)]
    for number in (1, 2, 3, len(gold)):
        same = [] if task.labelling.has_units else [predictions[:1] * len(gold)]
        for guessed in (perfect, predictions, *same):
            figures = task.metrics.compute(gold[:number], guessed[:number])
            for name, ends in task.metrics.intervals(gold[:number], guessed[:number]).items():
                assert ends is None or ends[0] < ends[1]
                assert ends is None or ends[0] <= figures[name] <= ends[1]


def labels_and_guesses(labels, each, rng, accuracy=0.7):
    """Return gold labels, `each` of every label, and guesses; wrong ones are any other label."""
    gold = np.repeat(np.arange(labels), each)
    wrong = (gold + rng.integers(1, labels, len(gold))) % labels
    guesses = np.where(rng.random(len(gold)) < accuracy, gold, wrong)
    return list(map(str, gold)), unscored(map(str, guesses))


def test_the_interval_of_macro_f1_covers_the_true_value_or_is_absent():
    """Guesses are right at the same rate for each label, so precision and recall have that rate."""
    rng, covered, runs = np.random.default_rng(0), 0, 50
    task = Classification(labels=tuple(map(str, range(100))))
    for _ in range(runs):
        gold, guesses = labels_and_guesses(100, 10, rng)
        low, high = task.metrics.intervals(gold, guesses)["macro_f1"]
        covered += low <= 0.7 <= high
        assert low <= task.metrics.compute(gold, guesses)["macro_f1"] <= high
    assert covered >= 0.8 * runs
    gold, guesses = labels_and_guesses(100, 9, rng)
    ends = task.metrics.intervals(gold, guesses)
    assert ends["macro_f1"] is None
    assert ends["accuracy"] is not None
    assert str(task.metrics.reason(metrics.MACRO_F1, gold, True)).startswith(
        "there are too few examples"
    )


def test_resampling_is_stratified_by_label():
    """Resampling is stratified, so a rare label is in every sample."""
    task = Classification(labels=("a", "b"))
    gold, guessed = ["a"] * 500 + ["b"] * 2, ["a"] * 501 + ["b"]
    low, high = task.metrics.intervals(gold, scored(guessed))["macro_f1"]
    half = (2 * 500 / 1001 + 2 / 3) / 2
    assert task.metrics.compute(gold, scored(guessed))["macro_f1"] == pytest.approx(half)
    assert low == pytest.approx(1000 / 1002 / 2)  # both rare examples wrong, neither missing
    assert high == 1
    many, names, predictions = multilabel_set()
    rare = [*names, ("e",)]
    task = Multilabel(labels=(*many.labels, "e"))
    predictions = [*predictions, Prediction(("e",), NOTHING)]
    assert task.metrics.intervals(rare, predictions)["macro_f1"] is not None


def test_ties_of_triples_are_wrong():
    task = Ranking()
    predictions = [task.decoding.predict(np.array(x)) for x in ([2.0, 1.0], [1.0, 2.0], [1.0, 1.0])]
    assert task.metrics.compute(["B", "C", "B"], predictions) == {"accuracy": pytest.approx(2 / 3)}


def test_tagging_equals_seqeval():
    task, gold, predictions = tagging_set()
    truth, guessed = [[*item] for item in gold], [[*item.label] for item in predictions]
    units = [x == y for a, b in zip(truth, guessed, strict=True) for x, y in zip(a, b, strict=True)]
    want = {
        "f1": entity_f1(truth, guessed),
        "precision": entity_precision(truth, guessed),
        "recall": entity_recall(truth, guessed),
        "accuracy": np.mean(units),
    }
    assert 0.2 < want["f1"] < 0.8
    assert task.metrics.compute(gold, predictions) == pytest.approx(want, abs=1e-12)


def test_by_kind_equals_scikit_learn():
    task, gold, predictions = labelled("classification", ("a", "b", "c"))
    guessed = [item.label for item in predictions]
    want = precision_recall_fscore_support(gold, guessed, labels=task.labels)
    rows = by_kind(task.metrics.count_items(gold, predictions))
    assert [row["label"] for row in rows] == ["a", "b", "c"]
    for column, values in zip(("precision", "recall", "f1", "gold"), want, strict=True):
        assert [row[column] for row in rows] == pytest.approx(values.tolist())
    assert [row["predicted"] for row in rows] == [guessed.count(label) for label in task.labels]


def test_by_kind_and_count_kinds_group_entities_by_type():
    task = Tagging(labels=TAGS)
    gold = [("B-LOC", "I-LOC", "O"), ("B-LOC", "S-PER")]
    rows = by_kind(
        task.metrics.count_items(gold, unscored([("B-LOC", "O", "O"), ("B-LOC", "S-PER")]))
    )
    assert [(row["label"], row["f1"], row["gold"]) for row in rows] == [
        ("LOC", 0.5, 2),
        ("PER", 1, 1),
    ]
    assert task.metrics.count_kinds(gold) == {"LOC": 2, "PER": 1}
    assert Ranking().metrics.count_kinds(["B", "B"]) == {"B": 2, "C": 0}


def test_all_usable_metrics_are_computed_and_the_main_one_rises(labelled_set):
    task, gold, predictions = labelled_set
    assert [*task.metrics.compute(gold, predictions)] == [x.name for x in task.metrics.usable()]
    assert not task.metrics.all[0].falls


def test_a_weight_equals_repeating_an_example(labelled_set):
    task, gold, predictions = labelled_set
    rng = np.random.default_rng(7)
    samples = [rng.integers(0, len(gold), len(gold)) for _ in range(50)]
    counts = np.array([np.bincount(x, minlength=len(gold)) for x in samples], float)
    at_once = task.metrics.measure(gold, predictions)(counts)
    for row, sample in enumerate(samples):
        want = task.metrics.compute([gold[i] for i in sample], [predictions[i] for i in sample])
        got = {name: values[row] for name, values in at_once.items()}
        want = {name: math.nan if x is None else x for name, x in want.items()}
        assert got == pytest.approx(want, abs=1e-12, nan_ok=True)


def test_interval_widths_scale_with_the_square_root_of_examples():
    widths = {"accuracy": [], "macro_f1": []}
    for examples in (500, 8000):
        task, gold, predictions = labelled("classification", ("0", "1"), examples)
        figures, actual = (
            task.metrics.compute(gold, predictions),
            task.metrics.intervals(gold, predictions),
        )
        accuracy = figures["accuracy"]
        normal = 2 * 1.96 * math.sqrt(accuracy * (1 - accuracy) / examples)
        for name, sizes in widths.items():
            low, high = actual[name]
            assert low < figures[name] < high
            assert high - low == pytest.approx(normal, rel=0.1)
            sizes.append(high - low)
    for wide, narrow in widths.values():
        assert wide / narrow == pytest.approx(4, rel=0.15)


def fraction_metrics(task):
    """Return the metrics that are a fraction of independent examples."""
    return {"accuracy", "exact_match"} & {
        x.name for x in task.metrics.all if not task.labelling.has_units
    }


def bootstrap_of(labelled_set, resamples, seed=0):
    task, *data = labelled_set
    return metrics.bootstrap(task.metrics.measure(*data), len(data[0]), resamples, seed)


def test_bootstrap_samples_depend_only_on_the_seed(labelled_set):
    first, again, other = (bootstrap_of(labelled_set, 200, seed) for seed in (0, 0, 1))
    assert first == again
    same = {name for name, ends in first.items() if ends == other[name]}
    assert same <= fraction_metrics(labelled_set[0])  # fractions of few examples have few values


def test_intervals_do_not_depend_on_the_batch_size_of_samples(labelled_set, monkeypatch):
    want = bootstrap_of(labelled_set, 50)
    monkeypatch.setattr(metrics, "NUMBERS_AT_ONCE", 7 * len(labelled_set[1]))
    assert bootstrap_of(labelled_set, 50) == want


@pytest.mark.slow
def test_a_thousand_samples_of_twenty_thousand_examples_take_seconds():
    labelled_set = labelled("classification", ("0", "1"), 20_000)
    start = time.process_time()
    intervals(*labelled_set)
    assert time.process_time() - start < 10  # about 2; resampling lists would take minutes


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.data())
def test_weighted_ranks_equal_ranks_of_repeated_values(values, data):
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    x = np.array(values, float)
    actual = ranks(x, np.array([counts], float))[0]
    want = rankdata(np.repeat(x, counts))
    assert np.repeat(actual, counts).tolist() == want.tolist()
