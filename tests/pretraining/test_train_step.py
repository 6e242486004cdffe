import time
from contextlib import nullcontext

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining import train_step as steps
from roformer_tf.pretraining.settings import StepConfig
from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
from roformer_tf.training.fitting import StepLog
from roformer_tf.training.optimizers import make_optimizer
from roformer_tf.training.run_files import metrics_file, read_metrics
from roformer_tf.training.settings import OptimizerConfig

ROWS, LENGTH, PREDICTIONS, VOCABULARY = 8, 12, 3, 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CLIP = 0.5


def compiled(settings=None, *, own_step=True, optimizer="adamw", clip=CLIP, rate=1e-3, **changes):
    """Return a compiled model of seed 0 with our train step or Keras'."""
    keras.utils.set_random_seed(0)
    model = RoFormerForMaskedLM(RoFormerConfig(**SIZES | changes))
    if optimizer == "sgd":  # the update is the gradient itself, so rounding errors stay small
        result = keras.optimizers.SGD(0.1, global_clipnorm=clip)
        result.build(model.trainable_variables)
    else:
        config = OptimizerConfig(optimizer, learning_rate=rate, clip_norm=clip, warmup=0)
        result = make_optimizer(config, model.trainable_variables, 1000)
    trained = PretrainingModel(model, settings or StepConfig()) if own_step else model
    trained.compile(result, MaskedTokenLoss())
    return trained


def batch(number, rows=ROWS):
    """Return a batch of rows with 0 to 3 predictions each."""
    rng = np.random.default_rng(number)
    labels = rng.integers(5, VOCABULARY, (rows, PREDICTIONS)).astype("int32")
    inputs = {
        "token_ids": rng.integers(5, VOCABULARY, (rows, LENGTH)).astype("int32"),
        "masked_positions": np.tile(np.int32([1, 4, 7]), (rows, 1)),
        "labels": labels,
    }
    used = np.arange(PREDICTIONS) < rng.integers(0, PREDICTIONS + 1, (rows, 1))
    return inputs, labels, used.astype("float32")


def train(model, *batches):
    """Train on batches and return the logs of each step."""
    logs = []
    for x, y, weights in batches:
        step = model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
        logs.append({name: float(value) for name, value in step.items()})
    return logs


def weights_of(model):
    return {name: keras.ops.convert_to_numpy(v) for name, v in model.named_variables().items()}


def state_of(model):
    """Return the weights and the optimizer's state, except its step counter."""
    slots = [v for v in model.optimizer.variables if v is not model.optimizer.iterations]
    return [*weights_of(model).values(), *map(keras.ops.convert_to_numpy, slots)]


def batch_with_weight(number, value=np.nan):
    """Return a batch with one weight that makes the loss NaN or infinite."""
    inputs, labels, weights = batch(number)
    weights[3, 1] = value
    return inputs, labels, weights


def same_weights(model, other):
    want = weights_of(other)
    for name, array in weights_of(model).items():
        np.testing.assert_allclose(array, want[name], atol=1e-6, err_msg=name)
    return True


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("lamb", marks=pytest.mark.slow)])
def test_our_step_equals_keras_step(optimizer):
    """Without clipping, our step equals Keras' step.

    Clipping is off (clip=1e9), because Keras on TensorFlow clips the embedding's sparse gradient
    before summing the contributions of repeated rows.
    """
    our_model, keras_model = (
        compiled(own_step=own, optimizer=optimizer, clip=1e9) for own in (True, False)
    )
    batches = [batch(number) for number in range(3)]
    for step, (x, y, weights) in zip(train(our_model, *batches), batches, strict=True):
        want = keras_model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
        assert step["loss"] == pytest.approx(float(want["loss"]), rel=2e-5)
    assert optimizer != "sgd" or same_weights(our_model, keras_model)


