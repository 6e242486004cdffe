"""`model(inputs)` by one graph from the second call on, and where it stays as it was."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import plain_forms
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
    """How often an encoder went through its layers, or was traced."""
    taken = []
    plain = RoFormerEncoder.hidden_states

    def counted(self, *arguments, **settings):
        taken.append(self.name)
        return plain(self, *arguments, **settings)

    monkeypatch.setattr(RoFormerEncoder, "hidden_states", counted)
    return taken


@pytest.fixture
def make(tiny):
    """make("encoder", **changes of the config) → a new model, always with the same weights."""

    def new(name, **changes):
        keras.utils.set_random_seed(1)
        cls, arguments = CLASSES[name]
        return cls(tiny(num_hidden_layers=1, **changes), **arguments)

    return new


def rows(batch, length, seed=0):
    token_ids = np.random.default_rng(seed).integers(1, 50, (batch, length)).astype("int32")
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}


def plain(model, inputs):
    return keras.tree.map_structure(
        ops.convert_to_numpy, keras.Model.__call__(model, inputs, training=False)
    )


def check_answers(model, inputs):
    """The call gives what the plain one gives."""
    keras.tree.map_structure(
        lambda x, want: np.testing.assert_allclose(x, want, atol=2e-6),
        keras.tree.map_structure(ops.convert_to_numpy, model(inputs)),
        plain(model, inputs),
    )


@pytest.mark.quick_cases("masked_lm")
@pytest.mark.parametrize("name", CLASSES)
def test_one_trace_answers_all_shapes_from_the_second_call_on(name, make, steps):
    model = make(name)
    first = rows(2, 7)
    model(first)
    assert steps == ["encoder"]
    model(first)
    del steps[:]
    for shape in ((1, 1), (3, 20), (5, 9), (2, 7)):
        inputs = rows(*shape, seed=shape[1])
        model(inputs)
        model({key: ops.convert_to_tensor(x) for key, x in inputs.items()}, training=False)
    assert not steps
    (function,) = model.eager_calls.functions.values()
    assert function.experimental_get_tracing_count() == 1
    check_answers(model, rows(3, 20))
    packed = rows(3, 20) | {"sequence_ids": np.repeat([[1, 1, 2, 0]], 3, 0).repeat(5, 1)}
    model(packed)
    check_answers(model, packed)


@pytest.mark.slow
def test_gradients_and_training_are_those_of_a_model_never_called(make, steps):
    import tensorflow as tf

    def gradients(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(rows(2, 7)) ** 2)
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    warm = make("of_first", hidden_dropout_prob=0.5)
    for _ in range(3):
        warm(rows(2, 7))
    del steps[:]
    actual = gradients(warm)
    assert steps == ["encoder"]
    for item, want in zip(
        actual, gradients(make("of_first", hidden_dropout_prob=0.5)), strict=True
    ):
        np.testing.assert_array_equal(tf.convert_to_tensor(item), tf.convert_to_tensor(want))
    del steps[:]
    dropped = {ops.convert_to_numpy(warm(rows(2, 7), training=True)).tobytes() for _ in range(3)}
    assert len(steps) == len(dropped) == 3


def test_within_another_layer_its_training_counts(make, steps):
    class Outer(keras.Model):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def call(self, inputs, training=None):
            return self.encoder(inputs)

    encoder = make("encoder", hidden_dropout_prob=0.5)
    outer = Outer(encoder)
    for _ in range(3):
        encoder(rows(2, 7))
    del steps[:]
    dropped = {ops.convert_to_numpy(outer(rows(2, 7), training=True)).tobytes() for _ in range(3)}
    assert len(steps) == len(dropped) == 3


def test_new_values_and_new_layers_are_seen(make, quantizing):
    model = make("of_first")
    for _ in range(2):
        model(rows(2, 7))
    before = ops.convert_to_numpy(model(rows(2, 7)))
    model.classifier.out_proj.kernel.assign(model.classifier.out_proj.kernel * 2)
    check_answers(model, rows(2, 7))
    assert np.abs(ops.convert_to_numpy(model(rows(2, 7))) - before).max() > 1e-3
    model.classifier.out_proj.enable_lora(2)
    model.classifier.out_proj.lora_kernel_b.assign(
        ops.ones_like(model.classifier.out_proj.lora_kernel_b)
    )
    check_answers(model, rows(2, 7))
    model(rows(2, 7))  # the second call since, which is a graph
    model.classifier.activation = ops.relu
    check_answers(model, rows(2, 7))
    model.encoder.quantize("int8")
    check_answers(model, rows(2, 7))


def test_a_call_with_other_values_for_the_while_takes_those(make):
    model = make("of_first")
    for _ in range(3):
        model(rows(2, 7))
    zeros = [ops.zeros_like(variable) for variable in model.trainable_variables]
    rest = [variable.value for variable in model.non_trainable_variables]
    answers, _ = model.stateless_call(zeros, rest, rows(2, 7))
    assert not ops.convert_to_numpy(answers).any()


def test_a_masked_position_outside_of_the_rows_is_refused_as_before(make):
    model = make("masked_lm")
    inputs = rows(2, 7) | {"masked_positions": np.array([[1, 6], [0, 0]], "int32")}
    for _ in range(2):
        model(inputs)
    check_answers(model, inputs)
    with pytest.raises(InputError, match="positions contain 7, but the sequences have 7 tokens"):
        model(inputs | {"masked_positions": np.array([[1, 7], [0, 0]], "int32")})


def test_what_others_wrote_is_called_as_they_wrote_it(make, steps, tiny):
    class Telling(RoFormerEncoder):
        def call(self, inputs, training=None, positions=None):
            return super().call(inputs, training, positions)

    eager = make("encoder")
    eager.compile(run_eagerly=True)
    watched, seen = make("of_first"), []
    for _ in range(3):
        watched(rows(2, 7))
    plain_call = watched.classifier.call
    watched.classifier.call = lambda *arguments, **settings: (
        seen.append(arguments) or plain_call(*arguments, **settings)
    )
    for model in (Telling(tiny()), eager, watched):
        del steps[:]
        for _ in range(3):
            model(rows(2, 7))
        assert len(steps) == 3
    assert len(seen) == 3


def test_plain_forms_are_traced_separately(make, steps):
    model = make("encoder")
    for _ in range(3):
        model(rows(2, 7))
    with plain_forms():
        model(rows(2, 7))
        del steps[:]
        model(rows(2, 7))
        assert steps == ["encoder"]
    assert len(model.eager_calls.functions) == 2


def test_a_function_that_is_called_is_not_saved(make, tmp_path):
    model = make("of_first")
    for _ in range(3):
        model(rows(2, 7))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        ops.convert_to_numpy(again(rows(2, 7))), plain(model, rows(2, 7)), atol=2e-6
    )
    assert not again.eager_calls.functions
