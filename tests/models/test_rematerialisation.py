"""Tests that layers recomputed in the backward pass give the same numbers, dropout included."""

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.train_step import MaskedTokenLoss

BASE = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.3,
    "attention_probs_dropout_prob": 0.3,
}
V2 = BASE | {"norm_type": "rms_norm", "use_bias": False}


JAX = keras.backend.backend() == "jax"
uncompiled = pytest.mark.skipif(
    JAX,
    reason="JAX is always compiled; without, it takes half a minute",
)


def trained(rematerialize, config, dtype="float32", jit=False):
    """Train four steps; return the losses and all weights, dropout seeds included.

    With plain gradient descent at a rate of 1, the change of a weight is the sum of its gradients.
    """
    keras.utils.set_random_seed(1)
    model = RoFormerForMaskedLM(RoFormerConfig(**config), dtype=dtype)
    model.encoder.rematerialize = rematerialize
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, 60, (4, 4, 12)).astype("int32")
    token_ids[..., 9:] = 0  # padding
    inputs = {"token_ids": token_ids, "masked_positions": np.tile(np.int32([1, 4, 8]), (4, 4, 1))}
    labels = rng.integers(1, 60, (4, 4, 3)).astype("int32")
    model.compile(keras.optimizers.SGD(1.0), MaskedTokenLoss(), jit_compile=jit)
    losses = [
        model.train_on_batch({name: x[step] for name, x in inputs.items()}, labels[step])
        for step in range(4)
    ]
    return np.array(losses), [ops.convert_to_numpy(variable) for variable in model.variables]


@pytest.mark.quick_cases("v1")
@pytest.mark.parametrize(
    ("config", "jit"),
    [
        pytest.param(BASE, False, marks=uncompiled),
        pytest.param(V2, False, marks=uncompiled),
        pytest.param(BASE, True, marks=[] if JAX else pytest.mark.slow),
    ],
    ids=["v1", "v2", "xla"],
)
def test_gradients_losses_and_seeds_are_equal(config, jit):
    losses, weights = trained(False, config, jit=jit)
    again, recomputed_weights = trained(True, config, jit=jit)
    assert len(set(losses)) == 4  # the model trains, and dropout differs in every step
    np.testing.assert_allclose(again, losses, rtol=1e-6)
    for ours, theirs in zip(recomputed_weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_losses_and_weights_are_close():
    jit = keras.backend.backend() == "jax"
    losses, weights = trained(False, BASE, "mixed_bfloat16", jit)
    again, recomputed_weights = trained(True, BASE, "mixed_bfloat16", jit)
    np.testing.assert_allclose(again, losses, rtol=1e-2)
    for ours, theirs in zip(recomputed_weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-2)


def test_only_the_inputs_of_layers_are_stored():
    """JAX lists the arrays that the backward pass receives; TensorFlow does not."""
    if keras.backend.backend() != "jax":
        pytest.skip("counts JAX's residuals")
    import jax

    def stored_bytes(rematerialize):
        model = RoFormerForMaskedLM(RoFormerConfig(**BASE))
        model.encoder.rematerialize = rematerialize
        inputs = {"token_ids": np.ones((2, 64), "int32")}
        frozen = [variable.value for variable in model.non_trainable_variables]

        def loss(weights):
            logits, _ = model.stateless_call(weights, frozen, inputs, training=True)
            return logits.sum()

        _, backward = jax.vjp(loss, [variable.value for variable in model.trainable_variables])
        return sum(array.nbytes for array in jax.tree.leaves(backward) if array.ndim == 4)

    assert (
        stored_bytes(True) == 0 < stored_bytes(False)
    )  # (B, T, N, H) and (B, N, T, T) exist only within layers
