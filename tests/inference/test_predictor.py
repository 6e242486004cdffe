"""Tests of `roformer_tf.load`: predictions of each kind of model, and errors.

Predictions are compared with plain calls of the Keras model, one text at a time, and with
recordings of bert4keras and transformers.
"""

import json
import logging
import shutil
import zipfile
from functools import cache

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf import InputError, RoFormerEncoder, RoFormerForMaskedLM, RoFormerTokenizer
from roformer_tf.cli import main
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.inference.predictor import Predictor
from roformer_tf.models.heads import (
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)
from roformer_tf.tasks.regression import Regression
from tests.support.random_model import random_model

TEXTS = ["今天天气很好", "好", "我们去公园学习，" * 9, "北京", "上海的天气", "今天去北京了"]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3]), (TEXTS[4], TEXTS[4])]
TRIPLES = [(TEXTS[0], TEXTS[1], TEXTS[2]), (TEXTS[3], TEXTS[4], TEXTS[5])]
TAGS = ("O", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def loaded(finetuned):
    """Return a function: loaded("tagging") → a fine-tuned model as a function of texts."""
    return cache(lambda name: roformer_tf.load(finetuned(name)))


@pytest.fixture(scope="module")
def plain(finetuned):
    """Return a function: plain("tagging", text, pair=None) → logits of an unpadded Keras call."""

    @cache
    def model(name):
        tagging = name == "tagging"
        kind = RoFormerForTokenClassification if tagging else RoFormerForSequenceClassification
        return kind.from_pretrained(finetuned(name))

    def call(name, text, pair=None):
        return np.asarray(model(name)(model(name).tokenizer([(text, pair)])), "float64")[0]

    return call


@pytest.fixture
def set_token_ids(monkeypatch):
    """Return a function: set_token_ids({"甲": [7, 8]}) sets the tokenizer's ids of texts."""

    def set_ids(ids_by_text):
        original = RoFormerTokenizer.ids
        monkeypatch.setattr(
            RoFormerTokenizer,
            "ids",
            lambda self, text: ids_by_text[text] if text in ids_by_text else original(self, text),
        )

    return set_ids


def softmax(logits):
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return probabilities / probabilities.sum(axis=-1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def assert_scores(prediction, want):
    assert prediction["scores"] == pytest.approx(want, abs=1e-5)


# Fine-tuned models


def test_classification_gives_a_label_and_all_scores(loaded, plain):
    predictions = loaded("classification")(TEXTS)
    assert len(predictions) == len(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        probabilities = softmax(plain("classification", text))
        assert prediction.keys() == {"label", "scores"}
        assert prediction["label"] == ("坏", "好")[np.argmax(probabilities)]
        assert_scores(prediction, dict(zip(("坏", "好"), probabilities, strict=True)))


def test_multilabel_gives_several_labels(loaded, plain):
    names = np.array(["甲", "乙", "丙"])
    for text, prediction in zip(TEXTS, loaded("multilabel")(TEXTS), strict=True):
        probabilities = sigmoid(plain("multilabel", text))
        assert prediction.keys() == {"labels", "scores"}
        assert prediction["labels"] == names[probabilities > 0.5].tolist()
        assert_scores(prediction, dict(zip(names, probabilities, strict=True)))


def test_regression_gives_a_number(loaded, plain):
    for text, prediction in zip(TEXTS, loaded("regression")(TEXTS), strict=True):
        assert prediction == {
            "score": pytest.approx(3.0 + 1.5 * plain("regression", text)[0], abs=1e-4)
        }


def test_pairs_are_tuples(loaded, plain):
    for pair, prediction in zip(PAIRS, loaded("pair")(PAIRS), strict=True):
        probabilities = softmax(plain("pair", *pair))
        assert prediction["label"] == ("0", "1")[np.argmax(probabilities)]
        assert_scores(prediction, {"0": probabilities[0], "1": probabilities[1]})


def test_triples_are_tuples(loaded, plain):
    for (a, b, c), prediction in zip(TRIPLES, loaded("ranking")(TRIPLES), strict=True):
        similarities = sigmoid(np.concatenate([plain("ranking", a, b), plain("ranking", a, c)]))
        assert prediction["label"] == "BC"[np.argmax(similarities)]
        assert_scores(prediction, {"B": similarities[0], "C": similarities[1]})


def test_entities_and_their_positions(loaded, plain):
    actual = 0
    for text, prediction in zip(TEXTS, loaded("tagging")(TEXTS), strict=True):
        probabilities = softmax(plain("tagging", text)[1:-1])  # without [CLS] and [SEP]
        assert [item["unit"] for item in prediction["tags"]] == list(text)
        assert [item["label"] for item in prediction["tags"]] == [
            TAGS[i] for i in probabilities.argmax(1)
        ]
        got = [item["probability"] for item in prediction["tags"]]
        assert got == pytest.approx(probabilities.max(axis=1), abs=1e-5)
        covered = {i for item in prediction["entities"] for i in range(item["start"], item["end"])}
        assert covered == {i for i, item in enumerate(prediction["tags"]) if item["label"] != "O"}
        for item in prediction["entities"]:
            assert (item["label"], item["text"]) == ("LOC", text[item["start"] : item["end"]])
            actual += 1
    assert actual


def test_a_text_gives_one_prediction_and_an_iterable_a_list(loaded):
    classify, match = loaded("classification"), loaded("pair")
    (first, *_), want = classify(TEXTS), classify(TEXTS[:2])
    alone = classify(TEXTS[0])
    assert alone["label"] == first["label"]
    assert_scores(alone, first["scores"])
    for texts in (iter(TEXTS[:2]), np.array(TEXTS[:2])):
        assert classify(texts) == want
    assert classify([]) == []
    assert_scores(match(PAIRS[0]), match([list(PAIRS[0])])[0]["scores"])
    assert match(np.array(PAIRS)) == match(PAIRS)


def test_candidates_may_be_a_list_a_tuple_or_an_array():
    predictor = Predictor(lambda texts: [{"texts": each} for each in texts], ("text",), (2,), True)
    for candidates in (["好", "坏"], ("好", "坏"), np.array(["好", "坏"])):
        assert predictor([("房间", candidates)]) == [{"texts": ("房间", "好", "坏")}]
    for candidates in ("好坏", {"好", "坏"}, [], np.array([])):
        with pytest.raises(InputError, match="instead of a list of texts"):
            predictor([("房间", candidates)])


def test_predictions_equal_those_of_the_command(finetuned, loaded, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{x}\n" for x in TEXTS), encoding="utf-8")
    flags = ["--input", tmp_path / "texts.txt", "--output", tmp_path / "answers.jsonl"]
    assert main(["predict", str(finetuned("classification")), *map(str, flags)]) == 0
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    for line, prediction in zip(
        map(json.loads, lines), loaded("classification")(TEXTS), strict=True
    ):
        assert prediction["label"] == line["label"]
        assert prediction["scores"] == {"坏": line["p(坏)"], "好": line["p(好)"]}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="elsewhere shapes are compiled")
def test_loading_traces_the_model_once(finetuned, monkeypatch):
    calls = []
    original = RoFormerForSequenceClassification.call

    def counted(self, inputs, training=None):
        calls.append(inputs["token_ids"].shape)
        return original(self, inputs, training)

    monkeypatch.setattr(RoFormerForSequenceClassification, "call", counted)
    classify = roformer_tf.load(finetuned("classification"))
    traced = len(calls)
    for text in TEXTS:
        classify(text)
    classify(TEXTS)
    assert traced <= 3
    assert len(calls) == traced  # neither an eager call nor a new trace


# Models that are not fine-tuned


@pytest.mark.quick_cases("v2_char", "word_adam")
@pytest.mark.parametrize("name", ["char", "v2_char", "word_adam"])
def test_a_masked_language_model_fills_masks(name, released):
    texts = ["今天[MASK]很好", "[MASK][MASK]的经济"]
    fill = roformer_tf.load(released(name), top=3)
    model = RoFormerForMaskedLM.from_pretrained(released(name))
    tokens = np.array([str(token) for token in model.tokenizer.tokens])
    ordinary = np.array([not (token[0] == "[" and token[-1] == "]") for token in tokens])
    for text, prediction in zip(texts, fill(texts), strict=True):
        ids = [model.tokenizer.cls_id]
        for number, part in enumerate(text.split("[MASK]")):
            ids += [model.tokenizer.mask_id] * (number > 0) + model.tokenizer.ids(part)
        ids = np.array([[*ids, model.tokenizer.sep_id]], "int32")
        logits = np.asarray(model({"token_ids": ids}), "float64")[0]
        most_likely = []
        for position, scores in zip(
            np.flatnonzero(ids[0] == model.tokenizer.mask_id), prediction["scores"], strict=True
        ):
            probabilities = softmax(logits[position][ordinary])
            best = np.argsort(-probabilities)[:3]
            want = dict(zip(tokens[ordinary][best], probabilities[best], strict=True))
            assert list(scores) == list(want)
            assert scores == pytest.approx(want, rel=1e-4)
            most_likely.append(tokens[ordinary][best[0]].removeprefix("##"))
        assert prediction["filled"] == text.replace("[MASK]", "{}").format(*most_likely)
    with pytest.raises(InputError, match=r"no \[MASK\] in '今天'"):
        fill("今天")


def test_vectors_of_a_sim_model_equal_bert4keras(released, recorded, set_token_ids, caplog):
    rows = [row[row != 0] for row in recorded("sim_char")["sentence_token_ids"][:3]]
    set_token_ids({f"row {i}": row[1:-1].tolist() for i, row in enumerate(rows)})
    predictions = roformer_tf.load(released("sim_char"))([f"row {i}" for i in range(3)])
    for prediction, want in zip(predictions, recorded("sim_char")["sentence_unit"], strict=False):
        assert prediction.keys() == {"vector"}
        assert prediction["vector"].dtype == np.float32
        np.testing.assert_allclose(prediction["vector"], want, atol=1e-5)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "attention", "message"),
    [
        ("char", "bidirectional", "is an encoder without a head"),
        ("gpt_char", "causal", "is a causal language model"),
    ],
)
def test_a_model_without_a_head_gives_mean_states_with_a_warning(
    name, attention, message, released, tmp_path, caplog
):
    encoder = RoFormerEncoder.from_pretrained(released(name), attention_type=attention)
    source = released(name)
    if name == "char":
        source = tmp_path / "encoder"
        encoder.save_pretrained(source)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        predictions = roformer_tf.load(source)(TEXTS)
    assert f"{source} {message}: it gives vectors" in caplog.text
    for text, prediction in zip(TEXTS, predictions, strict=True):
        states = np.asarray(encoder(encoder.tokenizer([text])), "float64")[0]
        want = states.mean(axis=0)
        np.testing.assert_allclose(prediction["vector"], want / np.linalg.norm(want), atol=1e-5)


def test_a_classifier_of_transformers_gives_equal_scores(released, recorded, set_token_ids):
    """Single texts and pairs: the folder does not show which of them the model was trained on."""
    rows, logits = recorded("hf_word_seqcls")["token_ids"], recorded("hf_word_seqcls")["logits"]
    sep = RoFormerTokenizer.from_pretrained(released("hf_word_seqcls")).sep_id
    parts = {}
    for number in (0, 1, 2):
        ids = rows[number][rows[number] != 0].tolist()
        first = ids.index(sep)
        parts |= {f"a{number}": ids[1:first], f"b{number}": ids[first + 1 : -1]}
    set_token_ids(parts)
    classify = roformer_tf.load(released("hf_word_seqcls"))
    pairs = classify([("a0", "b0"), ("a2", "b2")])
    for prediction, expected_logits in zip(
        [pairs[0], classify("a1"), pairs[1]], logits, strict=False
    ):
        probabilities = softmax(expected_logits.astype("float64"))
        assert_scores(prediction, {f"LABEL_{i}": share for i, share in enumerate(probabilities)})
        assert prediction["label"] == f"LABEL_{np.argmax(probabilities)}"


def test_a_classifier_of_transformers_has_the_task_of_its_problem_type(finetuned, loaded, tmp_path):
    folder = shutil.copytree(finetuned("multilabel"), tmp_path / "model")
    (folder / "task.json").unlink()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {
        "problem_type": "multi_label_classification",
        "id2label": {"0": "甲", "1": "乙", "2": "丙"},
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for prediction, want in zip(
        roformer_tf.load(folder)(TEXTS), loaded("multilabel")(TEXTS), strict=True
    ):
        assert prediction["labels"] == want["labels"]
        assert prediction["scores"] == pytest.approx(want["scores"], abs=1e-6)
    config["problem_type"] = "regression"
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(InputError, match="predicts 3 numbers; only models of one number"):
        roformer_tf.load(folder)


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"problem_type": "regression"}, False),
    ],
)
def test_the_logit_of_a_cross_encoder_is_noted(settings, noted, tmp_path):
    keras.utils.set_random_seed(1)
    random_model(Regression()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | settings), "utf-8")
    notes = open_finetuned(tmp_path, "keras").notes
    assert any("has one output, and its score is the logit" in note for note in notes) == noted


