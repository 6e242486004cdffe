"""Rates per layer, accumulation, averages; and that all of it resumes bit for bit."""

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.finetuning.fgm import AdversarialModel
from roformer_tf.finetuning.trainer import TaskLoss
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.training.callbacks import learning_rate
from roformer_tf.training.checkpointing import RunState, restore_checkpoint, save_checkpoint
from roformer_tf.training.optimizers import ema_weights, layer_scales, make_finetune_optimizer
from roformer_tf.training.settings import FinetuneOptimizerConfig

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "embedding_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
}
QUICK = {"learning_rate": 0.01, "warmup": 0.2}


def new_model(**changes):
    return RoFormerForSequenceClassification(RoFormerConfig(**SIZES | changes))


def numpy(variable):
    return keras.ops.convert_to_numpy(variable).copy()


def weights(model):
    return {name: numpy(v) for name, v in model.named_variables().items()}


def compiled(config, batches, objective=None, **changes):
    """A new model, of other random numbers every time, ready to train."""
    objective = objective or LossConfig()
    model = new_model(**changes)
    if objective.fgm:
        model = AdversarialModel(model, objective.fgm)
    optimizer = make_finetune_optimizer(config, model, batches)
    model.compile(optimizer, TaskLoss("classification", r_drop=objective.r_drop), jit_compile=False)
    return model


def batch(step, rows=4):
    """Rows of a step, twice over, as R-Drop wants them."""
    rng = np.random.default_rng(step)
    ids, labels = rng.integers(1, 30, (rows, 6)), rng.integers(0, 3, rows)
    return {"token_ids": np.tile(ids, (2, 1)).astype("int32")}, np.tile(labels, 2).astype("int32")


def train(model, first, last):
    for step in range(first, last):
        model.train_on_batch(*batch(step))


def put(model, values):
    for name, variable in model.named_variables().items():
        variable.assign(values[name])


def test_each_layer_below_has_a_smaller_share():
    names = list(new_model(num_hidden_layers=2).named_variables())
    scales = layer_scales(names, 0.5)
    assert set(scales) == set(names)
    shares = {
        "classifier/": 1.0,
        "encoder/layer_1/": 0.5,
        "encoder/layer_0/": 0.25,
        "encoder/embeddings/": 0.125,
    }
    for name in names:
        [share] = [share for start, share in shares.items() if name.startswith(start)]
        assert scales[name] == share, name
    assert len({scales[name] for name in names}) == 4


def test_layers_are_counted_not_spelled():
    names = ["encoder/embeddings/x", *(f"encoder/layer_{i}/x" for i in range(12)), "classifier/x"]
    scales = layer_scales(names, 0.9)
    assert scales["encoder/layer_11/x"] == pytest.approx(0.9)
    assert scales["encoder/layer_2/x"] == pytest.approx(0.9**10)
    assert scales["encoder/layer_10/x"] == pytest.approx(0.9**2)
    assert scales["encoder/embeddings/x"] == pytest.approx(0.9**13)


def reference_steps(start, gradients, rates, decays, *, decay=0.01, clip=1.0):
    """AdamW in float64 with a rate for each step and a share of it for each weight."""
    w = [x.astype("float64") for x in start]
    m, v = [0 * x for x in w], [0 * x for x in w]
    seen = []
    for t, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), 1):
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        for i, g in enumerate(gradient):
            g, own = g * min(1, clip / norm), rate * decays[i][0]
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
            shrunk = w[i] * (1 - own * decay * decays[i][1])
            step = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m[i] / (np.sqrt(v[i]) + 1e-6)
            w[i] = shrunk - own * step
        seen.append([x.copy() for x in w])
    return seen


def random_gradients(model, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=v.shape) for v in model.trainable_variables] for _ in range(steps)]


