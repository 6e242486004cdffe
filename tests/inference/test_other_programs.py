"""Tests of every kind of model folder in transformers and sentence-transformers.

Each program is used in its usual way, without arguments of ours; only a pipeline that does not
truncate by default gets `truncation=True`. Its outputs are compared with `roformer_tf.load`.
"""

import re
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.models.generation import GenerationConfig
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceEmbedding,
    RoFormerForSentenceSimilarity,
)
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.scored_pairs import Embedding
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.random_model import random_model
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
TEXT_COLUMNS = ("text_a", "text_b")
LONG = "今天天气很好，我们去公园学习中国经济。" * 106  # over 2,000 characters
TEXTS = [
    "好",
    "今天天气很好，我们去公园。",
    LONG[:90],
    LONG,
    "Hello 2023年 iPhone15，Ｆull wi̇dth É!",
    " 前后 有 空白\t和\n换行 ",
    "😀👨‍👩‍👧 emoji，，。。！！",
]
PRIVATE = "价格\ue5e5元，\ue000私\U0010fffd"
"""Private-use characters. The word tokenizer of transformers removes them in any case."""
PAIRS = [
    ("今天天气很好", "天气不错"),
    ("好", "坏"),
    ("好", LONG),  # the longer text is truncated
    (LONG, "好"),
    ("北京" * 40, "上海" * 60),
    ("Hello world", "2023年 café"),
]


