"""Tests that hold for all model classes, RoFormer and RoFormerV2: training, saving, composition."""

import json
import logging

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    RoFormerForSequenceClassification,
    RoFormerForSpanExtraction,
    RoFormerForTokenClassification,
)
from roformer_tf.pretraining.settings import StepConfig
from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
from roformer_tf.training.optimizers import make_finetune_optimizer, make_optimizer
from roformer_tf.training.settings import FinetuneOptimizerConfig, OptimizerConfig

CLASSES = {  # each with the axes of its output
    "encoder": (RoFormerEncoder, {}, "BTH"),
    "masked_lm": (RoFormerForMaskedLM, {}, "BTV"),
    "causal_lm": (RoFormerForCausalLM, {}, "BTV"),
    "similarity": (RoFormerForSentenceSimilarity, {}, {"embedding": "BH", "logits": "BTV"}),
    "of_first": (RoFormerForSequenceClassification, {"num_labels": 3}, "BC"),
    "of_mean": (RoFormerForSequenceClassification, {"num_labels": 3, "pooling": "mean"}, "BC"),
    "of_tokens": (RoFormerForTokenClassification, {"num_labels": 3}, "BTC"),
    "of_spans": (RoFormerForSpanExtraction, {"num_labels": 3}, "BTP"),
}
SIZES = {"B": 4, "T": 6, "H": 32, "V": 50, "C": 3, "P": 2 * (64 + 3)}
VERSIONS = {"v1": {}, "v2": {"norm_type": "rms_norm", "use_bias": False}}

# Tracing takes as long as ten calls; tests/models/test_eager_calls.py tests traced calls.
untraced = pytest.mark.usefixtures("eager_steps")
every_class = pytest.mark.parametrize("name", CLASSES)
both_versions = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def make(tiny):
    """Return a function: make("encoder", "v2", **config_changes) → a new model."""

    def new(name, version, dtype=None, **changes):
        keras.utils.set_random_seed(1)
        cls, arguments, _ = CLASSES[name]
        return cls(tiny(**VERSIONS[version] | changes), dtype=dtype, **arguments)

    return new


@pytest.fixture(scope="module")
def inputs():
    """Return sequences of two segments; the last one has padding."""
    token_ids = np.random.default_rng(0).integers(1, SIZES["V"], (SIZES["B"], SIZES["T"]))
    token_ids[-1, 4:] = 0
    segment_ids = np.repeat([[0, 0, 0, 1, 1, 1]], SIZES["B"], 0)
    return {"token_ids": token_ids.astype("int32"), "segment_ids": segment_ids.astype("int32")}


def flat(outputs):
    """Return outputs as NumPy arrays by name."""
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: ops.convert_to_numpy(ops.cast(x, "float32")) for name, x in outputs.items()}


def assert_equal(first, second):
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for name, want in first.items():
        np.testing.assert_array_equal(want, second[name])


def shapes(name):
    """Return the shape of each output of a class, by name."""
    axes = CLASSES[name][2]
    axes = axes if isinstance(axes, dict) else {"": axes}
    return {key: tuple(SIZES[axis] for axis in letters) for key, letters in axes.items()}


@pytest.mark.quick_cases(
    *("encoder-v2", "masked_lm-v1", "causal_lm-v2", "similarity-v1"),
    *("of_first-v2", "of_mean-v1", "of_tokens-v2", "of_spans-v1"),
)
@both_versions
@every_class
def test_outputs_have_the_expected_shapes(name, version, make, inputs):
    outputs = flat(make(name, version, num_hidden_layers=1)(inputs))
    assert {key: value.shape for key, value in outputs.items()} == shapes(name)
    assert all(np.isfinite(value).all() for value in outputs.values())


@pytest.mark.quick_cases("masked_lm", "similarity", "of_first")
@every_class
def test_an_empty_batch_has_empty_outputs(name, make, inputs):
    empty = {key: x[:0] for key, x in inputs.items()}
    outputs = flat(make(name, "v1", num_hidden_layers=1)(empty))
    assert {key: x.shape for key, x in outputs.items()} == {
        key: (0, *shape[1:]) for key, shape in shapes(name).items()
    }


