"""What a step of pretraining costs, in floating-point operations.

Neither Keras nor a backend is loaded.
"""

import math
from typing import Any

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.masking import predictions_per_row
from roformer_tf.pretraining.stages import Stage


def step_flops(
    config: RoFormerConfig,
    length: int,
    batch_size: int,
    predictions: int,
    keys: float | None = None,
) -> float:
    """Operations that a step needs at least, a multiplication and an addition counting as two.

    For `batch_size` rows of `length` tokens of which `predictions` are predicted. Forward 2 · P a
    token for the P weights of the layers' matrices, 4 · L · H · T a token for scores and their use;
    backward twice that: 6 · P + 12 · L · H · T. In the last layer only keys and values are counted
    for all tokens; the rest, and the head, for the predicted ones alone, as the model computes
    them. A causal language model predicts all of them: `predictions` is `length` then. What its
    mask hides counts, too, since the products are computed whole, unless `keys` says how many a
    query looks at in the mean, T by itself. Lookups, norms, activations and what rematerialisation
    computes again do not count.
    """
    hidden, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    keys_and_values = 6 * 2 * hidden**2
    keys = length if keys is None else keys
    answer = 6 * (2 * hidden**2 + 2 * hidden * inner) + 12 * hidden * keys
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
        predicted = predictions_per_row(stage.length, settings.masking.mask_rate)
    return step_flops(architecture, stage.length, stage.batch_size, predicted)


def parameters(config: RoFormerConfig) -> int:
    """Count the weights of a language model: encoder, and the head that scores the vocabulary."""
    sizes = {weight.name: weight.shape for weight in table(config) if weight.part in _PARTS}
    return sum(math.prod(shape) for shape in sizes.values())


_PARTS = ("encoder", "mlm")
