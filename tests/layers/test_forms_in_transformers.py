"""Tests of rotary forms and alternatives against transformers. They need the extra [hf].

Compares attention of GPT-NeoX (a quarter of each head is rotated), GPT-J (64 of 256 dimensions),
Llama (half style) and RoFormer (values are rotated as well) with gradients; tables of scaled
angles; and T5's bias.
"""

import math

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.positions import relative_bucket
from roformer_tf.layers.rotary import Rotation
from roformer_tf.layers.scaling import frequencies
from roformer_tf.layers.self_attention import RoFormerSelfAttention
from tests.support.relative_bias import bias_layer

pytestmark = pytest.mark.hf
B, T = 2, 16
BOUND = 1e-6  # relative to the largest value


class Peer:
    """An attention module of transformers, its call, and its weights in Keras' order."""

    def __init__(self, module, call, parts, heads):
        self.module, self.call, self.parts, self.heads = module.eval(), call, parts, heads

    def weights(self):
        """Return kernels and biases of query, key, value (D, N, H) and output (N, H, D)."""
        actual = []
        for kernel, bias in self.parts(self.module):
            kernel = np.asarray(kernel).T  # (in, out)
            last = len(actual) >= (3 if bias is None else 6)
            shape = (self.heads, -1, kernel.shape[1]) if last else (len(kernel), self.heads, -1)
            actual.append(kernel.reshape(shape))
            if bias is not None:
                bias = np.asarray(bias)
                actual.append(bias if last else bias.reshape(self.heads, -1))
        return actual

    def value_and_gradients(self, x, upstream):
        """Return the output, and gradients of Σ upstream · output for x and all weights."""
        import torch

        arguments = torch.tensor(x, requires_grad=True)
        output = self.call(self.module, arguments)
        (output * torch.tensor(upstream)).sum().backward()
        parameters = dict(self.module.named_parameters())
        for parameter in parameters.values():
            parameter.data = parameter.grad
        return output.detach().numpy(), [arguments.grad.numpy(), *self.weights()]


def linear(layer):
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def named_layers(*names):
    return lambda module: [linear(getattr(module, name)) for name in names]


def positions():
    import torch

    return torch.arange(T)[None].expand(B, T)


@pytest.fixture
def peer(transformers):
    """Return a function: peer("GPT-NeoX") → the module with random weights."""
    import torch

    torch.manual_seed(0)

    def neox():
        from transformers.models.gpt_neox import modeling_gpt_neox as code

        config = transformers.GPTNeoXConfig(
            hidden_size=128, num_attention_heads=2, attention_dropout=0.0,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                             "partial_rotary_factor": 0.25},
        )  # fmt: skip
        config._attn_implementation = "eager"
        tables = code.GPTNeoXRotaryEmbedding(config)

        def parts(module):
            kernel, bias = linear(module.query_key_value)
            kernel = kernel.reshape(2, 3, 64, 128)  # heads first, then query, key, value
            bias = bias.reshape(2, 3, 64)
            three = [(kernel[:, i].reshape(128, 128), bias[:, i].reshape(128)) for i in range(3)]
            return [*three, linear(module.dense)]

        def call(module, x):
            return module(x, None, position_embeddings=tables(x, positions()))[0]

        return Peer(code.GPTNeoXAttention(config, 0), call, parts, 2)

    def gptj():
        from transformers.models.gptj import modeling_gptj as code

        config = transformers.GPTJConfig(
            n_embd=256, n_head=1, rotary_dim=64, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0
        )
        names = named_layers("q_proj", "k_proj", "v_proj", "out_proj")

        def call(module, x):
            if hasattr(code, "GPTJRotaryEmbedding"):  # since transformers 5.24
                return module(x, code.GPTJRotaryEmbedding(config)(x, positions()))[0]
            return module(x, position_ids=positions())[0]

        return Peer(code.GPTJAttention(config, 0), call, names, 1)

    def llama():
        from transformers.models.llama import modeling_llama as code

        config = transformers.LlamaConfig(
            hidden_size=96, num_attention_heads=3, num_key_value_heads=3
        )
        config._attn_implementation = "eager"
        tables = code.LlamaRotaryEmbedding(config)

        def call(module, x):
            return module(x, tables(x, positions()), None)[0]

        names = named_layers("q_proj", "k_proj", "v_proj", "o_proj")
        return Peer(code.LlamaAttention(config, 0), call, names, 3)

    def roformer():
        from transformers.models.roformer import modeling_roformer as code

        config = transformers.RoFormerConfig(
            hidden_size=96, num_attention_heads=4, rotary_value=True,
            attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, max_position_embeddings=64,
        )  # fmt: skip
        sinusoidal = code.RoFormerSinusoidalPositionalEmbedding(64, 24)
        sinusoidal.weight.data = sinusoidal.create_weight()
        attention = code.RoFormerSelfAttention(config, 0)
        attention.dense = torch.nn.Linear(96, 96)

        def call(module, x):
            table = sinusoidal(x.shape[:2])[None, None]
            return module.dense(module(x, sinusoidal_pos=table)[0])

        return Peer(attention, call, named_layers("query", "key", "value", "dense"), 4)

    def make(name):
        result = {"GPT-NeoX": neox, "GPT-J": gptj, "Llama": llama, "RoFormer": roformer}[name]()
        for parameter in result.module.parameters():
            deviation = 1 / math.sqrt(parameter.shape[-1])
            torch.nn.init.normal_(parameter, std=deviation)
        return result

    return make


