"""The three losses of RoFormer-Sim and their gradients against outputs of bert4keras."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.checkpoints.names import table
from roformer_tf.finetuning.vectors import BatchTraining, VectorTraining
from roformer_tf.labelled.text_sides import IGNORED
from roformer_tf.models.heads import RoFormerForSentenceEmbedding, RoFormerForSentenceSimilarity
from roformer_tf.tasks.vectors.paraphrase import Paraphrase
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def recorded_values(recorded):
    return recorded("sim_training")


def tf1_arrays(training):
    """Return all weights with TF1 names and shapes, and the classifier."""
    variables, config = training.named_variables(), training.config
    arrays = {
        row.tf1: row.to_file(ops.convert_to_numpy(variables[row.name]), "tf1", config.rotary_style)
        for row in table(config)
        if row.name in variables
    }
    if training.classifier is not None:
        arrays["classifier"] = ops.convert_to_numpy(training.classifier.kernel)
    return arrays


def compare(name, training, batch, recorded_values, ids, record_property):
    """Compare loss and gradients: one step of SGD with rate 1 subtracts exactly the gradient."""
    training.compile(keras.optimizers.SGD(1.0), jit_compile=False)
    before = tf1_arrays(training)
    loss = float(training.train_on_batch(*batch))
    after = tf1_arrays(training)
    gradients = {key: before[key] - after[key] for key in before}
    want = float(recorded_values[f"{name}_loss"])
    difference = abs(loss - want) / max(1, want)
    record_property("difference", (name, "loss", float(difference), 1e-5))
    assert difference <= 1e-5
    used, worst = np.unique(ids[ids > 0]), 0.0
    traced = [key for key in recorded_values if key.startswith(f"{name}:")]
    assert len(traced) == 9
    for key in traced:
        gradient = gradients[key.partition(":")[2].replace(".", "/")]
        gradient = gradient[used] if key.endswith("word_embeddings") else gradient
        worst = max(worst, float(np.abs(gradient - recorded_values[key]).max()))
    record_property("difference", (name, "gradients", worst, 1e-4))
    assert worst <= 1e-4
    norm = np.sqrt(sum(np.square(g.astype("float64")).sum() for g in gradients.values()))
    assert norm == pytest.approx(float(recorded_values[f"{name}_norm"]), rel=1e-5)


@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_paraphrases(stage, recorded_values, released, record_property, eager_steps):
    model = RoFormerForSentenceSimilarity.from_pretrained(released("sim_char"), **NO_DROPOUT)
    ids, segments = recorded_values["token_ids"], recorded_values["segment_ids"]
    inputs = {"token_ids": ids, "segment_ids": segments, "labels": np.roll(ids, -1, axis=1)}
    rows = np.arange(len(ids))
    targets = np.zeros((len(ids), len(ids)), "int8")
    targets[rows, rows ^ 1], targets[rows, rows] = 1, IGNORED
    targets = targets if stage == "stage1" else recorded_values["teacher"]
    training = BatchTraining(model, Paraphrase(teacher=stage == "stage2"))
    batch = inputs, targets, np.ones(len(ids), "float32")
    compare(stage, training, batch, recorded_values, ids, record_property)


def test_supervised(recorded_values, released, record_property, eager_steps):
    model = RoFormerForSentenceEmbedding.from_pretrained(
        released("sim_char"), pooling="pooler", **NO_DROPOUT
    )
    task = ScoredPairs(loss="classifier", levels=(0.0, 1.0, 2.0, 3.0, 4.0))
    training = VectorTraining(model, task)
    training.classifier.kernel.assign(recorded_values["classifier"])
    texts, classes = recorded_values["texts"], recorded_values["classes"]
    inputs = {"side_0": texts[::2], "side_1": texts[1::2]}
    batch = inputs, classes, np.ones(len(classes), "float32")
    compare("supervised", training, batch, recorded_values, texts, record_property)
