"""Models that several tests read and none changes."""

from functools import cache

import numpy as np
import pytest
from keras import ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM


@pytest.fixture(scope="session")
def masked_lm(released):
    """masked_lm("word") → the released checkpoint of that name, loaded once; not to be changed."""
    return cache(lambda name: RoFormerForMaskedLM.from_pretrained(released(name)))


@pytest.fixture(scope="session")
def tiny():
    """tiny(**changes) → the config of a small model without dropout."""
    config = RoFormerConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,  # large, so that every weight shows
    )
    return lambda **changes: config.replace(**changes)


@pytest.fixture(scope="session")
def inputs_of():
    """inputs_of(arrays, prefix="") → what a model is called with."""

    def pick(arrays, prefix=""):
        return {key: arrays[prefix + key] for key in ("token_ids", "segment_ids")}

    return pick


@pytest.fixture(scope="session")
def real_positions():
    """real_positions(token_ids) → (B, T) bool; the first position always counts."""

    def find(token_ids):
        real = token_ids != 0
        real[:, 0] = True
        return real

    return find


@pytest.fixture(scope="session")
def to_float64():
    """to_float64(tensor) → NumPy, from bfloat16 too."""
    return lambda x: ops.convert_to_numpy(x).astype(np.float64)
