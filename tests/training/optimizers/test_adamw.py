"""Layer-wise learning rates, accumulation and weight averages, and exact resuming with them."""

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.finetuning.trainer import AdversarialModel, TaskLoss
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.training.checkpointing import restore_checkpoint, save_checkpoint
from roformer_tf.training.fitting import learning_rate
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
    """Return a new compiled model with random weights."""
    objective = objective or LossConfig()
    model = new_model(**changes)
    if objective.fgm:
        model = AdversarialModel(model, objective.fgm)
    optimizer = make_finetune_optimizer(config, model, batches)
    model.compile(optimizer, TaskLoss(Classification(), objective), jit_compile=False)
    return model


def batch(step, rows=4):
    """Return the rows of a step, duplicated for R-Drop."""
    rng = np.random.default_rng(step)
    ids, labels = rng.integers(1, 30, (rows, 6)), rng.integers(0, 3, rows)
    return {"token_ids": np.tile(ids, (2, 1)).astype("int32")}, np.tile(labels, 2).astype("int32")


def train(model, first, last):
    for step in range(first, last):
        model.train_on_batch(*batch(step))


def assign_weights(model, values):
    for name, variable in model.named_variables().items():
        variable.assign(values[name])


def test_lower_layers_have_smaller_learning_rates():
    names = list(new_model(num_hidden_layers=2).named_variables())
    scales = layer_scales(names, 0.5)
    assert set(scales) == set(names)
    weight_scales = {
        "classifier/": 1.0,
        "encoder/layer_1/": 0.5,
        "encoder/layer_0/": 0.25,
        "encoder/embeddings/": 0.125,
    }
    for name in names:
        [scale] = [scale for start, scale in weight_scales.items() if name.startswith(start)]
        assert scales[name] == scale, name
    assert len({scales[name] for name in names}) == 4


def test_layers_are_ordered_by_number():
    names = ["encoder/embeddings/x", *(f"encoder/layer_{i}/x" for i in range(12)), "classifier/x"]
    scales = layer_scales(names, 0.9)
    assert scales["encoder/layer_11/x"] == pytest.approx(0.9)
    assert scales["encoder/layer_2/x"] == pytest.approx(0.9**10)
    assert scales["encoder/layer_10/x"] == pytest.approx(0.9**2)
    assert scales["encoder/embeddings/x"] == pytest.approx(0.9**13)


def reference_steps(start, gradients, rates, decays, *, decay=0.01, clip=1.0):
    """Return the weights after each step of AdamW in float64.

    rates has a learning rate for each step; decays has (rate scale, decayed) for each weight.
    """
    w = [x.astype("float64") for x in start]
    m, v = [0 * x for x in w], [0 * x for x in w]
    weights_by_step = []
    for t, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), 1):
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        for i, g in enumerate(gradient):
            g, layer_rate = g * min(1, clip / norm), rate * decays[i][0]
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g**2
            shrunk = w[i] * (1 - layer_rate * decay * decays[i][1])
            step = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m[i] / (np.sqrt(v[i]) + 1e-6)
            w[i] = shrunk - layer_rate * step
        weights_by_step.append([x.copy() for x in w])
    return weights_by_step


def random_gradients(model, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=v.shape) for v in model.trainable_variables] for _ in range(steps)]


def weight_scales(model, layer_decay):
    """Return (rate scale, decayed) of each trainable weight."""
    names = {id(v): name for name, v in model.named_variables().items()}
    scales = layer_scales(names.values(), layer_decay)
    undecayed = ("gamma", "beta", "bias")
    return [(scales[names[id(v)]], v.name not in undecayed) for v in model.trainable_variables]


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_with_layerwise_rates_equal_the_papers(layer_decay, accumulate):
    """Steps equal the paper's with layer-wise rates and accumulation.

    Warm-up and decay count optimizer steps, not Keras' iterations. The mean gradient is clipped.
    """
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
    want = reference_steps(start, means, rates, weight_scales(model, layer_decay), decay=0.3)[-1]
    for got, expected in zip(model.trainable_variables, want, strict=True):
        assert np.abs(numpy(got) - expected).max() < 5e-6
    logged = [learning_rate(optimizer, batch) for batch in range(4 * accumulate)]
    assert logged == pytest.approx(np.repeat(rates, accumulate))


@pytest.mark.usefixtures("eager_steps")
def test_an_incomplete_accumulation_does_not_change_weights():
    model = compiled(FinetuneOptimizerConfig(**QUICK, accumulate=3), 30)
    before = weights(model)
    train(model, 0, 2)
    assert all(np.array_equal(x, before[name]) for name, x in weights(model).items())
    train(model, 2, 3)
    assert all((x != before[name]).any() for name, x in weights(model).items())


