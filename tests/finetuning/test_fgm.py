"""Adversarial training with FGM against a step-by-step reference."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.trainer import AdversarialModel, TaskLoss, attack
from roformer_tf.models.heads import (
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import TASKS

C = 3
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": C,
}
HEADS = {
    "classification": RoFormerForSequenceClassification,
    "tagging": RoFormerForTokenClassification,
}


def texts(task, rows=6, tokens=7):
    rng = np.random.default_rng(3)
    ids = rng.integers(1, 40, (rows, tokens)).astype("int32")
    targets = rng.integers(0, C, (rows, tokens) if task == "tagging" else rows).astype("int32")
    return {"token_ids": ids}, targets, rng.uniform(size=targets.shape).astype("float32")


def compile_model(model, task="classification"):
    loss = TaskLoss(TASKS[task](), LossConfig())
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
    return model


def arrays(model):
    return {name: keras.ops.convert_to_numpy(v) for name, v in model.named_variables().items()}


def gradients(model, task):
    """Return the gradients and the loss of one step of plain SGD, and restore the weights."""
    x, y, weights = texts(task)
    before = arrays(model)
    loss = compile_model(model, task).train_on_batch(x, y, weights)
    after = arrays(model)
    for name, variable in model.named_variables().items():
        variable.assign(before[name])
    return {name: before[name] - after[name] for name in before}, float(loss)


@pytest.mark.parametrize("task", HEADS)
def test_fgm_adds_the_gradient_at_the_attacked_embeddings(task, eagerly):
    model = HEADS[task](RoFormerConfig(**SIZES))
    table = model.encoder.embeddings.word.embeddings
    with eagerly():
        clean, loss = gradients(model, task)
    start, slope = keras.ops.convert_to_numpy(table), clean["encoder/embeddings/word/embeddings"]
    table.assign(start + 0.7 * slope / np.linalg.norm(slope))
    with eagerly():
        attacked, attacked_loss = gradients(model, task)
    table.assign(start)
    with nullcontext() if task == "tagging" else eagerly():
        total, output = gradients(AdversarialModel(model, 0.7), task)
    assert attacked_loss > loss + 1e-3  # the attack has an effect
    assert output == pytest.approx(loss, rel=1e-6)
    for name, gradient in total.items():
        assert np.abs(gradient - clean[name] - attacked[name]).max() < 2e-6, name


def test_an_attack_has_the_given_norm_and_is_zero_without_a_gradient():
    gradient = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    step = keras.ops.convert_to_numpy(attack(gradient, 0.3))
    assert np.linalg.norm(step) == pytest.approx(0.3)
    assert step * np.linalg.norm(gradient) == pytest.approx(0.3 * gradient, abs=1e-6)
    assert (keras.ops.convert_to_numpy(attack(0 * gradient, 0.3)) == 0).all()


def test_the_wrapper_predicts_saves_and_loads_like_its_model(tmp_path):
    model = HEADS["classification"](RoFormerConfig(**SIZES), dtype="mixed_bfloat16")
    wrapper = AdversarialModel(model, 1.0)
    x = texts("classification")[0]
    assert np.array_equal(*(keras.ops.convert_to_numpy(m(x)) for m in (wrapper, model)))
    assert wrapper.compute_dtype == "bfloat16"
    assert wrapper.named_variables() == model.named_variables()
    assert [id(v) for v in wrapper.trainable_variables] == [
        id(v) for v in model.trainable_variables
    ]
    wrapper.save_pretrained(tmp_path / "wrapper")
    model.save_pretrained(tmp_path / "model")
    for file in (tmp_path / "model").iterdir():
        assert file.read_bytes() == (tmp_path / "wrapper" / file.name).read_bytes()
    other = AdversarialModel(HEADS["classification"](RoFormerConfig(**SIZES)), 1.0)
    other.load_pretrained(tmp_path / "model")
    for name, array in arrays(other).items():
        assert np.array_equal(array, arrays(model)[name]), name


@pytest.mark.usefixtures("eager_steps")
def test_evaluation_does_not_attack():
    model = HEADS["classification"](RoFormerConfig(**SIZES))
    x, y, weights = texts("classification")
    want = compile_model(model).evaluate(x, y, sample_weight=weights, verbose=0)
    wrapper = compile_model(AdversarialModel(model, 1.0))
    assert wrapper.evaluate(x, y, sample_weight=weights, verbose=0) == pytest.approx(want)
