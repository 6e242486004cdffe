"""`roformer_tf.load`: what it answers for each kind of model, and what it refuses.

Answers are compared with plain calls of the Keras model, one text at a time, and with what
bert4keras and transformers have recorded.
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
from roformer_tf.models.heads import (
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

TEXTS = ["今天天气很好", "好", "我们去公园学习，" * 9, "北京", "上海的天气", "今天去北京了"]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3]), (TEXTS[4], TEXTS[4])]
TRIPLES = [(TEXTS[0], TEXTS[1], TEXTS[2]), (TEXTS[3], TEXTS[4], TEXTS[5])]
TAGS = ("O", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def loaded(finetuned):
    """loaded("tagging") → a fine-tuned model as a function of texts."""
    return cache(lambda name: roformer_tf.load(finetuned(name)))


@pytest.fixture(scope="module")
def plain(finetuned):
    """plain("tagging", text, pair=None) → logits of a plain Keras call, float64, unpadded."""

    @cache
    def model(name):
        tagging = name == "tagging"
        kind = RoFormerForTokenClassification if tagging else RoFormerForSequenceClassification
        return kind.from_pretrained(finetuned(name))

    def call(name, text, pair=None):
        return np.asarray(model(name)(model(name).tokenizer([(text, pair)])), "float64")[0]

    return call


@pytest.fixture
def spelled(monkeypatch):
    """spelled({"甲": [7, 8]}): the ids that the tokenizer gives a text from now on."""

    def spell(known):
        usual = RoFormerTokenizer.ids
        monkeypatch.setattr(
            RoFormerTokenizer,
            "ids",
            lambda self, text: known[text] if text in known else usual(self, text),
        )

    return spell


def softmax(logits):
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def assert_scores(answer, want):
    assert answer["scores"] == pytest.approx(want, abs=1e-5)


# Fine-tuned


def test_a_label_and_the_scores_of_all(loaded, plain):
    answers = loaded("classification")(TEXTS)
    assert len(answers) == len(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        shares = softmax(plain("classification", text))
        assert answer.keys() == {"label", "scores"}
        assert answer["label"] == ("坏", "好")[np.argmax(shares)]
        assert_scores(answer, dict(zip(("坏", "好"), shares, strict=True)))


def test_several_labels(loaded, plain):
    names = np.array(["甲", "乙", "丙"])
    for text, answer in zip(TEXTS, loaded("multilabel")(TEXTS), strict=True):
        shares = sigmoid(plain("multilabel", text))
        assert answer.keys() == {"labels", "scores"}
        assert answer["labels"] == names[shares > 0.5].tolist()
        assert_scores(answer, dict(zip(names, shares, strict=True)))


def test_a_number(loaded, plain):
    for text, answer in zip(TEXTS, loaded("regression")(TEXTS), strict=True):
        assert answer == {
            "score": pytest.approx(3.0 + 1.5 * plain("regression", text)[0], abs=1e-4)
        }


def test_pairs_are_tuples(loaded, plain):
    for pair, answer in zip(PAIRS, loaded("pair")(PAIRS), strict=True):
        shares = softmax(plain("pair", *pair))
        assert answer["label"] == ("0", "1")[np.argmax(shares)]
        assert_scores(answer, {"0": shares[0], "1": shares[1]})


def test_triples_are_tuples(loaded, plain):
    for (a, b, c), answer in zip(TRIPLES, loaded("ranking")(TRIPLES), strict=True):
        near = sigmoid(np.concatenate([plain("ranking", a, b), plain("ranking", a, c)]))
        assert answer["label"] == "BC"[np.argmax(near)]
        assert_scores(answer, {"B": near[0], "C": near[1]})


def test_entities_and_their_positions(loaded, plain):
    actual = 0
    for text, answer in zip(TEXTS, loaded("tagging")(TEXTS), strict=True):
        shares = softmax(plain("tagging", text)[1:-1])  # without [CLS] and [SEP]
        assert [item["unit"] for item in answer["tags"]] == list(text)
        assert [item["label"] for item in answer["tags"]] == [TAGS[i] for i in shares.argmax(1)]
        got = [item["probability"] for item in answer["tags"]]
        assert got == pytest.approx(shares.max(axis=1), abs=1e-5)
        covered = {i for item in answer["entities"] for i in range(item["start"], item["end"])}
        assert covered == {i for i, item in enumerate(answer["tags"]) if item["label"] != "O"}
        for item in answer["entities"]:
            assert (item["label"], item["text"]) == ("LOC", text[item["start"] : item["end"]])
            actual += 1
    assert actual


def test_one_text_gives_one_answer_and_any_iterable_several(loaded):
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


def test_the_answers_are_those_of_the_command(finetuned, loaded, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{x}\n" for x in TEXTS), encoding="utf-8")
    flags = ["--input", tmp_path / "texts.txt", "--output", tmp_path / "answers.jsonl"]
    assert main(["predict", str(finetuned("classification")), *map(str, flags)]) == 0
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    for line, answer in zip(map(json.loads, lines), loaded("classification")(TEXTS), strict=True):
        assert answer["label"] == line["label"]
        assert answer["scores"] == {"坏": line["p(坏)"], "好": line["p(好)"]}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="elsewhere shapes are compiled")
def test_what_is_loaded_has_its_plan_and_makes_no_other(finetuned, monkeypatch):
    calls = []
    usual = RoFormerForSequenceClassification.call

    def counted(self, inputs, training=None):
        calls.append(inputs["token_ids"].shape)
        return usual(self, inputs, training)

    monkeypatch.setattr(RoFormerForSequenceClassification, "call", counted)
    classify = roformer_tf.load(finetuned("classification"))
    result = len(calls)
    for text in TEXTS:
        classify(text)
    classify(TEXTS)
    assert result <= 3
    assert len(calls) == result  # no eager call, and no new trace


# Not fine-tuned


@pytest.mark.quick_cases("v2_char", "word_adam")
@pytest.mark.parametrize("name", ["char", "v2_char", "word_adam"])
def test_a_masked_model_fills(name, released):
    texts = ["今天[MASK]很好", "[MASK][MASK]的经济"]
    fill = roformer_tf.load(released(name), top=3)
    model = RoFormerForMaskedLM.from_pretrained(released(name))
    tokens = np.array([str(token) for token in model.tokenizer.tokens])
    known = np.array([not (token[0] == "[" and token[-1] == "]") for token in tokens])
    for text, answer in zip(texts, fill(texts), strict=True):
        ids = [model.tokenizer.cls_id]
        for number, piece in enumerate(text.split("[MASK]")):
            ids += [model.tokenizer.mask_id] * (number > 0) + model.tokenizer.ids(piece)
        ids = np.array([[*ids, model.tokenizer.sep_id]], "int32")
        logits = np.asarray(model({"token_ids": ids}), "float64")[0]
        likeliest = []
        for place, scores in zip(
            np.flatnonzero(ids[0] == model.tokenizer.mask_id), answer["scores"], strict=True
        ):
            shares = softmax(logits[place][known])
            best = np.argsort(-shares)[:3]
            want = dict(zip(tokens[known][best], shares[best], strict=True))
            assert list(scores) == list(want)
            assert scores == pytest.approx(want, rel=1e-4)
            likeliest.append(tokens[known][best[0]].removeprefix("##"))
        assert answer["filled"] == text.replace("[MASK]", "{}").format(*likeliest)
    with pytest.raises(InputError, match=r"no \[MASK\] in '今天'"):
        fill("今天")


def test_a_sim_model_gives_the_vectors_of_bert4keras(released, recorded, spelled, caplog):
    rows = [row[row != 0] for row in recorded("sim_char")["sentence_token_ids"][:3]]
    spelled({f"row {i}": row[1:-1].tolist() for i, row in enumerate(rows)})
    answers = roformer_tf.load(released("sim_char"))([f"row {i}" for i in range(3)])
    for answer, want in zip(answers, recorded("sim_char")["sentence_unit"], strict=False):
        assert answer.keys() == {"vector"}
        assert answer["vector"].dtype == np.float32
        np.testing.assert_allclose(answer["vector"], want, atol=1e-5)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "attention", "message"),
    [
        ("char", "bidirectional", "is an encoder without a head"),
        ("gpt_char", "causal", "is a causal language model"),
    ],
)
def test_a_model_without_a_head_gives_mean_states_with_a_message(
    name, attention, message, released, tmp_path, caplog
):
    encoder = RoFormerEncoder.from_pretrained(released(name), attention_type=attention)
    source = released(name)
    if name == "char":
        source = tmp_path / "encoder"
        encoder.save_pretrained(source)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        answers = roformer_tf.load(source)(TEXTS)
    assert f"{source} {message}: it gives vectors" in caplog.text
    for text, answer in zip(TEXTS, answers, strict=True):
        states = np.asarray(encoder(encoder.tokenizer([text])), "float64")[0]
        want = states.mean(axis=0)
        np.testing.assert_allclose(answer["vector"], want / np.linalg.norm(want), atol=1e-5)


def test_a_classifier_of_transformers_answers_as_there(released, recorded, spelled):
    """One text, and pairs: nothing in the folder shows which it was trained on."""
    rows, logits = recorded("hf_word_seqcls")["token_ids"], recorded("hf_word_seqcls")["logits"]
    sep = RoFormerTokenizer.from_pretrained(released("hf_word_seqcls")).sep_id
    parts = {}
    for number in (0, 1, 2):
        ids = rows[number][rows[number] != 0].tolist()
        first = ids.index(sep)
        parts |= {f"a{number}": ids[1:first], f"b{number}": ids[first + 1 : -1]}
    spelled(parts)
    classify = roformer_tf.load(released("hf_word_seqcls"))
    pairs = classify([("a0", "b0"), ("a2", "b2")])
    for answer, own in zip([pairs[0], classify("a1"), pairs[1]], logits, strict=False):
        shares = softmax(own.astype("float64"))
        assert_scores(answer, {f"LABEL_{i}": share for i, share in enumerate(shares)})
        assert answer["label"] == f"LABEL_{np.argmax(shares)}"


def test_a_classifier_of_transformers_has_the_task_of_its_problem_type(finetuned, loaded, tmp_path):
    folder = shutil.copytree(finetuned("multilabel"), tmp_path / "model")
    (folder / "task.json").unlink()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {
        "problem_type": "multi_label_classification",
        "id2label": {"0": "甲", "1": "乙", "2": "丙"},
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for answer, want in zip(
        roformer_tf.load(folder)(TEXTS), loaded("multilabel")(TEXTS), strict=True
    ):
        assert answer["labels"] == want["labels"]
        assert answer["scores"] == pytest.approx(want["scores"], abs=1e-6)
    config["problem_type"] = "regression"
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(InputError, match="a regression of 3 numbers cannot be used"):
        roformer_tf.load(folder)


# What is refused


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
        ("classification", ["好" * 200, 7 * (1,)], "text 1 is (1, 1, 1, 1, 1, 1, 1)"),
    ],
)
def test_what_is_no_text_is_refused(loaded, name, texts, message):
    with pytest.raises(InputError) as error:
        loaded(name)(texts)
    assert message in str(error.value)
    assert len(str(error.value)) < 300


def test_a_table_is_not_answered_by_its_columns_names(loaded):
    class DataFrame:  # as those of pandas and polars
        columns = ("text",)

        def __iter__(self):
            return iter(self.columns)

    with pytest.raises(InputError, match="must be one text or a list"):
        loaded("classification")(DataFrame())


def test_a_zip_of_a_fine_tuned_model_predicts_as_its_folder(loaded, finetuned, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for file in finetuned("classification").iterdir():
            archive.write(file, f"model/{file.name}")
    answers = roformer_tf.load(tmp_path / "x.zip")(TEXTS)
    for answer, want in zip(answers, loaded("classification")(TEXTS), strict=True):
        assert answer["label"] == want["label"]
        assert_scores(answer, want["scores"])


def test_what_cannot_be_loaded_is_refused(finetuned, released, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finetuned("classification"), run / "model")
    bare = shutil.copytree(released("hf_char"), tmp_path / "bare")
    (bare / "vocab.txt").unlink()
    for source, message in (
        (tmp_path / "nowhere", "nowhere"),
        (run, rf"its model is in {run / 'model'}"),
        (bare, r"bare has no vocab\.txt"),
    ):
        with pytest.raises(InputError, match=message):
            roformer_tf.load(source)
    with pytest.raises(InputError, match="top is 0"):
        roformer_tf.load(released("char"), top=0)
    with pytest.raises(InputError, match="batch_size is 0"):
        roformer_tf.load(released("char"), batch_size=0)
