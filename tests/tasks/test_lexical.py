import io

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks import tfidf
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.lexical import LexicalFeatures, choose_lexical
from roformer_tf.tasks.losses import PLAIN
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import Setting, TfIdfModel, counted

LABELS = "甲乙丙"


def make_examples(name, count, seed, noise=0.3):
    """Yield examples whose texts contain their label or, for a fraction `noise`, a random one."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        gold = int(rng.integers(3))
        shown = gold if rng.random() > noise else int(rng.integers(3))
        text = "".join(rng.permutation([*"今天我们去看", LABELS[shown]]))
        texts = (text, text[::-1]) if name == "pair" else (text,)
        label = {"multilabel": (LABELS[gold],), "regression": float(gold)}.get(name, LABELS[gold])
        yield Example(texts, label, f"made:{number}")


def fit_tfidf(name):
    training = [*make_examples(name, 200, 0)]
    columns = ("a", "b") if name == "pair" else ("a",)
    task = TASKS[name].from_examples(training, text_columns=columns)
    counts = [counted(example, 2) for example in training]
    return task, TfIdfModel.fit(task, training, Setting(2, 1, 1.0), counts)


def noisy_predictions(task, examples, strength, seed=5):
    """Return predictions of a calibrated model that sees the label with noise."""
    rng = np.random.default_rng(seed)
    targets = np.stack([task.labelling.target(example) for example in examples])
    is_label = targets if targets.ndim == 2 else np.eye(3)[targets]
    seen = strength * is_label + rng.normal(size=is_label.shape)
    if task.name == "regression":
        logits = strength / (strength**2 + 1) * seen
    else:  # log odds, with the prior 1/3 of each label
        logits = strength * seen - strength**2 / 2 - np.log(2)
    return task.decoding.predict_all(logits)


def loss(task, examples, predictions):
    """Return the mean cross-entropy or squared error, in plain NumPy."""
    targets = np.stack([task.labelling.target(example) for example in examples])
    scores = np.array([x.scores for x in predictions], np.float64)
    if task.name == "regression":
        return np.mean(((scores - task.mean) / task.deviation - targets) ** 2)
    if targets.ndim == 2:
        return -np.mean(np.log(np.where(targets > 0, scores, 1 - scores)))
    return -np.mean(np.log(scores[np.arange(len(targets)), targets]))


NAMES = ["classification", "pair", "multilabel", "regression"]


@pytest.mark.parametrize("name", NAMES)
def test_combining_independent_models_lowers_the_loss(name):
    task, model = fit_tfidf(name)
    valid, test = [*make_examples(name, 200, 1)], [*make_examples(name, 300, 2)]
    lexical = choose_lexical(task, model, valid, noisy_predictions(task, valid, 1.0))
    assert 0 < lexical.weight < 1
    ours = noisy_predictions(task, test, 1.0, seed=6)
    combined = loss(task, test, lexical.combined(task, test, ours))
    assert combined < loss(task, test, ours) - 0.02
    assert combined < loss(task, test, model.predictions(task, test)) - 0.02


@pytest.mark.parametrize("name", NAMES)
def test_combined_predictions_follow_the_formula(name):
    task, model = fit_tfidf(name)
    test = [*make_examples(name, 9, 2)]
    ours = noisy_predictions(task, test, 1.0)
    a, b = (
        np.array([x.scores for x in predictions], np.float64)
        for predictions in (ours, model.predictions(task, test))
    )
    if name == "regression":
        want = task.mean + 0.5 * (a - task.mean) + 2 * (b - task.mean)
    elif name == "multilabel":
        want = expit(0.5 * logit(a) + 2 * logit(b))
    else:
        want = softmax(0.5 * np.log(a) + 2 * np.log(b), axis=1)
    lexical = LexicalFeatures(model, (0.5, 2.0), 0.6)
    actual = np.array([x.scores for x in lexical.combined(task, test, ours)])
    assert actual == pytest.approx(want, rel=1e-4, abs=1e-5)
    assert actual.dtype == np.float32
    assert lexical.combined(task, [], []) == []


@pytest.mark.parametrize("name", NAMES)
def test_useless_features_are_used_only_on_request(name):
    task, _ = fit_tfidf(name)
    rng = np.random.default_rng(0)
    training = [*make_examples(name, 200, 0)]
    labels = [example.label for example in training]
    wrong = [example._replace(label=labels[rng.integers(200)]) for example in training]
    model = TfIdfModel.fit(task, wrong, Setting(2, 1, 1.0), [counted(x, 2) for x in wrong])
    valid = [*make_examples(name, 200, 1)]
    ours = noisy_predictions(task, valid, 3.0)
    assert choose_lexical(task, model, valid, ours, "auto") is None
    assert 0 <= choose_lexical(task, model, valid, ours, "yes").weight < 0.2


@pytest.mark.parametrize("name", NAMES)
def test_tfidf_dominates_a_random_model(name):
    task, model = fit_tfidf(name)
    valid, test = [*make_examples(name, 200, 1)], [*make_examples(name, 200, 2)]
    lexical = choose_lexical(task, model, valid, noisy_predictions(task, valid, 0.0))
    assert lexical.weight >= 0.8
    combined = lexical.combined(task, test, noisy_predictions(task, test, 0.0, seed=6))
    assert loss(task, test, combined) < loss(task, test, model.predictions(task, test)) + 0.03


def test_the_weight_is_independent_of_confidence():
    task, model = fit_tfidf("classification")
    valid = [*make_examples("classification", 200, 1)]
    ours = noisy_predictions(task, valid, 1.0)
    usual = choose_lexical(task, model, valid, ours)
    confident = [
        Prediction(x.label, softmax(5 * np.log(x.scores)).astype(np.float32)) for x in ours
    ]
    rescaled = choose_lexical(task, model, valid, confident)
    assert rescaled.weight == pytest.approx(usual.weight, abs=0.03)
    assert rescaled.factors == pytest.approx((usual.factors[0] / 5, usual.factors[1]), rel=0.01)


def test_few_correct_examples_do_not_give_large_factors():
    task, model = fit_tfidf("classification")
    valid = [*make_examples("classification", 6, 1, noise=0)]
    ours = noisy_predictions(task, valid, 4.0)
    assert [x.label for x in ours] == [x.label for x in valid]
    lexical = choose_lexical(task, model, valid, ours, "yes")
    assert max(lexical.factors) < 4


def test_certain_predictions_stay_finite():
    for name in ("classification", "multilabel"):
        task, model = fit_tfidf(name)
        test = [*make_examples(name, 3, 2)]
        certain = [Prediction(x.label, np.float32([1, 0, 0])) for x in test]
        for lexical in (
            LexicalFeatures(model, (1.0, 0.1), 0.1),
            choose_lexical(task, model, test, certain, "yes"),
        ):
            actual = np.array([x.scores for x in lexical.combined(task, test, certain)])
            assert np.isfinite(actual).all()
        assert (
            LexicalFeatures(model, (1.0, 0.01), 0).combined(task, test, certain)[0].scores[0] > 0.99
        )


@pytest.mark.parametrize("name", NAMES)
def test_saving_keeps_predictions(name):
    task, model = fit_tfidf(name)
    valid = [*make_examples(name, 60, 1)]
    ours = noisy_predictions(task, valid, 1.0)
    lexical = choose_lexical(task, model, valid, ours, "yes")
    loaded = LexicalFeatures.from_bytes(lexical.to_bytes(), task, "folder")
    assert (loaded.weight, loaded.factors) == (lexical.weight, lexical.factors)
    want, actual = lexical.combined(task, valid, ours), loaded.combined(task, valid, ours)
    for before, after in zip(want, actual, strict=True):
        assert (before.label, before.scores.tolist()) == (after.label, after.scores.tolist())
    assert lexical.to_bytes() == lexical.to_bytes()


def replace_arrays(content, **changes):
    arrays = dict(np.load(io.BytesIO(content)))
    file = io.BytesIO()
    np.savez(file, **{name: x for name, x in (arrays | changes).items() if x is not None})
    return file.getvalue()


def test_damaged_or_mismatched_files_are_rejected():
    task, model = fit_tfidf("classification")
    good = LexicalFeatures(model.compact(), (1.0, 1.0), 0.5).to_bytes()
    pickled = np.array([{}], object)
    other_task, _ = fit_tfidf("pair")
    bad = {
        "empty": (b"", task),
        "text": (b"weights", task),
        "cut": (good[:200], task),
        "overwritten": (good[:99] + b"damage" * 9 + good[153:], task),
        "without": (replace_arrays(good, idf=None), task),
        "pickled": (replace_arrays(good, idf=pickled), task),
        "labels": (replace_arrays(good, intercepts=np.zeros(2, np.float32)), task),
        "rows": (replace_arrays(good, ngrams=np.arange(3, dtype=np.uint64)), task),
        "pair": (good, other_task),
        "factors": (replace_arrays(good, factors=np.array([1.0])), task),
    }
    LexicalFeatures.from_bytes(replace_arrays(good), task, "folder")
    for name, (content, file_task) in bad.items():
        with pytest.raises(InputError, match=r"cannot read folder/lexical\.npz") as output:
            LexicalFeatures.from_bytes(content, file_task, "folder")
        assert "fine-tune again" in str(output.value), name


@pytest.mark.parametrize("name", ["classification", "multilabel"])
def test_class_weights_count_for_tfidf_and_for_the_factors(name):
    def rare(count, seed):
        rng = np.random.default_rng(seed)
        examples = make_examples(name, count, seed, noise=0.6)
        return [x for x in examples if "甲" in x.label or rng.random() < 0.08]

    training, valid = rare(1500, 0), rare(1500, 1)
    task = TASKS[name].from_examples(training)
    metric = task.metrics.named("macro_f1")
    plain, weighted = (
        tfidf.fit_tfidf(task, training, valid, metric, balanced=balanced).model
        for balanced in (False, True)
    )
    recalls = []
    for model in (plain, weighted):
        rows = task.metrics.details(valid, model.predictions(task, valid))["per_class"]
        recalls.append(np.mean([row["recall"] for row in rows]))
    assert recalls[1] > recalls[0] + 0.1
    targets = np.stack([task.labelling.target(example) for example in valid])
    class_weights = task.objective.class_weights(targets)

    def weighted_loss(lexical):
        predictions = lexical.combined(task, valid, ours)
        logits = task.decoding.logits(np.stack([x.scores for x in predictions]))
        return np.mean(task.objective.losses(targets, np.float32(logits), PLAIN, class_weights))

    ours = noisy_predictions(task, valid, 1.0)
    without, balanced = (
        choose_lexical(task, plain, valid, ours, "yes", balanced=x) for x in (False, True)
    )
    assert weighted_loss(balanced) < weighted_loss(without) - 0.05