@pytest.mark.quick_cases("*-mixed_bfloat16", "encoder-float64", "masked_lm-float16")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float16", "float64"])
@every_class
def test_logits_are_float32_for_every_dtype(name, dtype, make, inputs):
    model = make(name, "v2", dtype, num_hidden_layers=1)
    outputs = model(inputs)
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    on_jax = keras.backend.backend() == "jax"  # JAX has float64 only if enabled
    want = model.compute_dtype if name == "encoder" else "float32"
    want = "float32" if on_jax and want == "float64" else want
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs.values()} == {want}


@pytest.mark.quick_cases(
    "encoder-v1",
    "masked_lm-v2",
    "causal_lm-v1",
    "similarity-v2",
    "of_mean-v2",
    "of_tokens-v1",
)
@both_versions
@every_class
def test_a_saved_and_loaded_model_is_equal(name, version, make, inputs, tmp_path, caplog):
    model = make(name, version, rotary_style="half")
    model.save_pretrained(tmp_path)
    caplog.clear()  # it has no tokenizer
    with caplog.at_level(logging.WARNING):
        again = type(model).from_pretrained(tmp_path)
    assert caplog.text == ""  # no new and no unused weights
    assert again.config.replace(unknown={}) == model.config  # it keeps transformers' keys as well
    for mine, other in zip(model.weights, again.weights, strict=True):
        assert mine.path == other.path
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (mine, other)))
    assert_equal(again(inputs), model(inputs))


@pytest.mark.quick_cases("causal_lm", "similarity", "of_tokens")  # masked_lm: test_masked_lm.py
@every_class
def test_a_model_is_recreated_from_a_keras_file_and_its_config(name, make, inputs, tmp_path):
    model = make(name, "v2", num_hidden_layers=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert_equal(loaded(inputs), model(inputs))
    through_json = json.loads(json.dumps(model.get_config()))
    again = type(model).from_config(through_json)
    assert (again.get_config(), again.name) == (model.get_config(), model.name)


def compiled(model, name, **arguments):
    """Compile the model and return targets for `fit`."""
    scores = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"encoder": "mse", "similarity": {"embedding": "mse", "logits": scores}}
    model.compile(keras.optimizers.SGD(0.01), losses.get(name, scores), **arguments)
    rng = np.random.default_rng(2)
    targets = {
        key: rng.normal(size=shape)
        if key == "embedding" or name == "encoder"
        else rng.integers(0, shape[-1], shape[:-1])
        for key, shape in shapes(name).items()
    }
    return targets.get("", targets)


@untraced
@pytest.mark.quick_cases("masked_lm-*", "causal_lm-*", "similarity-*", "of_first-*", "of_tokens-*")
@pytest.mark.parametrize(
    ("version", "jit"),
    [
        ("v2", False),  # many other tests train RoFormer (v1)
        pytest.param("v1", True, marks=pytest.mark.slow),
        pytest.param("v2", True, marks=pytest.mark.slow),
    ],
)
@every_class
def test_training_changes_every_weight(name, version, jit, make, inputs):
    model = make(name, version, num_hidden_layers=1)
    targets = compiled(model, name, jit_compile=jit)
    before = model.get_weights()
    history = model.fit(inputs, targets, batch_size=SIZES["B"], epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert history.history["loss"][1] < history.history["loss"][0]
    for weight, old in zip(model.weights, before, strict=True):
        assert (ops.convert_to_numpy(weight) != old).any(), weight.path


@pytest.mark.quick_cases("bfloat16")
@pytest.mark.parametrize("floatx", ["bfloat16", "float64"])
def test_training_does_not_depend_on_keras_default_float(floatx, make, inputs):
    masks = {"local_attention": 4, "global_attn_every_n_layers": 2, "attention_type": "causal"}
    model = make("masked_lm", "v1", "float32", position_embedding_type="t5", **masks)
    labelled = inputs | {"labels": inputs["token_ids"]}
    want = float(ops.mean(model(labelled)))
    before, usual = model.get_weights(), keras.config.floatx()
    keras.config.set_floatx(floatx)  # also the bits of the integers that `arange` gives
    try:
        model.compile(keras.optimizers.SGD(0.5), lambda _, losses: losses, jit_compile=False)
        targets = np.zeros((SIZES["B"], SIZES["T"]))
        history = model.fit(labelled, targets, batch_size=SIZES["B"], verbose=0).history
    finally:
        keras.config.set_floatx(usual)
    assert float(history["loss"][0]) == pytest.approx(want, rel=0.01)  # in the default float
    assert all((new != old).any() for new, old in zip(model.get_weights(), before, strict=True))


with_float64 = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX has float64 only if enabled"
)


