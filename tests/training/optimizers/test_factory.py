import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM, RoFormerForTokenClassification
from roformer_tf.pretraining.train_step import MaskedTokenLoss
from roformer_tf.training.optimizers import make_finetune_optimizer, make_optimizer
from roformer_tf.training.settings import FinetuneOptimizerConfig, OptimizerConfig

CONSTANT = OptimizerConfig(learning_rate=0.5, warmup=0.0, weight_decay=0.1, clip_norm=1e9)
LONG = 10**9  # steps, so that the learning rate of the first ones is the peak


def numpy(variable):
    return keras.ops.convert_to_numpy(variable).astype("float64")


def variable(value):
    return keras.Variable(np.array(value, "float32"), name="kernel")


@pytest.fixture(scope="module")
def model():
    """A model with every kind of weight, including a projection of the embeddings."""
    return RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=20,
            hidden_size=8,
            embedding_size=4,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )


def test_weight_decay_applies_only_to_kernels_and_embeddings(model):
    names = model.named_variables()
    for v in names.values():
        v.assign(np.ones(v.shape))
    optimizer = make_optimizer(CONSTANT, model.trainable_variables, LONG)
    optimizer.apply([np.zeros(v.shape, "float32") for v in model.trainable_variables])
    shrunk = {name for name, v in names.items() if (numpy(v) != 1).any()}
    unchanged = {name for name, v in names.items() if (numpy(v) == 1).all()}
    assert shrunk | unchanged == set(names)
    assert {name.rsplit("/", 1)[1] for name in shrunk} == {"kernel", "embeddings"}
    assert {name.rsplit("/", 1)[1] for name in unchanged} == {"gamma", "beta", "bias"}
    for name in shrunk:  # decoupled decay: learning rate × decay, independent of gradients
        assert numpy(names[name]) == pytest.approx(1 - 0.5 * 0.1)


def test_keras_excludes_no_weight_by_layer_name(model):
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["norm", "LayerNorm"])
    optimizer.build(model.trainable_variables)
    assert all(optimizer._use_weight_decay(v) for v in model.trainable_variables)


def reference_steps(weights, gradients, rates, *, decay, beta_2, clip):
    """AdamW in float64 (Loshchilov and Hutter) after clipping by the global norm.

    ε is added as at the end of section 2 of Kingma and Ba.
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
def test_steps_equal_the_papers(scale):
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


def test_cosine_and_wsd_schedules():
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


def test_clipping_scales_all_gradients_equally():
    """Clipping scales all gradients by the same factor.

    This is checked on the momenta, because Adam's update does not depend on the gradient's norm.
    """
    gradients = [np.array([3.0, 0.0], "float32"), np.array([4.0], "float32")]  # global norm 5
    variables = [variable([0.0, 0.0]), variable([0.0])]
    optimizer = make_optimizer(OptimizerConfig(clip_norm=1.0), variables, LONG)
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    momenta = [numpy(v) for v in optimizer.variables if "momentum" in v.path]
    assert np.concatenate(momenta) == pytest.approx(0.1 * np.array([3, 0, 4]) / 5)


def test_warmup_is_a_fraction_of_the_steps():
    optimizer = make_optimizer(OptimizerConfig(warmup=0.2), [variable([0.0])], 50)
    schedule = optimizer._learning_rate
    assert (schedule.peak, schedule.warmup_steps, schedule.total_steps) == (1e-4, 10, 50)


@pytest.mark.parametrize("algorithm", ["adamw", "lamb", "muon", "layerwise"])
@pytest.mark.slow
def test_a_keras_file_restores_the_whole_optimizer(algorithm, tmp_path):
    """A .keras file restores the schedule, moments, averages and weight decay.

    Training continues with identical results.
    """
    keras.utils.set_random_seed(3)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = RoFormerForMaskedLM(RoFormerConfig(**sizes, **no_dropout, intermediate_size=16))
    settings = {"learning_rate": 0.05, "warmup": 0.3, "weight_decay": 0.5, "ema": 0.9}
    if algorithm == "layerwise":
        config = FinetuneOptimizerConfig(layer_decay=0.5, accumulate=2, **settings)
        optimizer = make_finetune_optimizer(config, model, 20)
    else:
        optimizer = make_optimizer(
            OptimizerConfig(algorithm, **settings), model.trainable_variables, 10
        )
    model.compile(optimizer, MaskedTokenLoss(), run_eagerly=True)  # avoids two traces
    rows = {"token_ids": np.random.default_rng(0).integers(1, 20, (3, 5)).astype("int32")}
    model.fit(rows, rows["token_ids"], epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(optimizer)
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for item in (model, loaded):
        item.fit(rows, rows["token_ids"], epochs=2, verbose=0, shuffle=False)
    for original, restored in ((model, loaded), (model.optimizer, loaded.optimizer)):
        for item, other in zip(original.variables, restored.variables, strict=True):
            np.testing.assert_array_equal(numpy(item), numpy(other), err_msg=item.path)
    assert all((numpy(average) != 0).any() for average in loaded.optimizer.ema_weights)


def test_averages_in_float64_are_float64():
    weight = keras.Variable(np.array([1.0, 2.0]), dtype="float64", name="kernel")
    optimizer = make_optimizer(OptimizerConfig(ema=0.9), [weight], LONG)
    optimizer.apply([keras.ops.convert_to_tensor([1.0, 1.0], weight.dtype)])
    assert optimizer.ema_weights[0].dtype == weight.dtype
    # After the first step, the average equals the weight.
    np.testing.assert_array_equal(numpy(optimizer.ema_weights[0]), numpy(weight))


@pytest.mark.parametrize("rate", [1e-4, 1e-3])
def test_a_crf_has_its_own_learning_rate(model, rate):
    """The CRF has its own learning rate.

    Adam's first step equals the learning rate for any gradient, so it shows the rate.
    """
    tagger = RoFormerForTokenClassification(model.config.replace(num_labels=3, crf=True))
    names = tagger.named_variables()
    before = {name: numpy(v) for name, v in names.items()}
    config = FinetuneOptimizerConfig(
        learning_rate=rate, crf_learning_rate=0.02, warmup=0.0, clip_norm=1e9, weight_decay=0.0
    )
    optimizer = make_finetune_optimizer(config, tagger, LONG)
    optimizer.apply([np.ones(v.shape, "float32") for v in tagger.trainable_variables])
    moved = {name: before[name] - numpy(v) for name, v in names.items()}
    for name in ("start_transitions", "transitions", "end_transitions"):
        np.testing.assert_allclose(moved[f"crf/{name}"], 0.02, rtol=1e-4)
    np.testing.assert_allclose(moved["token_classifier/bias"], rate, rtol=1e-4)
