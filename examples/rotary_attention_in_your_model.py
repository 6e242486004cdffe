"""`RotaryMultiHeadAttention` in a model of your own. It takes no arguments.

A toy: is the last token of a row among those before it? Only attention can tell.
"""

import keras
import numpy as np

from roformer_tf import RotaryMultiHeadAttention

rng = np.random.default_rng(0)
rows = rng.integers(1, 20, (12_000, 12))
labels = (rows[:, :-1] == rows[:, -1:]).any(axis=1)

token_ids = keras.Input((None,), dtype="int32")
x = keras.layers.Embedding(20, 64)(token_ids)
for _ in range(2):
    attended = RotaryMultiHeadAttention(num_heads=4, key_dim=16)(x, x)
    x = keras.layers.LayerNormalization()(x + attended)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(64, activation="relu")(x))
model = keras.Model(token_ids, keras.layers.Dense(1, activation="sigmoid")(x[:, -1]))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(rows, labels, batch_size=64, epochs=2, validation_split=0.1, verbose=2)