# Errors


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("classification", None, "the texts are None, but must be one text or a list"),
        ("classification", 3, "the texts are 3,"),
        ("classification", float("nan"), "the texts are nan,"),
        ("classification", np.array("好"), "the texts are array('好'"),
        ("classification", b"x", "the texts are b'x',"),
        ("classification", {"text": "x"}, "the texts are {'text': 'x'},"),
        ("classification", ["好", None, 3], "text 1 is None. An example is a str"),
        ("classification", "", "the text is blank"),
        ("classification", ["好", " \n\u3000"], "text 1 is blank"),
        ("classification", ("好", "坏"), "the text is ('好', '坏'). An example is a str"),
        ("classification", [("好", "坏")], "text 0 is ('好', '坏')"),
        ("pair", "好", 'the text is \'好\'. An example is a tuple of 2 texts, ("句一", "句二")'),
        ("pair", ["好", "坏"], "text 0 is '好'. An example is"),
        ("pair", [("好", "坏", "中")], "text 0 is ('好', '坏', '中')"),
        ("pair", [("好", None)], "text 0 holds None"),
        ("pair", [("好", "")], "text 0 is blank"),
        ("ranking", [("好", "坏")], "An example is a tuple of 3 texts"),
        ("classification", ["好" * 200, 7 * (1,)], "text 1 is (1, 1, 1, 1, 1, 1, ...)"),
    ],
)
def test_invalid_texts_are_refused(loaded, name, texts, message):
    with pytest.raises(InputError) as error:
        loaded(name)(texts)
    assert message in str(error.value)
    assert len(str(error.value)) < 300


