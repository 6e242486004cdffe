"""Tests that `roformer_tf.load` opens folders saved by transformers and predicts the same."""

import json
from pathlib import Path

import numpy as np
import pytest

import roformer_tf
from roformer_tf import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
SIZES = {
    "hidden_size": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
    "max_position_embeddings": 128,
}
TEXTS = ["今天天气很好，我们去公园。", "好", "Hello 2023年，北京 café", "上海的经济发展" * 30]
LABELS = ("坏", "中", "好")
TAGS = ("O", "B-地点", "I-地点")
QUESTION = "今天天气怎么样"
CHOICES = ["很好", "今天天气很好，我们去公园学习中国经济。", "不知道"]

pytestmark = pytest.mark.hf


@pytest.fixture(params=["word", "char", "bert"])
def save_model(request, tmp_path, torch, transformers):
    """save_model("SequenceClassification", labels, …) → folder, model, tokenizer."""

    def save(head, labels, **settings):
        kind = "word" if request.param == "word" else "char"
        vocabulary = read_vocabulary(GOLDENS / kind)
        if request.param == "word":
            tokenizer = transformers.RoFormerTokenizer(vocabulary)
        elif request.param == "bert":
            tokenizer = transformers.BertTokenizer(vocabulary)
        else:  # transformers has no character tokenizer; it loads one that we saved
            RoFormerTokenizer(vocabulary, "char").save_pretrained(tmp_path / "base")
            (tmp_path / "base/config.json").write_text('{"model_type": "roformer"}')
            tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
        transformers.set_seed(3)
        config = transformers.RoFormerConfig(
            **SIZES,
            vocab_size=len(vocabulary),
            id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)},
            **settings,
        )
        model = getattr(transformers, f"RoFormerFor{head}")(config).eval()
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / "model")
        assert not (tmp_path / "model/vocab.txt").exists()
        pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")("好", "好")
        # transformers 5 returns no segments unless the tokenizer's class or settings list them.
        assert ("token_type_ids" in pair) == (kind == "char")
        return tmp_path / "model", model, tokenizer

    return save


def run(torch, model, encoded):
    with torch.no_grad():
        return model(**encoded)


def softmax(logits):
    return logits.double().softmax(-1).numpy()


def test_a_text_classifier(save_model, torch):
    folder, model, tokenizer = save_model("SequenceClassification", LABELS)
    actual = roformer_tf.load(folder, engine="keras")(TEXTS)
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=128, return_tensors="pt")
    for prediction, want in zip(actual, softmax(run(torch, model, encoded).logits), strict=True):
        assert prediction["label"] == LABELS[want.argmax()]
        assert [prediction["scores"][x] for x in LABELS] == pytest.approx(want.tolist(), abs=1e-5)
    predictions = roformer_tf.load(folder, engine="keras")([(QUESTION, text) for text in TEXTS])
    pairs = [QUESTION] * len(TEXTS), TEXTS
    encoded = tokenizer(*pairs, padding=True, truncation=True, max_length=128, return_tensors="pt")
    for prediction, want in zip(
        predictions, softmax(run(torch, model, encoded).logits), strict=True
    ):
        assert [prediction["scores"][x] for x in LABELS] == pytest.approx(want.tolist(), abs=1e-5)


def test_a_tagger(save_model, torch):
    """The texts are split into the same characters by both tokenizers."""
    folder, model, tokenizer = save_model("TokenClassification", TAGS)
    load = roformer_tf.load(folder, engine="keras")
    for text in TEXTS[1], "今天", "天气很好":
        ids = [tokenizer.convert_tokens_to_ids(character) for character in text]
        row = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
        want = softmax(run(torch, model, {"input_ids": row}).logits)[0, 1:-1]
        tags = load(text)["tags"]
        assert [x["label"] for x in tags] == [TAGS[i] for i in want.argmax(-1)]
        assert [x["probability"] for x in tags] == pytest.approx(want.max(-1).tolist(), abs=1e-5)


def test_an_answer_to_a_question(save_model, torch):
    folder, model, tokenizer = save_model("QuestionAnswering", ("start", "end"))
    context = "今天北京天气很好，我们去公园。"
    prediction = roformer_tf.load(folder, engine="keras")((QUESTION, context))
    encoded = tokenizer(QUESTION, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    output = run(torch, model, encoded)
    inside = [i for i, side in enumerate(encoded.sequence_ids(0)) if side == 1]
    scores = {
        (first, last): float(output.start_logits[0, first] + output.end_logits[0, last])
        for first in inside
        for last in inside
        if first <= last
    }
    first, last = max(scores, key=scores.get)
    start, end = offsets[first][0], offsets[last][1]
    assert (prediction["answer"], prediction["start"]) == (context[start:end], start)
    values = np.array(list(scores.values()))
    probability = np.exp(values.max()) / np.exp(values).sum()
    assert prediction["score"] == pytest.approx(probability, abs=1e-5)


def test_multiple_choice(save_model, torch):
    """Compare with each candidate alone, and with the left-padded batch that is usual."""
    folder, model, tokenizer = save_model("MultipleChoice", LABELS)
    prediction = roformer_tf.load(folder, engine="keras")((QUESTION, CHOICES))
    pairs = [[QUESTION] * len(CHOICES), CHOICES]
    alone = [tokenizer(*pair, return_tensors="pt") for pair in zip(*pairs, strict=True)]
    logits = [run(torch, model, {k: v[None] for k, v in x.items()}).logits[0, 0] for x in alone]
    want = softmax(torch.stack(logits))
    assert prediction["label"] == want.argmax()
    assert prediction["scores"] == pytest.approx(want.tolist(), abs=1e-5)
    batch = tokenizer(*pairs, padding=True, padding_side="left", return_tensors="pt")
    output = run(torch, model, {k: v[None] for k, v in batch.items()})
    assert prediction["scores"] == pytest.approx(softmax(output.logits)[0].tolist(), abs=1e-5)


def test_other_heads_are_refused(save_model):
    for settings in ({"summary_type": "first"}, {"summary_activation": "tanh"}):
        folder, *_ = save_model("MultipleChoice", LABELS, **settings)
        with pytest.raises(InputError, match="only the type 'last' without activation"):
            roformer_tf.load(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"architectures": ["BertForMultipleChoice"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(InputError, match="BertForMultipleChoice, whose head is not supported"):
        roformer_tf.load(folder)