def shares(model, layer_decay):
    """(rate, decay) of each trainable weight."""
    names = {id(v): name for name, v in model.named_variables().items()}
    scales = layer_scales(names.values(), layer_decay)
    plain = ("gamma", "beta", "bias")
    return [(scales[names[id(v)]], v.name not in plain) for v in model.trainable_variables]


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_equal_those_of_the_paper_at_each_layers_own_rate(layer_decay, accumulate):
    """Warm-up and decay go by steps, whatever Keras counts; clipped is the mean gradient."""
    model = new_model()
    config = FinetuneOptimizerConfig(
        learning_rate=0.1,
        layer_decay=layer_decay,
        warmup=0.5,
        weight_decay=0.3,
        accumulate=accumulate,
    )
    optimizer = make_finetune_optimizer(config, model, 4 * accumulate + (accumulate > 1))
    start = [numpy(v) for v in model.trainable_variables]
    gradients = random_gradients(model, 4 * accumulate)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradient])
    means = [
        [np.mean(g, axis=0) for g in zip(*gradients[i : i + accumulate], strict=True)]
        for i in range(0, 4 * accumulate, accumulate)
    ]
    rates = [0.05, 0.1, 0.1, 0.05]
    want = reference_steps(start, means, rates, shares(model, layer_decay), decay=0.3)[-1]
    for got, expected in zip(model.trainable_variables, want, strict=True):
        assert np.abs(numpy(got) - expected).max() < 5e-6
    logged = [learning_rate(optimizer, batch) for batch in range(4 * accumulate)]
    assert logged == pytest.approx(np.repeat(rates, accumulate))


@pytest.mark.usefixtures("eager_steps")
def test_half_a_step_moves_nothing():
    model = compiled(FinetuneOptimizerConfig(**QUICK, accumulate=3), 30)
    before = weights(model)
    train(model, 0, 2)
    assert all(np.array_equal(x, before[name]) for name, x in weights(model).items())
    train(model, 2, 3)
    assert all((x != before[name]).any() for name, x in weights(model).items())


@pytest.mark.usefixtures("eager_steps")
def test_accumulated_batches_are_one_large_batch():
    small = compiled(FinetuneOptimizerConfig(**QUICK, accumulate=3), 6)
    large = compiled(FinetuneOptimizerConfig(**QUICK), 2)
    put(large, weights(small))
    train(small, 0, 6)
    for step in range(2):
        parts = [batch(3 * step + i) for i in range(3)]
        ids = np.concatenate([x["token_ids"] for x, _ in parts])
        large.train_on_batch({"token_ids": ids}, np.concatenate([y for _, y in parts]))
    for name, array in weights(small).items():
        assert np.abs(array - weights(large)[name]).max() < 2e-5, name


@pytest.mark.quick_cases("0.5-2", "0.9-1")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("memory", [0.5, 0.9])
@pytest.mark.slow
def test_averages_remember_steps(accumulate, memory):
    """From the tenth step on no more than 0.5; 0.9 is not reached by then."""
    model = new_model()
    config = FinetuneOptimizerConfig(learning_rate=0.1, ema=memory, accumulate=accumulate)
    steps = 12 if memory == 0.5 else 6
    optimizer = make_finetune_optimizer(config, model, steps * accumulate)
    average = [numpy(v).astype("float64") for v in model.trainable_variables]
    for step in range(steps):
        for gradient in random_gradients(model, accumulate, seed=step):
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradient])
        kept = min(memory, step / (step + 9))
        for i, v in enumerate(model.trainable_variables):
            average[i] = kept * average[i] + (1 - kept) * numpy(v)
    for got, want in zip(optimizer.ema_weights, average, strict=True):
        assert np.abs(numpy(got) - want).max() < 2e-6


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_averaged_weights_are_there_for_a_while_and_fit_leaves_the_others():
    model = compiled(FinetuneOptimizerConfig(**QUICK, ema=0.9), 4)
    with ema_weights(model):  # before the first step they are the weights
        begun = weights(model)
    assert all(np.array_equal(x, begun[name]) for name, x in weights(model).items())
    within = {}

    def look(step, logs):
        with ema_weights(model):
            within[step] = weights(model)

    batches = (batch(step) for step in range(4))
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    model.fit(batches, steps_per_epoch=4, verbose=0, callbacks=[watch])
    twin = compiled(FinetuneOptimizerConfig(**QUICK, ema=0.9), 4)
    put(twin, begun)
    for average, v in zip(twin.optimizer.ema_weights, twin.trainable_variables, strict=True):
        average.assign(v)
    for step in range(4):
        train(twin, step, step + 1)
        with ema_weights(twin):
            assert all(np.array_equal(x, within[step][n]) for n, x in weights(twin).items())
    last = weights(model)
    assert all(np.array_equal(x, last[name]) for name, x in weights(twin).items())
    assert any((x != within[3][name]).any() for name, x in last.items())