def test_a_dataframe_is_refused(loaded):
    class DataFrame:  # like those of pandas and polars
        columns = ("text",)

        def __iter__(self):
            return iter(self.columns)

    with pytest.raises(InputError, match="must be one text or a list"):
        loaded("classification")(DataFrame())


def test_a_zip_of_a_fine_tuned_model_predicts_as_its_folder(loaded, finetuned, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for file in finetuned("classification").iterdir():
            archive.write(file, f"model/{file.name}")
    predictions = roformer_tf.load(tmp_path / "x.zip")(TEXTS)
    for prediction, want in zip(predictions, loaded("classification")(TEXTS), strict=True):
        assert prediction["label"] == want["label"]
        assert_scores(prediction, want["scores"])


def test_invalid_sources_and_settings_are_refused(finetuned, released, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finetuned("classification"), run / "model")
    without_vocabulary = shutil.copytree(released("hf_char"), tmp_path / "bare")
    (without_vocabulary / "vocab.txt").unlink()
    for source, message in (
        (tmp_path / "nowhere", "nowhere"),
        (run, rf"its model is in {run / 'model'}"),
        (without_vocabulary, r"bare has no vocab\.txt"),
    ):
        with pytest.raises(InputError, match=message):
            roformer_tf.load(source)
    with pytest.raises(InputError, match="top is 0"):
        roformer_tf.load(released("char"), top=0)
    with pytest.raises(InputError, match="batch_size is 0"):
        roformer_tf.load(released("char"), batch_size=0)
    with pytest.raises(InputError, match="batch_size is '8', but"):
        roformer_tf.load(released("char"), batch_size="8")
