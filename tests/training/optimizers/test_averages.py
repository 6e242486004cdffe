"""Weight averages in pretraining. Those of fine-tuning are tested in test_adamw.py."""

import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate
from roformer_tf.training.optimizers import ema_weights, make_optimizer, swap_ema_weights
from roformer_tf.training.run_files import read_metrics
from roformer_tf.training.settings import OptimizerConfig

EMA = 0.6
TINY = RoFormerConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
)


def numpy(tensor):
    return np.array(keras.ops.convert_to_numpy(tensor))


def decay_at(step):
    """Return the decay of the average at a step, counted from 0."""
    return min(EMA, step / (step + 9))


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
@pytest.mark.slow
def test_every_optimizer_averages_its_weights(name):
    keras.utils.set_random_seed(0)
    model = RoFormerForMaskedLM(TINY)
    variables = [*{v.name: v for v in model.trainable_variables}.values()]  # one for each name
    optimizer = make_optimizer(
        OptimizerConfig(optimizer=name, learning_rate=0.05, ema=EMA), variables, 30
    )
    random = np.random.default_rng(0)
    average = [numpy(v).astype("float64") for v in variables]
    for step in range(20):
        gradients = [random.normal(size=v.shape) for v in variables]
        optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradients])
        for i, v in enumerate(variables):
            average[i] = decay_at(step) * average[i] + (1 - decay_at(step)) * numpy(v)
    for got, want, v in zip(optimizer.ema_weights, average, variables, strict=True):
        assert np.abs(numpy(got) - want).max() < 2e-6
        # The averages differ clearly from the last weights.
        assert np.abs(numpy(v) - want).max() > 100 * 2e-6


def test_swapping_twice_restores_the_weights():
    model = RoFormerForMaskedLM(TINY)
    optimizer = make_optimizer(OptimizerConfig(ema=EMA), model.trainable_variables, 5)
    model.compile(optimizer)
    for average in optimizer.ema_weights:
        average.assign(average + 1)
    before = [numpy(v) for v in model.trainable_variables]
    swap_ema_weights(model)
    for v, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(numpy(v), old + 1)
    swap_ema_weights(model)
    for v, old in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(numpy(v), old)


def test_without_averages_the_weights_are_used():
    model = RoFormerForMaskedLM(TINY)
    optimizer = make_optimizer(OptimizerConfig(), model.trainable_variables, 5)
    assert not optimizer.ema_weights
    model.compile(optimizer)
    before = [numpy(v) for v in model.trainable_variables]
    with ema_weights(model):
        for v, old in zip(model.trainable_variables, before, strict=True):
            np.testing.assert_array_equal(numpy(v), old)


@pytest.fixture(scope="module", autouse=True)
def run_eagerly(eagerly):
    """Run steps eagerly: five steps are not worth a trace."""
    with eagerly():
        yield


@pytest.fixture(scope="module")
def flags(pretrain_flags):
    """A function that returns the flags of a run with averages, two stages and a save each step."""
    settings = {
        "ema": EMA,
        "learning_rate": 1e-2,
        "save_every": 1,
        "keep_checkpoints": 20,
        "log_every": 1,
        "held_out": 0.03,
        "precision": "float32",
    }
    return lambda output: [
        *pretrain_flags(output, **settings, steps=None),
        *("--stages", "steps=3", "steps=2"),
    ]


@pytest.fixture(scope="module")
def run(flags, tmp_path_factory):
    output = tmp_path_factory.mktemp("averages") / "run"
    assert main(["pretrain", *flags(output)]) == 0
    return output


def word_embeddings(run, step):
    """Return the word embeddings at a step: the published averages and the current weights.

    The current weights are in the optimizer's slots of the checkpoint.
    """
    folder = run / f"checkpoints/step-{step:08}"
    model, training = (
        load_file(folder / x) for x in ("model/model.safetensors", "training.safetensors")
    )
    (words,) = (x for name, x in model.items() if name.endswith("word_embeddings.weight"))
    slots = {int(key.split(".")[1]): x for key, x in training.items() if "optimizer" in key}
    return words, [x for _, x in sorted(slots.items()) if x.shape == words.shape][-1]


@pytest.mark.slow
def test_a_run_publishes_averages_and_trains_the_weights(run):
    average = word_embeddings(run, 1)[1].astype("float64")  # the decay of the first step is 0
    for step in range(1, 6):
        published, weights = word_embeddings(run, step)
        average = decay_at(step - 1) * average + (1 - decay_at(step - 1)) * weights
        assert np.abs(published - average).max() < 1e-6
    assert np.abs(published - weights).max() > 1e-3


def test_the_published_model_is_the_evaluated_one(run):
    model = RoFormerForMaskedLM.from_pretrained(run / "model")
    batches = held_out_batches(
        PreparedRows.open(run / "rows", "held_out"),
        batch_size=8,
        seed=0,
        objective=make_objective("masked", model.tokenizer, MaskingConfig()),
    )
    logged = read_metrics(run / "evaluations.jsonl")[-1]["held_out_loss"]
    assert evaluate(TokenMetrics(model), batches).loss == pytest.approx(logged, abs=1e-6)


@pytest.mark.parametrize("back_to", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_with_averages_resumes_exactly(run, flags, stable_metrics, tmp_path, back_to):
    copy = shutil.copytree(run, tmp_path / "run")
    for step in range(back_to + 1, 6):
        shutil.rmtree(copy / f"checkpoints/step-{step:08}")
    assert main(["pretrain", *flags(copy)]) == 0
    for file in ("model/model.safetensors", "checkpoints/step-00000005/training.safetensors"):
        assert (copy / file).read_bytes() == (run / file).read_bytes()
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert stable_metrics(copy / name) == stable_metrics(run / name)
