"""Tests that transformers' pipelines predict as we do with fine-tuned folders."""

import dataclasses
import gzip
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForMaskedLM,
)
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.tags.schemes import spans
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.finetuned import load_finetuned, predict
from tests.support.random_model import random_model
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
BIO = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
BMES = ("O", "B-LOC", "M-LOC", "E-LOC", "S-LOC")
MORE = ["Ｈello 2023年，在 New York，北京 \u200b欢迎 café 你！", "李明在上海。"]


@pytest.fixture(scope="module")
def texts():
    """Real sentences of several lengths, and some with spaces, digits, Latin letters and marks."""
    with gzip.open(GOLDENS / "word" / "cases.json.gz", "rt", encoding="utf-8") as file:
        cases = json.load(file)["single"]
    return [case["text"][:200] for case in cases if case["kind"] == "real"][:60] + MORE


@pytest.fixture
def saved_model(tmp_path):
    """Return a function: saved_model(task, "word") → the folder of a random model."""

    def make(task, tokenization):
        keras.utils.set_random_seed(1)
        tokenizer = RoFormerTokenizer(read_vocabulary(GOLDENS / tokenization), tokenization)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
        model = random_model(task, tokenizer, crf=task.crf, **sizes)
        LabelledDataset([], task).save_model(model, tmp_path / "model")
        return tmp_path / "model"

    return make


def predictions(folder, texts):
    model, tokenizer, task = load_finetuned(folder)
    examples = [task.labelling.for_prediction(Example((text,), None, "")) for text in texts]
    actual = predict(model, tokenizer, task, examples)
    return [task.decoding.as_json(*pair) for pair in zip(examples, actual, strict=True)]


@pytest.mark.hf
@pytest.mark.parametrize("tokenization", ["word", "char"])
def test_ner_pipelines_give_equal_entities(
    tokenization, saved_model, texts, tmp_path, transformers
):
    """Test the model's folder, and its conversion by `checkpoints convert`."""
    folder = saved_model(Tagging(labels=BIO), tokenization)
    other = tmp_path / "other"
    assert main(["checkpoints", "convert", str(folder), str(other), "--to", "huggingface"]) == 0
    want = [
        [(item["start"], item["end"], item["label"]) for item in prediction["entities"]]
        for prediction in predictions(folder, texts)
    ]
    assert {kind for entities in want for _, _, kind in entities} == {"LOC", "PER"}
    for source in (folder, other):
        tag = transformers.pipeline("ner", model=str(source), aggregation_strategy="simple")
        actual = [
            [(item["start"], item["end"], item["entity_group"]) for item in entities]
            for entities in tag(texts)
        ]
        assert actual == want


@pytest.mark.hf
def test_ner_pipelines_differ_only_where_the_most_likely_tags_are_illegal(
    saved_model, texts, transformers
):
    """Pipelines have no constrained decoding, as the card of every model folder explains."""
    labels = (
        "I-LOC",
        "B-LOC",
        "O",
        "B-PER",
        "I-PER",
    )  # with these labels, most predictions are "O"
    folder = saved_model(Tagging(labels=labels, scheme="IOB2"), "char")
    tag = transformers.pipeline("ner", model=str(folder), aggregation_strategy="simple")
    model, tokenizer, task = load_finetuned(folder)
    unconstrained = dataclasses.replace(task, scheme="")
    legal = 0
    for text, prediction in zip(texts, predictions(folder, texts), strict=True):
        (most_likely,) = predict(
            model,
            tokenizer,
            unconstrained,
            [unconstrained.labelling.for_prediction(Example((text,), None, ""))],
        )
        if [item["label"] for item in prediction["tags"]] == list(most_likely.label):
            want = [(item["start"], item["end"], item["label"]) for item in prediction["entities"]]
            actual = [(item["start"], item["end"], item["entity_group"]) for item in tag(text)]
            assert actual == want
            legal += 1
    assert 0 < legal < len(texts)


@pytest.mark.hf
def test_ner_pipelines_refuse_a_crf(saved_model, texts, torch, transformers):
    """A pipeline would ignore the CRF without a warning; the encoder can be loaded as usual."""
    folder = saved_model(Tagging(labels=BIO, scheme="IOB2", crf=True), "char")
    with pytest.raises(ValueError, match="model type `roformer_crf`"):
        transformers.pipeline("ner", model=str(folder))
    encoder = RoFormerEncoder.from_pretrained(folder)
    ids = encoder.tokenizer(texts[:1])["token_ids"]
    theirs = transformers.RoFormerModel.from_pretrained(folder).eval()
    with torch.no_grad():
        want = theirs(torch.tensor(ids, dtype=torch.long)).last_hidden_state.numpy()
    np.testing.assert_allclose(np.asarray(encoder({"token_ids": ids})), want, atol=1e-4)


@pytest.mark.hf
def test_ner_pipelines_decode_bmes_equally(saved_model, texts, transformers):
    """The scores are of valid tags, since an untrained model would predict invalid ones."""
    folder = saved_model(Tagging(labels=BMES), "word")
    tag = transformers.pipeline("ner", model=str(folder), aggregation_strategy="simple")
    scores = np.eye(len(BMES))
    for tags in ("SSOBMME", "BEBES", "OSOBEO", "MEOE", "BMO"):
        labels = [next(label for label in BMES if label[0] == item) for item in tags]
        entities = [
            {
                "word": "中",
                "scores": scores[BMES.index(label)],
                "start": i,
                "end": i + 1,
                "index": i,
            }
            for i, label in enumerate(labels)
        ]
        actual = [
            (item["entity_group"], item["start"], item["end"])
            for item in tag.aggregate(entities, tag._postprocess_params["aggregation_strategy"])
            if item["entity_group"] != "O"
        ]
        assert actual == spans(labels)


@pytest.mark.hf
def test_ner_pipelines_refuse_word_labels_with_the_reason(saved_model, transformers):
    folder = saved_model(Tagging(labels=BIO, spaced_units=True), "word")
    with pytest.raises(Exception, match="labels separate words"):
        transformers.pipeline("ner", model=str(folder))


def test_units_of_tagging_are_removed_for_other_tasks(saved_model, tmp_path):
    folder = saved_model(Tagging(labels=BIO), "word")
    assert RoFormerTokenizer.from_pretrained(folder).units == "characters"
    RoFormerForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path / "language")
    assert RoFormerTokenizer.from_pretrained(tmp_path / "language").units is None
    assert not (tmp_path / "language" / "tokenizer.json").exists()
