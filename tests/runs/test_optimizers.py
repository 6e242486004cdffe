import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels.adam import AdamW
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.losses import MaskedTokenLoss
from roformer_tf.runs.optimizers.adamw import EmaAdamW, LayerwiseAdamW
from roformer_tf.runs.optimizers.factory import make_finetune_optimizer, make_optimizer
from roformer_tf.runs.optimizers.lamb import Lamb
from roformer_tf.runs.optimizers.muon import Muon, as_matrix, orthogonal
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig, OptimizerConfig
from roformer_tf.runs.schedules import WarmupDecay

CONSTANT = OptimizerConfig(learning_rate=0.5, warmup=0.0, weight_decay=0.1, clip_norm=1e9)
LONG = 10**9  # steps: the learning rate of the first ones is the highest


def numpy(variable):
    return keras.ops.convert_to_numpy(variable).astype("float64")


def variable(value):
    return keras.Variable(np.array(value, "float32"), name="kernel")


@pytest.fixture(scope="module")
def model():
    """With a projection of the embeddings, so that every kind of weight is there."""
    return RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=20,
            hidden_size=8,
            embedding_size=4,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )


def test_without_gradients_all_and_only_kernels_and_embeddings_shrink(model):
    names = model.named_variables()
    for v in names.values():
        v.assign(np.ones(v.shape))
    optimizer = make_optimizer(CONSTANT, model.trainable_variables, LONG)
    optimizer.apply([np.zeros(v.shape, "float32") for v in model.trainable_variables])
    shrunk = {name for name, v in names.items() if (numpy(v) != 1).any()}
    kept = {name for name, v in names.items() if (numpy(v) == 1).all()}
    assert shrunk | kept == set(names)
    assert {name.rsplit("/", 1)[1] for name in shrunk} == {"kernel", "embeddings"}
    assert {name.rsplit("/", 1)[1] for name in kept} == {"gamma", "beta", "bias"}
    for name in shrunk:  # decoupled: learning rate × decay, whatever the gradients
        assert numpy(names[name]) == pytest.approx(1 - 0.5 * 0.1)


def test_what_keras_would_exclude_by_the_layers_name_is_nothing(model):
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["norm", "LayerNorm"])
    optimizer.build(model.trainable_variables)
    assert all(optimizer._use_weight_decay(v) for v in model.trainable_variables)


def reference_steps(weights, gradients, rates, *, decay, beta_2, clip):
    """AdamW in float64 (Loshchilov and Hutter), gradients clipped together before.

    ε stands where the last lines of Kingma and Ba's section 2 have it.
    """
    weights = [w.astype("float64") for w in weights]
    m, v = [0 * w for w in weights], [0 * w for w in weights]
    for t, rate in enumerate(rates, 1):
        norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients))
        for i, gradient in enumerate(gradients):
            g = gradient.astype("float64") * min(1, clip / norm)
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g**2
            step = np.sqrt(1 - beta_2**t) / (1 - 0.9**t) * m[i] / (np.sqrt(v[i]) + 1e-6)
            weights[i] = weights[i] * (1 - rate * decay) - rate * step
    return weights


@pytest.mark.parametrize("scale", [0.01, 100.0], ids=["short gradients", "clipped gradients"])
def test_steps_equal_those_of_the_paper(scale):
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype("float32") for shape in [(3, 4), (5,)]]
    gradients = [(scale * rng.normal(size=w.shape)).astype("float32") for w in start]
    config = OptimizerConfig(learning_rate=0.1, warmup=0.25, weight_decay=0.1, clip_norm=1.0)
    variables = [variable(w) for w in start]
    optimizer = make_optimizer(config, variables, steps=8)
    for _ in range(4):
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    rates = [0.05, 0.1, 0.1, 0.1 * 5 / 6]
    want = reference_steps(start, gradients, rates, decay=0.1, beta_2=0.98, clip=1.0)
    for got, expected in zip(variables, want, strict=True):
        assert np.abs(numpy(got) - expected).max() < 2e-6


def lamb_steps(weights, gradients, rates, *, decay, beta_2):
    """LAMB in float64, algorithm 2 of You et al.; what stands last is no matrix."""
    weights = [w.astype("float64") for w in weights]
    m, v = [0 * w for w in weights], [0 * w for w in weights]
    for t, rate in enumerate(rates, 1):
        for i, gradient in enumerate(gradients):
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = beta_2 * v[i] + (1 - beta_2) * gradient**2
            r = m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - beta_2**t)) + 1e-6)
            if i < len(gradients) - 1:
                r = r + decay * weights[i]
                lengths = np.linalg.norm(weights[i]), np.linalg.norm(r)
                r = r * (lengths[0] / lengths[1] if all(lengths) else 1)
            weights[i] = weights[i] - rate * r
    return weights


