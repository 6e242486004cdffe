import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, pearsonr, rankdata, spearmanr
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

NOTHING = np.zeros(1, np.float32)
TAGS = ("B-LOC", "B-PER", "E-LOC", "I-LOC", "I-PER", "O", "S-PER")


def intervals(task, *judged, **settings):
    return task.intervals(*judged, **settings)


def answers(labels):
    return [Prediction(label, NOTHING) for label in labels]


def labelled(name, labels, examples=60, seed=0):
    """A task, the labels of examples, and a model's answers: by chance, half of them right."""
    rng = np.random.default_rng(seed)
    task = TASKS[name](labels=labels)
    gold = rng.integers(0, len(labels), examples)
    logits = rng.normal(size=(examples, len(labels))).round(1)  # some are equal
    logits[np.arange(examples), gold] += 1
    return task, [labels[i] for i in gold], [task.answer(one) for one in logits]


def several(examples=80, seed=0):
    rng = np.random.default_rng(seed)
    task = Multilabel(labels=("a", "b", "c", "d"))
    gold = rng.random((examples, 4)) < (0.1, 0.3, 0.5, 0)
    logits = np.where(gold, 1, -1) + rng.normal(size=gold.shape) - (0, 0, 0, 9)
    names = [tuple(np.array(task.labels)[row].tolist()) for row in gold]
    return task, names, [task.answer(row) for row in logits]


def tagged(sentences=40, seed=0):
    rng = np.random.default_rng(seed)
    task = Tagging(labels=TAGS)
    gold = [rng.integers(0, len(TAGS), rng.integers(1, 20)) for _ in range(sentences)]
    logits = [rng.normal(size=(len(row), len(TAGS))) + 2 * np.eye(len(TAGS))[row] for row in gold]
    return task, [tuple(TAGS[i] for i in row) for row in gold], [task.answer(x) for x in logits]


def numbers(examples=50, seed=0):
    rng = np.random.default_rng(seed)
    gold = rng.normal(5, 2, examples).round(1)  # some are equal
    return (
        Regression(),
        gold.tolist(),
        answers((gold + rng.normal(size=examples)).round(1)),
    )


def triples(examples=40, seed=0):
    rng = np.random.default_rng(seed)
    task = Ranking()
    gold = [str(x) for x in rng.choice(["B", "C"], examples)]
    return task, gold, [task.answer(one) for one in rng.normal(size=(examples, 2))]


@pytest.fixture(params=["classification", "pair", "multilabel", "regression", "ranking", "tagging"])
def judged(request):
    """A task, labels and answers, of every kind."""
    kinds = {
        "multilabel": several,
        "regression": numbers,
        "ranking": triples,
        "tagging": tagged,
    }
    return kinds.get(request.param, lambda: labelled(request.param, ("0", "1")))()


@pytest.mark.parametrize("labels", [("0", "1"), ("好", "坏", "一般")])
@pytest.mark.parametrize("name", ["classification", "pair"])
def test_classification_equals_scikit_learn(name, labels):
    task, gold, predictions = labelled(name, labels)
    said = [one.label for one in predictions]
    want = {
        "accuracy": accuracy_score(gold, said),
        "macro_f1": f1_score(gold, said, average="macro"),
    }
    if len(labels) == 2:
        want["roc_auc"] = roc_auc_score(
            [one == "1" for one in gold], [one.scores[1] for one in predictions]
        )
    assert task.compute_metrics(gold, predictions) == pytest.approx(want, abs=1e-12)


def test_macro_f1_leaves_out_what_is_nowhere():
    task = Classification(labels=("a", "b", "c", "d"))
    gold, said = ["a", "a", "b"], ["a", "b", "c"]
    want = f1_score(gold, said, average="macro", zero_division=0)  # over a, b and c
    assert task.compute_metrics(gold, answers(said))["macro_f1"] == pytest.approx(want)


def test_multilabel_equals_scikit_learn():
    task, gold, predictions = several()
    binary = MultiLabelBinarizer(classes=task.labels)
    truth = binary.fit_transform(gold)
    said = binary.transform([one.label for one in predictions])
    assert not truth[:, 3].any()  # "d" is never there, nor answered
    assert not said[:, 3].any()
    assert task.compute_metrics(gold, predictions) == pytest.approx(
        {
            "micro_f1": f1_score(truth, said, average="micro"),
            "macro_f1": f1_score(truth, said, average="macro", zero_division=np.nan),
            "exact_match": accuracy_score(truth, said),
        },
        abs=1e-12,
    )


def test_the_order_of_several_labels_does_not_matter():
    task = Multilabel(labels=("a", "b"))
    assert task.compute_metrics([("b", "a")], answers([("a", "b")]))["exact_match"] == 1


def test_regression_equals_scipy():
    task, gold, predictions = numbers()
    said = [one.label for one in predictions]
    assert task.compute_metrics(gold, predictions) == pytest.approx(
        {
            "pearson": pearsonr(gold, said).statistic,
            "spearman": spearmanr(gold, said).statistic,
            "mae": mean_absolute_error(gold, said),
            "rmse": root_mean_squared_error(gold, said),
        },
        abs=1e-12,
    )


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e9 / 3])
def test_a_correlation_with_a_constant_is_0(constant):
    task, gold, _ = numbers()
    found = task.compute_metrics(gold, answers([constant] * len(gold)))
    assert found["pearson"] == found["spearman"] == 0


def test_a_triple_is_right_only_where_one_text_is_ahead():
    task = Ranking()
    predictions = [task.answer(np.array(x)) for x in ([2.0, 1.0], [1.0, 2.0], [1.0, 1.0])]
    assert task.compute_metrics(["B", "C", "B"], predictions) == {"accuracy": pytest.approx(2 / 3)}


