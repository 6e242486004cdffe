import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from benchmarks.gpu import PEAKS, peak_flops
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.objectives import MaskingConfig
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.pretraining.cost import parameters
from roformer_tf.pretraining.settings import make_stages, stage_flops, step_flops
from roformer_tf.training import devices
from roformer_tf.training.devices import peak_of_devices
from roformer_tf.training.settings import DevicesConfig

SIZES = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 40,
}
V2 = {"norm_type": "rms_norm", "use_bias": False}
SHAPES = {
    "usual": {},
    "one layer": {"num_hidden_layers": 1},
    "narrow embeddings": {"embedding_size": 14},
    "RoFormerV2": V2,
    "local": {"local_attention": 4, "global_attn_every_n_layers": 2, "num_hidden_layers": 4},
    "local below a global one": {"local_attention": 80, "global_attn_every_n_layers": 2},
}


def shape(**changes):
    return RoFormerConfig(**SIZES | changes)


# --- FLOPs, compared with the matrix products in a traced step -----------------------------------


def products_of_a_step(model, inputs):
    """Return the FLOPs of all matrix products in the backend's trace of losses and gradients."""
    if keras.backend.backend() == "jax":
        import jax

        rest = [variable.value for variable in model.non_trainable_variables]

        def loss(weights):
            y, _ = model.stateless_call(weights, rest, inputs, training=True)
            return y.sum()

        weights = [variable.value for variable in model.trainable_variables]
        return jaxpr_flops(jax.make_jaxpr(jax.grad(loss))(weights).jaxpr)
    import tensorflow as tf

    @tf.function
    def gradients(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True))
        return tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")

    return graph_flops(gradients.get_concrete_function(inputs).graph)


def graph_flops(graph):
    """Return the FLOPs of a TensorFlow graph, including the functions that it calls."""
    flops = 0
    for operation in graph.get_operations():
        if "PartitionedCall" in operation.type:
            flops += graph_flops(graph._get_function(operation.get_attr("f").name).graph)
        if operation.type in ("MatMul", "BatchMatMulV2"):
            (left, _), (output,) = operation.inputs, operation.outputs
            transposed = operation.get_attr(
                "transpose_a" if operation.type == "MatMul" else "adj_x"
            )
            if min(output.shape[-2:]) > 1:  # not a sum written as a product with a column of ones
                flops += 2 * output.shape.num_elements() * left.shape[-2 if transposed else -1]
        assert operation.type not in ("Einsum", "XlaDotV2"), operation.type
    return flops


def jaxpr_flops(jaxpr):
    """Return the FLOPs of a JAX trace, including its inner functions."""
    from jax.extend.core import jaxprs_in_params

    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, (output,) = equation.invars[0], equation.outvars
            (summed, _), _ = equation.params["dimension_numbers"]
            rows = math.prod(left.aval.shape[axis] for axis in summed)
            flops += 2 * rows * output.aval.size
        flops += sum(map(jaxpr_flops, jaxprs_in_params(equation.params)))
    return flops


def tensor(array):
    return keras.ops.convert_to_tensor(np.array(array, "int32"))


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("length", "batch", "predictions"), [(18, 2, 3), (11, 3, 5), (100, 2, 7)])
@pytest.mark.slow
def test_flops_of_a_masked_step_equal_its_matrix_products(changes, length, batch, predictions):
    model = RoFormerForMaskedLM(shape(**changes))
    masked = np.tile(np.arange(predictions), (batch, 1))
    inputs = {"token_ids": np.ones((batch, length)), "masked_positions": masked, "labels": masked}
    flops = products_of_a_step(model, {key: tensor(x) for key, x in inputs.items()})
    assert step_flops(model.config, length, batch, predictions) == flops


@pytest.mark.parametrize("length", [18, 100])
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
@pytest.mark.slow
def test_flops_of_a_causal_step_include_masked_scores(changes, length):
    model = RoFormerForCausalLM(shape(**changes))
    flops = products_of_a_step(model, {"token_ids": tensor(np.ones((2, length)))})
    assert step_flops(model.config, length, 2, length) == flops


@pytest.mark.parametrize(("objective", "neighbours"), [("masked", 3), ("causal", 2)])
def test_local_layers_of_a_causal_stage_attend_only_backwards(objective, neighbours):
    """Local layers of a causal stage attend only to earlier tokens.

    The objective decides this, because the architecture file usually does not.
    """
    (stage,) = make_stages([], stage_defaults(length=640, batch_size=1, steps=1))
    arguments = SimpleNamespace(masking=MaskingConfig(mask_rate=0.2), objective=objective)
    near, nearer = (shape(local_attention=2 * window) for window in (64, 32))
    gap = stage_flops(arguments, stage, near) - stage_flops(arguments, stage, nearer)
    assert gap == 2 * 12 * 24 * 640 * neighbours * 32  # two local layers, in whole blocks


def test_a_token_of_the_base_size_takes_567_million_flops():
    base = RoFormerConfig(50_000, 768, 12, 12, 3072)
    assert step_flops(base, 512, 256, 76) / (256 * 512) == 566_801_856


@pytest.mark.parametrize(
    ("settings", "predicted"),
    [({"objective": "masked"}, 20), ({"objective": "causal"}, 102)],
)
def test_a_stage_has_the_predictions_of_its_objective(settings, predicted):
    (stage,) = make_stages([], stage_defaults(length=102, batch_size=4, steps=7))
    arguments = SimpleNamespace(masking=MaskingConfig(mask_rate=0.2), **settings)
    assert stage_flops(arguments, stage, shape()) == step_flops(shape(), 102, 4, predicted)


def stage_defaults(**changes):
    return {"learning_rate": 0.1, "warmup": 0.1, "accumulate": 1} | changes


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_parameters_are_those_of_the_model(changes):
    config = shape(**changes, num_labels=3)  # heads that are not pretrained are not counted
    assert parameters(config) == RoFormerForMaskedLM(config).count_params()


# --- Devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA A800-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("Tesla V100S-PCIE-32GB", 130e12),
        ("Tesla T4", 65e12),
        ("NVIDIA GeForce RTX 3090", 71e12),
        ("NVIDIA GeForce RTX 3090 Ti", 80e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
    ],
)
def test_the_peak_is_looked_up_by_device_name(name, peak):
    assert peak_flops(name) == peak


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"),
        *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Quadro T400", "TPU v4", "cpu", "", None),
    ],
)
def test_the_peak_of_another_device_is_not_guessed(name):
    assert peak_flops(name) is None


def test_every_entry_of_peaks_is_reachable():
    assert {word: peak_flops(f"NVIDIA {word}") for word in PEAKS} == PEAKS


def test_the_peak_of_a_run_is_that_of_all_its_devices(monkeypatch):
    monkeypatch.setattr(devices, "replicas", lambda: 4)
    assert peak_of_devices(DevicesConfig(model_parallel=2, peak_flops=3e12)) == 24e12
    assert peak_of_devices(DevicesConfig(peak_flops=3e12)) == 12e12
    assert peak_of_devices(DevicesConfig()) is None


@pytest.mark.parametrize("peak", [0.0, -1e12, math.nan])
def test_an_impossible_peak_is_refused(peak):
    with pytest.raises(InputError, match=r"peak_flops is \S+, but must be (above 0|a finite)"):
        DevicesConfig(peak_flops=peak)