@pytest.mark.usefixtures("eager_steps")
def test_weights_are_put_back_when_an_evaluation_fails():
    model = compiled(FinetuneOptimizerConfig(**QUICK, ema=0.9), 6)
    train(model, 0, 2)
    before = weights(model)

    def evaluate():
        with ema_weights(model):
            assert any((x != before[name]).any() for name, x in weights(model).items())
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        evaluate()
    assert all(np.array_equal(x, before[name]) for name, x in weights(model).items())


def test_without_averages_nothing_changes_places():
    model = compiled(FinetuneOptimizerConfig(**QUICK), 6)
    assert not model.optimizer.ema_weights
    before = weights(model)
    with ema_weights(model):
        assert all(np.array_equal(x, before[name]) for name, x in weights(model).items())


ONE_BY_ONE = {
    "plain": ({}, {}),
    "layer_decay": ({"layer_decay": 0.5}, {}),
    "accumulate": ({"accumulate": 2}, {}),
    "ema": ({"ema": 0.9}, {}),
    "r_drop": ({}, {"r_drop": 1.0}),
    "fgm": ({}, {"fgm": 0.5}),
}
TOGETHER = ({"layer_decay": 0.5, "accumulate": 2, "ema": 0.9}, {"r_drop": 1.0, "fgm": 0.5})
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        pytest.param(*TOGETHER, id="together"),
        *(pytest.param(*run, id=name, marks=pytest.mark.slow) for name, run in ONE_BY_ONE.items()),
    ],
)
def test_a_restored_run_goes_on_bit_for_bit(settings, objective, tmp_path):
    """Saved after an odd step: half of an accumulated one is in the checkpoint."""
    config, objective = FinetuneOptimizerConfig(**QUICK | settings), LossConfig(**objective)
    model = compiled(config, 6, objective, **DROPOUT)
    train(model, 0, 3)
    checkpoint = save_checkpoint(tmp_path, RunState(3, "rows"), model, keep=1)
    other = compiled(config, 6, objective, **DROPOUT)
    assert restore_checkpoint(checkpoint, other) == RunState(3, "rows")
    for m in (model, other):
        train(m, 3, 6)
    with ema_weights(model), ema_weights(other):
        for name, array in weights(model).items():
            assert np.array_equal(weights(other)[name], array), name
    for name, array in weights(model).items():
        assert np.array_equal(weights(other)[name], array), name
    assert float(other.metrics[0].result()) == float(model.metrics[0].result())


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0},
        {"learning_rate": float("inf")},
        {"learning_rate": float("nan")},
        {"layer_decay": 0},
        {"layer_decay": 1.1},
        {"layer_decay": float("nan")},
        {"warmup": 1},
        {"beta_2": -0.1},
        {"weight_decay": -1},
        {"clip_norm": 0},
        {"accumulate": 0},
        {"ema": 1.0},
        {"ema": -0.1},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        FinetuneOptimizerConfig(**wrong)