@pytest.mark.slow
@with_float64
@pytest.mark.usefixtures("eager_steps")
def test_float64_finetuning_reduces_the_loss(make, inputs):
    model = make("of_first", "v1", "float64", num_hidden_layers=1, hidden_dropout_prob=0.1)
    config = FinetuneOptimizerConfig(learning_rate=0.02, warmup=0.0, ema=0.5)
    targets = compiled(model, "of_first")
    model.compile(make_finetune_optimizer(config, model, 8), model.loss)
    losses = model.fit(inputs, targets, batch_size=4, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert {keras.backend.standardize_dtype(w.dtype) for w in model.trainable_variables} == {
        "float64"
    }


@pytest.mark.slow
@with_float64
def test_float64_pretraining_reduces_the_loss_in_float32(make, inputs):
    masked = {"masked_positions": np.array([[1, 4]] * SIZES["B"], "int32")}
    masked["labels"] = np.take_along_axis(inputs["token_ids"], masked["masked_positions"], 1)
    weights = np.ones(masked["labels"].shape, "float32")
    model = make(
        "masked_lm", "v1", "float64", num_hidden_layers=1, attention_probs_dropout_prob=0.1
    )
    losses = model(inputs | masked)
    logits = ops.convert_to_numpy(model(inputs | {"masked_positions": masked["masked_positions"]}))
    assert keras.backend.standardize_dtype(losses.dtype) == "float32"
    assert logits.dtype == np.float32
    want = np.log(np.exp(logits).sum(-1))
    want -= np.take_along_axis(logits, masked["labels"][..., None], -1)[..., 0]
    np.testing.assert_allclose(ops.convert_to_numpy(losses), want, rtol=0.02, atol=1e-4)
    config = OptimizerConfig(learning_rate=0.02, warmup=0.0, ema=0.5)
    stepping = PretrainingModel(model, StepConfig())
    stepping.compile(make_optimizer(config, model.trainable_variables, 8), MaskedTokenLoss())
    history = stepping.fit(
        inputs | masked, masked["labels"], sample_weight=weights, batch_size=4, epochs=8, verbose=0
    ).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert history["skipped"] == [0] * 8


def relative(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize(
    ("name", "mode", "bound"),
    [("masked_lm", "int8", 0.03), ("masked_lm", "int4", 0.3), ("of_first", "int8", 0.03)],
)
@pytest.mark.usefixtures("no_garbage_collection", "eager_steps")
@pytest.mark.slow
def test_quantization_changes_outputs_little(name, mode, bound, make, inputs, tmp_path):
    model = make(name, "v1", num_hidden_layers=1)
    model_inputs = inputs
    if name == "masked_lm":
        model_inputs = inputs | {"masked_positions": np.array([[0, 3]] * SIZES["B"], "int32")}
    before = flat(model(model_inputs))[""]
    kernels = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    model.quantize(mode)
    assert {layer.quantization_mode for layer in kernels} == {mode}  # also our subclasses of Dense
    after = flat(model(model_inputs))[""]
    assert 0 < relative(after, before) < bound
    with pytest.raises(InputError, match=r"the model is quantized.* Save before `quantize`"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="TensorFlow's own format")
@pytest.mark.parametrize(
    ("name", "after"), [("masked_lm", "call"), ("of_first", "fit"), ("of_tokens", "predict")]
)
@pytest.mark.slow
def test_a_model_is_exported_with_the_inputs_of_its_last_call(
    name, after, make, inputs, tmp_path, eagerly
):
    import tensorflow as tf

    model = make(name, "v1", num_hidden_layers=1)
    documents = {"sequence_ids": np.array([[1, 1, 1, 2, 2, 2]] * SIZES["B"], "int32")}
    arguments = {
        "call": inputs | documents | {"masked_positions": np.array([[0, 5]] * 4, "int32")},
        "fit": inputs,
        "predict": {"token_ids": inputs["token_ids"]} | documents,
    }[after]
    if after == "call":
        model(arguments)
    elif after == "fit":
        targets = compiled(model, name)
        with eagerly():
            model.fit(arguments, targets, batch_size=SIZES["B"], verbose=0)
    else:
        model.predict(arguments, verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    for batch in (arguments, {key: x[:1] for key, x in arguments.items()}):
        want = ops.convert_to_numpy(model(batch))
        np.testing.assert_allclose(loaded.serve(batch).numpy(), want, rtol=0, atol=1e-5)


@untraced
@pytest.mark.quick_cases("similarity", "of_tokens")  # other files test encoder and masked_lm
@every_class
def test_a_model_is_part_of_a_functional_model(name, make, inputs):
    model = make(name, "v1", num_hidden_layers=1)
    arguments = {key: keras.Input((None,), dtype="int32", name=key) for key in inputs}
    outputs = model(arguments)
    functional = keras.Model(arguments, outputs)
    for key, output in (outputs if isinstance(outputs, dict) else {"": outputs}).items():
        assert output.shape[-1] == shapes(name)[key][-1]
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
    got, want = flat(functional.predict(inputs, verbose=0)), flat(model(inputs))
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=0, atol=1e-5)


@untraced
@pytest.mark.quick_cases(
    "encoder-v1",
    "masked_lm-v1",
    "causal_lm-v2",
    "similarity-v1",
    "of_mean-v1",
)
@both_versions
@every_class
def test_dropout_is_active_only_in_training(name, version, make, inputs):
    model = make(name, version, num_hidden_layers=1, hidden_dropout_prob=0.3)
    model(inputs)  # the first call is not traced and rounds differently
    quiet, trained = flat(model(inputs, training=False)), flat(model(inputs, training=True))
    assert_equal(model(inputs), quiet)
    for key in quiet:
        assert np.abs(quiet[key] - trained[key]).max() > 0.01


@pytest.mark.parametrize(
    ("name", "version", "drops"),
    [
        ("masked_lm", "v2", True),
        ("masked_lm", "v1", False),
        ("causal_lm", "v2", True),
        ("of_first", "v1", True),
        ("of_mean", "v2", True),
        ("of_tokens", "v1", True),
    ],
)
def test_heads_have_dropout_except_that_of_roformer_v1(name, version, drops, make, inputs):
    model = make(name, version, num_hidden_layers=1, hidden_dropout_prob=0.3)
    model.encoder.embeddings.drop.rate = 0.0
    for layer in model.encoder.layer_stack:
        layer.attention_drop.rate = layer.output_drop.rate = 0.0
    quiet, trained = (flat(model(inputs, training=training))[""] for training in (False, True))
    assert (np.abs(quiet - trained).max() > 0.01) == drops


@pytest.mark.parametrize("name", ["masked_lm", "causal_lm", "similarity"])
def test_v2_heads_require_embedding_size_to_equal_hidden_size(name, make, inputs):
    make("encoder", "v2", embedding_size=16, num_hidden_layers=1)(inputs)
    with pytest.raises(InputError, match=r"embedding_size is 16 and hidden_size 32.* Make them eq"):
        make(name, "v2", embedding_size=16)