def test_lamb_equals_its_paper_and_not_keras():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (2, 2, 3), (5,)]
    start = [rng.normal(size=shape).astype("float32") for shape in shapes]
    start[1][:] = 0  # its first step has the ratio 1
    gradients = [(1e-3 * rng.normal(size=w.shape)).astype("float32") for w in start]
    variables = [variable(w) for w in start[:2]] + [keras.Variable(start[2], name="gamma")]
    config = OptimizerConfig(
        "lamb", learning_rate=0.1, warmup=0.25, weight_decay=0.3, clip_norm=1e9
    )
    optimizer = make_optimizer(config, variables, steps=8)
    for _ in range(4):
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    rates = [0.05, 0.1, 0.1, 0.1 * 5 / 6]
    want = lamb_steps(start, gradients, rates, decay=0.3, beta_2=0.98)
    for got, expected in zip(variables, want, strict=True):
        assert np.abs(numpy(got) - expected).max() < 2e-6
    theirs = keras.optimizers.Lamb(0.1, beta_2=0.98, epsilon=1e-6, weight_decay=0.3)
    other = [variable(start[0])]
    theirs.build(other)
    theirs.apply([keras.ops.convert_to_tensor(gradients[0])], other)
    once = lamb_steps(start, gradients, [0.1], decay=0.3, beta_2=0.98)[0]
    assert np.abs(numpy(other[0]) - once).max() > 1e-3


def test_the_rate_may_fall_along_a_cosine_or_only_at_the_end():
    def rates(**settings):
        config = OptimizerConfig(learning_rate=2.0, warmup=0.1, **settings)
        optimizer = make_optimizer(config, [variable([1.0])], steps=20)
        return [float(optimizer._learning_rate(step)) for step in range(21)]

    steps = np.arange(2, 21)
    cosine = 1 + np.cos(np.pi * (steps - 2) / 18)
    np.testing.assert_allclose(rates(schedule="cosine"), [1.0, 2.0, *cosine], atol=1e-6)
    stable = [1.0, *[2.0] * 15, 2.0, 1.5, 1.0, 0.5, 0.0]
    np.testing.assert_allclose(rates(schedule="wsd", decay_share=0.2), stable, atol=1e-6)
    np.testing.assert_allclose(rates(), [1.0, 2.0, *np.linspace(2, 0, 19)], atol=1e-6)


def test_a_warm_up_and_a_decay_longer_than_the_run_are_refused():
    with pytest.raises(
        InputError, match=r"warmup and decay_share are 0\.6 and 0\.5, together more than all steps"
    ):
        OptimizerConfig(schedule="wsd", warmup=0.6, decay_share=0.5)


@pytest.mark.parametrize("shape", [(6, 6), (5, 12), (12, 5)])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_orthogonal_keeps_the_directions_and_evens_out_the_lengths(shape, dtype, bound):
    rng = np.random.default_rng(0)
    u, _ = np.linalg.qr(rng.normal(size=(shape[0], min(shape))))
    v, _ = np.linalg.qr(rng.normal(size=(shape[1], min(shape))))
    lengths = np.geomspace(3.0, 0.1, min(shape))
    matrix = ((u * lengths) @ v.T).astype("float32")
    got = keras.ops.convert_to_numpy(orthogonal(keras.ops.convert_to_tensor(matrix), dtype))
    assert got.dtype == np.float32
    inside = u.T @ got.astype("float64") @ v
    assert np.abs(inside - np.diag(np.diag(inside))).max() < bound
    assert (np.diag(inside) > 0.65).all()
    assert (np.diag(inside) < 1.25).all()


def test_a_kernel_with_an_axis_of_heads_is_the_matrix_that_it_multiplies_with(model):
    kernels = {
        name.rsplit("/", 2)[1]: np.random.default_rng(0).normal(size=v.shape)
        for name, v in model.named_variables().items()
        if "/attention/" in name and name.endswith("kernel")
    }
    x = np.random.default_rng(1).normal(size=(3, 8))
    for name in ("query", "key", "value"):
        heads = np.einsum("bd,dnh->bnh", x, kernels[name])
        product = x @ keras.ops.convert_to_numpy(as_matrix(kernels[name]))
        assert np.abs(product - heads.reshape(3, 8)).max() < 1e-6
    whole = np.einsum("bnh,nhd->bd", x.reshape(3, 2, 4), kernels["attention_output"])
    product = x @ keras.ops.convert_to_numpy(as_matrix(kernels["attention_output"]))
    assert np.abs(product - whole).max() < 1e-6
    assert as_matrix(np.zeros((8, 16))).shape == (8, 16)


