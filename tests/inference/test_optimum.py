"""Tests of our ONNX exports in optimum, which needs transformers 4 in a separate environment."""

from pathlib import Path

import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.export.command import export
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForQuestionAnswering
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.random_model import random_model
from tests.support.vocabularies import read_vocabulary

pytestmark = pytest.mark.hf
VOCABULARY = Path(__file__).parents[1] / "fixtures" / "tokenizer" / "char"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXTS = ["好", "今天天气很好，我们去公园。", "Hello 2023年，北京 café"]
TASKS = {
    "classification": Classification(labels=("坏", "中", "好"), max_length=64),
    "tagging": Tagging(labels=("O", "B-LOC", "I-LOC"), max_length=64),
    "question-answering": QuestionAnswering(text_columns=("question", "context")),
}


@pytest.fixture(scope="module")
def optimum():
    return pytest.importorskip("optimum.onnxruntime", reason="needs optimum-onnx, transformers 4")


@pytest.fixture
def exported(tmp_path):
    """Return a function: exported("classification") → folders of model and export."""

    def make(name):
        tokenizer = RoFormerTokenizer(read_vocabulary(VOCABULARY), "char")
        model = random_model(TASKS[name], tokenizer, **SIZES)
        LabelledDataset([], TASKS[name]).save_model(model, tmp_path / "model")
        export(tmp_path / "model", tmp_path / "onnx", "onnx")
        return tmp_path / "model", tmp_path / "onnx"

    return make


def load_exported(optimum, kind, folder):
    """Load the model by optimum, and the tokenizer by transformers from the same folder."""
    from transformers import AutoTokenizer

    model = getattr(optimum, f"ORTModelFor{kind}").from_pretrained(folder)
    return model, AutoTokenizer.from_pretrained(folder)


def test_a_text_classifier(optimum, exported):
    ours, folder = exported("classification")
    model, tokenizer = load_exported(optimum, "SequenceClassification", folder)
    logits = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    want = roformer_tf.load(ours, engine="keras")(TEXTS)
    for probabilities, prediction in zip(logits.softmax(-1).tolist(), want, strict=True):
        scores = dict(zip(model.config.id2label.values(), probabilities, strict=True))
        assert scores == pytest.approx(prediction["scores"], abs=1e-5)


def test_a_tagger(optimum, exported):
    ours, folder = exported("tagging")
    model, tokenizer = load_exported(optimum, "TokenClassification", folder)
    for text in TEXTS[:2]:
        scores = model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1].softmax(-1)
        best = scores.max(-1)
        tags = roformer_tf.load(ours, engine="keras")(text)["tags"]
        assert [x["label"] for x in tags] == [model.config.id2label[i] for i in best[1].tolist()]
        assert [x["probability"] for x in tags] == pytest.approx(best[0].tolist(), abs=1e-5)


def test_question_answering(optimum, exported):
    """config.json announces our segments by another model type."""
    ours, folder = exported("question-answering")
    model, _ = load_exported(optimum, "QuestionAnswering", folder)
    ours_loaded = RoFormerForQuestionAnswering.from_pretrained(ours)
    batch = ours_loaded.tokenizer([("今天", "我们去公园学习"), ("天气", "很好")])
    ids, segments = batch["token_ids"], batch["segment_ids"]
    output = model(*(x.astype("int64") for x in (ids, ids != 0, segments)))
    logits = np.stack([output.start_logits, output.end_logits], axis=-1)
    want = np.asarray(ours_loaded(batch))
    np.testing.assert_allclose(logits[ids != 0], want[ids != 0], atol=1e-5)


def test_hidden_states_and_vectors(optimum, released, tmp_path):
    arguments = ["--model", str(released("sim_char")), "--output", str(tmp_path / "onnx")]
    assert main(["export", *arguments, "--to", "onnx"]) == 0
    model, tokenizer = load_exported(optimum, "FeatureExtraction", tmp_path / "onnx")
    encoder = RoFormerEncoder.from_pretrained(released("sim_char"))
    for text in TEXTS[:2]:
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        ids, _ = encoder.tokenizer.encode(text)
        want = np.asarray(encoder({"token_ids": np.array([ids])}))[0]
        np.testing.assert_allclose(states, want, atol=1e-5)
