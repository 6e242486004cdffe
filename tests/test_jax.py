"""Run the numerical tests on JAX, in separate processes: a process has one backend."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = (  # each operation once, because JAX compiles for every shape
    # `fusible` attention uses Keras' code path too, and twenty training steps include gradients.
    *("-k", "not keras- and not central_differences and not 16"),
    "tests/kernels/test_forms.py",
    "tests/kernels/test_gpu_attention.py",
    "tests/kernels/test_cross_entropy.py::test_the_logits_of_all_predictions_are_never_materialized",
    "tests/layers/test_rotary.py::test_queries_keys_and_scores_equal_those_of_bert4keras",
    "tests/layers/test_attention.py::test_attention_equals_numpy",
    "tests/layers/test_attention.py::test_a_mask_without_a_query_axis_applies_to_selected_positions",
    "tests/layers/test_attention.py::test_a_position_outside_the_sequence_is_refused_or_clipped"
    "[fusible--1]",
    "tests/models/test_finetune_oracle.py::test_twenty_steps_give_the_recorded_losses_and_weights"
    "[masked positions]",
)
MODELS = ("tests/models",)
OTHERS = (
    "tests/kernels",
    "tests/layers",
    "tests/pretraining/test_causal.py",
    "tests/pretraining/test_flops.py",
    "tests/pretraining/test_train_step.py",
    "tests/finetuning/test_task_loss.py",
    "tests/finetuning/test_fgm.py",
    "tests/finetuning/test_vectors.py",
    "tests/tasks/test_vector_losses.py",
    "tests/finetuning/test_crf.py",
    "tests/finetuning/test_datasets.py",
    "tests/training/optimizers",
    "tests/training/test_batches_for_fit.py",
    "tests/commands/test_finetune.py",
)
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]

pytestmark = pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")


def run_on_jax(*arguments, **environment):
    """Run this Python with JAX as the backend, and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": "jax"} | environment,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    return done.stdout


@pytest.mark.parametrize(
    "tests",
    [QUICK, pytest.param(MODELS, marks=LONG), pytest.param(OTHERS, marks=LONG)],
    ids=["quick", "models", "others"],
)
def test_the_numbers_are_right_on_jax(tests):
    # Most of the time of the quick ones goes into compiling, so skip XLA's optimizations there. The
    # slow cases compile as users do.
    fast_compilation = {"XLA_FLAGS": "--xla_backend_optimization_level=0"} if tests is QUICK else {}
    output = run_on_jax(
        "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *tests, **fast_compilation
    )
    assert "passed" in output
    skipped = [line for line in output.splitlines() if line.startswith("SKIPPED")]
    assert not [line for line in skipped if "test_gpu_attention.py" in line]


def test_on_jax_a_model_is_loaded_and_run_without_tensorflow(released):
    code = """
import json, sys
import numpy as np
from roformer_tf import RoFormerForMaskedLM
model = RoFormerForMaskedLM.from_pretrained(sys.argv[1])
logits = model({"token_ids": np.array([[3, 5, 0]], "int32")})
assert logits.shape == (1, 3, model.config.vocab_size)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("tensorflow"))))
"""
    assert json.loads(run_on_jax("-c", code, released("hf_word")).splitlines()[-1]) == []


def test_float64_is_not_rounded_on_jax():
    code = """
import numpy as np
from roformer_tf.layers.self_attention import RoFormerSelfAttention
from roformer_tf.layers.transformer import LayerNorm, RMSNorm

rng = np.random.default_rng(0)
x = rng.normal(size=(2, 300, 24))
layer = RoFormerSelfAttention(3, 8, dtype="float64")
layer.build(x.shape, x.shape)
weights = {}
for weight in layer.weights:
    weight.assign(rng.normal(size=weight.shape))
    weights["/".join(weight.path.split("/")[-2:])] = np.asarray(weight)

def project(name):
    return np.einsum("btd,dnh->btnh", x, weights[name + "/kernel"]) + weights[name + "/bias"]

def rotate(x):
    angles = np.arange(300)[:, None] * 10_000.0 ** -(np.arange(0, 8, 2) / 8)
    pairs = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

visible = rng.random((2, 300, 300)) < 0.5
scores = np.einsum("btnh,bsnh->bnts", rotate(project("query")), rotate(project("key"))) / 8**0.5
scores = np.where(visible[:, None], scores, -np.inf)
probabilities = np.exp(scores - scores.max(-1, keepdims=True))
probabilities /= probabilities.sum(-1, keepdims=True)
attended = np.einsum("bnts,bsnh->btnh", probabilities, project("value"))
output = np.einsum("btnh,nhd->btd", attended, weights["attention_output/kernel"])
output += weights["attention_output/bias"]
for training in (False, True):
    actual = np.asarray(layer(x, attention_mask=visible, training=training))
    assert actual.dtype == "float64"
    assert np.abs(actual - output).max() < 1e-12 * np.abs(output).max()
root = np.sqrt((x * x).mean(-1, keepdims=True))
deviation = x.std(-1, keepdims=True)
norms = {RMSNorm: x / root, LayerNorm: (x - x.mean(-1, keepdims=True)) / deviation}
for norm, expected in norms.items():
    actual = np.asarray(norm(epsilon=1e-16, dtype="float64")(x))
    assert np.abs(actual - expected).max() < 1e-12
"""
    run_on_jax("-c", code, JAX_ENABLE_X64="1")


@pytest.mark.slow
def test_adaptation_and_fine_tuning_use_one_of_several_devices(tmp_path):
    code = """
import sys
import keras
from roformer_tf import adaptation
from roformer_tf.cli import main
adaptation.MAX_STEPS = 1
assert main(["finetune", "--adapt", "yes", *sys.argv[1:]]) == 0
assert len(keras.distribution.list_devices()) == 2
print(keras.distribution.distribution())
"""
    flags = ["--train", ROOT / "examples" / "reviews.csv", "--output", tmp_path / "run"]
    flags += ["--epochs", 1, "--max-length", 8, "--batch-size", 64, "--no-baseline"]
    devices = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"
    assert run_on_jax("-c", code, *map(str, flags), XLA_FLAGS=devices).endswith("None\n")
