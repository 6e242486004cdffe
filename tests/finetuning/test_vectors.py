"""Training of separately encoded texts: micro-batches give the gradient of the whole batch."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.vectors import VectorTraining
from roformer_tf.models.heads import RoFormerForSentenceEmbedding
from roformer_tf.tasks.vectors.scored_pairs import Embedding, ScoredPairs

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "pooling": "mean",
    "initializer_range": 0.3,  # larger than usual, so that vectors differ
}
TASKS = {
    "softmax": Embedding(dimensions=(4, 8)),
    "cosent": ScoredPairs(),
    "classifier": ScoredPairs(loss="classifier", levels=(0.0, 1.0, 2.0)),
}


def model(dropout=0.0, **changes):
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    keras.utils.set_random_seed(5)
    config = RoFormerConfig(**SIZES | dict.fromkeys(names, dropout) | changes)
    return RoFormerForSentenceEmbedding(config)


def batch(name, rows=8):
    """Return sides of different lengths; for softmax, each example has two extra negatives."""
    rng = np.random.default_rng(0)
    sides = {"side_0": (rows, 5), "side_1": (rows, 9)}
    if name == "softmax":
        sides["side_2"] = (rows, 2, 7)
    inputs = {key: rng.integers(5, 40, shape).astype("int32") for key, shape in sides.items()}
    inputs["side_1"][:, 6:] = 0
    weights = np.ones(rows, "float32")
    weights[-1] = 0
    if name != "softmax":
        kind = "float32" if name == "cosent" else "int32"
        return inputs, rng.integers(0, 3, rows).astype(kind), weights
    targets = np.zeros((rows, 3 * rows), "int8")
    targets[np.arange(rows), np.arange(rows)] = 1
    targets[0, 3], targets[:, rows - 1], targets[-1] = -1, -1, -1
    return inputs, targets, weights


def step(name, micro_batches, dropout=0.0, **changes):
    """Return all weights after one step of SGD with rate 1, and the loss."""
    training = VectorTraining(model(dropout, **changes), TASKS[name], micro_batches)
    training.compile(keras.optimizers.SGD(1.0), jit_compile=False)
    loss = training.train_on_batch(*batch(name))
    return {v.path: keras.ops.convert_to_numpy(v) for v in training.variables}, float(loss)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.slow
def test_eight_micro_batches_equal_one_batch(name, eager_steps):
    one_batch, loss = step(name, 1)
    micro_batched, micro_loss = step(name, 8)
    start = {v.path: keras.ops.convert_to_numpy(v) for v in model().variables}
    assert micro_loss == pytest.approx(loss, rel=1e-6)
    changes = [np.abs(one_batch[path] - start[path]).max() for path in start]
    assert max(changes) > 1e-2
    for path, array in one_batch.items():
        np.testing.assert_allclose(micro_batched[path], array, rtol=0, atol=1e-5, err_msg=path)


def test_both_passes_use_the_same_dropout_mask(eager_steps):
    """Both passes over a micro-batch use the same dropout mask.

    The loss comes from the first pass, the gradient from the second. This loss is linear in the
    vectors, and these are linear in γ of the last norm, so Σ γ · dγ must equal the loss.
    """
    slopes = np.random.default_rng(1).normal(size=(8, 4, 16)).astype("float32")
    training = VectorTraining(model(0.4), TASKS["softmax"], 2)
    training.compute_loss = lambda x, y, y_pred, sample_weight, training=True: keras.ops.sum(
        y_pred * slopes
    )
    training.compile(keras.optimizers.SGD(1.0), jit_compile=False)
    gamma = training.named_variables()["encoder/layer_0/output_norm/gamma"]
    before = keras.ops.convert_to_numpy(gamma)
    loss = float(training.train_on_batch(*batch("softmax")))
    gradient = before - keras.ops.convert_to_numpy(gamma)
    assert abs(loss) > 1
    assert float((before * gradient).sum()) == pytest.approx(loss, rel=1e-4)


def test_each_side_is_padded_separately():
    training = VectorTraining(model(), TASKS["softmax"])
    inputs, _, _ = batch("softmax")
    vectors = keras.ops.convert_to_numpy(training(inputs))
    assert vectors.shape == (8, 4, 16)
    separate = keras.ops.convert_to_numpy(training.model({"token_ids": inputs["side_2"][3]}))
    np.testing.assert_allclose(vectors[3, 2:], separate, rtol=0, atol=1e-6)
    second = keras.ops.convert_to_numpy(training.model({"token_ids": inputs["side_1"][:, :6]}))
    np.testing.assert_allclose(vectors[:, 1], second, rtol=0, atol=1e-6)


def test_sharing_an_encoding_keeps_the_gradient(eager_steps):
    inputs, targets, weights = batch("softmax")
    index = np.array([0, 1, 1, 2, 0, 2, 1, 0])
    repeated = inputs | {"side_1": inputs["side_1"][index]}
    shared = inputs | {"side_1": inputs["side_1"][:3], "row_index_1": index.astype("int32")}
    actual = []
    for item in (repeated, shared):
        training = VectorTraining(model(), TASKS["softmax"])
        training.compile(keras.optimizers.SGD(1.0), jit_compile=False)
        loss = float(training.train_on_batch(item, targets, weights))
        actual.append((loss, [keras.ops.convert_to_numpy(v) for v in training.variables]))
    assert actual[1][0] == pytest.approx(actual[0][0], rel=1e-6)
    for a, b in zip(actual[0][1], actual[1][1], strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-5)


SCRIPT = Path(__file__).parents[1] / "support" / "vector_steps.py"


def steps_on_jax(out, micro_batches, processes):
    """Start the processes and return the weights and losses that the first one writes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(processes):
        variables = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(rank),
        }
        environment = os.environ | {"KERAS_BACKEND": "jax"} | (variables if processes > 1 else {})
        flags = [sys.executable, SCRIPT, out, str(micro_batches)]
        workers.append(
            subprocess.Popen(flags, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    for process in workers:
        _, output = process.communicate(timeout=300)
        assert process.returncode == 0, output.decode()[-3000:]
    with np.load(out) as file:
        return dict(file)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
def test_micro_batches_in_two_processes_equal_one_batch(tmp_path):
    want = steps_on_jax(tmp_path / "one.npz", 1, processes=1)
    for micro_batches in (1, 8):
        got = steps_on_jax(tmp_path / f"two-{micro_batches}.npz", micro_batches, processes=2)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-5, err_msg=name)
