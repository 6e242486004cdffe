"""What a step of pretraining costs, in floating-point operations, and what a device can do.

Neither Keras nor a backend is loaded, but to ask which device there is.
"""

import math
import re
from typing import Any

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.data.masking import predictions_per_row
from roformer_tf.training.stages import Stage

PEAKS = {  # FLOP/s by a word of a device's name; the first that is there counts
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800 PCIe": 756e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090 Ti": 80e12,
    "RTX 3090": 71e12,
    "V100S": 130e12,
    "V100-PCIE": 112e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Dense products of bfloat16 summed in float32, from data sheets; of V100 and T4, which lack
bfloat16, of float16."""

_ANOTHER = r"(?![A-Za-z0-9])(?! (?:Ti|D|SUPER|Laptop)\b)"
"""Behind a word of a name: nothing that makes it another device, as in A10G or 4090 Laptop."""


def step_flops(config: RoFormerConfig, length: int, batch_size: int, predictions: int) -> float:
    """Operations that a step needs at least, a multiplication and an addition counting as two.

    For `batch_size` rows of `length` tokens of which `predictions` are predicted. Forward 2 · P a
    token for the P weights of the layers' matrices, 4 · L · H · T a token for scores and their use;
    backward twice that: 6 · P + 12 · L · H · T. In the last layer only keys and values are counted
    for all tokens; the rest, and the head, for the predicted ones alone, as the model computes
    them. A causal language model predicts all of them: `predictions` is `length` then. What its
    mask hides counts, too, since the products are computed whole. Lookups, norms, activations and
    what rematerialisation computes again do not count.
    """
    hidden, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    keys_and_values = 6 * 2 * hidden**2
    answer = 6 * (2 * hidden**2 + 2 * hidden * inner) + 12 * hidden * length
    projection = 6 * embedding * hidden if embedding != hidden else 0
    transform = 0 if config.is_v2 else 6 * hidden * embedding
    head = transform + 6 * embedding * config.vocab_size
    token = (
        projection + keys_and_values + (config.num_hidden_layers - 1) * (keys_and_values + answer)
    )
    return float(batch_size * (length * token + predictions * (answer + head)))


def stage_flops(settings: Any, stage: Stage, architecture: RoFormerConfig) -> float:
    """Operations of one step of a stage; `settings` are those of `pretrain`."""
    predicted = stage.length
    if settings.objective == "masked":
        predicted = predictions_per_row(stage.length, settings.masking.rate)
    return step_flops(architecture, stage.length, stage.batch_size, predicted)


def parameters(config: RoFormerConfig) -> int:
    """Count the weights of a language model: encoder, and the head that scores the vocabulary."""
    sizes = {weight.name: weight.shape for weight in table(config) if weight.part in _PARTS}
    return sum(math.prod(shape) for shape in sizes.values())


_PARTS = ("encoder", "mlm")


def peak_flops(name: str | None) -> float | None:
    """Operations a second of the device of this name at its best; None if it is unknown.

    A part of a GPU (MIG) can do less than the whole, so it is unknown, too.
    """
    if name is None or re.search(r"\bMIG\b", name):
        return None
    found = (peak for word, peak in PEAKS.items() if re.search(rf"\b{word}{_ANOTHER}", name))
    return next(found, None)


def device_name() -> str | None:
    """The name of the first accelerator of Keras' backend, "NVIDIA L20"; None on a processor."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")[:1]
        names = [tf.config.experimental.get_device_details(x).get("device_name") for x in found]
        return names[0] if names else None
    if keras.backend.backend() == "jax":
        import jax

        device = jax.devices()[0]
        return None if device.platform == "cpu" else str(device.device_kind)
    return None
