"""Tests of decoding token by token against the graph of full sequences."""

import numpy as np
import pytest

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.model import graph_model
from roformer_tf.engines.network import Network

step_session = pytest.importorskip(
    "roformer_tf.engines.step_session", reason="needs the extra [onnx]"
)
SLOTS, LENGTH = 12, 9


@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_steps_equal_the_full_sequence_without_keeping_the_arrays(style):
    config = RoFormerConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        rotary_style=style,
        rotary_base=100.0,
        attention_type="causal",
    )
    rng = np.random.default_rng(0)
    arrays = {row.name: rng.normal(0, 0.3, row.shape).astype("float32") for row in table(config)}
    network = Network(config, arrays, "next_token")
    ids = rng.integers(1, 40, (3, LENGTH), "int32")
    full_graph = graph_model(network, "onnx", "float32")
    expected = full_graph({"token_ids": ids, "segment_ids": np.zeros_like(ids)})

    words, segments = (
        arrays[f"encoder/embeddings/{name}/embeddings"].copy() for name in ("word", "segment")
    )
    session = step_session.StepSession(network)
    for array in arrays.values():
        array[...] = np.nan
    caches = [tuple(np.zeros((3, 3, SLOTS, 8), "float32") for _ in range(2)) for _ in range(2)]
    for position in range(LENGTH):
        angles = np.full((3, 1), position) * 100.0 ** (-np.arange(0, 8, 2) / 8)
        inputs = {
            "word": words[ids[:, position, None]],
            "segment": np.repeat(segments[None, :1], 3, axis=0),
            "cos": np.cos(angles).astype("float32"),
            "sin": np.sin(angles).astype("float32"),
            "bias": np.zeros((3, 1, 1, position + 1), "float32"),
        }
        logits = session(inputs, position, caches)
        np.testing.assert_allclose(logits, expected[:, position], atol=1e-5)
    for key, value in caches:  # slots after the last token stay empty
        assert not key[:, :, LENGTH:].any()
        assert not value[:, :, LENGTH:].any()
