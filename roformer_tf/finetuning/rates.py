"""The default learning rate and number of epochs, by the sizes of model and training set."""

import math

from roformer_tf.config import RoFormerConfig

# Leading digits of the default rates.
SERIES = (1.0, 2.0, 5.0)
# A usual rate for released base models (2e-5 to 5e-5), their hidden size and layers.
BASE_RATE, BASE_WIDTH, BASE_DEPTH = 3e-5, 768, 12
# Largest default rate. Tiny models still train at the next larger one of the series.
HIGHEST = 1e-3
# Factor on the rate for randomly initialized weights.
FROM_SCRATCH = 2.0
# Factor on the rate of a model without a new head (measured on CHID, docs/LOG.md).
TRAINED_HEAD = 0.2
# Default number of epochs for a training set of usual size.
USUAL_EPOCHS = 3
# Of a few hundred examples these are a dozen steps, in which a new head learns little. They are
# repeated for about a task's `few_steps`, in at most this number of epochs.
MOST_EPOCHS = 10
# Learning rate times steps after which no further epoch starts: at 5e-4, 500 steps. More labels
# than 5 need more in proportion: 10,000 questions of 118 intents had 72.3 % after 2 epochs, 77.6 %
# after 3 (docs/LOG.md).
ENOUGH, ENOUGH_FOR = 0.25, 5


def default_rate(
    architecture: RoFormerConfig, from_scratch: bool = False, new_head: bool = True
) -> float:
    """The default learning rate of a model of this size: 2e-5 for a base model.

    It falls with the square of the width and the root of the depth. This connects what is usual
    for base models with the 5e-4 that was measured for 2 layers of 256 (docs/LOG.md).
    """
    width = architecture.hidden_size / BASE_WIDTH
    depth = architecture.num_hidden_layers / BASE_DEPTH
    rate = BASE_RATE / width**2 / math.sqrt(max(depth, 1 / BASE_DEPTH))
    if from_scratch:
        rate *= FROM_SCRATCH
    elif not new_head:
        rate *= TRAINED_HEAD
    return nearest(min(HIGHEST, rate))


def default_epochs(
    rate: float, steps: int, usual: int = USUAL_EPOCHS, few_steps: int = 100, labels: int = 0
) -> int:
    """The default number of epochs, each of `steps` steps: `usual`, or as the data's size needs.

    Few examples are repeated up to 10 times, until they are `few_steps` (docs/LOG.md).
    High rates overfit sooner: in an epoch, Adam moves the embedding of a rare word by some thirty
    times the rate. So at 5e-4 the examples are memorized when they are seen again (docs/LOG.md).
    At a base model's rate that takes a hundred thousand examples.
    """
    repeats = min(MOST_EPOCHS, math.ceil(few_steps / steps))
    if repeats > usual:
        return repeats
    enough = ENOUGH * max(1, labels / ENOUGH_FOR) * usual / USUAL_EPOCHS
    return max(1, min(usual, math.ceil(enough / (rate * steps))))


def nearest(rate: float) -> float:
    """The nearest rate, by ratio, of the series (1, 2, 5) · 10ⁿ."""
    power = math.floor(math.log10(rate))
    # Parsed from text: 5 * 10.0**-6 is not exactly 5e-6.
    known = [float(f"{digit:g}e{n}") for n in range(power - 1, power + 2) for digit in SERIES]
    return min(known, key=lambda value: abs(math.log(value / rate)))


def spelled(rate: float) -> str:
    """A rate as users type it: 2e-4, 1.5e-5."""
    digits, _, power = f"{rate:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