def test_muon_moves_kernels_along_their_momentum_and_all_else_as_adamw_does(model):
    rng = np.random.default_rng(0)
    variables = model.trainable_variables
    names = {id(v): name for name, v in model.named_variables().items()}
    start = [0.1 * rng.normal(size=v.shape).astype("float32") for v in variables]
    gradients = [[1e-3 * rng.normal(size=v.shape) for v in variables] for _ in range(3)]
    after = {}
    for algorithm in ("adamw", "muon"):
        for v, value in zip(variables, start, strict=True):
            v.assign(value)
        config = OptimizerConfig(
            algorithm, muon_learning_rate_scale=3.0, learning_rate=0.01, warmup=0.0
        )
        optimizer = make_optimizer(config, variables, LONG)
        for step in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in step])
        after[algorithm] = [numpy(v) for v in variables]
    slots = {v.path.rsplit("_", 1)[1] for v in optimizer.variables if "kernel" in v.path}
    assert slots == {"momentum"}
    for i, v in enumerate(variables):
        if v.name != "kernel":
            assert np.array_equal(after["muon"][i], after["adamw"][i]), names[id(v)]
            continue
        weight, momentum = start[i].astype("float64"), 0.0
        for step in gradients:
            momentum = 0.95 * momentum + step[i]
            ahead = numpy(as_matrix((step[i] + 0.95 * momentum).astype("float32")))
            x = ahead / np.linalg.norm(ahead)
            for _ in range(5):  # as printed: a x + b (x xᵀ) x + c (x xᵀ)² x
                square = x @ x.T
                x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
            scale = 0.01 * 3.0 * 0.2 * max(ahead.shape) ** 0.5
            weight = weight * (1 - 0.01 * 0.01) - scale * x.reshape(v.shape)
        assert np.abs(after["muon"][i] - weight).max() < 1e-4, names[id(v)]


def test_clipping_scales_all_gradients_by_one_number_before_the_update():
    """Adam forgets a gradient's length at once, so its memory has to tell."""
    gradients = [np.array([3.0, 0.0], "float32"), np.array([4.0], "float32")]  # 5 long
    variables = [variable([0.0, 0.0]), variable([0.0])]
    optimizer = make_optimizer(OptimizerConfig(clip_norm=1.0), variables, LONG)
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    momenta = [numpy(v) for v in optimizer.variables if "momentum" in v.path]
    assert np.concatenate(momenta) == pytest.approx(0.1 * np.array([3, 0, 4]) / 5)


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (0, 1 / 10),  # the first step moves
        (1, 2 / 10),
        (8, 9 / 10),
        (9, 1.0),
        (10, 1.0),
        (11, 89 / 90),
        (55, 0.5),
        (98, 2 / 90),
        (99, 1 / 90),  # and so does the last
        (100, 0.0),
        (150, 0.0),
    ],
)
def test_the_learning_rate_rises_and_falls_linearly(step, share):
    schedule = WarmupDecay(3e-4, 10, 100)
    assert float(schedule(step)) == pytest.approx(3e-4 * share, rel=1e-6)


def test_without_warm_up_the_first_step_is_the_highest():
    rates = [float(WarmupDecay(1.0, 0, 4)(step)) for step in range(5)]
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_a_run_of_one_step_moves():
    assert float(WarmupDecay(1.0, 0, 1)(0)) == 1
    assert float(WarmupDecay(1.0, 1, 1)(0)) == 1


def test_warm_up_is_a_share_of_the_steps():
    optimizer = make_optimizer(OptimizerConfig(warmup=0.2), [variable([0.0])], 50)
    schedule = optimizer._learning_rate
    assert (schedule.peak, schedule.warmup_steps, schedule.total_steps) == (1e-4, 10, 50)


def test_the_schedule_survives_serialization():
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(WarmupDecay(1.0, 2, 10))
    )
    assert [float(again(s)) for s in range(11)] == [
        float(WarmupDecay(1.0, 2, 10)(s)) for s in range(11)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"clip_norm": -1},
        {"warmup": 1},
        {"warmup": -0.1},
        {"beta_2": 1.5},
        {"weight_decay": -0.1},
        {"weight_decay": float("inf")},
        {"muon_learning_rate_scale": 0},
        {"muon_learning_rate_scale": float("inf")},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        OptimizerConfig(**wrong)


