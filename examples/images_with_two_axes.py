"""Rotary positions along two axes: handwritten digits, cut into patches. It takes no arguments.

Attention alone sees a bag of patches. Four encodings of their positions are compared: none, a
learned vector, rotation by the index of the flattened patches, and rotation along rows and columns
(`rotary_positions`). In images of one shape the patch below always has the same distance in the
flattened sequence, so one axis is enough. In images of two shapes, wide and tall, it has not, and
only rotation along rows and columns represents the same stroke in the same way.
Five seeds each; a few minutes on two cores.
"""

from statistics import fmean, stdev

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from roformer_tf import RotaryMultiHeadAttention

SEEDS, EXAMPLES, EPOCHS = 5, 500, 40
PATCH, FEATURES = 2, 48
STEP, BASE = 2, 3.0  # a few patches lie near each other: large steps, and no slow pairs
STUDENT = 2.776  # of five seeds, 95 %

KINDS = ("no positions", "learned positions", "rotary, one axis", "rotary, two axes")
SHAPES = {  # rows and columns of patches, as many in all shapes of a line
    "8 × 8 pixels": [(4, 4)],
    "8 × 12 and 12 × 8 pixels": [(4, 6), (6, 4)],
}
digits = load_digits()


def framed(shapes, seed):
    """Cut all digits into patches, each in the middle of an empty frame of a shape drawn for it.

    → patches (N, T, pixels), and the row and column of each (N, T, 2).
    """
    drawn = np.random.default_rng(seed).integers(len(shapes), size=len(digits.images))
    patches, places = [], []
    for image, number in zip(digits.images.astype("float32") / 16, drawn, strict=True):
        size = np.multiply(shapes[number], PATCH)
        frame = np.pad(image, [(more, more) for more in (size - image.shape) // 2])
        rows, columns = shapes[number]
        cut = frame.reshape(rows, PATCH, columns, PATCH).swapaxes(1, 2)
        patches.append(cut.reshape(rows * columns, PATCH * PATCH))
        places.append(np.indices((rows, columns), "int32").reshape(2, -1).T)
    return np.stack(patches), np.stack(places)


def classifier(kind, length):
    """Two layers of attention over the patches, and the mean of what they give."""
    patches = keras.Input((length, PATCH * PATCH))
    places = keras.Input((length, 2), dtype="int32")
    line = keras.ops.arange(length)
    axes = {"rotary, one axis": line[:, None], "rotary, two axes": places}
    where = STEP * axes[kind] if kind in axes else None
    turning = {"rotary_base": BASE} if kind in axes else {"rotary_share": 0.0}
    x = keras.layers.Dense(FEATURES)(patches)
    if kind == "learned positions":
        x = x + keras.layers.Embedding(length, FEATURES)(line)
    for _ in range(2):
        attention = RotaryMultiHeadAttention(num_heads=3, key_dim=16, **turning)
        x = keras.layers.LayerNormalization()(x + attention(x, x, rotary_positions=where))
        fed = keras.layers.Dense(2 * FEATURES, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(FEATURES)(fed))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model([patches, places], keras.layers.Dense(10)(x))


def accuracy(shapes, kind, seed):
    """Share of unseen digits that are read right; the seed decides all, split and shapes, too."""
    patches, places = framed(shapes, seed)
    x, unseen, at, unseen_at, y, labels = train_test_split(
        patches, places, digits.target, train_size=EXAMPLES, random_state=seed
    )
    keras.utils.set_random_seed(seed)
    model = classifier(kind, patches.shape[1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=False)
    model.fit([x, at], y, batch_size=50, epochs=EPOCHS, verbose=0)
    return model.evaluate([unseen, unseen_at], labels, batch_size=len(labels), verbose=0)[1]


def interval(values):
    """Mean and 95 % interval, as percentages."""
    mean, reach = fmean(values), STUDENT * stdev(values) / len(values) ** 0.5
    return f"{100 * mean:6.2f} [{100 * (mean - reach):6.2f}, {100 * (mean + reach):6.2f}]"


def main():
    """Train, and print a table."""
    print(f"accuracy on unseen digits in %, mean and 95 % interval of {SEEDS} seeds")
    for name, shapes in SHAPES.items():
        print(f"\nimages of {name}")
        before = None
        for kind in KINDS:
            accuracies = [accuracy(shapes, kind, seed) for seed in range(SEEDS)]
            gained = ""
            if before is not None:
                differences = [now - then for now, then in zip(accuracies, before, strict=True)]
                by_seed = " ".join(f"{100 * difference:+.1f}" for difference in differences)
                gained = f"   over the line above {interval(differences)}: {by_seed}"
            print(f"{kind:18}{interval(accuracies)}{gained}", flush=True)
            before = accuracies


if __name__ == "__main__":
    main()
