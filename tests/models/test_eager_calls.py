"""Tests that eager calls `model(inputs)` use one graph from the second call, and of exceptions."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.rotary import Rotation
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="JAX has no eager calls of ours"
)

CLASSES = {
    "encoder": (RoFormerEncoder, {}),
    "masked_lm": (RoFormerForMaskedLM, {}),
    "causal_lm": (RoFormerForCausalLM, {}),
    "similarity": (RoFormerForSentenceSimilarity, {}),
    "of_first": (RoFormerForSequenceClassification, {"num_labels": 3}),
    "of_tokens": (RoFormerForTokenClassification, {"num_labels": 3}),
}


@pytest.fixture
def steps(monkeypatch):
    """Return a list that grows each time an encoder runs its layers eagerly or is traced."""
    calls = []
    plain = RoFormerEncoder.hidden_states

    def counted(self, *arguments, **settings):
        calls.append(self.name)
        return plain(self, *arguments, **settings)

    monkeypatch.setattr(RoFormerEncoder, "hidden_states", counted)
    return calls


@pytest.fixture
def make(tiny):
    """Return a function: make("encoder", **config_changes) → a new model with fixed weights."""

    def new(name, **changes):
        keras.utils.set_random_seed(1)
        cls, arguments = CLASSES[name]
        return cls(tiny(num_hidden_layers=1, **changes), **arguments)

    return new


def random_inputs(batch, length, seed=0):
    token_ids = np.random.default_rng(seed).integers(1, 50, (batch, length)).astype("int32")
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}


def plain(model, inputs):
    return keras.tree.map_structure(
        ops.convert_to_numpy, keras.Model.__call__(model, inputs, training=False)
    )


def check_outputs(model, inputs):
    """Check that the call gives the same outputs as an untraced one."""
    keras.tree.map_structure(
        lambda x, want: np.testing.assert_allclose(x, want, atol=2e-6),
        keras.tree.map_structure(ops.convert_to_numpy, model(inputs)),
        plain(model, inputs),
    )


@pytest.mark.quick_cases("masked_lm")
@pytest.mark.parametrize("name", CLASSES)
def test_one_trace_serves_all_shapes_from_the_second_call(name, make, steps):
    model = make(name)
    first = random_inputs(2, 7)
    model(first)
    assert steps == ["encoder"]
    model(first)
    del steps[:]
    for shape in ((1, 1), (3, 20), (5, 9), (2, 7)):
        inputs = random_inputs(*shape, seed=shape[1])
        model(inputs)
        model({key: ops.convert_to_tensor(x) for key, x in inputs.items()}, training=False)
    assert not steps
    (function,) = model.compiled_parts.values.values()
    assert function.experimental_get_tracing_count() == 1
    check_outputs(model, random_inputs(3, 20))
    packed = random_inputs(3, 20) | {"sequence_ids": np.repeat([[1, 1, 2, 0]], 3, 0).repeat(5, 1)}
    model(packed)
    check_outputs(model, packed)


@pytest.mark.slow
def test_gradients_and_training_are_unaffected_by_earlier_calls(make, steps):
    import tensorflow as tf

    def gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(random_inputs(2, 7)) ** 2)
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    called = make("of_first", hidden_dropout_prob=0.5)
    for _ in range(3):
        called(random_inputs(2, 7))
    del steps[:]
    actual = gradients(called)
    assert steps == ["encoder"]
    for item, want in zip(
        actual, gradients(make("of_first", hidden_dropout_prob=0.5)), strict=True
    ):
        np.testing.assert_array_equal(tf.convert_to_tensor(item), tf.convert_to_tensor(want))
    del steps[:]
    dropped = {
        ops.convert_to_numpy(called(random_inputs(2, 7), training=True)).tobytes() for _ in range(3)
    }
    assert len(steps) == len(dropped) == 3


def test_within_another_model_the_training_argument_is_respected(make, steps):
    class Outer(keras.Model):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def call(self, inputs, training=None):
            return self.encoder(inputs)

    encoder = make("encoder", hidden_dropout_prob=0.5)
    outer = Outer(encoder)
    for _ in range(3):
        encoder(random_inputs(2, 7))
    del steps[:]
    dropped = {
        ops.convert_to_numpy(outer(random_inputs(2, 7), training=True)).tobytes() for _ in range(3)
    }
    assert len(steps) == len(dropped) == 3


def test_changed_weights_and_layers_take_effect(make, no_garbage_collection):
    model = make("of_first")
    for _ in range(2):
        model(random_inputs(2, 7))
    before = ops.convert_to_numpy(model(random_inputs(2, 7)))
    model.classifier.out_proj.kernel.assign(model.classifier.out_proj.kernel * 2)
    check_outputs(model, random_inputs(2, 7))
    assert np.abs(ops.convert_to_numpy(model(random_inputs(2, 7))) - before).max() > 1e-3
    model.classifier.out_proj.enable_lora(2)
    model.classifier.out_proj.lora_kernel_b.assign(
        ops.ones_like(model.classifier.out_proj.lora_kernel_b)
    )
    check_outputs(model, random_inputs(2, 7))
    model(random_inputs(2, 7))  # the second call after the change, which uses a graph
    model.classifier.activation = ops.relu
    check_outputs(model, random_inputs(2, 7))
    model.encoder.quantize("int8")
    check_outputs(model, random_inputs(2, 7))


def drop_a_layer(model):
    model.encoder.layer_stack = model.encoder.layer_stack[:1]


def rotate_faster(model):
    for layer in model.encoder.layer_stack:
        layer.attention.rotation = Rotation(8, base=10.0)


def widen_the_norms(model):
    for layer in model.encoder.layer_stack:
        layer.output_norm.epsilon = 1.0


@pytest.mark.parametrize("change", [drop_a_layer, rotate_faster, widen_the_norms])
def test_replaced_parts_of_layers_take_effect(change, tiny):
    keras.utils.set_random_seed(1)
    model = RoFormerForMaskedLM(tiny(num_hidden_layers=2, initializer_range=0.5))
    for _ in range(3):
        before = ops.convert_to_numpy(model(random_inputs(2, 7)))
    change(model)
    check_outputs(model, random_inputs(2, 7))
    assert np.abs(ops.convert_to_numpy(model(random_inputs(2, 7))) - before).max() > 1e-3


def test_a_stateless_call_uses_its_own_values(make):
    model = make("of_first")
    for _ in range(3):
        model(random_inputs(2, 7))
    zeros = [ops.zeros_like(variable) for variable in model.trainable_variables]
    rest = [variable.value for variable in model.non_trainable_variables]
    outputs, _ = model.stateless_call(zeros, rest, random_inputs(2, 7))
    assert not ops.convert_to_numpy(outputs).any()


def test_a_masked_position_outside_the_sequence_is_refused(make):
    model = make("masked_lm")
    inputs = random_inputs(2, 7) | {"masked_positions": np.array([[1, 6], [0, 0]], "int32")}
    for _ in range(2):
        model(inputs)
    check_outputs(model, inputs)
    with pytest.raises(InputError, match="positions contain 7, but the sequences have 7 tokens"):
        model(inputs | {"masked_positions": np.array([[1, 7], [0, 0]], "int32")})


def test_overridden_and_eager_models_are_not_traced(make, steps, tiny):
    class Subclass(RoFormerEncoder):
        def call(self, inputs, training=None, positions=None):
            return super().call(inputs, training, positions)

    eager = make("encoder")
    eager.compile(run_eagerly=True)
    patched, patched_calls = make("of_first"), []
    for _ in range(3):
        patched(random_inputs(2, 7))
    plain_call = patched.classifier.call
    patched.classifier.call = lambda *arguments, **settings: (
        patched_calls.append(arguments) or plain_call(*arguments, **settings)
    )
    for model in (Subclass(tiny()), eager, patched):
        del steps[:]
        for _ in range(3):
            model(random_inputs(2, 7))
        assert len(steps) == 3
    assert len(patched_calls) == 3


def test_the_traced_function_is_not_saved(make, tmp_path):
    model = make("of_first")
    for _ in range(3):
        model(random_inputs(2, 7))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        ops.convert_to_numpy(again(random_inputs(2, 7))),
        plain(model, random_inputs(2, 7)),
        atol=2e-6,
    )
    assert not again.compiled_parts.values
