import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks import tfidf
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import overlap
from roformer_tf.translation import Translator
from tests.support.baseline import baseline_of

GOOD, BAD = ("很好", "喜欢", "满意"), ("太差", "讨厌", "失望")
FILLER = list("房间早餐服务书本电脑屏幕键盘今天昨天朋友")


def sentence(rng, *words):
    """Return the words with random filler characters around them."""
    return "".join(x for word in (*words, "") for x in (*rng.choice(FILLER, 4), word))


def examples(name, count, seed):
    """Yield examples whose labels are determined by their words."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        good, bad = (int(x) for x in rng.integers(0, 2, 2))
        words = [rng.choice(GOOD)] * good + [rng.choice(BAD)] * bad
        text = sentence(rng, *words)
        texts, label = {
            "classification": (
                (sentence(rng, rng.choice(GOOD if good else BAD)),),
                "好" if good else "坏",
            ),
            "multilabel": ((text,), ("好",) * good + ("坏",) * bad),
            "pair": ((text, text[::-1] if good else sentence(rng, "完全")), "是" if good else "否"),
            "regression": ((text,), 3.0 * good - 2.0 * bad),
        }[name]
        yield Example(texts, label, f"made:{number}")


def evaluate(name, training, test):
    task = TASKS[name].from_examples(training)
    words, predictions = baseline_of(task, training, test)
    title = words
    assert Translator("zh")(words) != words
    assert all(item.scores.dtype == np.float32 for item in predictions)
    return title, predictions, task.metrics.compute([item.label for item in test], predictions)


@pytest.mark.parametrize(
    ("name", "method", "metric", "minimum"),
    [
        ("classification", "logistic", "accuracy", 0.97),
        ("multilabel", "logistic", "micro_f1", 0.97),
        ("pair", "logistic", "accuracy", 0.97),
        ("regression", "ridge", "pearson", 0.95),
    ],
)
def test_linear_baselines_learn_from_words(name, method, metric, minimum):
    title, predictions, figures = evaluate(
        name, [*examples(name, 200, 0)], [*examples(name, 100, 1)]
    )
    assert title == f"TF-IDF of 1–3 characters + {method} regression (min_df 2, C 10)"
    assert figures[metric] >= minimum
    assert {item.scores.shape for item in predictions} == {(1,) if name == "regression" else (2,)}


@pytest.mark.parametrize("name", ["classification", "multilabel", "pair", "regression"])
def test_texts_of_one_character_are_predicted(name):
    characters = [chr(0x4E00 + number) for number in range(150)]
    many = [
        item._replace(texts=(character,) * len(item.texts))
        for character, item in zip(characters, examples(name, 150, 0), strict=True)
    ]
    title, predictions, figures = evaluate(name, many, many)
    assert title.startswith("TF-IDF")
    assert len(predictions) == 150
    assert max(figures.values()) > 0.9  # each text is in the training set


def test_multilabel_thresholds_are_chosen_on_the_validation_set():
    rare = [
        item for item in examples("multilabel", 400, 0) if item.label or item.source_line[-1] == "1"
    ]
    training = [item._replace(label=item.label if i % 4 else ()) for i, item in enumerate(rare)]
    task = TASKS["multilabel"].from_examples(training)
    test, valid = [*examples("multilabel", 60, 1)], [*examples("multilabel", 60, 2)]
    _, at_half = baseline_of(task, training, test)
    _, chosen = baseline_of(task, training, test, valid)
    assert [item.label for item in at_half] == [
        task.decoding.reread(item).label for item in at_half
    ]
    _, by_valid = baseline_of(task, training, valid, valid)
    expected_task = task.decoding.with_choices([item.label for item in valid], by_valid)
    assert expected_task.thresholds != (0.5, 0.5)
    assert [item.label for item in chosen] == [
        expected_task.decoding.reread(item).label for item in chosen
    ]


@pytest.mark.parametrize("name", ["classification", "pair", "multilabel", "regression"])
def test_settings_are_tuned_on_the_validation_set_only(name):
    """The final settings have the best value of the metric on the validation set."""
    training, test = [*examples(name, 40, 0)], [*examples(name, 30, 1)]
    rng = np.random.default_rng(3)
    labels = [item.label for item in examples(name, 60, 2)]
    noisy = [item._replace(label=labels[rng.integers(60)]) for item in examples(name, 60, 2)]
    task = TASKS[name].from_examples(training)
    metric = task.metrics.usable()[1]
    tried = []
    with pytest.MonkeyPatch.context() as patch:
        fit = tfidf.TfIdfModel.fit

        def recording_fit(task, examples, setting, counts):
            tried.append(setting)
            return fit(task, examples, setting, counts)

        patch.setattr(tfidf.TfIdfModel, "fit", recording_fit)
        title, _ = baseline_of(task, training, test, noisy, metric)
    assert "chosen on the validation set" in title
    assert "在验证集上选取" in Translator("zh")(title)
    *searched, last = tried
    assert {setting[:2] for setting in searched} == {
        (longest, min_df) for longest in (0, 2, 3) for min_df in (1, 2)
    }
    unit = "words" if last[0] == 0 else f"1–{last[0]} characters"
    assert f"TF-IDF of {unit} +" in title
    assert f"min_df {last[1]}," in title
    actual = {}
    for setting in tfidf.COUNTED:  # reference: a search with each setting alone
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tfidf, "COUNTED", [setting])
            patch.setattr(tfidf, "STRENGTHS", (10.0,))
            _, answers = baseline_of(task, training, noisy, noisy)
        gold = [item.label for item in noisy]
        actual[setting[:2]] = metric.goodness(task.metrics.compute(gold, answers))
    assert actual[last[:2]] == max(actual.values())


def test_rare_words_are_used_if_they_help_on_the_validation_set():
    """Each label has its own words, most of which occur once in training: min_df 1 is better."""
    rng = np.random.default_rng(0)
    names = {label: [chr(0x4E00 + 300 * k + i) for i in range(200)] for k, label in enumerate("ab")}

    def sample(count):
        for number in range(count):
            label = "ab"[number % 2]
            yield Example((sentence(rng, *rng.choice(names[label], 2)),), label, f"made:{number}")

    training, valid, test = [*sample(120)], [*sample(120)], [*sample(200)]
    task = TASKS["classification"].from_examples(training)
    title, predictions = baseline_of(task, training, test, valid)
    assert "min_df 1" in title
    tuned = task.metrics.compute([item.label for item in test], predictions)["accuracy"]
    _, fixed = baseline_of(task, training, test)
    assert tuned > task.metrics.compute([item.label for item in test], fixed)["accuracy"] + 0.05


def test_predictions_are_deterministic():
    training, test = [*examples("pair", 50, 0)], [*examples("pair", 20, 1)]
    first, again = evaluate("pair", training, test)[1], evaluate("pair", training, test)[1]
    assert [item.scores.tolist() for item in first] == [item.scores.tolist() for item in again]


def test_three_examples_or_constant_labels_give_no_warning(recwarn):
    training = [Example((text,), label, "x") for text, label in zip("好坏坏", "101", strict=True)]
    _, predictions, _ = evaluate("classification", training, training)
    assert len(predictions) == 3
    constant = [Example((text,), ("a",), "x") for text in ("好", "坏的")]
    _, predictions, figures = evaluate("multilabel", constant, constant)
    assert figures["exact_match"] == 1
    assert not recwarn.list


def test_long_training_sets_are_subsampled_and_this_is_reported(monkeypatch):
    monkeypatch.setattr(tfidf, "MAX_CHARACTERS", 1000)
    training = [*examples("classification", 200, 0)]
    subset = tfidf._at_most(training, 1000)
    assert sum(len(item.texts[0]) for item in subset) <= 1100
    title, _, _ = evaluate("classification", training, training[:5])
    assert title.endswith(f", fitted to {len(subset)} of 200 training examples")


def test_subsampling_keeps_alternating_labels():
    alternating = [Example(("好" * 10,), str(number % 2), "x") for number in range(100)]
    assert {item.label for item in tfidf._at_most(alternating, 500)} == {"0", "1"}
    assert tfidf._at_most(alternating, 1000) is alternating


def test_shared_characters_rank_triples_and_ties_are_wrong():
    rows = [
        ("今天天气", "今天下雨", "吃饭", "B"),
        ("吃饭了吗", "天", "吃了饭", "C"),
        ("a", "b", "c", "B"),
    ]
    triples = [Example(tuple(texts), label, "x") for *texts, label in rows]
    _, predictions, figures = evaluate("ranking", triples, triples)
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert predictions[0].scores.tolist() == pytest.approx([2 / 5, 0])  # 今天天气 has 今, 天, 气


@pytest.mark.parametrize(("a", "b", "want"), [("ab", "bc", 1 / 3), ("", "", 0), ("aa", "a", 1)])
def test_overlap(a, b, want):
    assert overlap(a, b) == pytest.approx(want)


def tagged(text, labels, separator=""):
    return Example((text,), tuple(labels.split()), "x", tuple(text.split() if separator else text))


def test_the_longest_known_entity_is_predicted():
    training = [
        tagged("北京大学在北京", "B-ORG I-ORG I-ORG I-ORG O B-LOC I-LOC"),
        tagged("李在", "B-PER O"),  # a single character does not count
    ]
    test = [tagged("在北京大学李北京", "O B-ORG I-ORG I-ORG I-ORG B-PER B-LOC I-LOC")]
    _, predictions, figures = evaluate("tagging", training, test)
    assert " ".join(predictions[0].label) == "O B-ORG I-ORG I-ORG I-ORG O B-LOC I-LOC"
    assert figures["precision"] == 1
    assert figures["recall"] == pytest.approx(2 / 3)
    assert predictions[0].scores.shape == (8, 6)
    assert (predictions[0].scores.sum(axis=1) == 1).all()


def test_an_entity_gets_its_most_frequent_label():
    training = [tagged("华盛", f"B-{kind} I-{kind}") for kind in ("PER", "LOC", "LOC")]
    training.append(tagged("在", "O"))
    _, predictions, _ = evaluate("tagging", training, training[:1])
    assert predictions[0].label == ("B-LOC", "I-LOC")


def test_single_characters_are_looked_up_if_every_unit_has_a_label():
    training = [tagged("我 爱 北京 我", "r v n r", " "), tagged("北京 好", "n a", " ")]
    _, predictions, _ = evaluate("tagging", training, [tagged("我 爱 上海", "r v n", " ")])
    assert predictions[0].label[:2] == ("r", "v")
    assert predictions[0].label[2] in ("r", "n")  # an unknown word gets the most frequent label


def test_too_large_regressions_are_rejected(monkeypatch):
    training = [*examples("multilabel", 40, 0)]
    counts = [tfidf.counted(item, 3) for item in training]
    size = sum(len(ngrams) for ((ngrams, _),) in counts)
    task = TASKS["multilabel"].from_examples(training)
    setting = tfidf.Setting(3, 1)
    monkeypatch.setattr(tfidf, "MAX_PRODUCTS", 2 * size)
    tfidf.TfIdfModel.fit(task, training, setting, counts)
    monkeypatch.setattr(tfidf, "MAX_PRODUCTS", 2 * size - 1)
    with pytest.raises(InputError, match=f"2 labels on texts with {size:,} different n-grams"):
        tfidf.TfIdfModel.fit(task, training, setting, counts)
