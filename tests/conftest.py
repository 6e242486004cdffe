"""What the tests of several folders share. Keras is loaded only by those who ask for it."""

from pathlib import Path

import numpy as np
import pytest

ORACLE = Path(__file__).parent / "fixtures" / "oracle"
RELEASED = {  # recorded outputs: the zip whose weights bert4keras computed them from
    "word": "chinese_roformer_L-2_H-32_A-4.zip",
    "word_long": "chinese_roformer_L-2_H-32_A-4.zip",
    "finetune_mlm": "chinese_roformer_L-2_H-32_A-4.zip",
    "char": "chinese_roformer-char_L-3_H-32_A-4.zip",
    "word_project": "roformer_project_L-2_H-32_A-4.zip",
    "word_adam": "thirdparty_roformer_adam_L-2_H-32_A-4.zip",
    "hf_word": "hf_word",
    "hf_char": "hf_char",
}


@pytest.fixture(scope="session")
def released():
    """released("word") → path of a tiny checkpoint in the released layout."""
    return lambda name: ORACLE / RELEASED[name]


@pytest.fixture(scope="session")
def recorded():
    """recorded("word") → the arrays that bert4keras (hf_*: transformers) computed, by key."""

    def load(name):
        with np.load(ORACLE / f"{name}.npz") as file:
            return dict(file)

    return load


@pytest.fixture(scope="session")
def gradient():
    """gradient(f, x) → ∂ Σ f(x) / ∂x as NumPy, on the running backend."""
    import keras

    def by_jax(function, x):
        import jax

        return np.asarray(jax.grad(lambda x: function(x).sum())(x))

    def by_tensorflow(function, x):
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x).numpy()

    return {"jax": by_jax, "tensorflow": by_tensorflow}[keras.backend.backend()]