@pytest.mark.usefixtures("eager_steps")
def test_accumulated_batches_equal_one_large_batch():
    small = compiled(FinetuneOptimizerConfig(**QUICK, accumulate=3), 6)
    large = compiled(FinetuneOptimizerConfig(**QUICK), 2)
    assign_weights(large, weights(small))
    train(small, 0, 6)
    for step in range(2):
        parts = [batch(3 * step + i) for i in range(3)]
        ids = np.concatenate([x["token_ids"] for x, _ in parts])
        large.train_on_batch({"token_ids": ids}, np.concatenate([y for _, y in parts]))
    for name, array in weights(small).items():
        assert np.abs(array - weights(large)[name]).max() < 2e-5, name


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ema", [0.5, 0.9])
@pytest.mark.slow
def test_averages_decay_by_steps(accumulate, ema):
    """The average's decay is min(ema, step / (step + 9)).

    The limit 0.5 is reached within 12 steps; 0.9 would need 82 steps.
    """
    model = new_model()
    config = FinetuneOptimizerConfig(learning_rate=0.1, ema=ema, accumulate=accumulate)
    steps = 12 if ema == 0.5 else 6
    optimizer = make_finetune_optimizer(config, model, steps * accumulate)
    average = [numpy(v).astype("float64") for v in model.trainable_variables]
    for step in range(steps):
        for gradient in random_gradients(model, accumulate, seed=step):
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradient])
        decay = min(ema, step / (step + 9))
        for i, v in enumerate(model.trainable_variables):
            average[i] = decay * average[i] + (1 - decay) * numpy(v)
    for got, want in zip(optimizer.ema_weights, average, strict=True):
        assert np.abs(numpy(got) - want).max() < 2e-6


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_averaged_weights_are_swapped_in_and_out_during_fit():
    model = compiled(FinetuneOptimizerConfig(**QUICK, ema=0.9), 4)
    with ema_weights(model):  # before the first step, the averages equal the weights
        initial = weights(model)
    assert all(np.array_equal(x, initial[name]) for name, x in weights(model).items())
    averages = {}

    def record_averages(step, logs):
        with ema_weights(model):
            averages[step] = weights(model)

    batches = (batch(step) for step in range(4))
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=record_averages)
    model.fit(batches, steps_per_epoch=4, verbose=0, callbacks=[watch])
    twin = compiled(FinetuneOptimizerConfig(**QUICK, ema=0.9), 4)
    assign_weights(twin, initial)
    for average, v in zip(twin.optimizer.ema_weights, twin.trainable_variables, strict=True):
        average.assign(v)
    for step in range(4):
        train(twin, step, step + 1)
        with ema_weights(twin):
            assert all(np.array_equal(x, averages[step][n]) for n, x in weights(twin).items())
    last = weights(model)
    assert all(np.array_equal(x, last[name]) for name, x in weights(twin).items())
    assert any((x != averages[3][name]).any() for name, x in last.items())


@pytest.mark.usefixtures("eager_steps")
def test_weights_are_restored_if_an_evaluation_fails():
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


def test_without_averages_nothing_is_swapped():
    model = compiled(FinetuneOptimizerConfig(**QUICK), 6)
    assert not model.optimizer.ema_weights
    before = weights(model)
    with ema_weights(model):
        assert all(np.array_equal(x, before[name]) for name, x in weights(model).items())


SINGLE_SETTINGS = {
    "plain": ({}, {}),
    "layer_decay": ({"layer_decay": 0.5}, {}),
    "accumulate": ({"accumulate": 2}, {}),
    "ema": ({"ema": 0.9}, {}),
    "r_drop": ({}, {"r_drop": 1.0}),
    "fgm": ({}, {"fgm": 0.5}),
}
ALL_SETTINGS = ({"layer_decay": 0.5, "accumulate": 2, "ema": 0.9}, {"r_drop": 1.0, "fgm": 0.5})
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        pytest.param(*ALL_SETTINGS, id="together"),
        *(
            pytest.param(*run, id=name, marks=pytest.mark.slow)
            for name, run in SINGLE_SETTINGS.items()
        ),
    ],
)
def test_a_restored_run_continues_exactly(settings, objective, tmp_path):
    """A restored run continues exactly.

    It is saved after an odd step, so that with accumulation the checkpoint has half a step.
    """
    config, objective = FinetuneOptimizerConfig(**QUICK | settings), LossConfig(**objective)
    model = compiled(config, 6, objective, **DROPOUT)
    train(model, 0, 3)
    checkpoint = save_checkpoint(tmp_path, 3, "rows", model, keep=1)
    other = compiled(config, 6, objective, **DROPOUT)
    assert restore_checkpoint(checkpoint, other) == (3, "rows")
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
def test_invalid_values_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        FinetuneOptimizerConfig(**wrong)
