"""Models shared by several tests, which do not change them."""

from functools import cache

import numpy as np
import pytest
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM


@pytest.fixture(scope="session")
def masked_lm(released):
    """Return a function: masked_lm("word") → the checkpoint, loaded once (do not change)."""
    return cache(lambda name: RoFormerForMaskedLM.from_pretrained(released(name)))


@pytest.fixture(scope="session")
def tiny():
    """Return a function: tiny(**changes) → the config of a small model without dropout."""
    config = RoFormerConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,  # large, so that every weight affects the output
    )
    return lambda **changes: config.replace(**changes)


@pytest.fixture(scope="session")
def inputs_of():
    """Return a function: inputs_of(arrays, prefix="") → the inputs of a model."""

    def pick(arrays, prefix=""):
        return {key: arrays[prefix + key] for key in ("token_ids", "segment_ids")}

    return pick


@pytest.fixture(scope="session")
def real_positions():
    """Return a function: real_positions(token_ids) → (B, T) bool, False at padding.

    The first position always counts as real.
    """

    def find(token_ids):
        real = token_ids != 0
        real[:, 0] = True
        return real

    return find


@pytest.fixture(scope="session")
def to_float64():
    """Return a function: to_float64(tensor) → a NumPy array, for bfloat16 as well."""
    return lambda x: ops.convert_to_numpy(x).astype(np.float64)
