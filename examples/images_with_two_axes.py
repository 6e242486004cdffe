"""Rotary positions along two axes: handwritten digits, cut into patches. It takes no arguments.

Attention alone sees a bag of patches. What tells it where each one lies: nothing, a learned vector,
rotation along the line in which the patches are laid end to end, or rotation along rows and columns
(`rotary_positions`). Five seeds each; a few minutes on two cores.
"""

from statistics import fmean, stdev

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from roformer_tf import RotaryMultiHeadAttention

SEEDS, EXAMPLES, EPOCHS = 5, 500, 40
SIDE, PATCH, FEATURES = 4, 2, 48
STEP, BASE = 2, 3.0  # 16 patches lie near each other: large steps, and no slow pairs
STUDENT = 2.776  # of five seeds, 95 %

digits = load_digits()
images = digits.images.astype("float32").reshape(-1, SIDE, PATCH, SIDE, PATCH) / 16
patches = images.transpose(0, 1, 3, 2, 4).reshape(len(images), SIDE * SIDE, PATCH * PATCH)

line = keras.ops.arange(SIDE * SIDE)
KINDS = {
    "no positions": None,
    "learned positions": None,
    "rotary, one axis": STEP * line[:, None],
    "rotary, two axes": STEP * keras.ops.stack([line // SIDE, line % SIDE], axis=1),
}


def classifier(kind):
    """Two layers of attention over the patches, and the mean of what they give."""
    where = KINDS[kind]
    turning = {"rotary_base": BASE} if where is not None else {"rotary_share": 0.0}
    inputs = keras.Input((SIDE * SIDE, PATCH * PATCH))
    x = keras.layers.Dense(FEATURES)(inputs)
    if kind == "learned positions":
        x = x + keras.layers.Embedding(SIDE * SIDE, FEATURES)(line)
    for _ in range(2):
        attention = RotaryMultiHeadAttention(num_heads=3, key_dim=16, **turning)
        x = keras.layers.LayerNormalization()(x + attention(x, x, rotary_positions=where))
        fed = keras.layers.Dense(2 * FEATURES, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(FEATURES)(fed))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def accuracy(kind, seed):
    """Share of unseen digits that are read right; the seed decides all, the split among it."""
    keras.utils.set_random_seed(seed)
    x, unseen, y, labels = train_test_split(
        patches, digits.target, train_size=EXAMPLES, random_state=seed
    )
    model = classifier(kind)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=False)
    model.fit(x, y, batch_size=50, epochs=EPOCHS, verbose=0)
    return model.evaluate(unseen, labels, batch_size=len(labels), verbose=0)[1]


def interval(values):
    """Mean and 95 % interval, as percentages."""
    mean, reach = fmean(values), STUDENT * stdev(values) / len(values) ** 0.5
    return f"{100 * mean:6.2f} [{100 * (mean - reach):6.2f}, {100 * (mean + reach):6.2f}]"


def main():
    """Train, and print a table."""
    print(f"accuracy on unseen digits in %, mean and 95 % interval of {SEEDS} seeds\n")
    before = None
    for kind in KINDS:
        found = [accuracy(kind, seed) for seed in range(SEEDS)]
        gained = ""
        if before is not None:
            differences = [now - then for now, then in zip(found, before, strict=True)]
            gained = f"   gained over the line above {interval(differences)}"
        print(f"{kind:18}{interval(found)}{gained}", flush=True)
        before = found


if __name__ == "__main__":
    main()