def tokenizer_of(tokenization):
    return RoFormerTokenizer(read_vocabulary(GOLDENS / tokenization), tokenization)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a function: folder(task or model class, "word") → a random model's folder.

    The folder is written as our commands write it.
    """

    @cache
    def make(kind, tokenization, **settings):
        keras.utils.set_random_seed(7)
        tokenizer = tokenizer_of(tokenization)
        target = tmp_path_factory.mktemp("other") / "model"
        if isinstance(kind, Embedding):
            config = RoFormerConfig(**SIZES, vocab_size=tokenizer.vocab_size, pooling="mean")
            model = RoFormerForSentenceEmbedding(kind.decoding.described_in(config))
            model.tokenizer = tokenizer
            LabelledDataset([], kind).save_model(model, target)
            kind.decoding.save_files(target, model.config)
        elif isinstance(kind, type):
            model = kind(RoFormerConfig(**SIZES, vocab_size=tokenizer.vocab_size, **settings))
            model.tokenizer = tokenizer
            model.save_pretrained(target.with_name("own"))
            command = ["checkpoints", "convert", str(target.with_name("own")), str(target)]
            assert main([*command, "--to", "huggingface"]) == 0
        else:
            model = random_model(kind, tokenizer, **SIZES)
            LabelledDataset([], kind).save_model(model, target)
        return target

    return make


@pytest.fixture(params=["word", "char"])
def tokenization(request):
    return request.param


def texts_for(tokenization):
    return [*TEXTS, *[PRIVATE] * (tokenization == "char")]


def as_inputs(examples):
    return [{"text": x[0], "text_pair": x[1]} if isinstance(x, tuple) else x for x in examples]


CLASSIFIERS = {
    "classification": Classification(labels=("坏", "中", "好"), max_length=64),
    "classification of long texts": Classification(labels=("坏", "好"), max_length=1800),
    "pair": Pair(labels=("0", "1"), text_columns=TEXT_COLUMNS, max_length=63),
    "multilabel": Multilabel(labels=("甲", "乙", "丙"), max_length=64),
    "regression": Regression(mean=3.25, deviation=1.5, max_length=64),
    "regression of pairs": Regression(
        mean=2020.5, deviation=4, text_columns=TEXT_COLUMNS, max_length=63
    ),
}


@pytest.mark.hf
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_text_classification_pipeline(name, tokenization, folder, transformers):
    task = CLASSIFIERS[name]
    source = folder(task, tokenization)
    examples = PAIRS if len(task.text_columns) > 1 else texts_for(tokenization)
    ours = roformer_tf.load(source, engine="keras")(examples)
    classify = transformers.pipeline("text-classification", model=str(source))
    actual = classify(as_inputs(examples), top_k=None, truncation=True)
    for example, got, want in zip(examples, actual, ours, strict=True):
        scores = {item["label"]: item["score"] for item in got}
        expected = want.get("scores", {"value": want.get("score")})
        assert scores == pytest.approx(expected, abs=1e-3 if "score" in want else 2e-5), example
    range_of_scores = np.ptp(
        [[item["score"] for item in sorted(x, key=str)] for x in actual], axis=0
    )
    assert range_of_scores.max() > 0.01


@pytest.mark.hf
@pytest.mark.parametrize("name", ["pair", "regression of pairs"])
def test_the_cross_encoder(name, tokenization, folder, torch):
    from sentence_transformers import CrossEncoder

    source = folder(CLASSIFIERS[name], tokenization)
    ours = roformer_tf.load(source, engine="keras")
    model = CrossEncoder(str(source), device="cpu")
    if name == "pair":  # two logits: as shown in the model card
        actual = model.predict(PAIRS, apply_softmax=True)
        want = [[item["scores"][label] for label in ("0", "1")] for item in ours(PAIRS)]
        np.testing.assert_allclose(actual, want, atol=2e-5)
        with pytest.raises(ValueError, match="num_labels=1"):
            model.rank("好", ["坏", "今天天气很好"])
        return
    want = [item["score"] for item in ours(PAIRS)]
    np.testing.assert_allclose(model.predict(PAIRS), want, atol=1e-3)
    documents = ["坏", "今天天气很好", LONG, "公园 2023"]
    scores = [item["score"] for item in ours([("去公园学习", text) for text in documents])]
    ranked = model.rank("去公园学习", documents)
    assert [item["corpus_id"] for item in ranked] == np.argsort(scores)[::-1].tolist()
    np.testing.assert_allclose([item["score"] for item in ranked], sorted(scores)[::-1], atol=1e-3)


@pytest.mark.hf
def test_the_token_classification_pipeline(tokenization, folder, transformers):
    labels = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    source = folder(Tagging(labels=labels, max_length=64), tokenization)
    ours = roformer_tf.load(source, engine="keras")
    tag = transformers.pipeline(
        "token-classification", model=str(source), aggregation_strategy="simple"
    )

    def entities(predictions):
        return [(x["start"], x["end"], x.get("entity_group") or x["label"]) for x in predictions]

    texts = texts_for(tokenization)
    # A pipeline without a stride reads only the beginning; `load` reads the full text in windows.
    want = [entities(ours(text[:62])["entities"]) for text in texts]
    assert [entities(tags) for tags in tag(texts)] == want
    assert sum(map(len, want)) > 10
    with_stride = transformers.pipeline(
        "token-classification", model=str(source), aggregation_strategy="simple", stride=16
    )
    last = max(item["end"] for item in with_stride(LONG))
    assert last > 1900


@pytest.mark.hf
def test_the_fill_mask_pipeline(tokenization, folder, transformers):
    source = folder(RoFormerForMaskedLM, tokenization)
    texts = ["今天[MASK]气很好。", "[MASK]", "Hello [MASK] 2023年", LONG[:480] + "[MASK]"]
    model = RoFormerForMaskedLM.from_pretrained(source)
    fill = transformers.pipeline("fill-mask", model=str(source))
    for text, actual in zip(texts, fill(texts), strict=True):
        before, after = map(model.tokenizer.ids, text.split("[MASK]"))
        special = (model.tokenizer.cls_id, model.tokenizer.mask_id, model.tokenizer.sep_id)
        ids = np.array([[special[0], *before, special[1], *after, special[2]]])
        logits = np.asarray(model({"token_ids": ids}), np.float64)[0, len(before) + 1]
        scores = np.exp(logits) / np.exp(logits).sum()
        # The pipeline includes special tokens; `roformer_tf.load` excludes them.
        assert [item["token"] for item in actual] == scores.argsort()[::-1][:5].tolist(), text
        np.testing.assert_allclose(
            [item["score"] for item in actual], np.sort(scores)[::-1][:5], 1e-3
        )
    candidates = fill("[MASK]" + LONG, tokenizer_kwargs={"truncation": True})
    assert len(candidates) == 5


@pytest.mark.hf
def test_the_text_generation_pipeline(folder, transformers):
    source = folder(RoFormerForCausalLM, "char")
    model = RoFormerForCausalLM.from_pretrained(source)
    generate = transformers.pipeline("text-generation", model=str(source))
    for prompt in ("今天天气很好，", "好", PRIVATE, "Hello 2023年"):
        start = model.encode_prompt(prompt)
        ((ours,),) = model.generate_ids([start], GenerationConfig(max_tokens=12))
        (actual,) = generate(prompt, do_sample=False, max_new_tokens=12, return_tensors=True)
        end = [model.tokenizer.sep_id] * ours.ended
        assert list(actual["generated_token_ids"]) == [*start, *ours.token_ids, *end]


@pytest.mark.hf
def test_a_word_level_causal_model_is_refused(folder, transformers):
    source = folder(RoFormerForCausalLM, "word")
    with pytest.raises(Exception, match=r"always appends \[SEP\]"):
        transformers.pipeline("text-generation", model=str(source))


@pytest.mark.hf
@pytest.mark.parametrize("kind", ["sim", "embedding"])
def test_sentence_transformers(kind, tokenization, folder, torch):
    from sentence_transformers import SentenceTransformer

    task_or_class = RoFormerForSentenceSimilarity if kind == "sim" else Embedding(max_length=64)
    source = folder(task_or_class, tokenization)
    texts = texts_for(tokenization)
    ours = np.stack([item["vector"] for item in roformer_tf.load(source, engine="keras")(texts)])
    model = SentenceTransformer(str(source), device="cpu")
    np.testing.assert_allclose(model.encode(texts), ours, atol=1e-5)
    products = ours @ ours.T
    assert products.min() < 0.99


@pytest.mark.hf
def test_a_classifier_with_mean_pooling_is_refused(tmp_path, transformers):
    """transformers has only a head on the first token, and would initialize the missing weights."""
    from sentence_transformers import CrossEncoder

    task = Ranking(text_columns=("a", "b", "c"))
    LabelledDataset([], task).save_model(
        random_model(task, tokenizer_of("char"), **SIZES, pooling="mean"), tmp_path / "model"
    )
    for open_model in (
        lambda x: transformers.pipeline("text-classification", model=x),
        lambda x: CrossEncoder(x, device="cpu"),
    ):
        with pytest.raises(ValueError, match="model type `roformer_tf`"):
            open_model(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("task", "changes", "part"),
    [
        (Ranking(text_columns=("a", "b", "c")), {"pooling": "mean"}, "a classifier of the mean"),
        (Spans(labels=("a", "b")), {}, r"the head of entities \(spans\)"),
        (Tagging(labels=("B", "I")), {"crf": True}, "a conditional random field"),
    ],
)
def test_what_transformers_lacks_is_not_converted(task, changes, part, tmp_path, capsys):
    LabelledDataset([], task).save_model(random_model(task, **changes), tmp_path / "model")
    command = ["checkpoints", "convert", str(tmp_path / "model"), str(tmp_path / "other")]
    assert main([*command, "--to", "huggingface"]) == 2
    assert re.search(f"has no model with {part}", capsys.readouterr().err)
    assert main([*command, "--to", "own"]) == 0