def test_tagging_equals_seqeval():
    task, gold, predictions = tagged()
    truth, said = [[*one] for one in gold], [[*one.label] for one in predictions]
    units = [x == y for a, b in zip(truth, said, strict=True) for x, y in zip(a, b, strict=True)]
    want = {
        "f1": entity_f1(truth, said),
        "precision": entity_precision(truth, said),
        "recall": entity_recall(truth, said),
        "accuracy": np.mean(units),
    }
    assert 0.2 < want["f1"] < 0.8
    assert task.compute_metrics(gold, predictions) == pytest.approx(want, abs=1e-12)


def test_tagging_without_entities_is_0_not_nan():
    task = Tagging(labels=TAGS)
    found = task.compute_metrics([("O", "O")], answers([("O", "O")]))
    assert found == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


def test_by_kind_equals_scikit_learn():
    task, gold, predictions = labelled("classification", ("a", "b", "c"))
    said = [one.label for one in predictions]
    want = precision_recall_fscore_support(gold, said, labels=task.labels)
    rows = by_kind(task.count_items(gold, predictions))
    assert [row["label"] for row in rows] == ["a", "b", "c"]
    for column, values in zip(("precision", "recall", "f1", "gold"), want, strict=True):
        assert [row[column] for row in rows] == pytest.approx(values.tolist())
    assert [row["predicted"] for row in rows] == [said.count(label) for label in task.labels]


def test_by_kind_and_tally_know_entities_by_type():
    task = Tagging(labels=TAGS)
    gold = [("B-LOC", "I-LOC", "O"), ("B-LOC", "S-PER")]
    rows = by_kind(task.count_items(gold, answers([("B-LOC", "O", "O"), ("B-LOC", "S-PER")])))
    assert [(row["label"], row["f1"], row["gold"]) for row in rows] == [
        ("LOC", 0.5, 2),
        ("PER", 1, 1),
    ]
    assert task.count_kinds(gold) == {"LOC": 2, "PER": 1}
    assert Ranking().count_kinds(["B", "B"]) == {"B": 2, "C": 0}


def test_every_metric_is_announced_and_the_main_one_rises(judged):
    task, gold, predictions = judged
    assert [*task.compute_metrics(gold, predictions)] == [x.name for x in task.usable_metrics()]
    assert not task.metrics[0].falls


def test_an_interval_is_that_of_scores_of_examples_drawn_anew(judged):
    task, gold, predictions = judged
    rng = np.random.default_rng(7)
    drawn = [rng.integers(0, len(gold), len(gold)) for _ in range(50)]
    several_times = np.array([np.bincount(x, minlength=len(gold)) for x in drawn], float)
    at_once = task.measure(gold, predictions)(several_times)
    for row, sample in enumerate(drawn):
        want = task.compute_metrics([gold[i] for i in sample], [predictions[i] for i in sample])
        got = {name: values[row] for name, values in at_once.items()}
        assert got == pytest.approx(want, abs=1e-12)


def test_an_interval_holds_the_score_and_shrinks_with_the_root_of_the_examples():
    widths = []
    for examples in (500, 8000):
        task, gold, predictions = labelled("classification", ("0", "1"), examples)
        share = task.compute_metrics(gold, predictions)["accuracy"]
        low, high = task.intervals(gold, predictions)["accuracy"]
        assert low < share < high
        widths.append(high - low)
        normal = 2 * 1.96 * math.sqrt(share * (1 - share) / examples)
        assert high - low == pytest.approx(normal, rel=0.1)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.15)


def test_95_of_100_samples_lie_in_an_interval():
    """Drawn anew, the number of right answers is binomial: its tails are known exactly."""
    task, gold, predictions = triples(2000)
    share = task.compute_metrics(gold, predictions)["accuracy"]
    low, high = task.intervals(gold, predictions, resamples=20_000)["accuracy"]
    below, above = (round(2000 * end) for end in (low, high))
    number = binom(2000, share)
    chance = 0.004  # of 20,000 samples
    assert number.cdf(below - 1) - chance < 0.025 < number.cdf(below) + chance
    assert number.sf(above) - chance < 0.025 < number.sf(above - 1) + chance


def test_intervals_are_a_function_of_the_seed(judged):
    first, again, other = (intervals(*judged, resamples=200, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert all(low <= high for low, high in first.values())


def test_intervals_do_not_depend_on_how_many_samples_are_held_at_once(judged, monkeypatch):
    want = intervals(*judged, resamples=50)
    monkeypatch.setattr(metrics, "NUMBERS_AT_ONCE", 7 * len(judged[1]))
    assert intervals(*judged, resamples=50) == want


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_few_examples_give_no_nan(examples):
    kinds = [numbers(examples), tagged(examples), several(examples), triples(examples)]
    for judged in [*kinds, labelled("pair", ("0", "1"), examples)]:
        values = [
            *judged[0].compute_metrics(*judged[1:]).values(),
            *np.ravel([*intervals(*judged).values()]),
        ]
        assert np.isfinite(values).all()


def test_a_thousand_samples_of_twenty_thousand_examples_take_seconds():
    judged = labelled("classification", ("0", "1"), 20_000)
    start = time.process_time()
    intervals(*judged)
    assert time.process_time() - start < 10  # about 2; drawing lists would take minutes


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.data())
def test_ranks_are_those_of_the_values_written_out(values, data):
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    x = np.array(values, float)
    found = ranks(x, np.array([counts], float))[0]
    want = rankdata(np.repeat(x, counts))
    assert np.repeat(found, counts).tolist() == want.tolist()