FORMS = {
    "GPT-NeoX": (2, 64, {"rotary_style": "half", "rotary_share": 0.25, "rotary_base": 500.0}),
    "GPT-J": (1, 256, {"rotary_share": 0.25, "use_bias": False}),
    "Llama": (3, 32, {"rotary_style": "half", "use_bias": False}),
    "RoFormer": (4, 24, {"rotary_value": True}),
}


def relative(ours, theirs):
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("kind", [RotaryMultiHeadAttention, RoFormerSelfAttention])
@pytest.mark.parametrize("name", FORMS)
def test_attention_and_its_gradients(name, kind, peer, record_property):
    import tensorflow as tf

    heads, size, form = FORMS[name]
    theirs = peer(name)
    rng = np.random.default_rng(1)
    x, upstream = rng.normal(size=(2, B, T, heads * size)).astype("float32")
    layer = kind(heads, size, **form)
    layer.build(x.shape, x.shape)
    layer.set_weights(theirs.weights())
    arguments = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        values = () if kind is RoFormerSelfAttention else (arguments,)
        output = layer(arguments, *values, training=True)
        total = tf.reduce_sum(output * upstream)
    weights = [weight.value for weight in layer.weights if weight.trainable]
    gradients = tape.gradient(total, [arguments, *weights])
    want, wanted = theirs.value_and_gradients(x, upstream)
    actual = [relative(ops.convert_to_numpy(output), want)]
    largest = max(np.abs(gradient).max() for gradient in wanted)
    for mine, other in zip(gradients, wanted, strict=True):
        # A key bias shifts all scores of a query equally: its gradient is 0 except for rounding.
        scale = max(np.abs(other).max(), 1e-3 * largest)
        actual.append(float(np.abs(mine.numpy() - other).max() / scale))
    record_property("difference", (name, kind.__name__[:16], float(max(actual)), BOUND))
    assert max(actual) <= BOUND, actual


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256,
     "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "mscale": 0.7,
     "mscale_all_dim": 0.4},
    {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 64,
     "attention_factor": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize(("size", "share"), [(64, 1.0), (64, 0.25), (128, 0.5)])
@pytest.mark.parametrize("parameters", SCALINGS, ids=lambda x: f"{x['rope_type']}-{len(x)}")
@pytest.mark.parametrize("length", [64, 128, 300, 1000])
def test_inverse_frequencies_and_scaling_factors(
    parameters, length, size, share, base, transformers, record_property
):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    trained = 128
    arguments = parameters | {"rope_theta": base, "partial_rotary_factor": share}
    config = transformers.LlamaConfig(
        hidden_size=2 * size, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=trained, rope_parameters=arguments,
    )  # fmt: skip
    want, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    ours, scale = frequencies(int(size * share), base, parameters, trained, length)
    actual = max(relative(ours, want.numpy()), abs(scale - factor))
    record_property("difference", (parameters["rope_type"], "frequencies", float(actual), BOUND))
    assert actual <= BOUND
    # each frequency separately as well: the low frequencies are the scaled ones
    np.testing.assert_allclose(ours, want.numpy(), rtol=2e-6)
    rotation = Rotation(size, "half", base, share, False, parameters, trained)
    cos, sin = rotation.tables(np.arange(length), "float32", length)
    theta = np.outer(np.arange(length), want.numpy().astype("float64"))
    for mine, other in ((cos, np.cos(theta)), (sin, np.sin(theta))):
        rotated = ops.convert_to_numpy(mine)[:, : theta.shape[1]]
        np.testing.assert_allclose(
            rotated, factor * other, atol=2e-4 * factor
        )  # angles are float32


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 100), (16, 64), (8, 20)])
@pytest.mark.parametrize("length", [1, 7, 150])
def test_t5s_bias(bidirectional, buckets, furthest, length, transformers, record_property):
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        num_heads=3, d_kv=8, d_model=24, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=furthest, is_decoder=not bidirectional,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    want = theirs.compute_bias(length, length).detach().numpy()  # (1, N, T, T)
    ours = bias_layer(buckets, furthest, bidirectional)
    ours.embeddings.assign(theirs.relative_attention_bias.weight.detach().numpy())
    got = ops.convert_to_numpy(ours(np.zeros((2, length), "int32")))
    record_property("difference", ("T5", "bias", float(np.abs(got - want).max()), BOUND))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (64, 256), (32, 1000), (6, 7)])
def test_t5s_buckets(bidirectional, buckets, furthest, transformers):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-3000, 3000)
    want = T5Attention._relative_position_bucket(
        torch.tensor(distances), bidirectional, buckets, furthest
    )
    got = ops.convert_to_numpy(relative_bucket(distances, buckets, furthest, bidirectional))
    np.testing.assert_array_equal(got, want.numpy())