@pytest.mark.usefixtures("eager_steps")
def test_a_step_does_not_depend_on_keras_default_float():
    (want,), usual = train(compiled(optimizer="sgd"), batch(3)), keras.config.floatx()
    keras.config.set_floatx("float64")  # the dtype of Keras' losses
    try:
        (got,) = train(compiled(optimizer="sgd"), batch(3))
    finally:
        keras.config.set_floatx(usual)
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.usefixtures("eager_steps")
def test_the_gradient_is_clipped_by_its_norm_over_all_weights():
    start, free, clipped = (compiled(optimizer="sgd", clip=clip) for clip in (1e9, 1e9, CLIP))
    norm = train(free, batch(3))[0]["gradient_norm"]
    assert train(clipped, batch(3))[0]["gradient_norm"] == pytest.approx(norm, rel=1e-6)
    before, far, near = map(weights_of, (start, free, clipped))
    moved = np.sqrt(sum(np.square(far[n] - before[n], dtype="float64").sum() for n in before))
    assert moved == pytest.approx(0.1 * norm, rel=1e-4)  # 0.1 is the learning rate
    assert norm > 2 * CLIP
    for name, array in near.items():
        want = (far[name] - before[name]) * CLIP / norm
        np.testing.assert_allclose(array - before[name], want, atol=1e-6, err_msg=name)


@pytest.mark.quick_cases("2-sgd")
@pytest.mark.parametrize(
    ("micro_batches", "optimizer"), [(2, "sgd"), (8, "sgd"), (4, "adamw"), (4, "lamb")]
)
def test_micro_batches_equal_the_whole_batch(optimizer, micro_batches, eagerly):
    """Micro-batches give the result of the whole batch.

    They have unequal numbers of predictions, some have none.
    """
    full, accumulated = (
        compiled(optimizer=optimizer),
        compiled(StepConfig(accumulate=micro_batches), optimizer=optimizer),
    )
    traced = micro_batches == 2
    batches = [batch(number) for number in range(3 if traced else 2)]
    with nullcontext() if traced else eagerly():
        actual = train(accumulated, *batches)
    with eagerly():
        expected = train(full, *batches)
    for got, want in zip(actual, expected, strict=True):
        assert got == pytest.approx(want, rel=2e-5)
    assert optimizer != "sgd" or same_weights(accumulated, full)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_averaging_means_of_micro_batches_gives_another_loss(monkeypatch):
    """Averaging the means of micro-batches gives another loss, so the test above is sensitive."""
    full, accumulated = compiled(), compiled(StepConfig(accumulate=4))
    monkeypatch.setattr(
        steps, "_normalized", lambda data: keras.utils.unpack_x_y_sample_weight(data)
    )
    wrong = train(accumulated, batch(0))[0]["loss"] / 4
    monkeypatch.undo()
    assert abs(wrong - train(full, batch(0))[0]["loss"]) > 1e-3


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_each_micro_batch_has_its_own_dropout():
    """The seed generators advance once for each micro-batch."""

    def drawn(micro_batches):
        model = compiled(StepConfig(accumulate=micro_batches), hidden_dropout_prob=0.5)
        states = [v for v in model.variables if v.path.endswith("seed_generator_state")]
        before = [keras.ops.convert_to_numpy(v).astype(int) for v in states]
        train(model, batch(0))
        after = [keras.ops.convert_to_numpy(v).astype(int) for v in states]
        return [(new - old)[1] for old, new in zip(before, after, strict=True)]

    assert set(drawn(1)) == {1}
    assert set(drawn(4)) == {4}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_loss_and_gradient_must_be_finite(value):
    model = compiled()
    for loss_and_norm, expected in (
        ((1.0, 1.0), True),
        ((value, 1.0), False),
        ((1.0, value), False),
    ):
        good, _ = model._check(*map(keras.ops.convert_to_tensor, loss_and_norm))
        assert bool(good) == expected