@pytest.mark.parametrize("algorithm", ["adamw", "lamb", "muon", "layerwise"])
def test_a_keras_file_holds_it_whole_and_training_continues(algorithm, tmp_path):
    """The rate's place on its way, moments, averages, and which weights decay, by how much."""
    keras.utils.set_random_seed(3)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = RoFormerForMaskedLM(RoFormerConfig(**sizes, **quiet, intermediate_size=16))
    settings = {"learning_rate": 0.05, "warmup": 0.3, "weight_decay": 0.5, "ema": 0.9}
    if algorithm == "layerwise":
        config = FinetuneOptimizerConfig(layer_decay=0.5, accumulate=2, **settings)
        optimizer = make_finetune_optimizer(config, model, 20)
    else:
        optimizer = make_optimizer(
            OptimizerConfig(algorithm, **settings), model.trainable_variables, 10
        )
    model.compile(optimizer, MaskedTokenLoss(), run_eagerly=True)  # nothing to trace twice
    rows = {"token_ids": np.random.default_rng(0).integers(1, 20, (3, 5)).astype("int32")}
    model.fit(rows, rows["token_ids"], epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(optimizer)
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for one in (model, loaded):
        one.fit(rows, rows["token_ids"], epochs=3, verbose=0)
    for mine, others in ((model, loaded), (model.optimizer, loaded.optimizer)):
        for one, other in zip(mine.variables, others.variables, strict=True):
            np.testing.assert_array_equal(numpy(one), numpy(other), err_msg=one.path)
    assert all((numpy(average) != 0).any() for average in loaded.optimizer.ema_weights)


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (AdamW, {}),
        (EmaAdamW, {}),
        (LayerwiseAdamW, {"scales": [1.0]}),
        (Lamb, {}),
        (Muon, {"matrix_rate": 1.0, "product_dtype": "float32"}),
    ],
)
def test_amsgrad_is_refused(cls, settings):
    with pytest.raises(InputError, match=rf"{cls.__name__} has no amsgrad"):
        cls(0.1, amsgrad=True, **settings)
    assert cls(0.1, amsgrad=False, **settings).amsgrad is False


@pytest.mark.parametrize(("dtype", "ulp"), [("bfloat16", 2**-8), ("float16", 2**-11)])
@pytest.mark.parametrize("algorithm", ["adamw", "lamb", "muon"])
def test_of_weights_of_16_bits_all_else_is_float32(algorithm, dtype, ulp):
    """In bfloat16 a memory of 0.999 is 1; squares of 1e-5 are 0 in float16."""
    config = OptimizerConfig(algorithm, learning_rate=0.1, warmup=0.0, beta_2=0.999, ema=0.9)
    start, slope = np.array([[1.0, -2.0], [0.5, 3.0]]), 1e-5 * np.array([[1.0, -2.0], [3.0, 4.0]])
    after = {}
    for kind in ("float32", dtype):
        names = ("kernel", "embeddings")
        weights = [keras.Variable(start, dtype=kind, name=name) for name in names]
        optimizer = make_optimizer(config, weights, LONG)
        for _ in range(3):
            optimizer.apply([keras.ops.convert_to_tensor(slope, kind) for _ in weights])
        after[kind] = [
            numpy(keras.ops.cast(v, "float32")) for v in [*weights, *optimizer.ema_weights]
        ]
    slots = [v for v in optimizer.variables if v is not optimizer._iterations]
    assert {keras.backend.standardize_dtype(v.dtype) for v in slots} == {"float32"}
    for got, want in zip(after[dtype], after["float32"], strict=True):
        assert np.abs(want - start).max() > 0.01
        np.testing.assert_allclose(got, want, rtol=0, atol=3 * 3 * ulp)  # 3 steps, weights to 4


def test_averages_in_float64_are_float64():
    weight = keras.Variable(np.array([1.0, 2.0]), dtype="float64", name="kernel")
    optimizer = make_optimizer(OptimizerConfig(ema=0.9), [weight], LONG)
    optimizer.apply([keras.ops.convert_to_tensor([1.0, 1.0], weight.dtype)])
    assert optimizer.ema_weights[0].dtype == weight.dtype
    np.testing.assert_array_equal(numpy(optimizer.ema_weights[0]), numpy(weight))  # at first
