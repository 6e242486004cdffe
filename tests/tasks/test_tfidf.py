import numpy as np
import pytest
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks import tfidf
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import Setting, TfIdfModel, counted
from roformer_tf.tokenizers.segmentation import segment

TEXTS = ["今天天气很好", "今天  天气不好 ABC", "abc\t\n好😀好", "好", "太差了,天气太差了", "很差"]
NEW = ["天气很差差差", "从未见过", "", "ABC  好", "\ud800好"]


def fit(texts, setting, labels="010011"):
    examples = [
        Example(item if isinstance(item, tuple) else (item,), label, "x")
        for item, label in zip(texts, labels, strict=True)
    ]
    name = "pair" if len(examples[0].texts) == 2 else "classification"
    task = TASKS[name].from_examples(examples, text_columns=("a", "b")[: len(examples[0].texts)])
    counts = [counted(example, setting.longest) for example in examples]
    return task, TfIdfModel.fit(task, examples, setting, counts)


def dense(model, *texts):
    row = np.zeros(model.tfidf.width(len(texts)))
    columns, values = model.tfidf.row(Example(texts, None, "x"))
    assert len(set(columns.tolist())) == len(columns)
    row[columns] = values
    return row


def words(text):
    return [word for word in segment(text.lower()) if not word.isspace()]


@pytest.mark.parametrize("min_df", [1, 2])
@pytest.mark.parametrize("longest", [0, 1, 2, 3])
def test_features_equal_scikit_learn(longest, min_df):
    _, model = fit(TEXTS, Setting(longest, min_df))
    kind = {"analyzer": "char", "ngram_range": (1, longest)} if longest else {"analyzer": words}
    other = TfidfVectorizer(sublinear_tf=True, min_df=min_df, **kind).fit(TEXTS)
    assert len(model.tfidf.ngrams) == len(other.vocabulary_)
    known = np.array([dense(model, text) for text in TEXTS])
    # scikit-learn orders the columns differently; cosines between texts do not depend on it.
    for text in [*TEXTS, *NEW[:-1]]:
        want = (other.transform(TEXTS) @ other.transform([text]).T).toarray()[:, 0]
        assert known @ dense(model, text) == pytest.approx(want, abs=1e-6)
    assert np.isfinite(dense(model, NEW[-1])).all()


def test_pair_features_are_both_texts_their_product_and_overlaps():
    pairs = [(a, b) for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
    _, model = fit(pairs, Setting(2, 1))
    _, single = fit([text for pair in pairs for text in pair], Setting(2, 1), "01" * 6)
    assert (single.tfidf.ngrams == model.tfidf.ngrams).all()
    a, b = dense(single, "天气很好"), dense(single, "天气差")
    # Shared: 天 and 气 of five distinct characters, 天气 of four distinct bigrams.
    assert dense(model, "天气很好", "天气差") == pytest.approx(
        np.hstack([a, b, a * b, 2 / 5, 1 / 4])
    )


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("labels", ["010011", "012012", "011111"])
def test_the_linear_model_equals_one_vs_rest_of_scikit_learn(labels, balanced):
    task, model = fit(TEXTS, Setting(3, 1, 10.0, balanced), labels)
    features = np.array([dense(model, text) for text in TEXTS])
    new = np.array([dense(model, text) for text in NEW])
    scores = []
    for label in sorted(set(labels)):
        is_label = [example_label == label for example_label in labels]
        regression = LogisticRegression(C=10.0, solver="liblinear", dual=True, tol=1e-5)
        of_label = len(is_label) / (2 * np.bincount(is_label))
        weights = of_label[np.int64(is_label)] if balanced else None
        regression.fit(features, is_label, weights)
        scores.append(regression.predict_proba(new)[:, 1])
    want = np.array(scores).T / np.sum(scores, axis=0)[:, None]
    predictions = model.predictions(task, [Example((text,), None, "x") for text in NEW])
    assert np.array([x.scores for x in predictions]) == pytest.approx(want, abs=0.03)
    assert [x.label for x in predictions] == [task.labels[i] for i in want.argmax(axis=1)]


def test_only_the_most_frequent_ngrams_are_kept(monkeypatch):
    monkeypatch.setattr(tfidf, "MAX_COEFFICIENTS", 6)  # three for each of two labels
    _, model = fit(TEXTS, Setting(1, 1))
    assert set(map(chr, model.tfidf.ngrams.tolist())) == {"好", "天", "气"}
    assert (np.diff(model.tfidf.ngrams) > 0).all()


def test_compact_keeps_the_largest_coefficients():
    _, model = fit(TEXTS, Setting(3, 1), "012012")
    compact = model.compact(10)
    full, retained = model.linear.coefficients, compact.linear.coefficients
    assert retained.dtype == np.float16
    assert 10 <= np.count_nonzero(retained) < 20  # ties are all retained
    assert retained[retained != 0] == pytest.approx(full[retained != 0], rel=1e-3)
    sizes = np.abs(full) * model.tfidf.idf[:, None]
    assert sizes[retained != 0].min() >= sizes[retained == 0].max()
    everything = model.compact().linear.coefficients
    assert everything == pytest.approx(full, rel=1e-3, abs=1e-6)


def test_a_constant_label_gets_a_probability_below_one():
    targets = np.array([[True, False]] * 9)
    model = tfidf.fit_logistic(targets, np.eye(9), Setting(strength=1.0))
    assert not model.coefficients.any()
    assert expit(model.intercepts) == pytest.approx([0.95, 0.05])