@pytest.mark.quick_cases("inf")  # the spike test below covers the traced step
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_batch_without_a_finite_loss_is_skipped(value, request):
    if np.isinf(value):
        request.getfixturevalue("eager_steps")
    model, unharmed = compiled(), compiled()
    train(model, batch(0), batch(1))
    before = state_of(model)
    assert train(model, batch_with_weight(2, value))[0]["skipped"] == 1
    for old, new in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(model.optimizer.iterations) == 3  # the schedule also counts skipped steps
    assert train(model, batch_with_weight(2, value), batch_with_weight(2, value))[1]["skipped"] == 3
    assert train(model, batch(3))[0]["skipped"] == 0

    train(unharmed, batch(0), batch(1))
    unharmed.optimizer.iterations.assign(5)
    train(unharmed, batch(3))
    for old, new in zip(state_of(unharmed), state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.usefixtures("eager_steps")
def test_the_mean_loss_excludes_skipped_steps():
    model, unharmed = compiled(), compiled()

    def fit_loss(model, *batches):
        (loss,) = model.fit((x for x in batches), steps_per_epoch=len(batches), verbose=0).history[
            "loss"
        ]
        return loss

    good = [fit_loss(unharmed, batch(0)), fit_loss(unharmed, batch(1))]
    assert fit_loss(model, batch(0), batch_with_weight(5), batch(1)) == pytest.approx(
        np.mean(good), rel=1e-6
    )


def test_a_spike_is_skipped_after_enough_losses(monkeypatch):
    monkeypatch.setattr(steps, "SETTLED", 30)
    model = compiled(StepConfig(spike_factor=2.0), rate=0.05)
    x, _, weights = batch(0)
    weights = np.ones_like(weights)
    easy = np.full((ROWS, PREDICTIONS), 7, "int32")
    hard = np.full((ROWS, PREDICTIONS), 9, "int32")
    good, bad = (({**x, "labels": y}, y, weights) for y in (easy, hard))
    assert train(model, bad)[0]["skipped"] == 0  # no earlier loss to compare with
    logs = train(model, *[good] * 60)
    assert {step["skipped"] for step in logs} == {0}
    before = state_of(model)
    assert train(model, bad)[0]["skipped"] == 1
    for old, new in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)
    model.forget_usual_loss()
    assert train(model, bad)[0]["skipped"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 0}, "accumulate is 0"),
        ({"max_skipped": 0}, "max_skipped is 0"),
        ({"spike_factor": 1.0}, "spike_factor is 1, but must be above 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        StepConfig(**settings)


@pytest.mark.slow
def test_the_share_of_time_spent_waiting_for_batches_is_reported(tmp_path):
    model = compiled()
    assert model.waited == 0

    def batches(pause):
        while True:
            time.sleep(pause)
            yield batch(0)

    def waiting_share(name, pause, count):
        with (
            metrics_file(tmp_path / name, resumed_at=0, board="training") as lines,
            StepLog(
                lines, every=count, start=0, last=count, tokens_per_step=96, uniform_loss=4.0
            ) as log,
        ):
            model.fit(batches(pause), steps_per_epoch=count, callbacks=[log], verbose=0)
        return read_metrics(tmp_path / name)[0]["waiting"]

    began = time.perf_counter()
    waiting_share("instant", 0, 3)
    assert 0 < model.waited < (time.perf_counter() - began) / 2  # compilation took most of it
    assert waiting_share("slow", 0.2, 6) > 0.5


def test_in_bfloat16_the_optimizer_state_is_float32():
    model = mixed()
    state_dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.optimizer.variables}
    # The integer is the step counter.
    assert state_dtypes == {"float32", "int32"} or state_dtypes == {"float32", "int64"}
    weight_dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.trainable_variables}
    assert weight_dtypes == {"float32"}


def mixed():
    """Return a model in mixed bfloat16 with a built optimizer."""
    result = RoFormerForMaskedLM(RoFormerConfig(**SIZES), dtype="mixed_bfloat16")
    optimizer = make_optimizer(OptimizerConfig(), result.trainable_variables, 10, "bfloat16")
    trained = PretrainingModel(result, StepConfig())
    trained.compile(optimizer, MaskedTokenLoss())
    return trained


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX shows what a step does")
def test_a_step_casts_each_weight_once():
    import jax

    model = mixed()
    x, y, weights = batch(0)
    groups = (model.trainable_variables, model.non_trainable_variables)
    groups += (model.optimizer.variables, model.metrics_variables)
    state = tuple([v.value for v in group] for group in groups)
    step = jax.make_jaxpr(model.train_step)(state, (x, y, weights)).jaxpr
    casts = {}

    def count(inner, names):
        """Count the casts of the variables in `names`, also inside called functions."""
        for operation in inner.eqns:
            arguments = operation.invars
            cast = operation.primitive.name == "convert_element_type" and id(arguments[0]) in names
            if cast and operation.params["new_dtype"] == "bfloat16":
                name = names[id(arguments[0])]
                casts[name] = casts.get(name, 0) + 1
            for item in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
                if item in operation.params:
                    called = getattr(operation.params[item], "jaxpr", operation.params[item])
                    pairs = zip(called.invars, arguments, strict=False)
                    count(called, {id(a): names[id(b)] for a, b in pairs if id(b) in names})

    weights_of_model = model.trainable_variables
    names = [v.path for v in weights_of_model]
    count(step, {id(v): name for v, name in zip(step.invars, names, strict=False)})
    kernels = {name for name in names if name.endswith("kernel") or "word" in name}
    assert kernels <= casts.keys()
    assert set(casts.values()) == {1}
